"""Where jobs wait: the port and its adapters."""

# ruff: noqa: PLC0415 - a store, and the driver of its database, is loaded when it is used

from typing import TYPE_CHECKING

from infinite_scheduler.errors import ConfigError

if TYPE_CHECKING:
    from infinite_scheduler.clock import Clock
    from infinite_scheduler.store.base import Store, StoreLimits
    from infinite_scheduler.store.sql.server.driver import Driver
    from infinite_scheduler.store.sql.statements import Database


def open_store(url: str, clock: "Clock", limits: "StoreLimits | None" = None) -> "Store":
    """Create the store for a URL; it is not connected yet."""
    from infinite_scheduler.store.base import StoreLimits
    from infinite_scheduler.store.sql.store import SqlStore

    limits = limits or StoreLimits()
    return SqlStore(_database(url, limits), clock, limits)


def _database(url: str, limits: "StoreLimits") -> "Database":
    from infinite_scheduler.store.sql.server.address import names_server

    if names_server(url):
        from infinite_scheduler.store.sql.server.database import ServerDatabase

        driver = server_driver(url, limits)
        return ServerDatabase(driver, lanes=limits.lanes, connections=limits.connections, ddl=limits.ddl)
    scheme = url.partition(":")[0]
    if scheme != "sqlite":
        raise ConfigError(
            f"store.url: this version has no store for {scheme!r}; "
            "expected sqlite:///FILE, mariadb://…, mysql://… or postgresql://…"
        )
    from infinite_scheduler.store.sql.sqlite.database import SqliteDatabase, path_of

    return SqliteDatabase(path_of(url))


def server_driver(url: str, limits: "StoreLimits | None" = None) -> "Driver":
    """Create the driver of the server for a URL."""
    from infinite_scheduler.store.base import StoreLimits
    from infinite_scheduler.store.sql.server.address import address_of
    from infinite_scheduler.store.sql.server.arguments import psycopg_arguments, pymysql_arguments, require_driver

    address = address_of(url)
    require_driver(address.kind)
    from infinite_scheduler.store.sql.server.driver import Waits

    waits = Waits.of(limits or StoreLimits())
    if address.kind == "postgres":
        from infinite_scheduler.store.sql.server.postgres import PostgresDriver

        return PostgresDriver(psycopg_arguments(address), str(address), waits)
    from infinite_scheduler.store.sql.server.mariadb import MariaDriver

    return MariaDriver(pymysql_arguments(address), str(address), waits)
