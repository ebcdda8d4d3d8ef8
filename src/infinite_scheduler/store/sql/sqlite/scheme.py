"""Stores in a SQLite file, by their URLs."""

# ruff: noqa: PLC0415 - a shell that completes a word waits for this module

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from infinite_scheduler.clock import Clock, SystemClock
from infinite_scheduler.errors import StoreMismatch, StoreUnavailable
from infinite_scheduler.store.scheme import Options, Preparation, Scheme
from infinite_scheduler.store.sql.limits import SqlLimits
from infinite_scheduler.store.sql.schema import SCHEMA_TABLE
from infinite_scheduler.store.sql.sqlite.database import MEMORY, SqliteDatabase, glance, is_store, path_of

if TYPE_CHECKING:
    from infinite_scheduler.store.sql.store import SqlStore

MAKING_MS: Final = 2000
"""How long an empty file may take to become a store: a starting node creates one."""


class SqliteScheme(Scheme):
    """A SQLite file, or `:memory:`. With the option `inline` it works in the caller's thread: for tests."""

    def open(self, url: str, clock: Clock, options: Options) -> "SqlStore":
        from infinite_scheduler.store.sql.store import SqlStore

        inline = bool(options.get("inline", False))
        limits = SqlLimits.of({name: value for name, value in options.items() if name != "inline"})
        return SqlStore(SqliteDatabase(path_of(url), inline=inline), clock, limits, url)

    def lack(self, url: str, options: Options) -> str | None:
        del options
        path = _file(url)
        return None if path is None or path.exists() else f"there is no database {path}"

    def wait_until_made(self, url: str) -> None:
        path = _file(url)
        if path is None:
            return
        clock = SystemClock()
        until_ms = clock.steady_ms() + MAKING_MS
        while not (found := is_store(str(path))):
            if found is False or clock.steady_ms() >= until_ms:
                raise StoreMismatch(f"{path} is not a store: it has no table {SCHEMA_TABLE}")
            time.sleep(0.01)

    def app_names(self, url: str) -> Sequence[str]:
        with closing(glance(path_of(url))) as connection:
            return [name for (name,) in connection.execute("SELECT name FROM scheduler_apps")]

    async def prepare(
        self, url: str, clock: Clock, options: Options, *, apps: Mapping[str, int | None], create: bool, days: int
    ) -> Preparation:
        from infinite_scheduler.store.sql.prepare import prepare

        lack = self.lack(url, options)
        if not create:
            if lack is not None:
                raise StoreUnavailable(
                    f"the store does not exist yet: {lack}; check --store and --config, or create it with --create"
                )
            self.wait_until_made(url)
        made = lack is not None  # the file is created by opening it
        store = self.open(url, clock, options)
        return await prepare(store, url, apps=apps, made=made, days=days)


def _file(url: str) -> Path | None:
    """The file that should be there; None: the store is in memory."""
    path = path_of(url)
    return None if path == MEMORY else Path(path).absolute()


SCHEME: Final = SqliteScheme()
