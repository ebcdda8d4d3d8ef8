"""Who may come in: known hosts, tokens, and what their roles include."""

import asyncio
import ipaddress
from collections.abc import Collection, Sequence
from typing import Final

from aiohttp import web

from infinite_scheduler.api.failed_logins import FailedLogins
from infinite_scheduler.api.operation import LOCAL, Actor, Operation
from infinite_scheduler.api.refusal import (
    FORBIDDEN,
    NO_TOKEN,
    TOO_MANY_FAILURES,
    WRONG_HOST,
    WRONG_ORIGIN,
    Refusal,
)
from infinite_scheduler.api.session_cookie import COOKIE, SessionCookies, opened
from infinite_scheduler.api.token_digest import matching
from infinite_scheduler.clock import Clock
from infinite_scheduler.errors import Unavailable
from infinite_scheduler.store.ledger import Ledger, Role, Token

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})

FRESH_MS: Final = 2000
"""How old the tokens that this process remembers may be: a revoked one is refused after this time."""

_RANK: Final = {Role.READ: 0, Role.SUBMIT: 1, Role.OPERATE: 2}


def is_loopback(host: str) -> bool:
    """Is this an address that only the machine itself can reach?"""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_role(actor: Actor, role: Role) -> None:
    """Refuse what this role or a higher one is needed for."""
    if _RANK[actor.role] < _RANK[role]:
        raise Refusal(
            FORBIDDEN, f"the token {actor.name} has the role {actor.role}, and this needs {role}: use another token"
        )


class KnownTokens:
    """The tokens of the configuration and of the store; the store is asked once every two seconds at most."""

    def __init__(self, configured: Sequence[Token], ledger: Ledger | None, clock: Clock) -> None:
        self._configured = configured
        self._ledger = ledger
        self._clock = clock
        self._stored: Sequence[Token] = ()
        self._read_ms: int | None = None
        self._reading = asyncio.Lock()

    async def valid(self) -> Sequence[Token]:
        """Those that were not revoked. If the store does not answer, the tokens that it had last."""
        if self._is_old():
            async with self._reading:
                if self._is_old():
                    await self._read()
        return [*self._configured, *(token for token in self._stored if token.revoked_ms is None)]

    def forget(self) -> None:
        """Ask the store at the next request: something has changed there."""
        self._read_ms = None

    def _is_old(self) -> bool:
        if self._ledger is None:
            return False
        return self._read_ms is None or self._clock.steady_ms() - self._read_ms >= FRESH_MS

    async def _read(self) -> None:
        if self._ledger is None:
            return
        try:
            self._stored = await self._ledger.tokens()
        except Unavailable:
            if self._read_ms is None:  # nothing is known yet, so no one can be let in
                raise
        self._read_ms = self._clock.steady_ms()


class Access:
    """Admits requests.

    On loopback, and as long as there is no token, everyone is an operator; but only requests for known hosts are
    answered there, since any page in a browser could reach it under a name of its own. Elsewhere a token is needed, or
    the cookie of a page that has logged in with one; a token in the header goes before a cookie.
    """

    def __init__(
        self,
        tokens: KnownTokens,
        cookies: SessionCookies,
        clock: Clock,
        *,
        loopback: bool,
        hosts: Collection[str] = (),
    ) -> None:
        self._tokens = tokens
        self.cookies = cookies
        self._failures = FailedLogins(clock)
        self._loopback = loopback
        self._hosts = LOOPBACK_NAMES | {host.lower() for host in hosts}

    async def admit(self, request: web.Request, operation: Operation) -> Actor:
        """Who asks, if this is allowed; else Refusal."""
        if self._loopback:
            self._check_host(request.headers.get("Host", ""))
        address, role = request.remote or "", operation.role
        if operation.by_page:
            _check_origin(request)
        if role is None:
            return Actor(LOCAL, Role.READ, address)
        actor = await self._actor(request, address, changes=operation.changes)
        check_role(actor, role)
        return actor

    async def log_in(self, given: str, address: str) -> Token:
        """The valid token that was given; else Refusal."""
        return self._matching(given.strip(), await self._tokens.valid(), address)

    async def _actor(self, request: web.Request, address: str, *, changes: bool) -> Actor:
        known = await self._tokens.valid()
        if not known and self._loopback:
            return Actor(LOCAL, Role.OPERATE, address)
        if "Authorization" not in request.headers and COOKIE in request.cookies:
            if changes:
                _check_origin(request)
            token = self._of_session(request.cookies[COOKIE], known)
            return Actor(token.name, token.role, address)
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given.strip():
            raise _no_token("a token is needed: send it in the header Authorization: Bearer TOKEN")
        token = self._matching(given.strip(), known, address)
        return Actor(token.name, token.role, address)

    def _of_session(self, value: str, known: Sequence[Token]) -> Token:
        """The token of a page. What is wrong here is not counted as a failure: a signature cannot be guessed."""
        session = opened(value, known)
        if session is None:
            raise _no_token("the session is not valid, or its token was revoked: log in again")
        if self.cookies.has_ended(session):
            raise _no_token("the session has ended: log in again")
        return session.token

    def _matching(self, given: str, known: Sequence[Token], address: str) -> Token:
        wait_s = self._failures.wait_s(address)
        if wait_s:
            raise Refusal(
                TOO_MANY_FAILURES,
                f"too many requests from {address} had a wrong token: try again in {wait_s} s",
                {"Retry-After": str(wait_s)},
            )
        token = matching(given, known)
        if token is None:
            self._failures.note(address)
            raise _no_token("the token is unknown or was revoked: use another one")
        return token

    def _check_host(self, given: str) -> None:
        host = given.lower()
        name = host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.partition(":")[0]
        if name not in self._hosts:
            raise Refusal(
                WRONG_HOST,
                f"requests for the host {given!a:.100} are not answered here: use localhost, or add it to http.hosts",
            )


def _check_origin(request: web.Request) -> None:
    """Refuse what a page of another origin has sent. Browsers say so in headers that no page can set."""
    site = request.headers.get("Sec-Fetch-Site")
    if site is None:
        origin = request.headers.get("Origin", "").partition("://")[2].lower()
        is_same = bool(origin) and origin == request.headers.get("Host", "").lower()
    else:
        is_same = site == "same-origin"
    if not is_same:
        raise Refusal(
            WRONG_ORIGIN, "this is for pages of this server only: programs send Authorization: Bearer TOKEN instead"
        )


def _no_token(detail: str) -> Refusal:
    return Refusal(NO_TOKEN, detail, {"WWW-Authenticate": 'Bearer realm="infinite-scheduler"'})
