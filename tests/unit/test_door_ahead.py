"""A topic door reads the next messages while the store is busy with those before them."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from infinite_scheduler.errors import StoreUnavailable
from infinite_scheduler.ingest.config import KafkaIngestConfig
from infinite_scheduler.ingest.door import ROUND_MS, TopicDoor
from infinite_scheduler.kafka.partition import Partition
from infinite_scheduler.testing import ManualClock
from tests.unit.test_group_member import Kafka, Message
from tests.waiting import until_async


class Request(Message):
    """A message that asks for a job."""

    def value(self) -> bytes:
        return b'{"appName":"sms","scheduledTime":"2035-01-01 10:00:00","jobData":{"n":%d}}' % self.offset()

    def headers(self) -> None: ...


class SlowInbox:
    """Writes when it is let; remembers offsets by the places that were moved."""

    def __init__(self) -> None:
        self.let = asyncio.Event()
        self.begun = 0
        self.fails = False
        self.taken: list[tuple[int | None, int]] = []

    async def take(self, specs: Any, letters: Any, moves: Any) -> Any:
        self.begun += 1
        await self.let.wait()
        if self.fails:
            raise StoreUnavailable("away")
        self.taken += [(move.seen, move.next) for move in moves]
        return [SimpleNamespace(repeated=False, differs=False, key=b"", due_ms=0) for _ in specs]


class Bench:
    """A door that has joined its group and knows its place: two messages make a batch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("infinite_scheduler.ingest.door.MOST", 2)
        self.kafka, self.inbox = Kafka(), SlowInbox()
        self.clock: ManualClock = self.kafka.clock
        config = KafkaIngestConfig(topic="jobs", max_poll_records=1)
        self.saturation = 0.0
        self.door = TopicDoor(
            config,
            self.inbox,  # type: ignore[arg-type]
            {},
            self.clock,
            lambda event: None,
            saturation=lambda: self.saturation,
        )
        self.consumer = self.door._consumer
        self.door._client._client = self.kafka  # type: ignore[assignment]
        self.consumer._assigned(self.kafka, [TopicPartition("jobs", 0)])  # type: ignore[arg-type]
        self.assigned = self.consumer.held[Partition("jobs", 0)]
        self.assigned.committed = 0

    def arrive(self, *offsets: int) -> None:
        self.kafka.queue += [Request(0, offset) for offset in offsets]

    @property
    def left(self) -> int:
        """How many messages nobody has read yet."""
        return len(self.kafka.queue)


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Bench(monkeypatch)
    yield made
    made.door._thread.close()


async def test_the_next_messages_are_read_while_the_store_writes(bench: Bench) -> None:
    bench.arrive(0, 1, 2, 3, 4)
    taking = asyncio.create_task(bench.door._take_what_comes())
    await until_async(lambda: bench.left == 1)  # two batches are read...
    assert bench.inbox.begun == 1  # ...and none is written yet
    bench.inbox.let.set()
    await taking
    assert bench.inbox.taken == [(0, 2), (2, 4), (4, 5)]


async def test_what_was_read_behind_a_batch_that_failed_is_not_taken(bench: Bench) -> None:
    bench.arrive(0, 1, 2, 3)
    bench.inbox.fails = True
    taking = asyncio.create_task(bench.door._round())
    await until_async(lambda: bench.left == 0)
    bench.inbox.let.set()
    with pytest.raises(StoreUnavailable):
        await taking
    assert not bench.inbox.taken
    assert bench.door._in_doubt  # so all that was read is forgotten before anything goes on
    assert bench.assigned.committed is None


async def test_a_partition_that_was_let_go_meanwhile_is_read_again_behind_all_that_was_gathered(bench: Bench) -> None:
    bench.arrive(0, 1, 2, 3)
    taking = asyncio.create_task(bench.door._take_what_comes())
    await until_async(lambda: bench.left == 0)
    await bench.door._thread.call(lambda: bench.consumer.drop([bench.assigned]))  # as when the store takes long
    bench.arrive(2, 3, 4)  # what would come if it were read from its place
    bench.inbox.let.set()
    await taking
    assert bench.inbox.taken == [(0, 2), (2, 4)]
    assert not bench.assigned.fetching
    bench.consumer.fetch([bench.assigned])
    assert bench.kafka.fetched == {0: 4}


async def test_a_partition_that_came_meanwhile_gets_its_place_first(bench: Bench) -> None:
    bench.arrive(0, 1, 2, 3, 4, 5)
    taking = asyncio.create_task(bench.door._take_what_comes())
    await until_async(lambda: bench.inbox.begun == 1 and bench.left == 2)
    bench.consumer._assigned(bench.kafka, [TopicPartition("jobs", 1)])  # type: ignore[arg-type]
    bench.inbox.let.set()
    await taking
    assert bench.inbox.taken == [(0, 2), (2, 4)]
    assert bench.left == 2


async def test_after_a_while_it_is_looked_what_else_there_is_to_do(bench: Bench) -> None:
    bench.arrive(*range(6))
    taking = asyncio.create_task(bench.door._take_what_comes())
    await until_async(lambda: bench.inbox.begun == 1 and bench.left == 2)
    bench.clock.advance(ROUND_MS)
    bench.inbox.let.set()
    await taking
    assert bench.left == 2


async def test_a_door_that_keeps_up_reads_nothing_ahead(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    consume, behind = bench.kafka.consume, [1, 2]

    def and_then_more_come(count: int, timeout: float) -> list[Message]:
        found = consume(count, timeout)
        while not found and behind:
            bench.arrive(behind.pop(0))
        return found

    monkeypatch.setattr(bench.kafka, "consume", and_then_more_come)
    bench.arrive(0)
    bench.inbox.let.set()
    await bench.door._take_what_comes()
    assert bench.inbox.taken == [(0, 1)]
    assert bench.left == 2


async def test_a_door_rests_between_batches_while_its_node_is_behind(bench: Bench) -> None:
    bench.arrive(0, 1, 2, 3)
    bench.saturation = 1.0
    taking = asyncio.create_task(bench.door._take_what_comes())
    await until_async(lambda: bench.inbox.begun == 1 and bench.left == 0)
    bench.clock.advance(100)  # so long the store takes
    bench.inbox.let.set()
    await until_async(lambda: bench.inbox.taken)
    await asyncio.sleep(0.05)
    assert bench.inbox.begun == 1
    bench.saturation = 0.0
    bench.clock.advance(20)
    await taking
    assert bench.inbox.taken == [(0, 2), (2, 4)]


async def test_a_door_that_is_stopped_while_it_rests_takes_no_more(bench: Bench) -> None:
    bench.arrive(0, 1, 2, 3)
    bench.saturation = 1.0
    taking = asyncio.create_task(bench.door._take_what_comes())
    await until_async(lambda: bench.inbox.begun == 1 and bench.left == 0)
    bench.clock.advance(100)
    bench.inbox.let.set()
    await until_async(lambda: bench.inbox.taken)
    bench.door._thread.stop()
    await taking
    assert bench.inbox.taken == [(0, 2)]
