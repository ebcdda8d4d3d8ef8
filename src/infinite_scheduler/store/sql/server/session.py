"""Transactions on one connection to a server, run by a thread of their own."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import msgspec

from infinite_scheduler.errors import SchedulerError, StoreBroken, StoreBusy, StoreUnavailable
from infinite_scheduler.store.sql.database_thread import DatabaseThread
from infinite_scheduler.store.sql.rows import RunAgain, TablesMissing
from infinite_scheduler.store.sql.server.driver import Connection, Driver, Fault
from infinite_scheduler.store.sql.server.lock_wait import LockWait
from infinite_scheduler.store.sql.server.table_maker import TableMaker
from infinite_scheduler.store.sql.statements import Body, Session
from infinite_scheduler.store.sql.upkeep_rows import UpkeepRows

T = TypeVar("T")

TRIES: Final = 12
"""How often a body is run because rows or tables changed meanwhile, or no connection was available.

After deadlocks it is run as long as the time limit of the call allows: the other transaction may be gone by then.
"""

LONGEST_PAUSE_S: Final = 0.2

CLOSE_S: Final = 5.0


class Course(msgspec.Struct):
    """The course of a call so far."""

    lock_wait: LockWait
    tries: int = 0
    left: int = TRIES
    fresh: bool = True
    """Is its body about to run for the first time on this connection?"""
    reconnected: bool = False


class Link:
    """One connection, opened when needed: one transaction at a time, tried again if that is known to be safe."""

    def __init__(self, driver: Driver, tables: TableMaker, process: str) -> None:
        self._driver = driver
        self._tables = tables
        self._process = process
        self._connection: Connection | None = None
        self._statements: UpkeepRows | None = None

    def write(self, body: Body[T]) -> T:
        """Run the body in a transaction, and commit it."""
        return self._insist(lambda tx, lock_wait: self._transaction(tx, body, lock_wait))

    def read(self, body: Body[T]) -> T:
        """Run the body, each statement on its own snapshot: at READ COMMITTED a transaction would add nothing."""
        return self._insist(lambda tx, _: self._reading(tx, body))

    def close(self) -> None:
        """Disconnect; the next transaction would connect again."""
        connection, self._connection, self._statements = self._connection, None, None
        if connection is not None:
            with suppress(self._driver.Error, OSError):
                connection.close()

    def _insist(self, step: Callable[[UpkeepRows, LockWait], T]) -> T:
        """Run a step, and again after a deadlock, a change of tables, or a connection that was lost at once."""
        course = Course(LockWait(self._driver.waits.lock_s))
        failed: Exception | None = None
        while course.left:
            course.tries += 1
            course.left -= 1
            try:
                return step(self._ready(course), course.lock_wait)
            except RunAgain as again:
                failed = again
            except TablesMissing as missing:
                failed = missing
                self._tables.make(missing.statements)
            except self._driver.Error as error:
                failed = error
                self._overcome(error, course)
        raise self._given_up(failed) from failed

    def _ready(self, course: Course) -> UpkeepRows:
        """The statements of the connection, for another try."""
        statements = self._connected()
        if course.fresh:
            statements.start()
            course.fresh = False
        course.lock_wait.begin()
        return statements

    def _overcome(self, error: Exception, course: Course) -> None:
        """Do what is needed before another try; or raise, because the caller must know."""
        lock_wait = course.lock_wait
        match self._driver.fault(error):
            case Fault.LOST if not (course.reconnected or lock_wait.over):
                self.close()
                course.reconnected = course.fresh = True
            case Fault.LOST:
                self.close()
                raise self._driver.translated(error) from error
            case Fault.HELD:
                self._end_stuck(error, lock_wait)
            case Fault.OTHER:
                raise self._driver.translated(error) from error
            case Fault.AGAIN if course.tries > 1 and lock_wait.over:
                raise self._entangled(course) from error
            case Fault.AGAIN:
                course.left += 1
                _pause(course.tries)
            case Fault.NOT_NOW:
                _pause(course.tries)
            case Fault.MISSING_TABLE:
                self._look_for_tables()
            case Fault.REPEATED:
                pass  # the next try goes row by row

    def _end_stuck(self, error: Exception, lock_wait: LockWait) -> None:
        """A lock was not free: once, end a stuck transaction that holds it. Raise if waiting on is useless."""
        freed, looked = 0, lock_wait.looked
        if not looked:
            lock_wait.looked = True
            try:
                freed = self._driver.end_stuck(self._connected().cursor)
            except self._driver.Error:
                self.close()
        if not freed and (looked or lock_wait.over):
            raise self._driver.translated(error) from error

    def _look_for_tables(self) -> None:
        """Retention records its drops in the database; tables that vanished otherwise are an error, reported once."""
        try:
            gone = self._statements.vanished() if self._statements else frozenset()
        except self._driver.Error:
            self.close()  # so that the tables are looked up again
            return
        if gone:
            raise StoreBroken(
                f"{', '.join(sorted(gone))}: dropped from {self._driver.location}, but not by the scheduler, "
                "with all rows; the next call goes on without"
            )

    def _entangled(self, course: Course) -> StoreBusy:
        tries, seconds = course.tries, course.lock_wait.spent_s
        return StoreBusy(
            f"a transaction on {self._driver.location} was given up after {tries} tries in {seconds:.1f} s, the last "
            f"one because of a deadlock; nothing was committed: {self._driver.deadlocks}"
        )

    def _given_up(self, error: Exception | None) -> SchedulerError:
        fault = self._driver.fault(error) if isinstance(error, self._driver.Error) else None
        match fault:
            case Fault.MISSING_TABLE if error is not None:
                return StoreBroken(
                    f"a table of {self._driver.location} is missing ({self._driver.said(error)}): was it dropped? "
                    "Restore it, or run `infinite-scheduler migrate`"
                )
            case Fault.NOT_NOW | Fault.LOST if error is not None:
                return self._driver.translated(error)
            case Fault.REPEATED:
                why = "a row that already exists"
            case _ if isinstance(error, TablesMissing):
                why = f"tables that were created and are missing again: {error}"
            case _:
                why = "rows that others changed meanwhile"
        return StoreUnavailable(
            f"a transaction on {self._driver.location} was given up after {TRIES} tries, the last one because of "
            f"{why}; nothing was committed"
        )

    def _connected(self) -> UpkeepRows:
        if self._statements is None:
            self._connection = self._driver.connect()
            self._statements = UpkeepRows(self._connection.cursor(), self._driver.dialect, self._process)
            self._statements.runs_again = True
        return self._statements

    def _transaction(self, tx: UpkeepRows, body: Body[T], lock_wait: LockWait) -> T:
        self._driver.begin(tx.cursor, lock_wait)
        try:
            tx.begin()
            result = body(tx)
        except BaseException as error:
            self._undo(tx, error)
            raise
        self._commit(tx)
        return result

    def _reading(self, tx: UpkeepRows, body: Body[T]) -> T:
        tx.begin()
        try:
            return body(tx)
        except self._driver.Error as error:
            self._note(tx, error)
            raise

    def _commit(self, tx: UpkeepRows) -> None:
        """Commit. Without an answer it is unknown whether it took place: it is never simply sent again."""
        try:
            self._driver.commit(tx.cursor)
        except self._driver.Error as error:
            if self._driver.fault(error) is Fault.AGAIN:
                self._undo(tx, error)
                raise
            self.close()
            raise StoreUnavailable(
                f"the answer to a commit on {self._driver.location} was lost ({self._driver.said(error)}); "
                "it is unknown whether it took place"
            ) from error

    def _undo(self, tx: UpkeepRows, error: BaseException) -> None:
        if isinstance(error, self._driver.Error):
            self._note(tx, error)
        try:
            self._driver.roll_back(tx.cursor)
        except (self._driver.Error, OSError):
            self.close()  # the server rolls back a transaction whose connection is lost

    def _note(self, tx: UpkeepRows, error: Exception) -> None:
        """Learn from an error before the body is run again."""
        if self._driver.fault(error) is Fault.REPEATED:
            tx.go_slowly()


class ServerSession(Session):
    """Transactions in a thread and on a connection of their own."""

    def __init__(self, name: str, link: Link) -> None:
        self._link = link
        self._thread = DatabaseThread(name)

    async def write(self, body: Body[T]) -> T:
        return await self._thread.do(lambda: self._link.write(body))

    async def read(self, body: Body[T]) -> T:
        return await self._thread.do(lambda: self._link.read(body))

    async def changed(self) -> bool:
        return True

    async def close(self) -> None:
        """Disconnect after the transaction in progress; do not wait for a server that does not answer."""
        await end(self._thread, self._link.close)


class SharedSession(Session):
    """Several connections for concurrent transactions: the one with the least to do is used."""

    def __init__(self, sessions: Sequence[ServerSession]) -> None:
        self._sessions = sessions
        self._busy = [0] * len(sessions)

    async def write(self, body: Body[T]) -> T:
        return await self._run(lambda session: session.write(body))

    async def read(self, body: Body[T]) -> T:
        return await self._run(lambda session: session.read(body))

    async def changed(self) -> bool:
        return True

    async def close(self) -> None:
        await asyncio.gather(*(session.close() for session in self._sessions))

    async def _run(self, step: Callable[[ServerSession], Awaitable[T]]) -> T:
        idlest = self._busy.index(min(self._busy))
        self._busy[idlest] += 1
        try:
            return await step(self._sessions[idlest])
        finally:
            self._busy[idlest] -= 1


async def end(thread: DatabaseThread, last: Callable[[], None]) -> None:
    """Let a thread finish, then run one last step; if it hangs, it does so later, without being waited for."""
    try:
        await asyncio.wait_for(thread.do(last), CLOSE_S)
    except (StoreUnavailable, TimeoutError):
        thread.post(last)
        thread.stop()
    else:
        thread.stop()
        thread.join()


def _pause(tries: int) -> None:
    """Wait a moment, longer each time and at random, so that the same transactions do not meet again."""
    pause_s = min(LONGEST_PAUSE_S, 0.001 * 2 ** min(tries, 10))
    time.sleep(random.uniform(0.5, 1.0) * pause_s)  # noqa: S311 - nothing secret
