"""Writes event streams, and drops listeners that do not read what they are sent."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Final

from aiohttp import web

from infinite_scheduler.api.event_streams import SlowReader
from infinite_scheduler.api.happenings import event
from infinite_scheduler.api.traffic import Traffic
from infinite_scheduler.observe.events import Observer, StreamDropped

EVENTS: Final = "text/event-stream"

SLOW_READER_S: Final = 5.0
"""How long a listener may leave its events unread before it is dropped."""

LAST_WORD_S: Final = 2.0
"""How long a listener that is dropped has to read why."""


class EventWriter:
    """Writes the streams of one server."""

    def __init__(self, tell: Observer, traffic: Traffic) -> None:
        self._tell = tell
        self._traffic = traffic

    async def write(
        self, request: web.Request, events: AsyncGenerator[bytes, None], headers: Mapping[str, str]
    ) -> web.StreamResponse:
        """Write events until they end, or the listener has gone or does not read them any more."""
        try:
            first = await anext(events)  # before anything is written: it may be refused
            response = web.StreamResponse(headers={**headers, "Content-Type": EVENTS})
            await response.prepare(request)
            if request.method == "HEAD":  # its answer has no body
                return response
            try:
                await _write(response, first)
                async for one in events:
                    await _write(response, one)
            except SlowReader as slow:
                await self._drop(request, response, str(slow))
            except TimeoutError:
                await self._drop(request, response, f"no event was read for {SLOW_READER_S:g} s")
            except ConnectionError:
                _abort(request)
            except Exception:
                _abort(request)  # whoever answers the error must not write another head into this answer
                raise
            return response
        finally:
            await events.aclose()

    async def _drop(self, request: web.Request, response: web.StreamResponse, reason: str) -> None:
        """End a stream. The last event says why, for a listener that goes on reading in time."""
        self._traffic.answered.streams_dropped += 1
        self._tell(StreamDropped(address=request.remote or "", reason=reason))
        try:
            async with asyncio.timeout(LAST_WORD_S):
                await response.write_eof(event("dropped", {"reason": reason}))
        except (ConnectionError, TimeoutError):
            _abort(request)


async def _write(response: web.StreamResponse, content: bytes) -> None:
    async with asyncio.timeout(SLOW_READER_S):
        await response.write(content)


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        with contextlib.suppress(OSError):
            request.transport.abort()
