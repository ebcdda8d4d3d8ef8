"""Stores on a MariaDB, MySQL or PostgreSQL server, by their URLs."""

# ruff: noqa: PLC0415 - what speaks to a server is loaded when it is used

from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Final

import msgspec

from infinite_scheduler.clock import Clock
from infinite_scheduler.store.scheme import Options, Parts, Preparation, Scheme
from infinite_scheduler.store.sql.limits import SqlLimits
from infinite_scheduler.store.sql.server.address import read_url
from infinite_scheduler.store.sql.server.parts import complete_url
from infinite_scheduler.store.sql.server.url_options import is_visible

if TYPE_CHECKING:
    from infinite_scheduler.store.sql.server.driver import Driver
    from infinite_scheduler.store.sql.store import SqlStore


class ServerScheme(Scheme):
    """A database on a server."""

    def open(self, url: str, clock: Clock, options: Options) -> "SqlStore":
        from infinite_scheduler.store.sql.server.database import ServerDatabase
        from infinite_scheduler.store.sql.store import SqlStore

        limits = SqlLimits.of(options)
        driver = _driver(url, limits)
        database = ServerDatabase(driver, lanes=limits.lanes, connections=limits.connections, ddl=limits.ddl)
        return SqlStore(database, clock, limits, url)

    def check(self, url: str) -> None:
        read_url(url)

    def complete(self, url: str | None, parts: Parts) -> str:
        return complete_url(url, parts)

    def needs_password(self, url: str) -> bool:
        try:
            return "password" not in read_url(url)
        except ValueError:
            return False

    def shows(self, option: str) -> bool:
        return is_visible(option)

    def lack(self, url: str, options: Options) -> str | None:
        from infinite_scheduler.store.sql.schema import SCHEMA_TABLE

        driver = _driver(url, SqlLimits.of(options))
        try:
            with closing(driver.connect()) as connection:
                tables = driver.dialect.tables(connection.cursor())
        except driver.Error as error:
            raise driver.translated(error) from error
        return None if SCHEMA_TABLE in tables else f"{driver.location} has no table {SCHEMA_TABLE}"

    async def prepare(
        self, url: str, clock: Clock, options: Options, *, apps: Mapping[str, int | None], create: bool, days: int
    ) -> Preparation:
        from infinite_scheduler.store.sql.prepare import prepare

        limits = msgspec.structs.replace(SqlLimits.of(options), ddl=True)  # the setting is meant for nodes
        driver = _driver(url, limits)
        made = create and _create_database(driver)
        store = self.open(url, clock, {**options, "ddl": True})
        return await prepare(store, driver.location, apps=apps, made=made, days=days)


def _driver(url: str, limits: SqlLimits) -> "Driver":
    from infinite_scheduler.store.sql.server.drivers import server_driver

    return server_driver(url, limits)


def _create_database(driver: "Driver") -> bool:
    """Create the database in the URL, unless it exists."""
    try:
        return driver.create_database()
    except driver.Error as error:
        raise driver.translated(error) from error


SCHEME: Final = ServerScheme()
