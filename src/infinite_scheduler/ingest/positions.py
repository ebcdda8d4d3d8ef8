"""Finds the start offsets of the partitions that the group assigns to this node."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from infinite_scheduler.errors import PositionsMoved
from infinite_scheduler.ingest.door_parts import DoorParts
from infinite_scheduler.ingest.start_offset import (
    EARLIEST,
    Facts,
    StartOffset,
    ends_before_position,
    needs_bounds,
    start_offset,
)
from infinite_scheduler.kafka.partition import AssignedPartition, Partition
from infinite_scheduler.observe.events import PositionDiffers, PositionsOvertaken
from infinite_scheduler.store.inbox import Move, Source, TopicPosition

LOOK_MS: Final = 5000
"""After at most this long a position set by an operator takes effect."""

REST_MS: Final = 1000
"""How often, at most, a position moves over records that are not messages: each time costs a transaction."""

MARGIN_MS: Final = 300_000
"""How much the clocks of brokers, senders and the store may differ, where only times tell what was read."""


class Positions:
    """Asks the store how far the group has read, and Kafka if the store has no position."""

    def __init__(self, parts: DoorParts) -> None:
        self._config, self._inbox = parts.config, parts.inbox
        self._client, self._consumer = parts.client, parts.consumer
        self._watch, self._thread = parts.watch, parts.consumer_thread
        self._clock, self._tell = parts.clock, parts.tell
        self._looked_ms = self._passed_ms = parts.clock.steady_ms()

    async def find(self) -> None:
        """Give every partition its position, durably before anything is read, so that it counts after a crash too.

        Raises StoreUnavailable or BrokerUnavailable: then some have none yet.
        """
        await self._look_again()
        await self._pass_rest()
        assigned_partitions = [
            assigned for assigned in list(self._consumer.held.values()) if assigned.committed is None
        ]
        if not assigned_partitions:
            return
        found = await self._thread.wait_for(self._inbox.positions(self._config.group_id, self._config.topic))
        known = {position.source.partition: position for position in found}
        topic_id = await self._thread.wait_for(self._watch.topic_id())
        starts, others = await self._thread.call(lambda: self._starts(assigned_partitions, known, topic_id))
        moves = [begin.move for begin in (*starts.values(), *others) if begin.move is not None]
        if moves:
            try:
                await self._thread.wait_for(self._inbox.reset(moves))
            except PositionsMoved:
                return  # another node was faster: look again
        for assigned, begin in starts.items():
            if begin.told is not None and (assigned.is_new or not isinstance(begin.told, PositionDiffers)):
                self._tell(begin.told)
            assigned.committed, assigned.topic_id = begin.offset, begin.topic_id
            assigned.out_of_range = assigned.is_new = False
        self._consumer.commit({assigned.partition: begin.offset for assigned, begin in starts.items()})

    async def _look_again(self) -> None:
        """Doubt positions that an operator may have set: while no message comes, nothing else would show it."""
        now_ms = self._clock.steady_ms()
        if not self._consumer.held or now_ms - self._looked_ms < LOOK_MS:
            return
        self._looked_ms = now_ms
        found = await self._thread.wait_for(self._inbox.positions(self._config.group_id, self._config.topic))
        known = {position.source.partition: position.next for position in found}
        assigned_partitions = [
            assigned for assigned in list(self._consumer.held.values()) if assigned.committed is not None
        ]
        moved = [
            assigned
            for assigned in assigned_partitions
            if known.get(assigned.partition.number, assigned.committed) != assigned.committed
        ]
        if moved:
            await self._overtaken(moved)

    async def _pass_rest(self) -> None:
        """Move positions over records at the end of partitions that are not messages: they would be lag forever."""
        now_ms = self._clock.steady_ms()
        rests = {
            assigned: rest
            for assigned in list(self._consumer.held.values())
            if (rest := assigned.skippable) is not None
        }
        if not rests or now_ms - self._passed_ms < REST_MS:
            return
        self._passed_ms = now_ms
        moves = [
            Move(
                source=self._source(assigned.partition), seen=assigned.committed, next=rest, topic_id=assigned.topic_id
            )
            for assigned, rest in rests.items()
        ]
        try:
            await self._thread.wait_for(self._inbox.reset(moves))
        except PositionsMoved:
            await self._overtaken(list(rests))
            return
        for assigned, rest in rests.items():
            assigned.committed = rest
        self._consumer.commit({assigned.partition: rest for assigned, rest in rests.items()})

    async def _overtaken(self, assigned_partitions: Sequence[AssignedPartition]) -> None:
        await self._thread.call(lambda: self._consumer.forget(assigned_partitions))
        partitions = sorted(assigned.partition.number for assigned in assigned_partitions)
        self._tell(PositionsOvertaken(topic=self._config.topic, partitions=partitions))

    def _starts(
        self, assigned_partitions: Sequence[AssignedPartition], known: Mapping[int, TopicPosition], topic_id: str | None
    ) -> tuple[dict[AssignedPartition, StartOffset], Sequence[StartOffset]]:
        """On the consumer's thread: where to begin in each of these that is still assigned.

        A new group that begins at the end does so in the partitions of all nodes at once: a partition without a
        position was added later, and is read from its beginning.
        """
        assigned_partitions = [assigned for assigned in assigned_partitions if self._consumer.holds(assigned)]
        committed = (
            self._client.committed([assigned.partition for assigned in assigned_partitions])
            if assigned_partitions
            else {}
        )
        is_known, others = bool(known) or bool(committed), set[Partition]()
        if not is_known and assigned_partitions and self._config.auto_offset_reset != EARLIEST:
            partitions = self._client.partitions()
            is_known = bool(self._client.committed(partitions))
            others = set() if is_known else set(partitions) - {assigned.partition for assigned in assigned_partitions}
        facts = Facts(
            source=self._source(Partition(self._config.topic, -1)), position=None, topic_id=topic_id, is_known=is_known
        )
        found = {
            assigned: self._begin(
                msgspec.structs.replace(
                    facts,
                    source=self._source(assigned.partition),
                    position=known.get(assigned.partition.number),
                    committed=committed.get(assigned.partition),
                ),
                out_of_range=assigned.out_of_range,
            )
            for assigned in assigned_partitions
        }
        return found, [
            self._begin(msgspec.structs.replace(facts, source=self._source(each)), out_of_range=False)
            for each in sorted(others)
        ]

    def _begin(self, facts: Facts, *, out_of_range: bool) -> StartOffset:
        partition = Partition(facts.source.topic, facts.source.partition)
        if needs_bounds(facts, out_of_range=out_of_range):
            facts = msgspec.structs.replace(facts, bounds=self._client.bounds(partition))
        if facts.position is not None and ends_before_position(facts):
            resume = self._client.offset_since(partition, facts.position.moved_ms - MARGIN_MS)
            facts = msgspec.structs.replace(facts, resume=resume)
        return start_offset(facts, self._config.auto_offset_reset)

    def _source(self, partition: Partition) -> Source:
        return Source(self._config.group_id, *partition)
