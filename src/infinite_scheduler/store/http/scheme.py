"""Stores elsewhere, by the URLs of servers that answer for them over HTTP."""

# ruff: noqa: PLC0415 - what speaks HTTP is loaded when it is used

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from infinite_scheduler.clock import Clock
from infinite_scheduler.errors import InvalidRequest
from infinite_scheduler.store.http.http_address import (
    complete_http_url,
    http_address,
    read_http_url,
    shows_option,
)
from infinite_scheduler.store.scheme import Options, Parts, Preparation, Scheme

if TYPE_CHECKING:
    from infinite_scheduler.store.http.http_store import HttpStore


class HttpScheme(Scheme):
    """A server that `serve` or `infinite-scheduler http` runs.

    Of the options it takes `token` and `silence_ms`; all others are for the process that has the store.
    """

    speaks_for_another = True

    def open(self, url: str, clock: Clock, options: Options) -> "HttpStore":
        from infinite_scheduler.store.http.http_session import SILENCE_MS, HttpSession
        from infinite_scheduler.store.http.http_store import HttpStore

        silence_ms = options.get("silence_ms", SILENCE_MS)
        return HttpStore(HttpSession(http_address(url), options.get("token"), clock, silence_ms), clock)

    def check(self, url: str) -> None:
        read_http_url(url)

    def complete(self, url: str | None, parts: Parts) -> str:
        return complete_http_url(url, parts)

    def shows(self, option: str) -> bool:
        return shows_option(option)

    def lack(self, url: str, options: Options) -> str | None:
        """None: whether there is a store is for the server to say."""
        del url, options
        return None

    async def prepare(
        self, url: str, clock: Clock, options: Options, *, apps: Mapping[str, int | None], create: bool, days: int
    ) -> Preparation:
        del url, clock, options, apps, create, days
        from infinite_scheduler.store.http.http_store import OWN_URL

        raise InvalidRequest(f"a store cannot be prepared over HTTP: {OWN_URL}")


SCHEME: Final = HttpScheme()
