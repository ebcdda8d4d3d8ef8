"""A thread that runs the transactions of one connection, one after the other."""

import asyncio
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from infinite_scheduler.errors import StoreUnavailable

T = TypeVar("T")

SWITCH_S: Final = 0.0005
"""How long a thread may keep the interpreter while others wait. With Python's 5 ms, a busy lane would delay every
timer of the event loop by up to 5 ms."""


def share_the_interpreter() -> None:
    """Let busy threads yield to the event loop soon."""
    sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_S))


class DatabaseThread:
    """A thread that runs one step after the other, for callers in any event loop."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def do(self, step: Callable[[], T]) -> T:
        """Run a step after all earlier ones; a caller that stops waiting does not stop a step that has begun."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                result = step()
            except BaseException as error:  # noqa: BLE001 - passed on to the caller
                _tell(loop, _fail, future, error)
            else:
                _tell(loop, _resolve, future, result)

        with self._lock:
            if self._closed:
                raise StoreUnavailable("the store is closed")
            self._queue.put(work)
        return await future

    def post(self, step: Callable[[], None]) -> None:
        """Run a step after all earlier ones, without waiting for it."""
        with self._lock:
            if not self._closed:
                self._queue.put(step)

    def stop(self) -> None:
        """Finish the earlier steps, then end."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)

    def join(self) -> None:
        self._thread.join()

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            work()


def _tell(loop: asyncio.AbstractEventLoop, *call: Any) -> None:
    try:
        loop.call_soon_threadsafe(*call)
    except RuntimeError:  # the loop is closed: the result is not wanted any more
        return


def _resolve(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
