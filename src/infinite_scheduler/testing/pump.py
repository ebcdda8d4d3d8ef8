"""Moves a manual clock timer by timer, and lets the event loop come to rest in between."""

import asyncio
import itertools
from collections.abc import Awaitable
from contextlib import suppress
from typing import Final, TypeVar

from infinite_scheduler.testing.manual_clock import ManualClock

T = TypeVar("T")

ROUNDS: Final = 100
"""How many rounds of an event loop count as rest, if it does not show what is ready."""


class Pump:
    """Runs what tasks do between one timer and the next, always in the same order."""

    def __init__(self, clock: ManualClock, patience_s: float) -> None:
        self._clock = clock
        self._patience_s = patience_s
        self._calls: dict[object, float] = {}  # calls that may wait for the real world, and until when to wait for them
        self._ended = asyncio.Event()
        self._idlers = 0

    def begin(self, call: object) -> None:
        """Note the start of something that may take real time, such as I/O or a thread."""
        self._calls[call] = asyncio.get_running_loop().time() + self._patience_s

    def end(self, call: object) -> None:
        """Note its end."""
        self._calls.pop(call, None)
        self._ended.set()

    async def rest(self) -> None:
        """Wait until every task waits for the clock, for the test, or for longer than the patience."""
        await self._idle()
        while await self._call_ends():
            await self._idle()

    async def advance(self, ms: int, *, wall: bool = True) -> None:
        """Let time pass, from timer to timer."""
        until_ms = self._clock.steady_ms() + ms
        await self.rest()
        while self._clock.step(until_ms, wall=wall):
            await self.rest()

    async def run(self, work: Awaitable[T], within_ms: int) -> T:
        """Let time pass until this is done; TimeoutError if this much time is not enough."""
        task = asyncio.ensure_future(work)
        until_ms = self._clock.steady_ms() + within_ms
        try:
            await self.rest()
            while not task.done() and self._clock.steady_ms() < until_ms:
                self._clock.step(until_ms)
                await self.rest()
            if not task.done():
                raise TimeoutError(f"not done after {within_ms} ms of the manual clock")
            return await task
        finally:
            task.cancel()

    async def _idle(self) -> None:
        """Wait until the event loop has nothing to do at once, apart from other calls of this method."""
        ready = getattr(asyncio.get_running_loop(), "_ready", None)
        self._idlers += 1
        try:
            for _ in range(ROUNDS) if ready is None else itertools.count():
                await asyncio.sleep(0)
                if ready is not None and len(ready) < self._idlers:
                    return
        finally:
            self._idlers -= 1

    async def _call_ends(self) -> bool:
        """Wait, in real time, for a call to end; False: none is worth waiting for."""
        left_s = max(self._calls.values(), default=0.0) - asyncio.get_running_loop().time()
        if left_s <= 0:
            return False
        self._ended.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), left_s)
        return True
