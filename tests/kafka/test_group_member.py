"""A member of a consumer group on a real broker: several topics, members that come and go, and where it stands."""

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest

from infinite_scheduler.clock import SystemClock
from infinite_scheduler.kafka.group_member import GatherLimits, GroupMember
from infinite_scheduler.kafka.options import KafkaOptions, Value
from infinite_scheduler.kafka.partition import Partition
from tests.kafka.rig import PATIENCE_S, QUICK
from tests.services.topics import MakeTopic, delete_topics, make_topic, write

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
        self.member.commit({each.partition: each.committed or 0 for each in self.member.held.values()})

    @property
    def topics(self) -> Counter[str]:
        """How many partitions of each topic it reads."""
        return Counter(each.partition.topic for each in self.member.held.values() if each.fetching)


def until(happened: Callable[[], bool], *readers: Reader) -> None:
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

    def join(topics: Sequence[str], kept: Kept, **properties: Value) -> Reader:
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
    until(has_all, first)
    assert first.topics == {one: 3, two: 2}
    last = join([one, two], kept)
    until(lambda: last.topics.total() in {2, 3} and first.topics + last.topics == {one: 3, two: 2}, first, last)
    send(range(100, 200))
    until(has_all, first, last)
    first.member.close()
    send(range(200, 300))
    until(lambda: has_all() and last.topics == {one: 3, two: 2}, last)
    assert kept.values == Counter(value.encode() for value in sent)
    until(lambda: _committed(last) == kept.offsets, last)


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
    until(lambda: b"a" in kept.values, reader)
    until(lambda: missing in client.unreadable, reader)
    assert "make it" in client.unreadable[missing]
    assert client.problem is None
    until(lambda: client.committed([Partition(there, 0)]) != {}, reader)
    make_topic(kafka_servers, missing)
    write(kafka_servers, missing, ["b"])
    until(lambda: b"b" in kept.values, reader)
    assert client.unreadable == {}
