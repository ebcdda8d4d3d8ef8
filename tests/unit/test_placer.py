"""Where a group begins in all partitions of a topic, whichever of them this node was given."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from infinite_scheduler.ingest.consumer import Share
from infinite_scheduler.ingest.kafka import KafkaIngestConfig
from infinite_scheduler.ingest.placer import Placer
from infinite_scheduler.ingest.placing import Committed
from infinite_scheduler.store.inbox import Move, Place, Source
from infinite_scheduler.testing import ManualClock


class World:
    """A topic of three partitions, each with the offsets 4 to 9; this node was given partition 1."""

    def __init__(self, places: Sequence[int] = (), committed: Sequence[int] = ()) -> None:
        self.held = {1: Share(1)}
        self._places, self._committed = places, committed
        self.moves: Sequence[Move] = ()
        parts: Any = self
        watch: Any = SimpleNamespace(topic_id=self._nothing)
        config = KafkaIngestConfig(topic="jobs", group_id="group", auto_offset_reset="latest")
        self.placer = Placer(config, parts, parts, watch, parts, clock=ManualClock(), tell=lambda event: None)

    async def begun(self) -> dict[int, int]:
        await self.placer.place()
        return {move.source.partition: move.next for move in self.moves}

    async def _nothing(self) -> None: ...

    async def call(self, what: Callable[[], Any]) -> Any:
        return what()

    async def wait_for(self, what: Any) -> Any:
        return await what

    async def places(self, group: str, topic: str) -> list[Place]:
        sources = [Source(group, topic, partition) for partition in self._places]
        return [Place(source=source, next=7, topic_id=None, moved_ms=0) for source in sources]

    async def reset(self, moves: Sequence[Move]) -> None:
        self.moves = moves

    def holds(self, share: Share) -> bool:
        return True

    def say(self, places: Any) -> None: ...

    def partitions(self) -> list[int]:
        return [0, 1, 2]

    def bounds(self, partition: int) -> tuple[int, int]:
        return 4, 9

    def committed(self, partitions: Sequence[int]) -> dict[int, Committed]:
        return {each: Committed(6) for each in self._committed if each in partitions}


async def test_a_new_group_begins_at_the_end_of_all_partitions_at_once() -> None:
    assert await World().begun() == {0: 9, 1: 9, 2: 9}


async def test_a_group_with_a_place_elsewhere_begins_at_the_earliest() -> None:
    assert await World(places=[0]).begun() == {1: 4}


async def test_a_group_that_kafka_knows_elsewhere_begins_at_the_earliest() -> None:
    assert await World(committed=[2]).begun() == {1: 4}
