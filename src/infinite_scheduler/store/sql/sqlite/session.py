"""Transactions on one SQLite connection, run by a thread of their own or in the caller's."""

import os
import sqlite3
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from infinite_scheduler.errors import StoreBroken
from infinite_scheduler.store.sql.database_thread import DatabaseThread
from infinite_scheduler.store.sql.request_rows import SqlStatements
from infinite_scheduler.store.sql.rows import RunAgain
from infinite_scheduler.store.sql.sqlite.checkpoint import checkpoint
from infinite_scheduler.store.sql.sqlite.sqlite_errors import (
    in_doubt,
    is_busy,
    is_missing_table,
    replaced,
    too_busy,
    translated,
)
from infinite_scheduler.store.sql.sqlite.turns import Turns, pause
from infinite_scheduler.store.sql.statements import Body, Session

T = TypeVar("T")

LOCK_WAIT_S: Final = 5.0
"""How long another process may hold the write lock before a transaction gives up."""

ALONE: Final = Turns()

TRIES: Final = 5
"""How often a body is run again because tables changed meanwhile."""


class Transactions:
    """One connection: one transaction at a time, tried again while another process holds the lock."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        statements: SqlStatements,
        path: str,
        turns: Turns = ALONE,
    ) -> None:
        self._connection = connection
        self._statements = statements
        self._path = path
        self._turns = turns
        self._file = file_at(path)
        self.committed: Callable[[int], None] = lambda _rows: None
        """Called with the number of rows that each commit has changed."""
        self.failed: Callable[[], None] = lambda: None
        """Called when the database has refused a commit."""

    def prepare(self, pragmas: Mapping[str, str]) -> None:
        """Set the pragmas of the connection."""
        for name, value in pragmas.items():
            answer = self._insist(partial(self._pragma, f"{name} = {value}"))
            if name == "journal_mode" and answer == "delete":
                raise StoreBroken(
                    f"the database {self._path} cannot keep a write-ahead log: its file system does not allow shared "
                    "memory; use a local disk"
                )

    def write(self, body: Body[T]) -> T:
        """Run the body under the write lock, and commit."""
        before = self._connection.total_changes
        try:
            result = self._insist(lambda: self._run(self._begin_write, body))
        except StoreBroken:
            self.failed()
            raise
        finally:
            self._turns.writing.give_back()
        self.committed(self._connection.total_changes - before)
        return result

    def read(self, body: Body[T]) -> T:
        """Run the body on one snapshot."""
        return self._insist(lambda: self._run(self._begin_read, body))

    def version(self) -> int:
        """A number that changes when another connection has committed."""
        return int(self._insist(partial(self._pragma, "data_version")))

    def checkpoint(self) -> None:
        """Finish the log: no commit of this process can come between, so the next commit can start it over."""
        with self._turns.checkpointing as mine:
            if mine:
                checkpoint(self._connection)

    def close(self) -> None:
        """Disconnect."""
        self._statements.close()
        self._connection.close()

    def _pragma(self, text: str) -> Any:
        row = self._connection.execute(f"PRAGMA {text}").fetchone()
        return row[0] if row else None

    def _insist(self, step: Callable[[], T]) -> T:
        """Run a step, and again while another process holds the lock: SQLite's own waiting favours the latest comer."""
        began = time.monotonic()
        while True:
            try:
                return step()
            except sqlite3.Error as error:
                if not is_busy(error):
                    raise (replaced if self._moved() else translated)(error, self._path) from error
                waited_s = time.monotonic() - began
                if waited_s > LOCK_WAIT_S:
                    raise too_busy(error, self._path, waited_s) from error
            pause()

    def _run(self, begin: Callable[[], None], body: Body[T]) -> T:
        self._statements.start()
        for _ in range(TRIES):
            begin()
            try:
                self._statements.begin()
                result = body(self._statements)
            except RunAgain:
                self._roll_back()
            except sqlite3.Error as error:
                self._roll_back()
                if not is_missing_table(error):
                    raise
            except BaseException:
                self._roll_back()
                raise
            else:
                self._commit()
                return result
        raise StoreBroken(f"tables of the database {self._path} vanish while in use: does another program drop them?")

    def _begin_read(self) -> None:
        self._connection.execute("BEGIN")

    def _begin_write(self) -> None:
        with self._turns.waiting:
            self._turns.writing.take()  # until the transaction has ended
            self._insist(lambda: self._connection.execute("BEGIN IMMEDIATE"))

    def _commit(self) -> None:
        if self._moved():
            self._roll_back()
            raise replaced(None, self._path)
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            raise in_doubt(error, self._path) from error

    def _moved(self) -> bool:
        """Does the path lead to another file than the open one? The check costs little compared to a commit."""
        return file_at(self._path) != self._file

    def _roll_back(self) -> None:
        self._statements.forget()  # tables that this transaction created are gone again
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


def file_at(path: str) -> tuple[int, int] | None:
    """The identity of the file, whatever its name; None if there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - for every commit
    except OSError:
        return None
    return found.st_dev, found.st_ino


class InlineSession(Session):
    """Transactions in the caller's thread, for deterministic tests."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._version = -1

    async def write(self, body: Body[T]) -> T:
        return self._transactions.write(body)

    async def read(self, body: Body[T]) -> T:
        return self._transactions.read(body)

    async def changed(self) -> bool:
        before, self._version = self._version, self._transactions.version()
        return self._version != before

    async def close(self) -> None:
        """Do nothing: the database closes its connections."""


class ThreadSession(Session):
    """Transactions in a thread, which several sessions may share."""

    def __init__(self, thread: DatabaseThread, transactions: Transactions) -> None:
        self._thread = thread
        self._transactions = transactions
        self._version = -1

    async def write(self, body: Body[T]) -> T:
        return await self._thread.do(lambda: self._transactions.write(body))

    async def read(self, body: Body[T]) -> T:
        return await self._thread.do(lambda: self._transactions.read(body))

    async def changed(self) -> bool:
        before, self._version = self._version, await self._thread.do(self._transactions.version)
        return self._version != before

    async def close(self) -> None:
        """Do nothing: the database closes its connections."""
