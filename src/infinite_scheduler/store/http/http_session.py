"""Asks a server: one session with its connections, time-outs, and repeats of what may be repeated."""

import asyncio
import io
from collections.abc import Mapping
from typing import Any, Final, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec
from yarl import URL

from infinite_scheduler.clock import Clock, sleep
from infinite_scheduler.errors import ConfigError, IdRefused, StoreBroken, StoreMismatch, StoreUnavailable, Unavailable
from infinite_scheduler.store.http.answer_errors import NoAnswer, error_of, not_a_server
from infinite_scheduler.store.http.http_address import HttpAddress

T = TypeVar("T")

TRIES: Final = 4
"""How often a request is sent that has no answer, if that is harmless."""

SILENCE_MS: Final = 20_000
"""How long an answer may take by default, besides the time for which the request itself may wait."""

SENDING_MS: Final = 60_000
"""How long sending a request may take, or waiting for a connection to send it: a server may read no more."""

CLOSE_S: Final = 5.0
"""How long a close waits for answers."""

SAYS_NOTHING: Final = (Unavailable, IdRefused, ConfigError, StoreMismatch, StoreBroken)
"""Errors that say nothing about an earlier try of the same request: it may have taken effect."""

CONNECTIONS: Final = 16
LARGE: Final = 1 << 20
"""Bodies of more bytes are handed to the connection in pieces, so that the event loop has its turns."""

_OK: Final = 200
_REDIRECT: Final = 300


class HttpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request: its parts are written as they must be on the way."""

    method: str
    path: str
    query: Mapping[str, str] = {}
    body: bytes = b""
    waits_ms: int = 0  # that the server may take before it can answer
    repeatable: bool = True  # sending it twice has the effect of sending it once


def path(*parts: str) -> str:
    """A path of these parts, whatever characters they have."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


class HttpSession:
    """The connections of one store; made in the event loop that uses them."""

    def __init__(self, address: HttpAddress, token: str | None, clock: Clock, silence_ms: int = SILENCE_MS) -> None:
        self._address = address
        self._token = token
        self._clock = clock
        self._silence_ms = silence_ms
        self._session: aiohttp.ClientSession | None = None
        self._calls: set[asyncio.Future[None]] = set()

    @property
    def place(self) -> str:
        """The server as people see it."""
        return self._address.base

    async def open(self) -> None:
        """Be ready to ask; nothing is sent yet."""
        headers = {"User-Agent": "infinite-scheduler", "Accept": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        self._session = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=CONNECTIONS, ssl=self._address.tls),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Wait for answers, for a while, and disconnect; whoever still waits learns that the result is unknown."""
        session, self._session = self._session, None
        if session is None:
            return
        if self._calls:
            await asyncio.wait(self._calls, timeout=CLOSE_S)
        await session.close()

    async def ask(self, request: HttpRequest, decoder: msgspec.json.Decoder[T]) -> T:
        """The answer. Raises what the server has raised, or StoreUnavailable if none came."""
        if self._session is None:
            raise Unavailable("the store is not open, so nothing was sent: open it first")
        call: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls.add(call)
        try:
            return await self._ask(self._session, request, decoder)
        finally:
            self._calls.discard(call)
            call.cancel()

    async def _ask(self, session: aiohttp.ClientSession, request: HttpRequest, decoder: msgspec.json.Decoder[T]) -> T:
        in_doubt = False
        for attempt in range(1, TRIES + 1):
            try:
                content = await self._send(session, request)
            except NoAnswer as error:
                in_doubt = in_doubt or error.sent
                if attempt == TRIES or session.closed or self._session is None or (in_doubt and not request.repeatable):
                    raise self._no_answer(request, error, in_doubt=in_doubt) from error
            except SAYS_NOTHING as error:
                if not in_doubt or request.method == "GET":
                    raise
                raise self._no_answer(request, error, in_doubt=True) from error
            else:
                return self._decoded(request, content, decoder)
            await sleep(self._clock, 50 * 2**attempt)
        raise AssertionError("unreachable")

    def _no_answer(self, request: HttpRequest, error: Exception, *, in_doubt: bool) -> StoreUnavailable:
        if request.method == "GET" or not in_doubt:
            return StoreUnavailable(str(error))
        return StoreUnavailable(
            f"{error}; it is unknown whether the request took effect: look, or send it again if that does no harm"
        )

    async def _send(self, session: aiohttp.ClientSession, request: HttpRequest) -> bytes:
        """The body of an answer of 2xx; raises what any other answer tells, and NoAnswer without one."""
        url = URL(self._address.base + request.path, encoded=True).with_query(request.query or None)
        posted: dict[str, Any] = {}
        if request.method != "GET":
            body = request.body if len(request.body) < LARGE else io.BytesIO(request.body)
            posted = {"data": body, "headers": {"Content-Type": "application/json"}}
        wait_s = (self._silence_ms + request.waits_ms) / 1000
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self._address.connect_timeout_s, connect=None, sock_read=wait_s
        )
        try:
            async with asyncio.timeout(self._address.connect_timeout_s + wait_s + SENDING_MS / 1000):
                response = await session.request(request.method, url, timeout=timeout, allow_redirects=False, **posted)
            async with response:
                content = await response.read()
                status, location = response.status, response.headers.get("Location", "elsewhere")
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
            raise ConfigError(
                f"{self.place} cannot be trusted: {error}; correct store.url, or name the certificate authorities with "
                "sslrootcert"
            ) from None
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NoAnswer(f"{self.place} cannot be reached: {_reason(error)}", sent=False) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise NoAnswer(f"{self.place} has not answered: {_reason(error)}", sent=True) from None
        if _OK <= status < _REDIRECT:
            return content
        if status < 400:
            raise not_a_server(self.place, f"it redirects to {location}")
        raise error_of(status, content, self.place)

    def _decoded(self, request: HttpRequest, content: bytes, decoder: msgspec.json.Decoder[T]) -> T:
        try:
            return decoder.decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            mismatch = not_a_server(self.place, f"its answer cannot be read: {error}")
        if request.method == "GET":
            raise mismatch
        raise self._no_answer(request, mismatch, in_doubt=True)


def _reason(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return str(error.os_error.strerror or error.os_error)
    return str(error) or type(error).__name__
