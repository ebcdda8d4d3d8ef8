"""The safety net: overdue jobs in the store that are not in memory are found within a minute, and reported."""

from collections import deque
from collections.abc import Collection

import msgspec

from infinite_scheduler.clock import Clock
from infinite_scheduler.engine.window import ROOM, Window
from infinite_scheduler.model import Job, start_of
from infinite_scheduler.observe.events import Observer, Swept
from infinite_scheduler.store.ownership import Ownership, Scan

PAGE = 1000
"""Jobs that are compared in one step."""

NEWS_MS = 5000
"""Newer jobs may so far be known only through a request that waits."""


class Sweep:
    """Compares the store with memory, one page at a time; what it finds is a bug, which it turns into lateness."""

    def __init__(
        self, ownership: Ownership, windows: Collection[Window], clock: Clock, every_ms: int, tell: Observer
    ) -> None:
        self._ownership = ownership
        self._windows = windows
        self._clock = clock
        self._every_ms = every_ms
        self._tell = tell
        self._next_ms = clock.steady_ms() + every_ms
        self._left: deque[tuple[Window, Scan]] = deque()

    def due_in_ms(self) -> int:
        """Time until the next page."""
        return 0 if self._left else max(0, self._next_ms - self._clock.steady_ms())

    async def step(self) -> bool:
        """Check one page, if it is time to."""
        if not self._left:
            if self._clock.steady_ms() < self._next_ms:
                return False
            self._next_ms = self._clock.steady_ms() + self._every_ms
            self._left.extend((window, scan) for window in self._windows for scan in self._ranges(window))
            return False
        window, scan = self._left[0]
        page = await self._ownership.scan(scan)
        self._left.popleft()
        self._take(window, [job for job in page.jobs if _forgotten(window, job)])
        if page.next is not None:
            self._left.appendleft((window, msgspec.structs.replace(scan, start=page.next)))
        return True

    def _ranges(self, window: Window) -> list[Scan]:
        """What should be settled or held, outside what is left to scan.

        It begins where low was the last time: low itself passes jobs that memory has lost.
        """
        owned_shards = [owned for owned in window.owned_shards.values() if owned.doubt is None]
        if not owned_shards:
            return []
        start_ms = min(owned.unswept_ms for owned in owned_shards)
        end_ms = min(self._clock.wall_ms() - NEWS_MS, *(owned.line_ms for owned in owned_shards))
        if start_ms >= end_ms:
            return []
        for owned in owned_shards:
            owned.unswept_ms = min(owned.low_ms, end_ms)
        shards = frozenset(owned.shard.number for owned in owned_shards)
        return [
            Scan(
                app=window.app,
                shards=shards,
                start=start_of(start_ms),
                end=start_of(end_ms),
                limit=PAGE,
                room=ROOM,
            )
        ]

    def _take(self, window: Window, jobs: list[Job]) -> None:
        for job in jobs:
            window.put(job)
        if jobs:
            self._tell(Swept(app=window.app, count=len(jobs), job_ids=[job.id for job in jobs[:20]]))


def _forgotten(window: Window, job: Job) -> bool:
    """Is it before what is left to scan, and neither held nor handed over?"""
    owned = window.owned_shards.get(job.shard)
    if owned is None or owned.doubt is not None:
        return False
    return job.position < owned.cursors[job.priority] and job.key not in owned.held and job.key not in owned.handed_over
