"""Watches what changes rarely at a topic door: brokers, the topic itself, lag, the number of remembered keys."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from infinite_scheduler.errors import SchedulerError
from infinite_scheduler.ingest.door_parts import DoorParts
from infinite_scheduler.observe import events

PROBE_MS: Final = 2000
WELL_MS: Final = 5000
MEASURE_MS: Final = 1000
WATCH_MS: Final = 10_000
KEYS_MS: Final = 60_000


class DoorHealth:
    """Reports what has changed, once."""

    def __init__(self, parts: DoorParts) -> None:
        self._topic, self._inbox = parts.config.topic, parts.inbox
        self._client, self._consumer = parts.client, parts.consumer
        self._watch, self._thread = parts.watch, parts.consumer_thread
        self._clock, self._tell = parts.clock, parts.tell
        self._held: tuple[int, ...] = ()
        self._away_since_ms: int | None = None
        self._well_since_ms: int | None = None
        self._last_ms = {"probe": parts.clock.steady_ms()}  # a node that has just started still has to join its group
        self._check: asyncio.Task[None] | None = None
        self.live_keys = 0

    async def look(self) -> None:
        """Look, between two gatherings."""
        consumer = self._consumer
        self._tell_held(tuple(sorted(partition.number for partition in consumer.held)))
        if self._client.problem is None and consumer.joined:
            self._last_ms["probe"] = self._clock.steady_ms()
        elif self._is_time("probe", PROBE_MS):
            await self._thread.call(consumer.probe)
        self._tell_problem(self._client.problem)
        if self._is_time("measure", MEASURE_MS):
            await self._thread.call(consumer.note_ends)
        if self._check is None or self._check.done():
            if self._is_time("keys", KEYS_MS):
                self._go(self._count_keys)
            elif consumer.held and self._is_time("watch", WATCH_MS):
                self._go(self._look_at_topic)

    async def stop(self) -> None:
        """Cancel the look in progress."""
        if self._check is not None:
            self._check.cancel()
            await asyncio.gather(self._check, return_exceptions=True)

    def _tell_held(self, held: tuple[int, ...]) -> None:
        if held != self._held:
            self._held = held
            self._tell(events.PartitionsHeld(topic=self._topic, partitions=held))

    def _tell_problem(self, problem: str | None) -> None:
        """Report a problem once, even if a starting broker comes and goes: it is over after a while without it."""
        now_ms = self._clock.steady_ms()
        well = problem is None and self._consumer.joined
        self._well_since_ms = (self._well_since_ms or now_ms) if well else None
        if self._away_since_ms is None:
            if problem is not None:
                self._away_since_ms = now_ms
                self._tell(events.TopicAway(topic=self._topic, error=problem))
        elif self._well_since_ms is not None and now_ms - self._well_since_ms >= WELL_MS:
            away_ms, self._away_since_ms = self._well_since_ms - self._away_since_ms, None
            self._tell(events.TopicBack(topic=self._topic, away_ms=away_ms))

    def _is_time(self, what: str, every_ms: int) -> bool:
        now_ms = self._clock.steady_ms()
        if now_ms - self._last_ms.get(what, now_ms - every_ms) < every_ms:
            return False
        self._last_ms[what] = now_ms
        return True

    def _go(self, check: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run it in parallel to the door's own work."""
        self._check = asyncio.create_task(self._run(check), name=f"health of {self._topic}")

    async def _run(self, check: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await check()
        except SchedulerError:
            return  # problems of the store or the brokers are reported by the parts that depend on them
        except Exception as error:  # noqa: BLE001 - the door goes on
            self._tell(events.TaskFailed(part=f"health of {self._topic}", error=repr(error)))

    async def _count_keys(self) -> None:
        self.live_keys = await self._inbox.live_keys()

    async def _look_at_topic(self) -> None:
        """Begin with a new client if the topic was deleted and created again: librdkafka stays with the old one."""
        topic_id = await self._watch.topic_id()
        known = {assigned.topic_id for assigned in list(self._consumer.held.values())} - {None}
        if topic_id is not None and known and topic_id not in known:
            await self._thread.call(self._consumer.reopen)
