"""A member of a consumer group on a real broker: several topics, members that come and go, and where it stands."""

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest
from confluent_kafka import Producer

from infinite_scheduler.clock import SystemClock
from infinite_scheduler.kafka.group_member import GatherLimits, GroupMember
from infinite_scheduler.kafka.options import KafkaOptions, PropertyValue
from infinite_scheduler.kafka.partition import Partition
from tests.kafka.topic_rig import QUICK
from tests.services.topics import MakeTopic, delete_topics, make_topic, write
from tests.waiting import PATIENCE_S

LIMITS = GatherLimits(messages=100, size=1 << 20, poll_ms=20)


class Kept:
    """How far each partition was read, and what was read: what a store or a mirror keeps."""

    def __init__(self) -> None:
        self.offsets: dict[Partition, int] = {}
        self.values: Counter[bytes] = Counter()


class Reader:
    """A member that keeps all that it reads."""

    def __init__(self, options: KafkaOptions, group: str, topics: Sequence[str], kept: Kept) -> None:
        self.member = GroupMember(options, group, topics, LIMITS, SystemClock())
        self._kept = kept
        self.member.open()

    def read(self) -> None:
        """One gathering, and where to begin in partitions that are new."""
        for each in self.member.held.values():
            if each.committed is None:
                each.committed = self._kept.offsets.get(each.partition, 0)
        for each, message in self.member.gather():
            if self.member.holds(each):
                self._kept.values[message.value() or b""] += 1
                each.committed = self._kept.offsets[each.partition] = (message.offset() or 0) + 1
        for each in self.member.held.values():
            if each.skippable is not None:
                each.committed = self._kept.offsets[each.partition] = each.skippable
        self.member.commit({each.partition: each.committed or 0 for each in self.member.held.values()})

    @property
    def topics(self) -> Counter[str]:
        """How many partitions of each topic it reads."""
        return Counter(each.partition.topic for each in self.member.held.values() if each.fetching)


def read_until(happened: Callable[[], bool], *readers: Reader) -> None:
    """Let these read, by turns, until this is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline, f"has not happened: {[reader.member.held for reader in readers]}"
        for reader in readers:
            reader.read()


Join = Callable[..., Reader]
"""`join([topic], kept, **properties)` is a new member of the test's group."""


@pytest.fixture
def join(kafka_servers: str) -> Iterator[Join]:
    group = f"group-{secrets.token_hex(4)}"
    joined: list[Reader] = []

    def join(topics: Sequence[str], kept: Kept, **properties: PropertyValue) -> Reader:
        joined.append(Reader(KafkaOptions(kafka_servers, {**QUICK, **properties}), group, topics, kept))
        return joined[-1]

    yield join
    for reader in joined:
        reader.member.close()


def numbers(topic: str, of: range) -> list[str]:
    return [f"{topic} {number}" for number in of]


def test_two_topics_are_read_once_while_members_come_and_go(
    kafka_servers: str, fresh_topic: MakeTopic, join: Join
) -> None:
    one, two = fresh_topic("one", partitions=3), fresh_topic("two", partitions=2)
    kept = Kept()
    sent: list[str] = []

    def send(of: range) -> None:
        for topic in (one, two):
            write(kafka_servers, topic, numbers(topic, of))
            sent.extend(numbers(topic, of))

    def has_all() -> bool:
        return len(kept.values) == len(sent)

    send(range(100))
    first = join([one, two], kept)
    read_until(has_all, first)
    assert first.topics == {one: 3, two: 2}
    last = join([one, two], kept)
    read_until(lambda: last.topics.total() in {2, 3} and first.topics + last.topics == {one: 3, two: 2}, first, last)
    send(range(100, 200))
    read_until(has_all, first, last)
    first.member.close()
    send(range(200, 300))
    read_until(lambda: has_all() and last.topics == {one: 3, two: 2}, last)
    assert kept.values == Counter(value.encode() for value in sent)
    read_until(lambda: _committed(last) == kept.offsets, last)


def _committed(reader: Reader) -> dict[Partition, int]:
    """What Kafka has for the group."""
    client = reader.member.client
    return {partition: found.offset for partition, found in client.committed(client.partitions()).items()}


@pytest.fixture
def missing(kafka_servers: str) -> Iterator[str]:
    """The name of a topic that is not there yet."""
    name = f"later-{secrets.token_hex(4)}"
    yield name
    delete_topics(kafka_servers, name)


def test_a_topic_that_is_made_later_holds_up_no_other(
    kafka_servers: str, fresh_topic: MakeTopic, join: Join, missing: str
) -> None:
    there, kept = fresh_topic("there"), Kept()
    write(kafka_servers, there, ["a"])
    reader = join([there, missing], kept)
    client = reader.member.client
    read_until(lambda: b"a" in kept.values, reader)
    read_until(lambda: missing in client.unreadable, reader)
    assert "create it" in client.unreadable[missing]
    assert client.problem is None
    read_until(lambda: client.committed([Partition(there, 0)]) != {}, reader)
    make_topic(kafka_servers, missing)
    write(kafka_servers, missing, ["b"])
    read_until(lambda: b"b" in kept.values, reader)
    assert client.unreadable == {}


class Transactions:
    """Writes to the one partition of a topic, as one transactional producer."""

    def __init__(self, servers: str, topic: str, name: str) -> None:
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": servers, "transactional.id": f"{topic}-{name}", "log_level": 0})
        self._producer.init_transactions(PATIENCE_S)

    def begin(self, *values: str) -> None:
        self._producer.begin_transaction()
        for value in values:
            self._producer.produce(self._topic, value, partition=0)
        self._producer.flush(PATIENCE_S)  # else what is aborted would not even be there

    def commit(self, *values: str) -> None:
        if values:
            self.begin(*values)
        self._producer.commit_transaction(PATIENCE_S)

    def abort(self, *values: str) -> None:
        if values:
            self.begin(*values)
        self._producer.abort_transaction(PATIENCE_S)


NEVER: dict[str, PropertyValue] = {"fetch.wait.max.ms": 30_000}
"""That a partition has no more is told later than any of these tests waits."""


def stands_at(reader: Reader, offset: int) -> Callable[[], bool]:
    """Has it read its one partition up to this offset, and no further?"""
    return lambda: [each.position for each in reader.member.held.values() if each.fetching] == [offset]


class TestPosition:
    """Neither is documented of librdkafka: its position passes control records, and with them what was aborted."""

    @pytest.mark.parametrize(
        ("steps", "values", "end"),
        [
            (["commit"], "ab", 3),  # a b C
            (["commit", "abort"], "ab", 6),  # a b C x x A
            (["abort"], "", 3),  # x x A
            (["abort", "abort", "commit", "abort"], "ab", 12),
            (["commit", "abort", "commit"], "abab", 9),
        ],
        ids=lambda steps: "-".join(steps) if isinstance(steps, list) else "",
    )
    def test_it_is_the_end_behind_control_and_aborted_records(
        self, kafka_servers: str, fresh_topic: MakeTopic, join: Join, steps: list[str], values: str, end: int
    ) -> None:
        topic, kept = fresh_topic(), Kept()
        writer = Transactions(kafka_servers, topic, "one")
        for step in steps:
            if step == "commit":
                writer.commit("a", "b")
            else:
                writer.abort("x", "x")
        reader = join([topic], kept, **NEVER)
        read_until(stands_at(reader, end), reader)
        assert kept.values == Counter(value.encode() for value in values)
        reader.member.note_ends()
        (assigned,) = reader.member.held.values()
        assert (assigned.committed, assigned.lag) == (end, 0)

    def test_it_moves_on_while_nothing_but_transactions_ends(
        self, kafka_servers: str, fresh_topic: MakeTopic, join: Join
    ) -> None:
        topic, kept = fresh_topic(), Kept()
        writer = Transactions(kafka_servers, topic, "one")
        writer.commit("a")
        reader = join([topic], kept, **NEVER)
        read_until(stands_at(reader, 2), reader)
        for end in (4, 6, 8):
            writer.abort("x")
            read_until(stands_at(reader, end), reader)
        assert kept.offsets == {Partition(topic, 0): 8}

    def test_it_is_the_place_of_the_first_record_of_a_transaction_that_is_open(
        self, kafka_servers: str, fresh_topic: MakeTopic, join: Join
    ) -> None:
        topic, kept = fresh_topic(), Kept()
        writer, other = (Transactions(kafka_servers, topic, name) for name in ("one", "two"))
        writer.commit("a")
        writer.abort("x", "x")
        other.begin("b")
        reader = join([topic], kept, **NEVER)
        read_until(stands_at(reader, 5), reader)
        assert kept.values == {b"a": 1}
        other.commit()
        read_until(stands_at(reader, 7), reader)
        assert kept.values == {b"a": 1, b"b": 1}

    def test_what_was_aborted_before_an_open_transaction_is_passed_though_its_control_record_is_behind_it(
        self, kafka_servers: str, fresh_topic: MakeTopic, join: Join
    ) -> None:
        """librdkafka's position does not move here: it tells that there is no more, when a fetch has waited."""
        topic, kept = fresh_topic(), Kept()
        writer, other = (Transactions(kafka_servers, topic, name) for name in ("one", "two"))
        writer.begin("x", "x")
        other.begin("b")
        writer.abort()
        reader = join([topic], kept)
        read_until(stands_at(reader, 2), reader)
        assert kept.values == {}
        other.commit()
        read_until(stands_at(reader, 5), reader)
        assert kept.values == {b"b": 1}
