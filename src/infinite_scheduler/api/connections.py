"""Limits how many connections a server has open at once."""

import asyncio
from typing import Final

from aiohttp import web

_REFUSED: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
)


class Connections:
    """Makes the protocol of each new connection; one too many is told so and closed."""

    def __init__(self, server: web.Server | None, most: int) -> None:
        if server is None:
            raise RuntimeError("the runner has no server: call setup() first")
        self._server = server
        self._most = most

    def __call__(self) -> asyncio.Protocol:
        if len(self._server.connections) >= self._most:
            return _Refused()
        return self._server()


class _Refused(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.WriteTransport):
            transport.write(_REFUSED)
        transport.close()
