"""The one thread of a consumer, and waiting that does not cost its membership in the group."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from infinite_scheduler.clock import Clock, wait
from infinite_scheduler.ingest.consumer import TopicConsumer

T = TypeVar("T")

LIVELY_S: Final = 2.0
"""How long the consumer may go without a poll: the other nodes of its group wait for its answers meanwhile."""


class Patience:
    """Does what is asked of the consumer on its thread, and polls while the door waits for something else."""

    def __init__(self, consumer: TopicConsumer, clock: Clock) -> None:
        self._consumer = consumer
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="topic")
        self._nap = asyncio.Event()
        self.stopping = False

    def stop(self) -> None:
        """End every pause, and the gathering that waits."""
        self.stopping = True
        self._nap.set()
        self._consumer.stop()

    def close(self) -> None:
        """Let the thread go."""
        self._thread.shutdown()

    async def call(self, what: Callable[[], T]) -> T:
        """Do this on the consumer's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, what)

    async def wait_for(self, what: Awaitable[T]) -> T:
        """Wait for it as long as it takes, and stay a member of the group meanwhile."""
        task = asyncio.ensure_future(what)
        try:
            while not (await asyncio.wait([task], timeout=LIVELY_S))[0]:
                await self.call(self._consumer.linger)
        except BaseException:
            task.cancel()
            raise
        return await task

    async def pause(self, ms: int) -> None:
        """Wait this long, or until the door stops."""
        if not self.stopping:
            self._nap.clear()
            await self.wait_for(wait(self._clock, self._nap, ms))
