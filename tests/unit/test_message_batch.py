"""What one transaction takes of the messages that were gathered together."""

import asyncio
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from infinite_scheduler.ingest.config import KafkaIngestConfig
from infinite_scheduler.ingest.message import MessageReader, Trace
from infinite_scheduler.ingest.message_batch import MessageBatch, MessageContent, Passing, Refused, judge
from infinite_scheduler.ingest.request import make_spec
from infinite_scheduler.kafka.partition import AssignedPartition, Partition

CONFIG = KafkaIngestConfig(topic="jobs", group_id="group")
NOW = 1_794_787_200_000


class FakeMessage:
    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset

    def key(self) -> None: ...

    def headers(self) -> None: ...

    def value(self) -> bytes:
        return b"%d" % self._offset


class FakeConsumer:
    def __init__(self, *gone: AssignedPartition) -> None:
        self._gone = gone

    def holds(self, assigned: AssignedPartition) -> bool:
        return assigned not in self._gone


def assigned(partition: int) -> AssignedPartition:
    made = AssignedPartition(Partition(CONFIG.topic, partition))
    made.committed = 0
    return made


def job(number: int) -> MessageContent:
    return make_spec("sms", scheduled_ms=NOW, absolute=True, payload=b'{"n":%d}' % number)


def batch(*messages: tuple[AssignedPartition, int, MessageContent]) -> Any:
    gathered: Any = [(of, FakeMessage(offset)) for of, offset, _ in messages]
    return MessageBatch(CONFIG, gathered, [content for _, _, content in messages])


def test_a_message_that_is_tried_again_is_not_overtaken_by_those_behind_it() -> None:
    one, two = assigned(1), assigned(2)
    made = batch(
        (one, 0, job(0)),
        (two, 0, job(10)),
        (one, 1, Passing("the directory does not answer")),
        (one, 2, job(2)),
        (two, 1, job(11)),
        (one, 3, Refused("bad")),
    )
    load = made.load(FakeConsumer(), NOW)
    assert [spec.payload for spec in load.specs] == [b'{"n":0}', b'{"n":10}', b'{"n":11}']
    assert load.letters == []
    assert {of.partition.number: position for of, position in load.positions.items()} == {1: 1, 2: 2}
    assert [(move.source.partition, move.seen, move.next) for move in load.moves] == [(1, 0, 1), (2, 0, 2)]


def test_a_partition_that_begins_with_such_a_message_does_not_move() -> None:
    one = assigned(1)
    load = batch((one, 0, Passing("no answer")), (one, 1, job(1))).load(FakeConsumer(), NOW)
    assert (load.specs, load.letters, load.moves, load.positions) == ([], [], [], {})


def test_nothing_is_taken_of_partitions_that_are_gone_or_in_doubt() -> None:
    gone, doubtful, ours = assigned(1), assigned(2), assigned(3)
    doubtful.committed = None
    made = batch((gone, 0, job(1)), (doubtful, 0, job(2)), (ours, 0, job(3)))
    load = made.load(FakeConsumer(gone), NOW)
    assert [spec.payload for spec in load.specs] == [b'{"n":3}']
    assert [move.source.partition for move in load.moves] == [3]


class NameIsNotUtf8(FakeMessage):
    """As confluent-kafka has it: the first question fails, and the second has an answer that must not be looked at."""

    asked = 0

    def headers(self) -> None:
        self.asked += 1
        assert self.asked == 1
        raise SystemError("returned a result with an exception set")


def test_headers_that_cannot_be_read_are_left_out_and_asked_for_once() -> None:
    one = assigned(1)
    gathered: Any = [(one, NameIsNotUtf8(0)), (one, FakeMessage(1))]
    made = MessageBatch(CONFIG, gathered, [Refused("bad"), Refused("worse")])
    for each in (made, made, *made.halves()):
        load = each.load(FakeConsumer(), NOW)  # type: ignore[arg-type]
    load = made.load(FakeConsumer(), NOW)  # type: ignore[arg-type]
    assert [(letter.value, letter.headers, letter.note) for letter in load.letters] == [
        (b"0", (), "its headers cannot be read"),
        (b"1", (), None),
    ]


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), ValueError("no")])
def test_whatever_a_check_raises_may_pass(raised: BaseException) -> None:
    def spec(value: bytes | None, trace: Trace) -> None:
        raise raised

    reader: Any = SimpleNamespace(spec=spec)
    content = judge(reader, b"{}", lambda: None)
    assert isinstance(content, Passing)
    assert type(raised).__name__ in content.error


class Traced(FakeMessage):
    """A good message with these headers."""

    def __init__(self, offset: int, headers: list[tuple[str, bytes | None]]) -> None:
        super().__init__(offset)
        self._headers = headers

    def headers(self) -> Any:
        return self._headers

    def value(self) -> bytes:
        return b'{"appName": "sms", "scheduledTime": "2030-01-31T09:00:00"}'


class UnreadableButGood(NameIsNotUtf8, Traced):
    def __init__(self, offset: int) -> None:
        Traced.__init__(self, offset, [])


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def test_a_message_goes_on_with_its_trace_and_a_bad_header_is_ignored() -> None:
    one = assigned(1)
    headers = [b"00-%b-00f067aa0ba902b7-01" % TRACE.encode(), b"00-%b-00f067aa0ba902b7-01" % (b"0" * 32), b"\xff", None]
    gathered: Any = [(one, Traced(number, [("traceparent", value)])) for number, value in enumerate(headers)]
    gathered.append((one, UnreadableButGood(len(headers))))
    load = MessageBatch.read(CONFIG, gathered, MessageReader({}, ZoneInfo("UTC"))).load(FakeConsumer(), NOW)  # type: ignore[arg-type]
    assert load.letters == []
    assert [spec.request_id == TRACE for spec in load.specs] == [True, False, False, False, False]


def test_headers_that_could_not_be_read_for_the_trace_are_not_asked_for_again() -> None:
    one = assigned(1)
    gathered: Any = [(one, UnreadableButGood(0)), (one, UnreadableButGood(1))]
    made = MessageBatch.read(CONFIG, gathered, MessageReader({}, ZoneInfo("UTC")))
    for half in made.halves():
        half.refuse("the store stumbles")
        (letter,) = half.load(FakeConsumer(), NOW).letters  # type: ignore[arg-type]
        assert (letter.headers, letter.note) == ((), "its headers cannot be read")
