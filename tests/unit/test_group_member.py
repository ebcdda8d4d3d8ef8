"""What a consumer keeps of what librdkafka gives it: only what is expected of partitions that are read."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from infinite_scheduler.errors import BrokerUnavailable, ConfigError
from infinite_scheduler.kafka.group_member import AGAIN_MS, GatherLimits, GroupMember, bytes_of, parts
from infinite_scheduler.kafka.options import KafkaOptions
from infinite_scheduler.kafka.partition import AssignedPartition, Partition
from infinite_scheduler.testing import ManualClock

ROOM = 4 << 20
TOPIC = "jobs"


class Message:
    def __init__(self, partition: int, offset: int, value: bytes = b"x", *, topic: str = TOPIC) -> None:
        self._topic, self._partition, self._offset, self._value = topic, partition, offset, value

    def error(self) -> None:
        return None

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def key(self) -> None: ...

    def __len__(self) -> int:
        return len(self._value)


class Kafka:
    """Remembers what it was told to fetch; a fetched partition may be added once, and only a fetched one removed."""

    def __init__(self) -> None:
        self.fetched: dict[int | tuple[str, int], int] = {}  # of the other topic with its name
        self.committed: list[tuple[int, int]] = []
        self.clock = ManualClock()
        self.queue: list[Message] = []
        self.polls: list[float] = []
        self.asked: list[int] = []
        self.slowness_ms = 0
        self.positions: dict[int, int] = {}

    def incremental_assign(self, partitions: Any) -> None:
        for each in partitions:
            assert _name(each) not in self.fetched
            self.fetched[_name(each)] = each.offset

    def incremental_unassign(self, partitions: Any) -> None:
        for each in partitions:
            del self.fetched[_name(each)]

    def position(self, partitions: Any) -> list[Any]:
        return [replace(each, self.positions.get(each.partition, -1001)) for each in partitions]

    def poll(self, timeout: float) -> Message | None:
        self.polls.append(timeout)
        self.clock.advance(round(timeout * 1000))
        return self.queue.pop(0) if self.queue else None

    def consume(self, count: int, timeout: float) -> list[Message]:
        assert timeout == 0
        self.asked.append(count)
        self.clock.advance(self.slowness_ms)
        found, self.queue = self.queue[:count], self.queue[count:]
        return found

    def commit(self, offsets: Any, asynchronous: bool) -> None:
        self.committed += [(each.partition, each.offset) for each in offsets]


def replace(partition: Any, offset: int) -> Any:
    from confluent_kafka import TopicPartition

    return TopicPartition(partition.topic, partition.partition, offset)


def _name(partition: Any) -> int | tuple[str, int]:
    return partition.partition if partition.topic == TOPIC else (partition.topic, partition.partition)


@pytest.fixture
def kafka() -> Kafka:
    return Kafka()


@pytest.fixture
def consumer(kafka: Kafka) -> GroupMember:
    return new(kafka)


def new(kafka: Kafka, *, topics: Sequence[str] = (TOPIC,), **limits: Any) -> GroupMember:
    bounds = GatherLimits(messages=5000, size=ROOM, **limits)
    member = GroupMember(KafkaOptions("localhost:9092"), "readers", topics, bounds, kafka.clock)
    member.client._client = kafka  # type: ignore[assignment]
    return member


def given(consumer: GroupMember, kafka: Kafka, *numbers: int, topic: str = TOPIC) -> list[AssignedPartition]:
    from confluent_kafka import TopicPartition

    consumer._assigned(kafka, [TopicPartition(topic, number) for number in numbers])  # type: ignore[arg-type]
    return [consumer.held[Partition(topic, number)] for number in numbers]


def taken(consumer: GroupMember, kafka: Kafka, *numbers: int, topic: str = TOPIC) -> None:
    from confluent_kafka import TopicPartition

    consumer._revoked(kafka, [TopicPartition(topic, number) for number in numbers])  # type: ignore[arg-type]


def kept(consumer: GroupMember, *messages: Message) -> list[tuple[int, int]]:
    gathered: list[Any] = []
    consumer._keep(messages, gathered)  # type: ignore[arg-type]
    return [(assigned.partition.number, message.offset()) for assigned, message in gathered]


def test_nothing_is_fetched_before_its_place_is_known(consumer: GroupMember, kafka: Kafka) -> None:
    (assigned,) = given(consumer, kafka, 3)
    consumer.fetch([assigned])
    assert kafka.fetched == {}
    assert kept(consumer, Message(3, 0)) == []
    assigned.committed = 7
    consumer.fetch([assigned])
    assert kafka.fetched == {3: 7}
    assert kept(consumer, Message(3, 7)) == [(3, 7)]


def test_what_lies_before_the_place_is_skipped_and_gaps_are_not(consumer: GroupMember, kafka: Kafka) -> None:
    (assigned,) = given(consumer, kafka, 3)
    assigned.committed = 7
    consumer.fetch([assigned])
    assert kept(consumer, Message(3, 6), Message(3, 7), Message(3, 7), Message(3, 12)) == [(3, 7), (3, 12)]


def test_messages_of_partitions_that_are_not_read_are_dropped(consumer: GroupMember, kafka: Kafka) -> None:
    one, two = given(consumer, kafka, 1, 2)
    one.committed = two.committed = 0
    consumer.fetch([one, two])
    consumer.drop([one])
    taken(consumer, kafka, 2)
    assert kafka.fetched == {}
    assert kept(consumer, Message(1, 0), Message(2, 0), Message(9, 0)) == []


def test_a_partition_that_comes_back_is_another_share(consumer: GroupMember, kafka: Kafka) -> None:
    (before,) = given(consumer, kafka, 3)
    before.committed = 5
    consumer.fetch([before])
    taken(consumer, kafka, 3)
    (after,) = given(consumer, kafka, 3)
    assert after is not before
    assert not consumer.holds(before)
    assert after.committed is None


def test_partitions_of_the_same_number_in_two_topics_are_not_confused(kafka: Kafka) -> None:
    member = new(kafka, topics=[TOPIC, "more"])
    (one,), (two,) = given(member, kafka, 0), given(member, kafka, 0, topic="more")
    one.committed, two.committed = 5, 7
    member.fetch([one, two])
    assert kafka.fetched == {0: 5, ("more", 0): 7}
    gathered: list[Any] = []
    member._keep([Message(0, 7, topic="more"), Message(0, 5), Message(0, 6, topic="more")], gathered)  # type: ignore[list-item]
    assert [(each.partition, message.offset()) for each, message in gathered] == [(("more", 0), 7), ((TOPIC, 0), 5)]
    taken(member, kafka, 0, topic="more")
    assert (kafka.fetched, list(member.held)) == ({0: 5}, [(TOPIC, 0)])


def test_a_topic_that_cannot_be_read_is_told_and_is_no_trouble_to_the_other(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    from confluent_kafka import KafkaError

    member = new(kafka, topics=[TOPIC, "more"])
    client = member.client
    gone = {"more"}

    def list_topics(topic: str, timeout: float) -> Any:
        found = error(KafkaError.UNKNOWN_TOPIC_OR_PART) if topic in gone else None
        return SimpleNamespace(topics={topic: SimpleNamespace(error=found)})

    monkeypatch.setattr(kafka, "list_topics", list_topics, raising=False)
    client.fail(error(KafkaError.UNKNOWN_TOPIC_OR_PART), "more")
    for _ in range(2):
        assert (client.problem, list(client.unreadable)) == (None, ["more"])
        assert "topic 'more' does not exist" in client.unreadable["more"]
        given(member, kafka, 0)
        member.probe()
    member.commit({Partition(TOPIC, 0): 5})
    member.stay()
    assert kafka.committed == [(0, 5)], "the other topic is well"
    gone.add(TOPIC)
    member.probe()
    assert "topic 'jobs' does not exist" in (client.problem or "")
    gone.clear()
    given(member, kafka, 1)
    assert list(client.unreadable) == ["more"]
    member.probe()
    assert (client.problem, client.unreadable) == (None, {})


def test_a_missing_right_is_told_until_messages_of_its_topic_come(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    from confluent_kafka import KafkaError

    member = new(kafka, topics=[TOPIC, "more"])
    monkeypatch.setattr(kafka, "list_topics", lambda topic, timeout: SimpleNamespace(topics={}), raising=False)
    for each in (*given(member, kafka, 0), *given(member, kafka, 0, topic="more")):
        each.committed = 0
    member.fetch(member.held.values())
    member.client.fail(error(KafkaError.TOPIC_AUTHORIZATION_FAILED), "more")
    kept(member, Message(0, 0))
    member.probe()  # which does not see that the right to read is missing
    assert "not allowed to use topic 'more'" in member.client.unreadable["more"]
    kept(member, Message(0, 0, topic="more"))
    assert member.client.unreadable == {}


def test_in_doubt_nothing_is_fetched_until_the_place_is_asked_again(consumer: GroupMember, kafka: Kafka) -> None:
    (assigned,) = given(consumer, kafka, 3)
    assigned.committed = 5
    consumer.fetch([assigned])
    consumer.forget([assigned])
    consumer.fetch([assigned])
    assert kafka.fetched == {}
    assert kept(consumer, Message(3, 5)) == []


def test_kafka_hears_of_places_before_a_partition_goes(consumer: GroupMember, kafka: Kafka) -> None:
    one, two = given(consumer, kafka, 1, 2)
    consumer.commit({Partition(TOPIC, number): 10 * number for number in (1, 2, 7)})
    taken(consumer, kafka, 1)
    assert kafka.committed == [(1, 10), (2, 20)]
    assert consumer.holds(two)
    assert not consumer.holds(one)


def test_a_partition_that_is_not_fetched_can_go(consumer: GroupMember, kafka: Kafka) -> None:
    given(consumer, kafka, 1)
    taken(consumer, kafka, 1, 2)
    assert consumer.held == {}


def reading(kafka: Kafka, **limits: Any) -> GroupMember:
    """A consumer that reads partition 0 from its beginning."""
    made = new(kafka, **limits)
    (assigned,) = given(made, kafka, 0)
    assigned.committed = 0
    return made


@pytest.mark.parametrize("timeout_ms", [50, 1000, 2500])
def test_a_poll_waits_as_long_as_it_is_told(kafka: Kafka, timeout_ms: int) -> None:
    assert reading(kafka, poll_ms=timeout_ms).gather() == []
    assert sum(kafka.polls) == pytest.approx(timeout_ms / 1000)
    assert max(kafka.polls) <= 0.1  # so that a stop need not wait for longer


def test_a_stop_ends_a_poll(kafka: Kafka) -> None:
    consumer = reading(kafka)
    consumer.stop()
    assert consumer.gather() == []
    assert kafka.polls == []


@pytest.mark.parametrize("records", [1, 100, 500])
def test_no_more_than_max_poll_records_are_asked_for_at_once(kafka: Kafka, records: int) -> None:
    kafka.queue = [Message(0, number) for number in range(1200)]
    assert len(reading(kafka, poll_messages=records).gather()) == 1200
    assert max(kafka.asked) == records


def test_a_gathering_ends_by_number_bytes_or_time(kafka: Kafka) -> None:
    consumer = reading(kafka)
    kafka.queue = [Message(0, number) for number in range(6000)]
    assert len(consumer.gather()) == 5000
    assert len(consumer.gather()) == 1000
    kafka.queue = [Message(0, number, bytes(3 << 20)) for number in range(6000, 6004)]
    consumer = reading(kafka := _with(kafka.queue), poll_messages=1)
    consumer.held[Partition(TOPIC, 0)].committed = 6000
    assert len(consumer.gather()) == 2
    kafka = _with([Message(0, number) for number in range(100)])
    kafka.slowness_ms = 20
    assert len(reading(kafka, poll_messages=1).gather()) == 4


def _with(queue: list[Message]) -> Kafka:
    kafka = Kafka()
    kafka.queue = queue
    return kafka


@pytest.mark.parametrize(("place", "end", "lag"), [(None, 5, None), (3, None, None), (3, 5, 2), (7, 5, 0)])
def test_lag_is_what_lies_between_the_place_and_the_end(place: int | None, end: int | None, lag: int | None) -> None:
    assigned = AssignedPartition(Partition(TOPIC, 0))
    assigned.committed, assigned.end = place, end
    assert assigned.lag == lag


class End(Message):
    """The news that a partition has no more."""

    def error(self) -> Any:
        from confluent_kafka import KafkaError

        return error(KafkaError._PARTITION_EOF)


def test_the_end_of_a_partition_is_no_message_and_no_trouble(kafka: Kafka) -> None:
    consumer = reading(kafka, poll_ms=300)
    kafka.queue = [End(0, 4)]
    assert consumer.gather() == []
    assert sum(kafka.polls) == pytest.approx(0.3), "the news has ended the wait for a message"
    assert (consumer.client.problem, consumer.held[Partition(TOPIC, 0)].position) == (None, 4)
    kafka.queue = [Message(0, 4), End(0, 6), End(7, 6)]
    assert len(consumer.gather()) == 1
    assert consumer.client.problem is None


def ends_by_news(kafka: Kafka, offset: int) -> None:
    kafka.queue.append(End(0, offset))


def ends_by_position(kafka: Kafka, offset: int) -> None:
    kafka.positions[0] = offset


@pytest.mark.parametrize("end_at", [ends_by_news, ends_by_position])
def test_what_is_behind_the_last_message_can_be_skipped_when_that_is_taken(
    kafka: Kafka, end_at: Callable[[Kafka, int], None]
) -> None:
    consumer = reading(kafka)
    assigned = consumer.held[Partition(TOPIC, 0)]
    consumer.fetch([assigned])
    kafka.queue = [Message(0, 0), Message(0, 1)]
    end_at(kafka, 5)
    consumer.gather()
    assert (assigned.position, assigned.skippable) == (5, None)
    assigned.committed = 2
    assert assigned.skippable == 5
    assigned.committed = 5
    assert assigned.skippable is None
    end_at(kafka, 6)
    consumer.gather()
    assert assigned.skippable == 6
    kafka.queue = [Message(0, 7)]
    kafka.positions[0] = 8
    consumer.gather()
    assert (assigned.position, assigned.skippable) == (8, None)
    assigned.committed = 8
    assert assigned.skippable is None, "there is nothing behind the last message"


def test_a_position_of_before_a_partition_was_fetched_anew_says_nothing(kafka: Kafka) -> None:
    """Else what is to be read again would be skipped."""
    consumer = reading(kafka)
    assigned = consumer.held[Partition(TOPIC, 0)]
    consumer.gather()
    kafka.positions[0] = 9
    consumer.forget([assigned])
    assigned.committed = 4
    consumer.gather()  # librdkafka has not got round to it yet
    assert assigned.skippable is None
    kafka.positions[0] = -1001
    consumer.gather()
    assert assigned.skippable is None
    kafka.positions[0] = 6
    consumer.gather()
    assert assigned.skippable == 6


def test_news_of_a_partition_that_is_not_read_is_none(kafka: Kafka) -> None:
    consumer = reading(kafka)
    assigned = consumer.held[Partition(TOPIC, 0)]
    consumer.fetch([assigned])
    kept(consumer, End(0, 5))
    consumer.drop([assigned])
    assert assigned.skippable is None
    kept(consumer, End(0, 9))
    consumer.fetch([assigned])
    assert (assigned.position, assigned.skippable) == (0, None)


def test_lag_is_noted_before_a_partition_is_read_no_more(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = reading(kafka)
    consumer.gather()
    monkeypatch.setattr(kafka, "get_watermark_offsets", lambda partition, cached: (0, 5), raising=False)
    consumer.stay()
    assert (kafka.fetched, consumer.held[Partition(TOPIC, 0)].lag) == ({}, 5)


def test_a_partition_that_is_gone_is_not_measured(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    from confluent_kafka import KafkaError, KafkaException

    def gone(partition: Any, cached: bool) -> None:
        raise KafkaException(error(KafkaError._UNKNOWN_PARTITION))

    consumer = reading(kafka)
    consumer.gather()
    monkeypatch.setattr(kafka, "get_watermark_offsets", gone, raising=False)
    consumer.note_ends()
    assert consumer.held[Partition(TOPIC, 0)].lag is None


def test_large_messages_are_asked_for_a_few_at_a_time(kafka: Kafka) -> None:
    kafka.queue = [Message(0, number, bytes(900_000)) for number in range(400)]
    consumer = reading(kafka, poll_messages=500)
    sizes = []
    while gathered := consumer.gather():
        sizes.append(sum(bytes_of(message) for _, message in gathered))
    assert sum(size // 900_000 for size in sizes) == 400
    assert max(sizes) <= 2 * ROOM


def test_small_messages_are_asked_for_in_full_polls_soon(kafka: Kafka) -> None:
    kafka.queue = [Message(0, number) for number in range(5000)]
    consumer = reading(kafka, poll_messages=500)
    consumer.gather()
    assert len(kafka.asked) <= 15
    assert kafka.asked[4] == 500


def test_what_a_poll_brings_beyond_the_room_is_taken_in_parts() -> None:
    assigned = AssignedPartition(Partition(TOPIC, 0))
    sizes = [10, 2 << 20, 3 << 20, 9 << 20, 5, 1 << 20]
    gathered: Any = [(assigned, Message(0, number, bytes(size))) for number, size in enumerate(sizes)]
    found = list(parts(gathered, ROOM))
    assert [[message.offset() for _, message in part] for part in found] == [[0, 1, 2], [3], [4, 5]]
    assert list(parts([], ROOM)) == []


def error(name: int, *, fatal: bool = False) -> Any:
    from confluent_kafka import KafkaError

    return KafkaError(name, "no more", fatal=fatal)


class Opened:
    """A consumer whose clients are counted, and may fail to be made."""

    def __init__(self, kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
        self.consumer = reading(kafka)
        self.client = self.consumer.client
        self.opens = 0
        self.refusal: str | None = None

        def open_() -> None:
            self.opens += 1
            if self.refusal is not None:
                raise ConfigError(self.refusal)
            self.client._client = kafka  # type: ignore[assignment]

        monkeypatch.setattr(self.consumer, "open", open_)
        monkeypatch.setattr(kafka, "close", lambda: None, raising=False)
        topics = SimpleNamespace(topics={})
        monkeypatch.setattr(kafka, "list_topics", lambda topic, timeout: topics, raising=False)


@pytest.mark.parametrize("way", ["_suffer", "_fail"])
def test_a_client_that_has_failed_for_good_is_made_anew(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    from confluent_kafka import KafkaError

    opened = Opened(kafka, monkeypatch)
    consumer, client = opened.consumer, opened.client
    fenced = error(KafkaError.FENCED_INSTANCE_ID, fatal=True)
    if way == "_suffer":
        client._suffer(fenced)
    else:
        consumer._fail(fenced, SimpleNamespace(topic=lambda: None))  # type: ignore[arg-type]
    assert "give every node its own" in (client.problem or "")
    consumer.probe()
    assert (opened.opens, consumer.held) == (1, {})
    consumer.probe()
    assert (opened.opens, client.problem) == (1, None)


@pytest.mark.parametrize("had_an_answer", [True, False])
def test_a_client_that_has_no_answer_any_more_is_made_anew_once(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch, had_an_answer: bool
) -> None:
    """One that never had any knows its brokers as well as a new one would."""
    from confluent_kafka import KafkaError, KafkaException

    opened = Opened(kafka, monkeypatch)
    if not had_an_answer:
        opened.consumer.reopen()
    before = opened.opens

    def silent(topic: str, timeout: float) -> None:
        raise KafkaException(error(KafkaError._TRANSPORT))

    monkeypatch.setattr(kafka, "list_topics", silent)
    for _ in range(7):
        opened.consumer.probe()
        kafka.clock.advance(2000)
    assert opened.opens == before
    for _ in range(100):
        opened.consumer.probe()
        kafka.clock.advance(2000)
    assert opened.opens == before + had_an_answer


def test_who_has_lost_its_partitions_is_no_member_any_more(kafka: Kafka, consumer: GroupMember) -> None:
    from confluent_kafka import TopicPartition

    given(consumer, kafka, 0, 1)
    assert consumer.joined
    consumer._lost(kafka, [TopicPartition(TOPIC, number) for number in (0, 1)])  # type: ignore[arg-type]
    assert (consumer.joined, consumer.held) == (False, {})


def test_it_is_made_anew_less_and_less_often(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    from confluent_kafka import KafkaError

    opened = Opened(kafka, monkeypatch)
    for _ in range(300):
        opened.client._suffer(error(KafkaError.FENCED_INSTANCE_ID, fatal=True))
        opened.consumer.probe()
        kafka.clock.advance(1000)
    assert opened.opens <= 11
    kafka.clock.advance(3 * AGAIN_MS[1])
    before = opened.opens
    for _ in range(3):
        opened.client._suffer(error(KafkaError.FENCED_INSTANCE_ID, fatal=True))
        opened.consumer.probe()
        kafka.clock.advance(1000)
    assert opened.opens >= before + 2


def test_a_client_that_could_not_be_made_is_tried_again(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened(kafka, monkeypatch)
    opened.refusal = "no such file"
    with pytest.raises(ConfigError):
        opened.consumer.reopen()
    opened.consumer.stay()  # nothing to do, and no error
    for _ in range(2):
        opened.consumer.probe()
        assert opened.client.problem == "no such file"
        kafka.clock.advance(AGAIN_MS[1])
    opened.refusal = None
    opened.consumer.probe()
    assert opened.client.is_open
    opened.consumer.probe()
    assert opened.client.problem is None


def test_an_error_in_the_place_of_a_committed_offset_is_not_none(
    consumer: GroupMember, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    from confluent_kafka import KafkaError

    for found in (None, error(KafkaError.NOT_COORDINATOR)):
        answer = SimpleNamespace(topic=TOPIC, partition=0, offset=-1001, metadata=None, error=found)
        monkeypatch.setattr(kafka, "committed", lambda partitions, timeout, answer=answer: [answer])
        if found is None:
            assert consumer.client.committed([Partition(TOPIC, 0)]) == {}
        else:
            with pytest.raises(BrokerUnavailable):
                consumer.client.committed([Partition(TOPIC, 0)])


@pytest.mark.parametrize(("offset", "expected"), [(7, 7), (-1, 90)])
def test_a_moment_without_a_message_behind_it_is_the_end(
    consumer: GroupMember, kafka: Kafka, monkeypatch: pytest.MonkeyPatch, offset: int, expected: int
) -> None:
    answer = SimpleNamespace(offset=offset, error=None)
    monkeypatch.setattr(kafka, "offsets_for_times", lambda partitions, timeout: [answer], raising=False)
    monkeypatch.setattr(kafka, "get_watermark_offsets", lambda partition, timeout: (5, 90), raising=False)
    assert consumer.client.offset_since(Partition(TOPIC, 0), 1000) == expected
