"""How a node is told to stop: SIGTERM and Ctrl-C, and a stop that goes on whatever handlers cancel."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any, Final, Self, TypeVar

T = TypeVar("T")

NUMBERS: Final = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Takes signals while it is entered: the first asks for a stop in good order, the second ends the process at once.

    Python's own signal handlers are used, not those of the event loop: they are called in the main thread even if a
    handler of jobs has blocked or stopped the loop. And they are called in the process that got the signal: the event
    loop of a forked child would pass it on to its parent.
    """

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask = ask
        self._asked = False
        self._process = os.getpid()
        self._former: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._former = {number: signal.signal(number, self._take) for number in NUMBERS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, action in self._former.items():
            signal.signal(number, signal.SIG_DFL if action is None else action)

    def _take(self, number: int, _: FrameType | None) -> None:
        if self._asked or os.getpid() != self._process:
            # Like a crash: a normal exit would report jobs in flight as failed, and wait for threads.
            os._exit(128 + number)
        self._asked = True
        self._ask()


def setting(event: asyncio.Event) -> Callable[[], None]:
    """A function that sets an event of the running event loop; a signal handler may call it at any time."""
    loop = asyncio.get_running_loop()

    def ask() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(event.set)

    return ask


async def uncancelled(call: Callable[[], Awaitable[T]]) -> T:
    """Await a call, and again if it is cancelled: a handler that cancels all tasks must not leave a stop unfinished."""
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    while True:
        try:
            return await call()
        except asyncio.CancelledError:
            if task is None or task.cancelling() <= before:
                raise  # it comes from within the call
            task.uncancel()
