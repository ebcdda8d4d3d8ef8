"""Jobs into topics of a real Apache Kafka."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import count, islice
from pathlib import Path
from typing import Any

from infinite_scheduler import DestinationAway, KafkaHandler, SmsRetryJobHandler, SmsRetryProducer
from infinite_scheduler.handlers.kafka import TopicHandler
from infinite_scheduler.kafka.options import KafkaOptions
from infinite_scheduler.model import Done, Failed, Job, JobId
from tests.services.kafka import GuardedKafka, Kafka
from tests.services.topics import MakeTopic, make_topic, read


def job(number: int = 0, payload: bytes | None = None) -> Job:
    return Job(
        key=JobId.make(1_762_207_200_000, number % 16, 1),
        app="sms",
        due_ms=1_762_207_200_000,
        scheduled_ms=1_762_207_200_000,
        payload=payload or b'{"n": %d}' % number,
        created_ms=0,
    )


@asynccontextmanager
async def running(handler: TopicHandler) -> AsyncIterator[TopicHandler]:
    await handler.start()
    try:
        yield handler
    finally:
        await handler.stop()


async def handed_over(handler: TopicHandler, *jobs: Job) -> list[Any]:
    outcomes: dict[str, Any] = {}

    def report(one: Job, outcome: Any) -> None:
        assert one.id not in outcomes
        outcomes[one.id] = outcome

    await handler.handle(jobs, report)
    return [outcomes[one.id] for one in jobs]


def options_of(broker: GuardedKafka, user: str = GuardedKafka.GUEST) -> KafkaOptions:
    told = {**broker.options_of(user)}
    servers = told.pop("bootstrap.servers")
    own = {name: value for name, value in told.items() if name.startswith(("sasl.", "security."))}
    return KafkaOptions(servers, own)


async def found_in(servers: Any, topic: str) -> list[Any]:
    return await asyncio.to_thread(read, servers, topic)


JAVA = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}


async def test_a_message_has_its_key_headers_and_exact_numbers_on_javas_partition(
    kafka_servers: str, fresh_topic: MakeTopic
) -> None:
    topic = fresh_topic("out", partitions=7)
    jobs = [job(payload=b'{"k": "%b", "id":9007199254740993, "x" : 1.10}' % key.encode()) for key in JAVA]
    async with running(KafkaHandler(kafka_servers, topic, key="{k}", headers={"kind": "test"})) as handler:
        assert await handed_over(handler, *jobs) == [Done()] * len(JAVA)
    found = {each.key.decode(): each for each in await found_in(kafka_servers, topic)}
    assert {key: each.partition for key, each in found.items()} == {
        key: (code & 0x7FFFFFFF) % 7 for key, code in JAVA.items()
    }
    for one in jobs:
        each = found[one.data["k"]]
        assert each.value.endswith(b'"topicName":"%b","jobParams":%b}' % (topic.encode(), one.payload))
        assert dict(each.headers)["job-id"] == one.id.encode()
        assert dict(each.headers)["kind"] == b"test"


async def test_what_a_topic_refuses_for_its_size_fails_and_takes_no_other_with_it(
    kafka_servers: str, fresh_topic: MakeTopic
) -> None:
    topic = fresh_topic("small", **{"max.message.bytes": "2000"})
    jobs = [job(n) for n in range(50)]  # together they are larger than the topic takes
    large = job(payload=b'{"x": "%b"}' % (b"x" * 5000))
    async with running(KafkaHandler(kafka_servers, topic, value="data")) as handler:
        outcomes = await handed_over(handler, *jobs[:25], large, *jobs[25:])
    assert outcomes.pop(25).reason.startswith(f"the message is too large for topic '{topic}': send less")
    assert outcomes == [Done()] * 50
    assert len(await found_in(kafka_servers, topic)) == 50


async def test_a_message_above_all_limits_fails(kafka_servers: str, fresh_topic: MakeTopic) -> None:
    topic = fresh_topic("limits")
    large = [job(payload=b'"%b"' % (b"x" * size)) for size in (2_000_000, 11_000_000)]
    async with running(KafkaHandler(kafka_servers, topic, value="data")) as handler:
        outcomes = await handed_over(handler, *large, job())
    assert [type(outcome) for outcome in outcomes] == [Failed, Failed, Done]


SOON = {"topic.metadata.propagation.max.ms": 500}
"""A topic that is missing is said to be missing."""


async def test_a_topic_that_is_missing_is_named(kafka_servers: str) -> None:
    async with running(KafkaHandler(kafka_servers, "never-made", timeout_ms=20_000, properties=SOON)) as handler:
        (error,) = await handed_over(handler, job())
    assert f"topic 'never-made' does not exist on {kafka_servers}: create it" in str(error)
    assert isinstance(error, DestinationAway)


async def test_a_user_without_the_right_is_told_so(guarded_kafka: GuardedKafka) -> None:
    await asyncio.to_thread(make_topic, guarded_kafka.options, "guarded")
    async with running(KafkaHandler(options_of(guarded_kafka), "guarded", timeout_ms=15_000)) as handler:
        (error,) = await handed_over(handler, job())
    assert isinstance(error, DestinationAway)
    assert "not allowed" in str(error)


async def test_a_wrong_password_is_told_without_it(guarded_kafka: GuardedKafka) -> None:
    told = {**guarded_kafka.options, "sasl.password": "wr0ng-s3cret"}
    servers = told.pop("bootstrap.servers")
    own = {name: value for name, value in told.items() if name.startswith(("sasl.", "security."))}
    async with running(KafkaHandler(KafkaOptions(servers, own), "guarded", timeout_ms=4500)) as handler:
        (error,) = await handed_over(handler, job())
    assert isinstance(error, DestinationAway)
    assert "refuses the login" in str(error)
    assert "wr0ng-s3cret" not in str(error)


async def test_a_broker_that_restarts_in_the_middle_loses_nothing_and_doubles_nothing(private_kafka: Kafka) -> None:
    await asyncio.to_thread(make_topic, private_kafka.url, "out", 3)
    numbers = count()
    outcomes: list[Any] = []
    longest_s = 0.0
    async with running(KafkaHandler(private_kafka.url, "out", value="data", timeout_ms=120_000)) as handler:
        restart: asyncio.Task[None] | None = None
        while restart is None or not restart.done():
            began = time.monotonic()
            outcomes += await handed_over(handler, *(job(number) for number in islice(numbers, 100)))
            longest_s = max(longest_s, time.monotonic() - began)
            restart = restart or asyncio.create_task(asyncio.to_thread(private_kafka.restart))
        await restart
    assert longest_s > 1  # some were under way when it went away
    assert Counter(map(type, outcomes)) == {Done: len(outcomes)}, {str(o) for o in outcomes if not isinstance(o, Done)}
    found = Counter(json.loads(each.value)["n"] for each in await found_in(private_kafka.url, "out"))
    assert found == Counter(range(len(outcomes)))


async def test_an_sms_goes_from_the_producers_topic_to_the_senders(
    kafka_servers: str, fresh_topic: MakeTopic, tmp_path: Path
) -> None:
    retries, sends = fresh_topic("SMS_Retry", partitions=6), fresh_topic("SMS_Send", partitions=6)

    def ask() -> None:
        with SmsRetryProducer(kafka_servers, retries) as producer:
            producer.schedule_retry(
                9007199254740993, datetime(2025, 11, 13, 15, 0, tzinfo=UTC), "2025-11-13 15:30:00", 2
            )

    await asyncio.to_thread(ask)
    (asked,) = await found_in(kafka_servers, retries)
    message = json.loads(asked.value)
    async with running(SmsRetryJobHandler(kafka_servers, sends)) as handler:
        handler.check(message["jobData"])
        assert await handed_over(handler, job(payload=json.dumps(message["jobData"]).encode())) == [Done()]
    (found,) = await found_in(kafka_servers, sends)
    assert found.key == b"task-9007199254740993" == asked.key
    assert found.partition == asked.partition
    value = json.loads(found.value)
    assert list(value) == ["campaignTaskId", "createdOn", "scheduledRetryTime", "actualExecutionTime", "retryAttempt"]
    assert value["scheduledRetryTime"] == "2025-11-13 15:30:00"
