"""Topics that take nothing for three minutes, with the waits and time-outs of a real node; only in a soak."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import msgspec
import pytest

from infinite_scheduler import KafkaHandler, SmsRetryJobHandler
from infinite_scheduler.handlers.base import Handler
from infinite_scheduler.kafka.options import KafkaOptions
from infinite_scheduler.model import JobId
from infinite_scheduler.observe.events import AppResumed
from tests.kafka.test_destination_away import Make, Node, arrived, function, granted, node
from tests.services.kafka import GuardedKafka, Kafka
from tests.services.topics import make_topic

ABSENCE_S = 180

pytestmark = [
    pytest.mark.endurance,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not os.environ.get("INFINITE_SCHEDULER_SOAK"), reason="minutes: set INFINITE_SCHEDULER_SOAK=1"),
]


def kafka(options: KafkaOptions, topic: str) -> Handler:
    return KafkaHandler(options, topic)


def sms_retry(options: KafkaOptions, topic: str) -> Handler:
    return SmsRetryJobHandler(options, topic)


MAKERS: tuple[Make, ...] = (kafka, sms_retry, function)


class Absence(msgspec.Struct, frozen=True):
    """How topics come to take nothing, and how that ends."""

    name: str
    options: KafkaOptions  # of those who send
    servers: object  # for those who look at what has arrived
    begin: Callable[[str], Awaitable[None]]  # for each topic, before its node starts
    leave: Callable[[], Awaitable[None]]
    come_back: Callable[[list[str]], Awaitable[None]]
    repeats: bool = False  # a message whose time was over may be there twice


async def outlasted(absence: Absence, folder: Path) -> None:
    """Let jobs of every kind of handler wait for the end of an absence, and see that all arrive."""
    mark = JobId.make(0, 0, 0).hex()[-8:]
    topics = {f"{absence.name}-{make.__name__}-{mark}": make for make in MAKERS}
    async with AsyncExitStack() as stack:
        nodes: dict[str, Node] = {}
        for topic, make in topics.items():
            await absence.begin(topic)
            (folder / topic).mkdir()
            nodes[topic] = await stack.enter_async_context(node(folder / topic, make(absence.options, topic)))
        await absence.leave()
        back = asyncio.get_running_loop().time() + ABSENCE_S
        for one in nodes.values():
            await one.schedule()
        await asyncio.gather(*(one.is_held_back("") for one in nodes.values()))
        await asyncio.sleep(back - asyncio.get_running_loop().time())
        assert not [one for one in nodes.values() if one.of(AppResumed)], "it is still away"
        await absence.come_back(list(topics))
        await asyncio.gather(*(ends_well(one) for one in nodes.values()))
    await all_arrived(absence, nodes)


async def ends_well(one: Node) -> None:
    """Every job is done by its first attempt, and nothing is shown that would still run."""
    await one.ends_well(within="180s")
    for job_id in one.ids:
        assert not [a for a in (await one.scheduler.get(job_id)).attempts if a.finished_ms is None or a.error]


async def all_arrived(absence: Absence, nodes: Mapping[str, Node]) -> None:
    for topic, one in nodes.items():
        got = await arrived(absence.servers, topic)
        assert sorted(set(got) if absence.repeats else got) == sorted(one.ids), topic


async def nothing(*_: object) -> None:
    """There is nothing to do."""


def late_topics(servers: str) -> Absence:
    async def come_back(topics: list[str]) -> None:
        for topic in topics:
            await asyncio.to_thread(make_topic, servers, topic, 3)

    return Absence("late", KafkaOptions(servers, {}), servers, nothing, nothing, come_back)


def broker_away(broker: Kafka) -> Absence:
    async def begin(topic: str) -> None:
        await asyncio.to_thread(make_topic, broker.url, topic)

    async def leave() -> None:
        await asyncio.to_thread(broker.stop)

    async def come_back(_: list[str]) -> None:
        await asyncio.to_thread(broker.start)

    return Absence("away", KafkaOptions(broker.url, {}), broker.url, begin, leave, come_back, repeats=True)


def without_a_right(broker: GuardedKafka, rights: ExitStack) -> Absence:
    told = dict(broker.options_of(GuardedKafka.GUEST))
    options = KafkaOptions(told.pop("bootstrap.servers"), told)

    async def begin(topic: str) -> None:
        await asyncio.to_thread(make_topic, broker.options, topic)

    async def come_back(topics: list[str]) -> None:
        for topic in topics:
            rights.enter_context(granted(broker, topic))

    return Absence("right", options, broker.options, begin, nothing, come_back)


async def test_topics_that_take_nothing_for_three_minutes_get_every_job_then(
    kafka_servers: str, private_kafka: Kafka, guarded_kafka: GuardedKafka, tmp_path: Path
) -> None:
    with ExitStack() as rights:
        absences = [late_topics(kafka_servers), broker_away(private_kafka), without_a_right(guarded_kafka, rights)]
        await asyncio.gather(*(outlasted(absence, tmp_path) for absence in absences))
