"""A topic door and its brokers: away, forbidden, without the topic, with another topic of the same name."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partialmethod
from pathlib import Path

import pytest

from infinite_scheduler.ingest.dead_letters import DeadLetterSender
from infinite_scheduler.ingest.door import TopicDoor
from infinite_scheduler.ingest.status import look
from infinite_scheduler.kafka.admin import Admin
from infinite_scheduler.kafka.partition import Partition
from infinite_scheduler.observe import events
from tests.kafka.topic_rig import TopicRig, message, messages, rig
from tests.services.kafka import GuardedKafka, Kafka
from tests.services.topics import MakeTopic, fresh_topics, grow_topic, make_topic, until_usable, write
from tests.waiting import until_async


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Doors that look often whether their topic can be read."""
    monkeypatch.setattr("infinite_scheduler.ingest.door_health.PROBE_MS", 100)
    monkeypatch.setattr("infinite_scheduler.ingest.door_health.WELL_MS", 1000)
    monkeypatch.setattr("infinite_scheduler.kafka.group_client._PROBE_S", 0.5)


async def probed(door: TopicDoor, times: int) -> None:
    """Wait until the door has looked so often, and the event loop has heard of it."""
    probe, looks = door._consumer.probe, 0

    def counted() -> None:
        nonlocal looks
        probe()
        looks += 1

    door._consumer.probe = counted  # type: ignore[method-assign]
    await until_async(lambda: looks > times)


@pytest.mark.usefixtures("hasty")
async def test_brokers_that_cannot_be_reached_are_told_once_and_tried_for_ever(tmp_path: Path) -> None:
    async with rig(tmp_path, "127.0.0.1:1", "jobs") as away:
        door = away.door()
        began = time.monotonic()
        door.start()
        assert time.monotonic() - began < 1
        assert door.is_running
        await until_async(lambda: away.heard(events.TopicAway))
        await probed(door, 2)
        (told,) = away.heard(events.TopicAway)
        assert "127.0.0.1:1" in told.error
        assert "is it running there?" in told.error
        assert not door.ready
        assert "is it running there?" in str(door.problem)


@pytest.mark.usefixtures("hasty")
async def test_a_topic_that_does_not_exist_is_told_once_and_read_when_it_is_there(
    tmp_path: Path, kafka_servers: str
) -> None:
    with fresh_topics(kafka_servers) as make:
        topic = f"{make('other')}-later"
        async with rig(tmp_path, kafka_servers, topic) as missing:
            door = missing.door()
            door.start()
            await until_async(lambda: missing.heard(events.TopicAway))
            await probed(door, 3)
            (told,) = missing.heard(events.TopicAway)
            assert f"topic '{topic}' does not exist" in told.error
            assert not door.ready
            await asyncio.to_thread(make_topic, kafka_servers, topic, partitions=2)
            await missing.send(messages(range(20)))
            await missing.has(range(20))
            await until_async(lambda: door.ready)
            await until_async(lambda: missing.heard(events.TopicBack))
            assert len(missing.heard(events.TopicAway)) == 1


async def test_partitions_that_are_added_are_read(real: TopicRig) -> None:
    await real.started()
    await asyncio.to_thread(grow_topic, real.servers, real.topic, 8)
    for partition in range(8):
        await real.send(messages(range(10 * partition, 10 * partition + 10)), partition=partition)
    await real.has(range(80))
    assert await real.positions() == dict.fromkeys(range(8), 10)


@pytest.mark.parametrize("running", [True, False], ids=["while it is read", "between two starts"])
async def test_a_topic_that_was_made_anew_is_read_from_its_beginning(
    tmp_path: Path, kafka_servers: str, fresh_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch, running: bool
) -> None:
    from confluent_kafka.admin import AdminClient

    monkeypatch.setattr("infinite_scheduler.ingest.door_health.WATCH_MS", 500)
    monkeypatch.setattr("infinite_scheduler.ingest.topic_watch._WAIT_MS", 20_000)  # a broker may be slow to tell
    topic = fresh_topic("anew", partitions=1)
    async with rig(tmp_path, kafka_servers, topic) as anew:
        await anew.send(messages(range(5)))
        door = await anew.started()
        await anew.has(range(5))
        if not running:
            await door.stop()
        admin = AdminClient({"bootstrap.servers": kafka_servers})
        await asyncio.to_thread(admin.delete_topics([topic], operation_timeout=20)[topic].result)
        await asyncio.to_thread(_make_again, kafka_servers, topic)
        await anew.send(messages(range(5, 25)))  # more than there were, so that the old offset is in range
        if not running:
            await anew.started()
        await until_async(lambda: len(anew.numbers()) == 25, within_s=40)
        # A topic that ended before the old offset for a moment is read from its beginning for that reason first.
        await until_async(lambda: anew.heard(events.TopicAnew), within_s=40)
        if not running:  # else some may have been read by their old offsets before it was noticed
            assert set(anew.numbers().values()) == {1}


def _make_again(servers: str, topic: str) -> None:
    from confluent_kafka import KafkaException

    for _ in range(100):
        try:
            make_topic(servers, topic)
        except KafkaException:  # it is still being deleted
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(f"{topic} cannot be made again")


async def test_a_broker_that_dies_and_comes_back_costs_time_only_and_a_door_can_be_shut_meanwhile(
    tmp_path: Path, private_kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infinite_scheduler.ingest.door_health.WELL_MS", 2500)
    monkeypatch.setattr("infinite_scheduler.kafka.group_client._LEAVE_S", 1.0)
    monkeypatch.setattr(DeadLetterSender, "stop", partialmethod(DeadLetterSender.stop, timeout_s=1.0))
    (tmp_path / "other").mkdir()
    make_topic(private_kafka.url, "jobs", partitions=3)
    make_topic(private_kafka.url, "dlq")
    async with (
        rig(tmp_path, private_kafka.url, "jobs", "dlq") as bumpy,
        rig(tmp_path / "other", private_kafka.url, "jobs", "dlq") as other,
    ):
        door, leaving = await bumpy.started(properties={"session.timeout.ms": 2000}), await other.started()
        await bumpy.send([*messages(range(100)), "bad 1"])
        for each in (bumpy, other):
            await each.has(range(100))
        await asyncio.to_thread(private_kafka.kill)
        leaving._consumer.commit({Partition("jobs", 0): 1})  # librdkafka would wait for ever to get rid of it
        for each in (bumpy, other):
            await until_async(lambda each=each: each.heard(events.TopicAway))  # type: ignore[misc]
        assert not door.ready
        async with asyncio.timeout(10):
            await leaving.stop()
        await asyncio.to_thread(private_kafka.start)
        await asyncio.to_thread(until_usable, private_kafka.url, "jobs", 3)
        await bumpy.send([*messages(range(100, 200)), "bad 2"])
        await bumpy.has(range(200), within_s=60)
        await until_async(lambda: door.metrics["messagesSentToDLQ"] == 2, within_s=60)
        await until_async(lambda: bumpy.heard(events.TopicBack))
        assert door.ready
        assert (len(bumpy.heard(events.TopicAway)), len(bumpy.heard(events.TopicBack))) == (1, 1)


async def transactions(real: TopicRig, numbers: Iterable[int], partition: int = 0) -> None:
    """Each number in a transaction of its own: the odd ones are committed, the even ones aborted."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": str(real.servers), "transactional.id": real.topic})
    await asyncio.to_thread(producer.init_transactions, 20)
    for number in numbers:
        producer.begin_transaction()
        producer.produce(real.topic, message(number), partition=partition)
        producer.flush(20)  # else what is aborted would not even be there
        await asyncio.to_thread(producer.commit_transaction if number % 2 else producer.abort_transaction, 20)


async def test_only_what_a_transaction_has_committed_is_read(real: TopicRig) -> None:
    await transactions(real, range(6))
    await real.started()
    await real.has([1, 3, 5])
    assert not await real.letters()


async def test_marks_of_transactions_are_no_lag(real: TopicRig) -> None:
    """Behind the last message are two marks and an aborted one, and partition 1 has nothing else."""
    await transactions(real, [1, 2])
    await transactions(real, [4], partition=1)
    door = await real.started()
    await real.has([1])
    await until_async(lambda: set(door.lag.values()) == {0})
    assert {partition: position for partition, position in (await real.positions()).items() if position} == {0: 4, 1: 2}
    status = await look(real.config(), real.inbox)
    assert (status.lag, status.ready) == (0, True)
    async with Admin(real.config().options) as admin:
        await until_it_has({0: 4, 1: 2}, lambda: admin.committed(real.group, real.topic, [0, 1]))
    await transactions(real, [5, 7, 8])
    await real.has([1, 5, 7])
    await until_it_has({0: 10, 1: 2}, real.positions)
    assert not real.heard(events.PositionsOvertaken)


async def until_it_has(wanted: Mapping[int, int], ask: Callable[[], Awaitable[Mapping[int, int]]]) -> None:
    """Wait until these partitions are there, by whom is asked."""

    found: Mapping[int, int] = {}

    async def has_it() -> bool:
        nonlocal found
        found = await ask()
        return wanted.items() <= found.items()

    await until_async(has_it, lambda: f"{wanted}, but it has {found}", every_s=0.05)


@pytest.mark.usefixtures("hasty")
async def test_missing_rights_are_told_with_what_to_change(tmp_path: Path, guarded_kafka: GuardedKafka) -> None:
    with fresh_topics(guarded_kafka.options) as make:
        async with rig(tmp_path, guarded_kafka.options_of("guest"), make("jobs")) as guest:
            door = guest.door()
            door.start()
            await until_async(lambda: guest.heard(events.TopicAway))
            await probed(door, 10)
            (told,) = guest.heard(events.TopicAway)
            assert "not allowed to use" in told.error
            assert "grant this user the right" in told.error
            assert not door.ready
            assert not guest.heard(events.TopicBack)


async def test_a_wrong_password_is_told_and_shown_to_nobody(tmp_path: Path, guarded_kafka: GuardedKafka) -> None:
    options = {**guarded_kafka.options, "sasl.password": "wrong-and-secret"}
    async with rig(tmp_path, options, "jobs") as stranger:
        door = stranger.door()
        door.start()
        await until_async(lambda: stranger.heard(events.TopicAway))
        (told,) = stranger.heard(events.TopicAway)
        assert "refuses the login" in told.error
        assert not any("wrong-and-secret" in str(event) for event in stranger.told)


async def test_a_password_opens_the_door(tmp_path: Path, guarded_kafka: GuardedKafka) -> None:
    with fresh_topics(guarded_kafka.options) as make:
        async with rig(tmp_path, guarded_kafka.options, make("jobs"), make("dlq")) as trusted:
            door = await trusted.started()
            await trusted.send([message(1), "bad"])
            await trusted.has([1])
            await until_async(lambda: door.metrics["messagesSentToDLQ"])
            assert (door.ready, door.metrics["messagesSentToDLQ"]) == (True, 1)


async def test_a_message_of_ten_megabytes_is_kept_and_the_next_ones_go_on(
    tmp_path: Path, kafka_servers: str, fresh_topic: MakeTopic
) -> None:
    topic = fresh_topic("large", partitions=1, **{"max.message.bytes": "20000000"})
    async with rig(tmp_path, kafka_servers, topic, fresh_topic("dlq")) as large:
        await asyncio.to_thread(write, kafka_servers, topic, [message(1), b"y" * 10_000_000, message(2)])
        await large.started()
        await large.has([1, 2])
        (letter,) = await large.letters()
        assert letter.value == b"y" * 10_000_000
        assert "the message has 10000000 bytes" in letter.error
        await until_async(lambda: large.heard(events.DeadLettersRefused))


async def test_the_broker_inside_of_librdkafka_will_do(
    tmp_path: Path, mock_kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infinite_scheduler.ingest.topic_watch._WAIT_MS", 200)  # it does not tell which topic it is
    async with rig(tmp_path, mock_kafka, "jobs", "dlq") as inside:
        await inside.send([*messages(range(50)), "bad"])
        door = await inside.started()
        await inside.has(range(50))
        await until_async(lambda: door.metrics["messagesSentToDLQ"] == 1)
        await door.stop()
        await inside.send(messages(range(50, 60)))
        again = await inside.started()
        await inside.has(range(60))
        await until_async(lambda: again.metrics["messagesReceived"] >= 10)
        await again.stop()
        assert again.metrics["messagesReceived"] == 10, "what was taken before is read again"


async def test_a_consumer_that_is_shut_out_is_told_and_made_anew(real: TopicRig) -> None:
    """Two nodes with one `group.instance.id`: the second takes the place of the first."""
    first = await real.started(properties={"group.instance.id": "node-1"})
    second = real.door(properties={"group.instance.id": "node-1"})
    second.start()
    await until_async(lambda: any("give every node its own" in told.error for told in real.heard(events.TopicAway)))
    await second.stop()
    await real.send(messages([1, 2, 3]))
    await real.has([1, 2, 3])
    await until_async(lambda: first.ready)
    assert (first.problem, second.is_running) == (None, False)
