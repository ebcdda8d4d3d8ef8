"""Jobs in a transaction of the user's own, together with business data."""

import os
import random
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar, cast

from sqlalchemy.engine import Connection

from infinite_scheduler.errors import InvalidRequest, UnknownApp
from infinite_scheduler.model import Accepted, JobSpec
from infinite_scheduler.store.sql.dialect import Cursor
from infinite_scheduler.store.sql.new_rows import NewRows, can_be_made
from infinite_scheduler.store.sql.protocol import anybody
from infinite_scheduler.store.sql.request_rows import ONCE, SqlStatements
from infinite_scheduler.store.sql.server.address import names_server
from infinite_scheduler.store.sql.sqlite.database import MEMORY, path_of
from infinite_scheduler.store.sql.sqlite.dialect import SqliteDialect

T = TypeVar("T")


class UserTransaction(Protocol):
    """The store's database as the user's connection sees it."""

    def statements(self) -> SqlStatements:
        """Statements inside the user's transaction; counters go to rows that no other transaction writes."""
        ...

    def all_or_none(self, body: Callable[[], T]) -> T:
        """Run a body so that an error in it leaves nothing behind, though the caller's transaction goes on."""
        ...


def enqueue(
    connection: Connection, specs: Sequence[JobSpec], now_ms: int, url: str, *, ddl: bool = True
) -> Sequence[Accepted]:
    """Insert jobs on a SQLAlchemy connection whose transaction the caller commits; owners are always asked to look."""
    transaction = _transaction_of(connection, url)
    tx = transaction.statements()
    tx.start()
    tx.begin()
    apps = {info.name: info for info in tx.read_apps()}
    for spec in specs:
        if spec.app not in apps:
            raise UnknownApp(spec.app, apps)

    def any_shard(app: str, *, urgent: bool) -> int:
        del urgent
        return random.randrange(apps[app].shards)  # noqa: S311 - spreads, guards nothing

    batch = NewRows.of(specs, now_ms, any_shard, can_be_made if ddl or not names_server(url) else tx.has_table)
    inserted = transaction.all_or_none(lambda: anybody.enqueue(tx, batch.chunks, now_ms))
    return batch.answers(inserted.repeats)


def _transaction_of(connection: Connection, url: str) -> UserTransaction:
    if not isinstance(connection, Connection):
        kind = type(connection).__name__
        raise InvalidRequest(
            f"enqueue needs a SQLAlchemy Connection, not {kind}; for an ORM session, pass session.connection()"
        )
    if not connection.in_transaction():
        connection.begin()
    if names_server(url):
        from infinite_scheduler.store.sql.server.enqueue import ServerUserTransaction  # noqa: PLC0415 - loads a driver

        return ServerUserTransaction(connection, url)
    return SqliteUserTransaction(connection, url)


class SqliteUserTransaction:
    """The file of a SQLite store."""

    def __init__(self, connection: Connection, url: str) -> None:
        self._driver = _driver(connection)
        check_is_store(self._driver, url)

    def statements(self) -> SqlStatements:
        return SqlStatements(cast("Cursor", self._driver.cursor()), SqliteDialect(), own_process())

    def all_or_none(self, body: Callable[[], T]) -> T:
        with _all_or_none(self._driver):
            return body()


def own_process() -> str:
    """A name for counters that are written once: no transaction ever waits for another's."""
    return f"{ONCE}{os.urandom(8).hex()}"


def _driver(connection: Connection) -> sqlite3.Connection:
    """The driver's connection, in a transaction that SQLAlchemy has begun: the driver itself would not begin one."""
    if connection.dialect.name != "sqlite":
        raise InvalidRequest(f"enqueue works on the store's own database, SQLite; this is {connection.dialect.name}")
    driver = cast("sqlite3.Connection", connection.connection.dbapi_connection)
    if driver.isolation_level is None and not driver.in_transaction:
        raise InvalidRequest(
            "enqueue needs a transaction, but this connection commits every statement: do not use AUTOCOMMIT"
        )
    return driver


def check_is_store(driver: sqlite3.Connection, url: str) -> None:
    """Refuse any other database: no node of this store would look there."""
    path = path_of(url)
    files = {name: file for _, name, file in driver.execute("PRAGMA database_list")}
    if path != MEMORY and os.path.realpath(files.get("main", "")) != os.path.realpath(path):
        raise InvalidRequest(
            f"this is not the store's database but {files.get('main')!r}: connect to the file of store.url"
        )


@contextmanager
def _all_or_none(driver: sqlite3.Connection) -> Iterator[None]:
    """An error in the body leaves nothing behind, though the caller's transaction goes on."""
    if not driver.in_transaction:
        driver.execute("BEGIN IMMEDIATE")
    driver.execute("SAVEPOINT infinite_scheduler")
    try:
        yield
    except BaseException:
        driver.execute("ROLLBACK TO infinite_scheduler")
        raise
    finally:
        driver.execute("RELEASE infinite_scheduler")
