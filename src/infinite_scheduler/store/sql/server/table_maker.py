"""Creates and drops tables outside the transactions that use them, one process at a time."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TypeVar

from infinite_scheduler.errors import StoreMismatch
from infinite_scheduler.store.sql.dialect import Cursor
from infinite_scheduler.store.sql.schema import SCHEMA_TABLE, VERSION, migrate, version_of
from infinite_scheduler.store.sql.server.driver import Driver, Fault
from infinite_scheduler.store.sql.upkeep_rows import UpkeepRows

T = TypeVar("T")

CHANGING = f"UPDATE {SCHEMA_TABLE} SET tables = tables + 1 + tables % 2"  # noqa: S608
CHANGED = f"UPDATE {SCHEMA_TABLE} SET tables = tables + 2 - tables % 2"  # noqa: S608
"""Every process compares this number with the one it knows, and so learns that tables were created or dropped.

Odd means that a change is in progress: then every transaction looks at the tables themselves, and takes a missing one
for properly dropped. It stays odd if the process dies between a table and this number, which MariaDB cannot change
together, until the next change is complete.
"""


class TableMaker:
    """A connection of its own for statements that change tables, under a lock that all processes share."""

    def __init__(self, driver: Driver, *, allowed: bool) -> None:
        self.allowed = allowed
        self._driver = driver
        self._turn = threading.Lock()

    def migrate(self) -> int:
        """Bring the schema up to date, or raise if that is needed but not allowed here. Returns the version it had."""

        def step(cursor: Cursor) -> None:
            migrate(cursor, self._driver.dialect)

        version = self._ask(lambda cursor: version_of(cursor, self._driver.dialect))
        if version == VERSION:
            return version
        if not self.allowed:
            raise StoreMismatch(
                f"the schema of {self._driver.location} is missing or older than this version needs, but store.ddl is "
                "false: run `infinite-scheduler migrate` as a user who may create tables"
            )
        self._change(step)
        return version

    def store_id(self) -> str:
        """The unique id of this store."""

        def step(cursor: Cursor) -> str:
            cursor.execute(f"SELECT store_id FROM {SCHEMA_TABLE}")  # noqa: S608
            return str(cursor.fetchone()[0])

        return self._ask(step)

    def make(self, statements: Mapping[str, str]) -> None:
        """Create tables (name → statement), those that are still missing."""
        if not self.allowed:
            raise StoreMismatch(
                f"{self._driver.location} has no table {', '.join(statements)}, but store.ddl is false: run "
                "`infinite-scheduler migrate` as a user who may create tables"
            )

        def step(cursor: Cursor) -> None:
            with self._announced(cursor):
                for statement in statements.values():
                    cursor.execute(statement)

        self._change(step)

    def drop(self, table: str, safe: Callable[[UpkeepRows], bool]) -> bool:
        """Drop a table if it is not in use and `safe` says so while it is locked."""

        def step(cursor: Cursor) -> bool:
            if table not in self._driver.dialect.tables(cursor):
                return False
            with self._announced(cursor):  # before the lock: transactions behind it must know why the table is gone
                return self._driver.lock_table(cursor, table) and self._drop_locked(cursor, table, safe)

        return self.allowed and self._change(step)

    def _drop_locked(self, cursor: Cursor, table: str, safe: Callable[[UpkeepRows], bool]) -> bool:
        try:
            if not self._beside(safe):
                return False
            cursor.execute(f"DROP TABLE {table}")
            return True
        finally:
            with suppress(self._driver.Error, OSError):  # a lost connection has released it
                self._driver.unlock_table(cursor)

    @contextmanager
    def _announced(self, cursor: Cursor) -> Iterator[None]:
        """Record in the database that tables change, and when that is over, however it ends."""
        cursor.execute(CHANGING)
        try:
            yield
        except BaseException:
            with suppress(self._driver.Error, OSError):  # if all is one transaction, nothing was changed
                cursor.execute(CHANGED)
            raise
        cursor.execute(CHANGED)

    def _beside(self, question: Callable[[UpkeepRows], T]) -> T:
        """Query on another connection: one that has locked a table may not see others."""
        connection = self._driver.connect()
        try:
            return question(UpkeepRows(connection.cursor(), self._driver.dialect, ""))
        finally:
            with suppress(self._driver.Error, OSError):
                connection.close()

    def _change(self, step: Callable[[Cursor], T]) -> T:
        """Run a step under the lock."""

        def locked(cursor: Cursor) -> T:
            self._driver.lock_tables(cursor)
            result = step(cursor)
            self._driver.unlock_tables(cursor)
            return result

        return self._ask(locked)

    def _ask(self, step: Callable[[Cursor], T]) -> T:
        """Run a step on a connection of its own, closed afterwards: tables change only a few times per day."""
        with self._turn:
            try:
                connection = self._driver.connect()
                try:
                    return step(connection.cursor())
                finally:
                    with suppress(self._driver.Error, OSError):
                        connection.close()  # which also releases its locks and rolls back an open transaction
            except self._driver.Error as error:
                if self._driver.fault(error) is Fault.AGAIN:
                    raise self._driver.busy(error) from error
                raise self._driver.translated(error) from error
