"""The only clock."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """Something that will happen, unless it is cancelled."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Two ways to read time: the wall clock, which may step, and a steady one that goes on while the machine sleeps."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch by the wall clock, rounded down."""
        ...

    def steady_ms(self) -> int:
        """Milliseconds by a clock that never steps and counts sleep; only differences have a meaning."""
        ...

    def steady_us(self) -> int:
        """The steady clock in microseconds: for times too short for milliseconds."""
        ...

    def call_later(self, ms: float, callback: Callable[[], object]) -> Timer:
        """Call back in the running event loop after this long, or a little later."""
        ...


_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def steady_ms(self) -> int:
        return time.clock_gettime_ns(_STEADY) // 1_000_000

    def steady_us(self) -> int:
        return time.clock_gettime_ns(_STEADY) // 1000

    def call_later(self, ms: float, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(max(0.0, ms) / 1000, callback)


async def wait(clock: Clock, event: asyncio.Event, ms: float) -> None:
    """Wait until `event` is set; the clock sets it after `ms`."""
    timer = clock.call_later(ms, event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()


async def sleep(clock: Clock, ms: float) -> None:
    """Wait this long by the clock."""
    await wait(clock, asyncio.Event(), ms)
