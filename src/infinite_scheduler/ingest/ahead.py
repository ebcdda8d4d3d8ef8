"""The batch after the one that is being stored."""

import asyncio
from collections.abc import Awaitable, Callable

from infinite_scheduler.ingest.message_batch import MessageBatch

Read = Callable[[], Awaitable[MessageBatch | None]]


class Ahead:
    """The next batch, if there is one: read once, as soon as there is time, or when it is asked for."""

    def __init__(self, read: Read) -> None:
        self.read = read
        self._reading: asyncio.Future[MessageBatch | None] | None = None

    def begin(self) -> None:
        """Begin to read it, unless that has begun."""
        self._begun()

    async def get(self) -> MessageBatch | None:
        """Return it, or None if there is nothing."""
        return await self._begun()

    def _begun(self) -> "asyncio.Future[MessageBatch | None]":
        if self._reading is None:
            self._reading = asyncio.ensure_future(self.read())
            self._reading.add_done_callback(_heard)
        return self._reading


def _heard(reading: "asyncio.Future[MessageBatch | None]") -> None:
    """Consume the error of a batch that is not asked for any more."""
    if not reading.cancelled():
        reading.exception()
