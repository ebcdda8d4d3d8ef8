"""A clock that stands still until a test moves it."""

import heapq
import itertools
import math
from collections.abc import Callable
from typing import Final

START_MS: Final = 1_767_225_600_000
"""2026-01-01T00:00:00Z: where the wall clock begins by default."""


class ManualTimer:
    """A callback that waits for its moment."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ManualClock:
    """Both clocks, moved by hand: `advance` moves them together, `step_wall` sets the wall clock alone.

    Timers run on the steady clock. `advance` calls back those that it passes, each at its own moment. A test of code
    that waits in tasks needs them one by one, with time for the tasks in between: use `step` or `Harness` for that.
    """

    def __init__(self, start_ms: int = START_MS) -> None:
        self._wall_ms = start_ms
        self._steady_ms = 1_000_000  # an arbitrary number, so that the two clocks cannot be confused
        self._timers: list[tuple[int, int, ManualTimer]] = []
        self._count = itertools.count()

    def wall_ms(self) -> int:
        return self._wall_ms

    def steady_ms(self) -> int:
        return self._steady_ms

    def steady_us(self) -> int:
        return self._steady_ms * 1000

    def call_later(self, ms: float, callback: Callable[[], object]) -> ManualTimer:
        timer = ManualTimer(callback)
        heapq.heappush(self._timers, (self._steady_ms + max(0, math.ceil(ms)), next(self._count), timer))
        return timer

    def next_timer_ms(self) -> int | None:
        """When the next timer is due, by the steady clock."""
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def step(self, until_ms: int, *, wall: bool = True) -> bool:
        """Go to the next timer, if it is not after `until_ms` of the steady clock, and call it back; else go there.

        False: there was no such timer. With `wall=False` the wall clock stands still.
        """
        next_ms = self.next_timer_ms()
        found = next_ms is not None and next_ms <= until_ms
        to_ms = next_ms if next_ms is not None and found else until_ms
        moved_ms = max(0, to_ms - self._steady_ms)
        self._steady_ms += moved_ms
        if wall:
            self._wall_ms += moved_ms
        if found:
            callback = heapq.heappop(self._timers)[2].callback
            if callback is not None:
                callback()
        return found

    def advance(self, ms: int) -> None:
        """Let this much time pass, on both clocks."""
        until_ms = self._steady_ms + ms
        while self.step(until_ms):
            pass

    def step_wall(self, ms: int) -> None:
        """Set the wall clock forward or back, as an administrator or a time server does."""
        self._wall_ms += ms
