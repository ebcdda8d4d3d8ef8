"""Where a group begins in all partitions of a topic, whichever of them this node was given."""

from collections.abc import Callable, Sequence
from typing import Any

from infinite_scheduler.errors import PositionsMoved
from infinite_scheduler.ingest.config import KafkaIngestConfig
from infinite_scheduler.ingest.positions import LOOK_MS, REST_MS, Positions
from infinite_scheduler.kafka.group_client import Committed
from infinite_scheduler.kafka.partition import AssignedPartition, Partition
from infinite_scheduler.observe.events import Event, PositionsOvertaken
from infinite_scheduler.store.inbox import Move, Source, TopicPosition
from infinite_scheduler.testing import ManualClock
from tests.unit.door_rig import parts_of

ONE = Partition("jobs", 1)


class PositionsRig:
    """A topic of three partitions, each with the offsets 4 to 9; this node was given partition 1."""

    def __init__(self, positions: Sequence[int] = (), committed: Sequence[int] = ()) -> None:
        self.held = {ONE: AssignedPartition(ONE)}
        self._places, self._committed = positions, committed
        self.moves: Sequence[Move] = ()
        config = KafkaIngestConfig(topic="jobs", group_id="group", auto_offset_reset="latest")
        self.finder = Positions(parts_of(self, config))

    async def begun(self) -> dict[int, int]:
        await self.finder.find()
        return {move.source.partition: move.next for move in self.moves}

    async def call(self, what: Callable[[], Any]) -> Any:
        return what()

    async def wait_for(self, what: Any) -> Any:
        return await what

    async def positions(self, group: str, topic: str) -> list[TopicPosition]:
        sources = [Source(group, topic, partition) for partition in self._places]
        return [TopicPosition(source=source, next=7, topic_id=None, moved_ms=0) for source in sources]

    async def reset(self, moves: Sequence[Move]) -> None:
        self.moves = moves

    def holds(self, assigned: AssignedPartition) -> bool:
        return True

    def commit(self, positions: Any) -> None: ...

    def partitions(self) -> list[Partition]:
        return [Partition("jobs", number) for number in range(3)]

    def bounds(self, partition: Partition) -> tuple[int, int]:
        return 4, 9

    def committed(self, partitions: Sequence[Partition]) -> dict[Partition, Committed]:
        return {each: Committed(6) for each in partitions if each.number in self._committed}


async def test_a_new_group_begins_at_the_end_of_all_partitions_at_once() -> None:
    assert await PositionsRig().begun() == {0: 9, 1: 9, 2: 9}


async def test_a_group_with_a_place_elsewhere_begins_at_the_earliest() -> None:
    assert await PositionsRig(positions=[0]).begun() == {1: 4}


async def test_a_group_that_kafka_knows_elsewhere_begins_at_the_earliest() -> None:
    assert await PositionsRig(committed=[2]).begun() == {1: 4}


class Reader(PositionsRig):
    """A node that has read partition 1 up to its place, and was told that it ends further on."""

    def __init__(self, *, committed: int = 7, expected: int = 7, position: int = 9) -> None:
        super().__init__(positions=[1])
        self.clock = ManualClock()
        self.told: list[Event] = []
        self.said: dict[Partition, int] = {}
        self.forgotten: list[AssignedPartition] = []
        self.overtaken = False
        self.assigned = self.held[ONE]
        self.assigned.committed, self.assigned.expected, self.assigned.position = committed, expected, position
        self.assigned.fetching = True
        config = KafkaIngestConfig(topic="jobs", group_id="group")
        self.finder = Positions(parts_of(self, config, clock=self.clock, tell=self.told.append))

    async def after(self, ms: int) -> list[tuple[int | None, int]]:
        self.moves = list[Move]()
        self.clock.advance(ms)
        await self.finder.find()
        return [(move.seen, move.next) for move in self.moves]

    async def reset(self, moves: Sequence[Move]) -> None:
        if self.overtaken:
            raise PositionsMoved("somebody else was quicker")
        await super().reset(moves)

    def commit(self, positions: Any) -> None:
        self.said.update(positions)

    def forget(self, assigned_partitions: Sequence[AssignedPartition]) -> None:
        self.forgotten.extend(assigned_partitions)


async def test_a_place_moves_over_what_is_no_message_at_the_end() -> None:
    reader = Reader()
    assert await reader.after(REST_MS) == [(7, 9)]
    assert (reader.assigned.committed, reader.said) == (9, {ONE: 9})
    assert await reader.after(REST_MS) == []


async def test_that_happens_once_a_second_at_most() -> None:
    reader = Reader()
    assert await reader.after(REST_MS - 1) == []
    assert await reader.after(1) == [(7, 9)]
    reader.assigned.position = 12
    assert await reader.after(REST_MS - 1) == []
    assert await reader.after(1) == [(9, 12)]


async def test_a_place_stays_before_messages_that_are_not_taken_yet() -> None:
    reader = Reader(expected=8)
    assert await reader.after(REST_MS) == []
    assert reader.assigned.committed == 7


async def test_a_place_stays_where_nothing_is_behind_it() -> None:
    for position in (7, 3):
        assert await Reader(position=position).after(REST_MS) == []
    halted = Reader()
    halted.assigned.fetching = False
    assert await halted.after(REST_MS) == []


async def test_whoever_is_overtaken_there_asks_for_its_place() -> None:
    reader = Reader()
    reader.overtaken = True
    assert await reader.after(REST_MS) == []
    assert (reader.assigned.committed, reader.forgotten, reader.said) == (7, [reader.assigned], {})
    assert [type(event) for event in reader.told] == [PositionsOvertaken]


async def test_a_partition_is_not_read_when_another_node_was_faster_to_say_where_to_begin() -> None:
    rig = Reader()
    rig.assigned.committed, rig.assigned.fetching, rig.overtaken = None, False, True
    rig._places = []
    await rig.after(1)
    assert rig.assigned.committed is None, "the next round asks the store"


async def test_a_place_that_was_set_in_the_store_is_asked_for_while_no_message_comes() -> None:
    reader = Reader(committed=5, expected=5, position=5)
    await reader.after(LOOK_MS - 1)
    assert not reader.forgotten
    await reader.after(1)
    assert reader.forgotten == [reader.assigned]
    assert [type(event) for event in reader.told] == [PositionsOvertaken]
