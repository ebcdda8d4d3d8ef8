"""An event loop in a thread of its own, for callers without one."""

import asyncio
import threading
import weakref
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from infinite_scheduler.errors import InvalidRequest, StoreUnavailable, Unavailable

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for any thread, from `begin` to `end`; both can be repeated.

    `idle` and `ended` are the messages for callers that come too early or too late, or that wait when it ends.
    """

    def __init__(self, name: str, *, idle: str, ended: str) -> None:
        self._name = name
        self._idle = idle
        self._ended = ended
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ending = False
        self._lock = threading.Lock()  # a call is given to the loop before the end, or refused

    @property
    def running(self) -> bool:
        return self._thread is not None

    def begin(self) -> None:
        """Start the thread."""
        if self._loop is None:  # only one is ever made: locks and events that are used again after an end belong to it
            self._loop = asyncio.new_event_loop()
            weakref.finalize(self, _close, self._loop)
        self._ending = False
        self._thread = threading.Thread(target=self._run, args=(self._loop,), name=self._name, daemon=True)
        self._thread.start()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._ending:  # a handler may have stopped the loop
            loop.run_forever()

    def end(self) -> None:
        """Cancel what is in progress, and end the thread."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is None or self._loop is None:
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._ending = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        thread.join()

    def refuse_inside(self) -> None:
        """Refuse a call in the loop's own thread: it would wait for itself."""
        if threading.current_thread() is self._thread:
            raise InvalidRequest(
                "this call would block the event loop that it waits for: make the handler a plain function, "
                "or await a Scheduler or a Client there"
            )

    def submit(self, call: Coroutine[Any, Any, T]) -> "Future[T]":
        """Begin to run a coroutine; the future holds its result."""
        try:
            with self._lock:
                if self._thread is None or self._loop is None:
                    raise Unavailable(self._idle)
                return asyncio.run_coroutine_threadsafe(call, self._loop)
        except BaseException:
            call.close()
            raise

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result, or raise its error."""
        try:
            self.refuse_inside()
        except BaseException:
            call.close()
            raise
        future = self.submit(call)
        try:
            return future.result()
        except CancelledError:
            raise StoreUnavailable(
                f"{self._ended}; it is unknown whether the call took effect: look at the job, or call again"
            ) from None


def _close(loop: asyncio.AbstractEventLoop) -> None:
    if not loop.is_running():
        loop.close()


async def _cancel_others() -> None:
    """Cancel all tasks, so that none waits forever in an event loop that is about to stop."""
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
