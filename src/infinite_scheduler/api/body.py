"""Reads the bodies of requests: of a known type, not compressed, within bounds of size and time."""

import asyncio
from typing import Any, Final

from aiohttp import ClientPayloadError, web

from infinite_scheduler.api.refusal import BUSY, LARGE_BODY, MALFORMED, SLOW_BODY, WRONG_TYPE, Refusal

TOGETHER: Final = 128 * 1024 * 1024
"""How many bytes of bodies that have not arrived in full are held at once, over all connections."""


class BodyReader:
    """Reads bodies for all connections of a server, and holds at most so much of unfinished ones."""

    def __init__(self, within_s: float, together: int = TOGETHER) -> None:
        self._within_s = within_s
        self._together = together
        self._held = 0

    async def read(self, request: web.Request, types: tuple[str, ...], most: int) -> bytes:
        """The whole body; Refusal if it is too large, too slow, compressed or of another type."""
        if request.content_type not in types or "Content-Type" not in request.headers:
            raise Refusal(WRONG_TYPE, f"the body is {_type_of(request)}: set the header Content-Type: {types[0]}")
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise Refusal(WRONG_TYPE, "the body is compressed: send it as it is, without Content-Encoding")
        if (request.content_length or 0) > most:
            raise _too_large(request.content_length or 0, most)
        content = request.content
        if content.is_eof():  # as most are: it came with the headers
            body = content.read_nowait()
            if len(body) > most:
                raise _too_large(len(body), most)
            return body
        try:
            async with asyncio.timeout(self._within_s):
                return await self._arrived(content, most)
        except TimeoutError:
            raise Refusal(
                SLOW_BODY, f"the body did not arrive within {self._within_s:g} s: send it faster, or in parts"
            ) from None
        except (ClientPayloadError, web.RequestPayloadError, OSError) as error:
            raise Refusal(MALFORMED, f"the body ended before its time: {type(error).__name__}") from None

    async def _arrived(self, content: Any, most: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        try:
            async for part in content.iter_any():
                parts.append(part)
                size += len(part)
                self._held += len(part)
                if size > most:
                    raise _too_large(size, most)
                if self._held > self._together and size < self._held:
                    raise Refusal(BUSY, "too many large bodies are being read: nothing was accepted, so send it again")
        finally:
            self._held -= size
        return b"".join(parts)


def _too_large(size: int, most: int) -> Refusal:
    return Refusal(
        LARGE_BODY, f"the body has {size:,} bytes or more, but at most {most:,} are read here: send less at a time"
    )


def _type_of(request: web.Request) -> str:
    return f"of type {request.content_type}" if "Content-Type" in request.headers else "of no type"
