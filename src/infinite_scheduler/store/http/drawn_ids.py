"""Draws the ids of jobs before they are sent: a request that is sent again makes no second job."""

import itertools
import random
from collections.abc import Sequence
from typing import Final

from infinite_scheduler.clock import Clock
from infinite_scheduler.model import LATER_MS, JobId, JobSpec

CHUNK: Final = 1000
"""How many jobs of one request share a shard, and so a lock."""


class DrawnIds:
    """Knows what an id says: the shards of the apps, and the time by the server's clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_ms = 0
        self._turns = itertools.count(random.randrange(256))  # noqa: S311 - so that clients do not all begin with one
        self.shards: dict[str, int] = {}

    def set_clock(self, server_ms: int, answered_ms: int) -> None:
        """The server's clock, read before this one showed `answered_ms`.

        So it is never thought to be ahead of what it is: ids may be minutes behind it, but hardly ahead of it.
        """
        self._offset_ms = server_ms - answered_ms

    def draw(self, specs: Sequence[JobSpec], *, later: bool = False) -> Sequence[bytes]:
        """An id for each job, in order; one that has an id keeps it. All apps must be known.

        With `later`, jobs that are not due yet go to the table for later jobs, which every app has.
        """
        now_ms = self._clock.wall_ms() + self._offset_ms
        chosen: dict[str, tuple[int, int]] = {}  # app → shard, and how many more jobs it takes
        drawn = []
        for spec in specs:
            if spec.key is not None:
                drawn.append(spec.key)
                continue
            shard, left = chosen.get(spec.app, (0, 0))
            if not left:
                shard, left = next(self._turns) % self.shards[spec.app], CHUNK
            chosen[spec.app] = shard, left - 1
            due_ms = max(now_ms, spec.scheduled_ms)
            is_later = due_ms > (now_ms if later else now_ms + LATER_MS)
            drawn.append(bytes(JobId.make(due_ms, shard, spec.priority, later=is_later)))
        return drawn
