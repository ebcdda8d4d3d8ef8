"""Event streams: one overview a second, read and encoded once for all who listen."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

import msgspec

from infinite_scheduler.api.api_context import ApiContext
from infinite_scheduler.api.overview import EVERY_MS, OverviewBoard
from infinite_scheduler.api.refusal import NOT_READY, Refusal
from infinite_scheduler.clock import wait
from infinite_scheduler.errors import SchedulerError

_encode: Final = msgspec.json.Encoder().encode


class EventStreams:
    """The listeners of one server, at most so many, until it stops."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._listening = 0
        self._stopping = asyncio.Event()
        self._board = OverviewBoard()
        self._encoded: tuple[object, bytes] = (None, b"")

    @property
    def board(self) -> OverviewBoard:
        """What listeners and those who ask once are shown."""
        return self._board

    def start(self) -> None:
        """Let streams go on after a stop."""
        self._stopping.clear()

    def stop(self) -> None:
        """Let each stream end with a last event."""
        self._stopping.set()

    async def events(self, api: ApiContext) -> AsyncGenerator[bytes, None]:
        """One more stream; its first event is a Refusal if there are too many."""
        if self._listening >= self._most:
            raise Refusal(
                NOT_READY, f"{self._most:,} event streams are open, and no more are allowed (http.streams): try later"
            )
        self._listening += 1
        try:
            while not self._stopping.is_set():
                yield await self._next(api)
                await self._pause(api)
            yield event("end", {"reason": "the server stops"})
        finally:
            self._listening -= 1

    async def _next(self, api: ApiContext) -> bytes:
        try:
            seen = await self._board.look(api)
        except SchedulerError as error:
            return event("away", {"reason": str(error)})
        if self._encoded[0] is not seen:
            self._encoded = (seen, event("overview", seen))
        return self._encoded[1]

    async def _pause(self, api: ApiContext) -> None:
        """Until the next second, or the stop."""
        tick = asyncio.Event()
        waiting = asyncio.ensure_future(wait(api.clock, tick, EVERY_MS))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            stopping.cancel()


def event(name: str, value: object) -> bytes:
    """One server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode(value))
