"""Stores gathered messages, and finds the one that is the cause if that fails."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from infinite_scheduler.errors import PositionsMoved, StoreBroken, StoreUnavailable, UnknownApp
from infinite_scheduler.ingest.door_parts import DoorParts
from infinite_scheduler.ingest.intake import accepted_events
from infinite_scheduler.ingest.message import MessageReader
from infinite_scheduler.ingest.message_batch import InboxWrite, MessageBatch, told
from infinite_scheduler.ingest.metrics import TAKEN
from infinite_scheduler.model import Accepted
from infinite_scheduler.observe import events
from infinite_scheduler.observe.store_time import store_time
from infinite_scheduler.store.inbox import DeadLetter

FIRST_RETRY_MS: Final = 200
"""Each wait is twice as long as the one before."""

_SHOWN: Final = 20  # keys per event


class Taker:
    """Stores one batch at a time: jobs, dead letters and the positions of the partitions in one transaction."""

    def __init__(self, parts: DoorParts, send: Callable[[Sequence[DeadLetter]], None]) -> None:
        self._config, self._inbox = parts.config, parts.inbox
        self._consumer, self._thread = parts.consumer, parts.consumer_thread
        self._clock, self._tell = parts.clock, parts.tell
        self._send = send
        self.counts = dict.fromkeys(TAKEN, 0)

    async def take(
        self, batch: MessageBatch, reader: MessageReader, meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        """Store all of it, or as much as is certain: in doubt, messages are read again from the stored position.

        `meanwhile` is called when there is nothing to do but wait for the store, perhaps more than once. Raises
        StoreUnavailable or StoreBroken if the store takes nothing.
        """
        try:
            await self._check_again(batch, reader)
            await self._take(batch, meanwhile)
        except BaseException:
            await self._thread.call(lambda: self._consumer.forget(batch.assigned_partitions))
            raise

    async def _check_again(self, batch: MessageBatch, reader: MessageReader) -> None:
        """Repeat checks that failed with a temporary error, for all such messages at once; then give these up."""
        for attempt in range(self._config.max_retries):
            errors = batch.passing
            if not errors or self._thread.stopping:
                break
            wait_ms = FIRST_RETRY_MS << attempt
            self._tell(
                events.ChecksFailing(topic=self._config.topic, count=len(errors), error=errors[0], wait_ms=wait_ms)
            )
            await self._thread.pause(wait_ms)
            await self._thread.call(lambda: batch.judge_again(reader))
        if not self._thread.stopping:  # else they are left to the next reader of the partition
            batch.refuse_passing()

    async def _take(self, batch: MessageBatch, meanwhile: Callable[[], None]) -> None:
        """Store it in one transaction; jobs of an unknown app become dead letters, and the rest is tried again."""
        while True:
            try:
                load = await self._thread.call(lambda: batch.load(self._consumer, self._clock.wall_ms()))
                if not load.moves:
                    return
                taking = asyncio.ensure_future(self._write(load))
                meanwhile()
                answers = await self._thread.wait_for(taking)
            except UnknownApp as error:
                if not batch.refuse_apps_but(error.known):
                    await self._narrow_down(batch, error, meanwhile)
                    return
            except PositionsMoved:
                await self._overtaken(batch)
                return
            except (StoreUnavailable, StoreBroken):
                raise
            except Exception as error:  # noqa: BLE001 - the cause is searched for next
                await self._narrow_down(batch, error, meanwhile)
                return
            else:
                self._note(load, answers)
                return

    async def _write(self, load: InboxWrite) -> Sequence[Accepted]:
        with store_time("take_messages", self._clock, self._tell):
            return await self._inbox.take(load.specs, load.letters, load.moves)

    async def _overtaken(self, batch: MessageBatch) -> None:
        """Another consumer moved a position: nothing was written, and the store knows where to continue."""
        partitions = sorted(assigned.partition.number for assigned in batch.assigned_partitions)
        await self._thread.call(lambda: self._consumer.forget(batch.assigned_partitions))
        self._tell(events.PositionsOvertaken(topic=self._config.topic, partitions=partitions))

    async def _narrow_down(self, batch: MessageBatch, error: Exception, meanwhile: Callable[[], None]) -> None:
        """An unexpected error: try halves until one message is left, which is tried a few more times.

        If it always fails, and its dead letter can be stored, then it was the cause. A door that stops does not go on
        searching: its messages are left, and with their positions in doubt none of them is overtaken by a later one.
        """
        if self._thread.stopping:
            await self._thread.call(lambda: self._consumer.forget(batch.assigned_partitions))
        elif len(batch) > 1:
            for half in batch.halves():
                await self._take(half, meanwhile)
        elif batch.refused:
            raise StoreBroken(f"the store met an error that is not the message's: {error!r}") from error
        elif batch.tries < self._config.max_retries:
            batch.tries += 1
            await self._thread.pause(FIRST_RETRY_MS << (batch.tries - 1))
            await self._take(batch, meanwhile)
        else:
            batch.refuse(f"{type(error).__name__}: {error}")
            await self._take(batch, meanwhile)

    def _note(self, load: InboxWrite, answers: Sequence[Accepted]) -> None:
        """It is durable: continue from there, and report it."""
        for assigned, position in load.positions.items():
            assigned.committed = position
        self._consumer.commit({assigned.partition: position for assigned, position in load.positions.items()})
        self._send(load.letters)
        topic = self._config.topic
        repeated = sum(answer.repeated for answer in answers)
        taken = events.MessagesTaken(
            topic=topic,
            received=len(load.specs) + len(load.letters),
            accepted=len(answers) - repeated,
            repeated=repeated,
            failed=len(load.letters),
        )
        self._count(taken)
        for event in (*accepted_events(load.specs, answers), taken):
            self._tell(event)
        if load.letters:
            self._tell(told(topic, load.letters))
        if repeated:
            pairs = zip(load.specs, answers, strict=True)
            keys = [str(spec.idempotency_key) for spec, answer in pairs if answer.differs]
            if keys:
                self._tell(events.KeysReused(topic=topic, count=len(keys), keys=keys[:_SHOWN]))

    def _count(self, taken: events.MessagesTaken) -> None:
        self.counts["messagesReceived"] += taken.received
        self.counts["messagesProcessed"] += taken.accepted
        self.counts["messagesFailed"] += taken.failed
        self.counts["duplicatesSkipped"] += taken.repeated
