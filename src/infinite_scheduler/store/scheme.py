"""The port of a kind of store: what can be said and done by a URL alone, before a store is opened."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from infinite_scheduler.clock import Clock
from infinite_scheduler.store.base import Store

Options = Mapping[str, Any]
"""What the settings say of a store beside its URL, by their names there; a length of time is `NAME_ms`, a number."""

Parts = Mapping[str, Any]
"""What separate settings say about an address if a URL leaves it open: host, port, user, …"""

NOT_AN_ADDRESS: Final = frozenset({"password", "connect_timeout"})
"""Parts that do not say where a store is: from the environment they may stand beside any URL."""


class BadPart(ValueError):
    """A part of an address is missing, or does not fit the others; the message says what is expected."""

    def __init__(self, part: str, expected: str) -> None:
        self.part = part
        super().__init__(expected)


class Preparation(msgspec.Struct, frozen=True, kw_only=True):
    """What there was to do before nodes can use a store, and is done."""

    done: Sequence[str]  # a line for each thing, for people
    notes: Sequence[str]  # where the store keeps what it has, although the settings say something else
    data: Mapping[str, Any]  # all of it, for programs


class Scheme(ABC):
    """One kind of store; `SCHEMES` says which URLs name it."""

    speaks_for_another: ClassVar[bool] = False
    """Is it only a way to a store that nodes work on elsewhere? Then it takes a token, and no node starts on it."""

    @abstractmethod
    def open(self, url: str, clock: Clock, options: Options) -> Store:
        """The store at this URL, not connected yet. Raises ConfigError, which shows no password."""

    def check(self, url: str) -> None:
        """Raise ValueError, without the URL in its text, if the URL cannot be read."""
        del url

    def complete(self, url: str | None, parts: Parts) -> str:
        """The URL completed from the parts, or one made of the parts alone. Raises BadPart."""
        address_parts = [name for name in parts if name not in NOT_AN_ADDRESS]
        if address_parts or url is None:
            part = address_parts[0] if address_parts else "url"
            raise BadPart(
                part, "contradicts store.url, which does not name a database server: leave out one of the two"
            )
        return url

    def needs_password(self, url: str) -> bool:
        """Does the URL leave a password open, so that it may come from elsewhere?"""
        del url
        return False

    def shows(self, option: str) -> bool:
        """May people see what this option of a URL says? An unknown option may be a secret."""
        del option
        return False

    @abstractmethod
    def lack(self, url: str, options: Options) -> str | None:
        """What is missing that a store has, where the URL says; None: there is a store, or what may be one."""

    def wait_until_made(self, url: str) -> None:
        """Wait for a moment while somebody makes a store there; raises StoreMismatch if it does not become one."""
        del url

    def app_names(self, url: str) -> Sequence[str]:
        """The apps that can be read there at once and without leaving anything behind; for completion in shells."""
        del url
        return ()

    @abstractmethod
    async def prepare(
        self, url: str, clock: Clock, options: Options, *, apps: Mapping[str, int | None], create: bool, days: int
    ) -> Preparation:
        """Bring the store up to date, with these apps (name → shards) and what they need for `days` days ahead.

        With `create` it is made if there is none.
        """
