"""The HTTP server inside an event loop: opened when what it answers for runs, closed before that stops."""

import asyncio
import errno
import logging
import ssl
from collections.abc import Sequence
from typing import Final

import msgspec
from aiohttp import web

from infinite_scheduler.api.access import Access, KnownTokens, is_loopback
from infinite_scheduler.api.api_context import ApiContext
from infinite_scheduler.api.body import BodyReader
from infinite_scheduler.api.connections import Connections
from infinite_scheduler.api.first_token import make_first_token
from infinite_scheduler.api.health_operations import METRICS_PATH
from infinite_scheduler.api.operation import Operation
from infinite_scheduler.api.operations import OPERATIONS
from infinite_scheduler.api.router import Router
from infinite_scheduler.api.session_cookie import SessionCookies
from infinite_scheduler.api.traffic import Traffic
from infinite_scheduler.errors import ConfigError
from infinite_scheduler.observe.events import HttpOpened, HttpPortTaken, HttpUnencrypted, Observer
from infinite_scheduler.store.abilities import Ability
from infinite_scheduler.store.ledger import Token

IDLE_S: Final = 75.0
"""How long a connection may stay without a whole request: longer than most proxies keep theirs."""

BACKLOG: Final = 1024

_SILENT: Final = logging.Logger("aiohttp", logging.CRITICAL + 1)  # noqa: LOG001 - no configuration may wake it up
"""What aiohttp would log is what clients send that is not HTTP, and that may contain a token."""


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server listens, whom it lets in, and how much of everything it allows."""

    host: str = "127.0.0.1"
    port: int = 7070
    may_give_way: bool = False  # do without the port if another process has it
    hosts: tuple[str, ...] = ()
    certificate: str | None = None
    key: str | None = None
    tokens: tuple[Token, ...] = ()
    open_metrics: bool = False  # /metrics needs no token
    session_ms: int = 12 * 3_600_000
    connections: int = 1000
    body_timeout_s: float = 30.0
    stop_timeout_s: float = 10.0


class HttpServer:
    """Answers HTTP requests from `start` to `stop`; both can be repeated."""

    def __init__(
        self,
        api: ApiContext,
        settings: ServerSettings,
        tell: Observer,
        operations: Sequence[Operation] = OPERATIONS,
        traffic: Traffic | None = None,
    ) -> None:
        self._api = api
        self._settings = settings
        self._tell = tell
        self._operations = operations
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self.traffic = traffic or Traffic()
        self.problem: str | None = None
        """Why it does not answer although it was started."""

    @property
    def url(self) -> str | None:
        """Where it answers; None: it does not."""
        if self._server is None:
            return None
        host, port = self._server.sockets[0].getsockname()[:2]
        scheme = "http" if self._settings.certificate is None else "https"
        return f"{scheme}://{_spelled(host)}:{port}{self._api.root_path}"

    async def start(self) -> None:
        """Begin to answer, or raise a ConfigError; a taken port that it may do without is only reported."""
        settings = self._settings
        context = _tls(settings)
        loopback = is_loopback(settings.host)
        ledger = self._api.client.ledger if Ability.TOKENS in self._api.client.abilities else None
        tokens = KnownTokens(settings.tokens, ledger, self._api.clock)
        cookies = SessionCookies(self._api.clock, settings.session_ms, self._api.root_path, secure=context is not None)
        access = Access(tokens, cookies, self._api.clock, loopback=loopback, hosts=settings.hosts)
        router = Router(
            msgspec.structs.replace(self._api, given_access=access),
            access,
            BodyReader(settings.body_timeout_s),
            self._tell,
            self.traffic,
        )
        self._runner = web.AppRunner(
            router.application([_opened(one, settings) for one in self._operations]),
            handle_signals=False,
            access_log=None,
            logger=_SILENT,
            auto_decompress=False,
            keepalive_timeout=IDLE_S,
            shutdown_timeout=settings.stop_timeout_s,
        )
        await self._runner.setup()
        try:
            await self._listen(self._runner, context)
            if self._server is not None and not loopback:
                await make_first_token(tokens, ledger, self._api.clock)
        except BaseException:
            await self.stop()
            raise
        if self.url is not None:
            self._tell(HttpOpened(url=self.url))
            if not loopback and context is None:
                self._tell(HttpUnencrypted(url=self.url))

    async def _listen(self, runner: web.AppRunner, context: ssl.SSLContext | None) -> None:
        settings, loop = self._settings, asyncio.get_running_loop()
        address = f"{_spelled(settings.host)}:{settings.port}"
        self.problem = None
        self._api.streams.start()
        try:
            self._server = await loop.create_server(
                Connections(runner.server, settings.connections),
                settings.host,
                settings.port,
                ssl=context,
                backlog=BACKLOG,
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE and settings.may_give_way:
                self.problem = f"{address} is in use by another process"
                self._tell(HttpPortTaken(address=address))
                return
            what = "is in use by another process" if error.errno == errno.EADDRINUSE else f"cannot be used: {error}"
            raise ConfigError(
                f"http.port: {address} {what}; choose another http.port or http.host, or set http.enabled = false"
            ) from None

    async def stop(self) -> bool:
        """Take no more requests, and finish those in progress. False: some of them had to be ended."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self._api.streams.stop()
        if self._runner is None:
            return True
        before, runner, self._runner = self.traffic.abandoned, self._runner, None
        await runner.cleanup()
        await asyncio.sleep(0)  # connections that were closed let go of their sockets, also if the loop ends now
        return self.traffic.abandoned == before and not self.traffic.in_progress


def _opened(operation: Operation, settings: ServerSettings) -> Operation:
    """The operation as it is here: metrics may be for everyone."""
    if settings.open_metrics and operation.path == METRICS_PATH:
        return msgspec.structs.replace(operation, role=None)
    return operation


def _tls(settings: ServerSettings) -> ssl.SSLContext | None:
    if settings.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.certificate, settings.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"http.certificate: {settings.certificate} with the key {settings.key or 'in the same file'} cannot be "
            f"used: {error}; expected PEM files that belong together"
        ) from None
    return context


def _spelled(host: str) -> str:
    return f"[{host}]" if ":" in host else host
