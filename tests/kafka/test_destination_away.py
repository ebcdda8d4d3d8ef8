"""Jobs into topics that take nothing for a while: all of them arrive in the end, and none has paid for it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from infinite_scheduler import DestinationAway, Job, KafkaHandler, RetryPolicy, Scheduler, SmsRetryJobHandler
from infinite_scheduler.engine import destination_outage
from infinite_scheduler.handlers.base import Handler
from infinite_scheduler.handlers.python import PythonHandler
from infinite_scheduler.kafka.options import KafkaOptions
from infinite_scheduler.model import JobId
from infinite_scheduler.observe.events import AppHeldBack, AttemptFailed, DestinationUnready, Event
from infinite_scheduler.views.app import AppState, app_views
from infinite_scheduler.views.explain import Reason, explain
from tests.services.kafka import GuardedKafka, Kafka
from tests.services.topics import make_topic, read
from tests.waiting import now_ms, until_async

JOBS = 40
LEASE_MS = 10_000
SOON = {"topic.metadata.propagation.max.ms": 300}
"""A topic that is missing is said to be missing."""

Make = Callable[[KafkaOptions, str], Handler]


def kafka(options: KafkaOptions, topic: str) -> Handler:
    return KafkaHandler(options, topic, timeout_ms=1500)


def sms_retry(options: KafkaOptions, topic: str) -> Handler:
    return SmsRetryJobHandler(options, topic, timeout_ms=1500)


def function(options: KafkaOptions, topic: str) -> Handler:
    """A function as users write it, which sends with a client of its own."""
    client = Producer(options.client(message_timeout_ms=1000))

    def send(job: Job) -> None:
        errors: list[Any] = []
        try:
            client.produce(
                topic, job.payload, headers={"job-id": job.id}, on_delivery=lambda error, _: errors.append(error)
            )
        except KafkaException as error:  # the client remembers what it was told last
            raise DestinationAway(error) from error
        client.flush(5)
        (told,) = errors
        if told is not None:
            raise DestinationAway(f"the topic took nothing: {told.str()}")

    return PythonHandler(send, concurrency=1)


class Node:
    """A node with one app, whose jobs have one attempt, and what it told."""

    def __init__(self, scheduler: Scheduler, told: list[Event]) -> None:
        self.scheduler = scheduler
        self.told = told
        self.ids: list[str] = []

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.told if isinstance(event, kind)]

    async def schedule(self) -> None:
        self.ids = [
            (await self.scheduler.schedule("sms", {"campaignTaskId": number}, delay=0)).id for number in range(JOBS)
        ]

    async def is_held_back(self, why: str) -> None:
        """Wait until it is, and until everybody can see it."""
        await until_async(lambda: self.of(AppHeldBack))
        assert why in self.of(AppHeldBack)[-1].error

        async def shown() -> bool:
            found = await self.scheduler.get(self.ids[0])
            survey = await self.scheduler.survey()
            (app,) = app_views(survey, now_ms(), LEASE_MS)
            reason = explain(found, survey, now_ms=now_ms(), lease_ms=LEASE_MS).reason
            return app.state is AppState.HELD_BACK and reason is Reason.HELD_BACK

        async with asyncio.timeout(20):
            while not await shown():  # noqa: ASYNC110 - it is in the store
                await asyncio.sleep(0.05)

    async def ends_well(self, within: str = "60s") -> None:
        """Wait for all jobs: each is done by its first attempt, and none has failed."""
        for job_id in self.ids:
            found = await self.scheduler.wait(job_id, timeout=within)
            assert (found.status, found.job.attempt, found.error) == ("done", 1, None)
        assert not self.of(AttemptFailed)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(destination_outage, "PROBE_MS", (50, 200))


@asynccontextmanager
async def node(folder: Path, handler: Handler) -> AsyncIterator[Node]:
    told: list[Event] = []
    settings = {"store": {"url": f"sqlite:///{folder}/jobs.db"}, "node": {"heartbeat": "200ms"}}
    scheduler = Scheduler(settings=settings, observers=[told.append])
    scheduler.add_app("sms", handler, retry=RetryPolicy(max_attempts=1))
    async with scheduler:
        yield Node(scheduler, told)


async def arrived(servers: Any, topic: str) -> list[str]:
    return [(dict(one.headers)["job-id"] or b"").decode() for one in await asyncio.to_thread(read, servers, topic)]


@pytest.mark.parametrize("make", [kafka, sms_retry, function])
async def test_a_topic_that_is_made_later_gets_every_job_once(kafka_servers: str, tmp_path: Path, make: Make) -> None:
    topic = f"late-{JobId.make(0, 0, 0).hex()[-8:]}"
    async with node(tmp_path, make(KafkaOptions(kafka_servers, SOON), topic)) as one:
        if make is not function:  # of which nothing is known before it is called
            await until_async(lambda: one.of(DestinationUnready))
            assert f"topic '{topic}' does not exist" in one.of(DestinationUnready)[0].error
        await one.schedule()
        await one.is_held_back("nknown topic" if make is function else f"topic '{topic}' does not exist")
        await asyncio.to_thread(make_topic, kafka_servers, topic, 3)
        await one.ends_well()
    assert sorted(await arrived(kafka_servers, topic)) == sorted(one.ids)


@pytest.mark.parametrize("make", [kafka, sms_retry, function])
async def test_a_broker_that_is_away_and_comes_back_gets_every_job(
    private_kafka: Kafka, tmp_path: Path, make: Make
) -> None:
    await asyncio.to_thread(make_topic, private_kafka.url, "out")
    async with node(tmp_path, make(KafkaOptions(private_kafka.url, {}), "out")) as one:
        await asyncio.to_thread(private_kafka.stop)
        await one.schedule()
        await one.is_held_back("took")
        await asyncio.to_thread(private_kafka.start)
        await one.ends_well()
    assert set(await arrived(private_kafka.url, "out")) == set(one.ids)  # one whose time was over may be there twice


@pytest.mark.parametrize("make", [kafka, sms_retry, function])
async def test_a_right_that_is_granted_later_lets_every_job_arrive_once(
    guarded_kafka: GuardedKafka, tmp_path: Path, make: Make
) -> None:
    await asyncio.to_thread(make_topic, guarded_kafka.options, "guarded")
    told = dict(guarded_kafka.options_of(GuardedKafka.GUEST))
    servers = told.pop("bootstrap.servers")
    async with node(tmp_path, make(KafkaOptions(servers, told), "guarded")) as one:
        if make is not function:
            await until_async(lambda: one.of(DestinationUnready))
        await one.schedule()
        await one.is_held_back("authorization failed" if make is function else "not allowed")
        with granted(guarded_kafka, "guarded"):
            await one.ends_well()
    assert sorted(await arrived(guarded_kafka.options, "guarded")) == sorted(one.ids)


@contextmanager
def granted(broker: GuardedKafka, topic: str) -> Iterator[None]:
    """The guest may write to this topic."""
    admin = AdminClient(dict(broker.options))
    who = f"User:{GuardedKafka.GUEST}"
    right = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, who, "*", AclOperation.WRITE)
    for made in admin.create_acls([AclBinding(*right, AclPermissionType.ALLOW)]).values():
        made.result(30)
    try:
        yield
    finally:
        for deleted in admin.delete_acls([AclBindingFilter(*right, AclPermissionType.ALLOW)]).values():
            deleted.result(30)


async def test_a_node_that_starts_without_a_broker_says_so_and_can_be_stopped(tmp_path: Path) -> None:
    async with node(tmp_path, kafka(KafkaOptions("127.0.0.1:1", {}), "out")) as one:
        await until_async(lambda: one.of(DestinationUnready))
    assert "127.0.0.1:1" in one.of(DestinationUnready)[0].error


async def test_a_node_that_finds_its_topic_says_nothing(kafka_servers: str, tmp_path: Path, fresh_topic: Any) -> None:
    topic = fresh_topic("there")
    async with node(tmp_path, kafka(KafkaOptions(kafka_servers, {}), topic)) as one:
        await one.schedule()
        await one.ends_well()
    assert not one.of(DestinationUnready)
    assert not one.of(AppHeldBack)
