"""The cookie of a page that has logged in: it names a token and an end, is signed, and needs no state on any server.

The key of the signature is made of the token's digest, which every process of a store has. So a session ends with its
token, and counts on every server that knows the token. Whoever can read the digests of a store could sign cookies: who
may read its tables must be trusted as much as the holder of a token.
"""

import hashlib
import hmac
from collections.abc import Iterable
from typing import Final, NamedTuple

from infinite_scheduler.clock import Clock
from infinite_scheduler.store.ledger import Token

COOKIE: Final = "infinite_scheduler_session"

_PURPOSE: Final = b"infinite-scheduler session"
_DIGITS: Final = 16
"""How many digits the end of a session may have: what is longer was not made here."""


class OpenedSession(NamedTuple):
    """A cookie whose signature is right: its token, and when it ends."""

    token: Token
    ends_ms: int


class SessionCookies:
    """Makes the cookies of one server, and opens those of all servers of the store."""

    def __init__(self, clock: Clock, length_ms: int, root_path: str, *, secure: bool) -> None:
        self._clock = clock
        self._length_ms = length_ms
        self._path = root_path or "/"
        self._secure = secure

    def end_of_new(self) -> int:
        """When a session ends that begins now."""
        return self._clock.wall_ms() + self._length_ms

    def header(self, token: Token, ends_ms: int, *, secure: bool) -> str:
        """The header that sets the cookie; `secure`: the page was loaded by TLS, which a proxy may have ended."""
        return self._written(sealed(token, ends_ms), max(0, ends_ms - self._clock.wall_ms()) // 1000, secure=secure)

    def header_of_none(self) -> str:
        """The header that deletes the cookie."""
        return self._written("", 0, secure=False)

    def has_ended(self, session: OpenedSession) -> bool:
        """Is its time over?"""
        return session.ends_ms <= self._clock.wall_ms()

    def _written(self, value: str, age_s: int, *, secure: bool) -> str:
        flags = "; Secure" if secure or self._secure else ""
        return f"{COOKIE}={value}; Path={self._path}; Max-Age={age_s}; HttpOnly; SameSite=Strict{flags}"


def sealed(token: Token, ends_ms: int) -> str:
    """The value of a cookie."""
    return f"{ends_ms}.{_signature(token, ends_ms)}.{token.name}"


def opened(value: str, valid: Iterable[Token]) -> OpenedSession | None:
    """What a cookie says, if one of these tokens has signed it."""
    end, _, rest = value.partition(".")
    signature, _, name = rest.partition(".")
    if not (end.isascii() and end.isdecimal() and len(end) <= _DIGITS):
        return None
    found = None
    for token in valid:
        if token.name == name and _is_right(signature, token, int(end)):
            found = OpenedSession(token, int(end))
    return found


def _is_right(signature: str, token: Token, ends_ms: int) -> bool:
    """Compared in constant time, so that time tells nothing."""
    return hmac.compare_digest(signature.encode(errors="replace"), _signature(token, ends_ms).encode())


def _signature(token: Token, ends_ms: int) -> str:
    key = hmac.digest(token.digest, _PURPOSE, hashlib.sha256)
    return hmac.digest(key, f"{ends_ms}.{token.name}".encode(), hashlib.sha256).hex()
