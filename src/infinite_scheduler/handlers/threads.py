"""A bounded pool of threads for functions that block."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from queue import SimpleQueue
from threading import Thread
from typing import Any

from infinite_scheduler import forked
from infinite_scheduler.model import Job


class Work:
    """One call in a thread; `future` is done when it has ended, and then `value` or `error` holds the result."""

    __slots__ = ("_claims", "_context", "_function", "_given_up", "_returned", "error", "future", "jobs", "value")

    def __init__(
        self, function: Callable[[], Any], jobs: Sequence[Job], future: asyncio.Future[None], context: Context
    ) -> None:
        self.jobs = jobs
        self.future = future
        self.value: Any = None
        self.error: BaseException | None = None
        self._function = function
        self._context = context
        self._claims = [None]  # popped by whichever comes first: the thread that begins, or the loop that gives up
        self._given_up = False
        self._returned = False

    @property
    def running(self) -> bool:
        """Has the function begun, but not returned?"""
        return not (self._claims or self._given_up or self._returned)

    def run(self) -> None:
        """Call the function, unless the work was given up before."""
        if not self._claim():
            return
        depth = forked.depth
        try:
            self.value = self._context.run(self._function)
        except BaseException as error:  # noqa: BLE001 - an exit in a handler's thread is an error of its job
            self.error = error
        if forked.depth != depth:
            forked.end()
        self._returned = True

    def give_up(self) -> None:
        """Prevent the call; work that has begun goes on."""
        self._given_up = self._claim() or self._given_up

    def _claim(self) -> bool:
        try:
            self._claims.pop()
        except IndexError:
            return False
        return True


class Threads:
    """Up to `size` threads, started when needed.

    They are daemons, so that a function that never returns cannot keep the process alive.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._open: set[Work] = set()
        self._ended: deque[Work] = deque()
        self._collecting = False

    def submit(self, function: Callable[[], Any], jobs: Sequence[Job]) -> Work:
        """Call the function in a thread, in a copy of the current context."""
        loop = asyncio.get_running_loop()
        work = Work(function, jobs, loop.create_future(), copy_context())
        self._open.add(work)
        if len(self._open) > len(self._threads) < self._size:
            name = f"{self._name}-{len(self._threads)}"
            thread = Thread(target=self._run, args=(loop,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._queue.put(work)
        return work

    def running(self) -> Sequence[Job]:
        """The jobs whose function has begun, but not returned."""
        return [job for work in self._open if work.running for job in work.jobs]

    def stop(self, *, wait: bool = False) -> None:
        """End the threads, busy ones after their call; wait for them if none is busy, or if `wait` is set."""
        for work in self._open:
            work.give_up()
        threads, self._threads = self._threads, []
        for _ in threads:
            self._queue.put(None)
        if wait or not self.running():
            for thread in threads:
                thread.join()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            work = self._queue.get()
            if work is None:
                return
            work.run()
            self._ended.append(work)
            del work  # an idle thread must not keep a payload alive
            if not self._collecting:  # wake the loop once for all calls that end before it looks
                self._collecting = True
                try:
                    loop.call_soon_threadsafe(self._collect)
                except RuntimeError:  # the loop is closed: the result is not wanted any more
                    return

    def _collect(self) -> None:
        self._collecting = False
        while self._ended:
            work = self._ended.popleft()
            self._open.discard(work)
            if not work.future.done():
                work.future.set_result(None)
