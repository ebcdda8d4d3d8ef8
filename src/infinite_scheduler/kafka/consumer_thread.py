"""The one thread of a consumer, and waiting without losing the membership in the group."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from infinite_scheduler.clock import Clock, wait
from infinite_scheduler.kafka.group_member import GroupMember

T = TypeVar("T")

LIVELY_S: Final = 2.0
"""How long the consumer may go without a poll: the other nodes of its group wait for its answers meanwhile."""

LOOK_MS: Final = 2000
"""How often it is checked what the thread is busy with."""

_END_S: Final = 1.0


class CallThread:
    """One thread that runs calls one after the other. Unlike with an executor, the process may end while it is busy."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def run(self, what: Callable[[], T]) -> asyncio.Future[T]:
        """Run this after the earlier calls; the result arrives in the running event loop."""
        if not self._thread.is_alive():
            self._thread.start()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def call() -> None:
            try:
                set_it: Callable[[Any], None] = answer.set_result
                found: Any = what()
            except BaseException as raised:  # noqa: BLE001 - passed on to the caller
                set_it, found = answer.set_exception, _as_error(raised)
            with suppress(RuntimeError):  # the loop is closed: the result is not wanted any more
                loop.call_soon_threadsafe(lambda: None if answer.done() else set_it(found))

        self._queue.put(call)
        return answer

    def close(self) -> None:
        """End the thread after the calls that were made before."""
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join(_END_S)

    def _run(self) -> None:
        while (call := self._queue.get()) is not None:
            call()


def _as_error(raised: BaseException) -> Exception:
    """What was raised, as an error that a future takes and that ends no event loop."""
    if isinstance(raised, Exception) and not isinstance(raised, StopIteration):
        return raised
    error = RuntimeError(repr(raised))
    error.__cause__ = raised
    return error


class ConsumerThread:
    """Runs calls to a member on its thread, and polls while its owner waits for something else."""

    def __init__(self, consumer: GroupMember, clock: Clock, look: Callable[[], None] = lambda: None) -> None:
        self._consumer = consumer
        self._clock = clock
        self._calls = CallThread("consumer")
        self._look = look  # called at intervals while a call on the thread takes long
        self._nap = asyncio.Event()
        self.stopping = False

    def stop(self) -> None:
        """End every pause, and the gathering that waits."""
        self.stopping = True
        self._nap.set()
        self._consumer.stop()

    def close(self) -> None:
        """End the thread."""
        self._calls.close()

    async def call(self, what: Callable[[], T]) -> T:
        """Run this on the consumer's thread."""
        answer = self._calls.run(what)
        self._look_later(answer)
        return await answer

    def _look_later(self, answer: "asyncio.Future[Any]") -> None:
        def look() -> None:
            self._look()
            self._look_later(answer)

        timer = self._clock.call_later(LOOK_MS, look)
        answer.add_done_callback(lambda _: timer.cancel())

    async def wait_for(self, what: Awaitable[T]) -> T:
        """Wait for it as long as it takes, and stay a member of the group meanwhile."""
        task = asyncio.ensure_future(what)
        try:
            while not (await asyncio.wait([task], timeout=LIVELY_S))[0]:
                await self.call(self._consumer.stay)
        except BaseException:
            task.cancel()
            raise
        return await task

    async def pause(self, ms: int) -> None:
        """Wait this long, or until it is stopped."""
        if not self.stopping:
            self._nap.clear()
            await self.wait_for(wait(self._clock, self._nap, ms))
