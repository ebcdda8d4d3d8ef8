"""The batch behind the one that is being taken."""

import asyncio
from collections.abc import Awaitable, Callable

from infinite_scheduler.ingest.batch import Batch

Read = Callable[[], Awaitable[Batch | None]]


class Ahead:
    """The next batch, if there is one: read once, as soon as there is time for it, or when somebody asks for it."""

    def __init__(self, read: Read) -> None:
        self.read = read
        self._reading: asyncio.Future[Batch | None] | None = None

    def begin(self) -> None:
        """Begin to read it, if that has not begun yet."""
        self._begun()

    async def get(self) -> Batch | None:
        """It, or None if nothing is there."""
        return await self._begun()

    def _begun(self) -> "asyncio.Future[Batch | None]":
        if self._reading is None:
            self._reading = asyncio.ensure_future(self.read())
            self._reading.add_done_callback(_heard)
        return self._reading


def _heard(reading: "asyncio.Future[Batch | None]") -> None:
    """Nobody may ask for it any more: then an error in it is no news."""
    if not reading.cancelled():
        reading.exception()
