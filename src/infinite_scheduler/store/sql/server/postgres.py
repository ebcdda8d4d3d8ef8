"""PostgreSQL through psycopg."""

import time
from contextlib import suppress
from typing import Any, ClassVar, Final, Self, TypeVar, cast

import psycopg
from psycopg import errors
from psycopg.abc import Buffer, PQGen
from psycopg.adapt import AdaptersMap, Dumper, Loader
from psycopg.pq import Format
from psycopg.sql import SQL, Identifier
from psycopg.types.string import BytesDumper

from infinite_scheduler.errors import SchedulerError, StoreBroken, StoreBusy, StoreMismatch, StoreUnavailable
from infinite_scheduler.store.sql.dialect import Blob, Cursor
from infinite_scheduler.store.sql.server.driver import (
    DDL_SILENCE_S,
    DDL_WAIT_S,
    DROP_WAIT_S,
    KEEPALIVE,
    UNACKNOWLEDGED_MS,
    Connection,
    Driver,
    Fault,
    Waits,
)
from infinite_scheduler.store.sql.server.lock_wait import LockWait
from infinite_scheduler.store.sql.server.postgres_dialect import PostgresDialect
from infinite_scheduler.store.sql.server.postgres_login import code_of_refusal, server_spoke
from infinite_scheduler.store.sql.server.psycopg_log import PsycopgLog
from infinite_scheduler.store.sql.server.url_options import SECRET

UUID: Final = 2950
"""The type OID of uuid, the same in every PostgreSQL."""


BEGIN: Final = (
    "BEGIN ISOLATION LEVEL READ COMMITTED;"
    " SET LOCAL idle_in_transaction_session_timeout = '{idle_s}s'; SET LOCAL lock_timeout = '{{lock_ms:d}}ms';"
    " SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off;"
    " SET LOCAL jit = off"
)
"""Set in every transaction: behind a pooler, each may run in another session.

Rows are found by their keys. The planner's statistics are from before most of the rows came, so that it would rather
read the whole table.
"""

LOOK_S: Final = 1.5
"""After this long, once, a call checks whether a stuck process holds the lock that it waits for.

Longer than the server takes to detect a deadlock.
"""

END_STUCK: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
    " AND usename = current_user AND application_name = current_setting('application_name')"
    " AND state IN ('active', 'idle in transaction') AND wait_event_type = 'Client' AND backend_xid IS NOT NULL"
    " AND state_change < clock_timestamp() - make_interval(secs => %s)"
)
"""The server counts a transaction as idle only between statements. A process that is frozen within a COPY, while
sending a statement or while reading a result would keep its locks as long as it lives. So would one that is frozen
within a pipeline, as `executemany` sends it: any message turns the server's timer for idle transactions off, and only
the end of the pipeline turns it on again. A transaction that has locked a row has a transaction id; one that only reads
has none, and blocks no other."""

DDL_LOCK: Final = 0x1F5C4ED0

MAINTENANCE: Final = "postgres"
"""The database that exists before any other."""


KEPT_ALIVE: Final = {f"keepalives_{name}": value for name, value in KEEPALIVE.items()} | {
    "tcp_user_timeout": UNACKNOWLEDGED_MS
}

# A refused connection has no code, only a message: these are the messages of a server that speaks English.
REFUSED: Final = ("password authentication failed", "no password supplied", "no pg_hba.conf entry", 'role "')
NO_DATABASE: Final = 'database "'
NOT_NOW: Final = (
    "too many clients",
    "too many connections",
    "connection slots are reserved",
    "starting up",
    "shutting down",
    "in recovery mode",
    "not yet accepting connections",
)

REFUSALS: Final = (
    errors.InvalidPassword,
    errors.InvalidAuthorizationSpecification,
    errors.InvalidCatalogName,
    errors.TooManyConnections,
    errors.CannotConnectNow,
)
"""What these messages mean."""

MEANINGS: Final[tuple[tuple[tuple[type[psycopg.Error], ...], Fault], ...]] = (
    ((errors.DeadlockDetected, errors.SerializationFailure), Fault.AGAIN),
    ((errors.UndefinedTable,), Fault.MISSING_TABLE),
    ((errors.UniqueViolation,), Fault.REPEATED),
    ((errors.LockNotAvailable,), Fault.HELD),
    ((errors.QueryCanceled,), Fault.OTHER),
    ((errors.TooManyConnections, errors.CannotConnectNow), Fault.NOT_NOW),
    (
        (
            errors.AdminShutdown,
            errors.CrashShutdown,
            errors.IdleInTransactionSessionTimeout,
            errors.ReadOnlySqlTransaction,
        ),
        Fault.LOST,
    ),
)
"""Errors with a code of their own."""

AWAY: Final = (psycopg.OperationalError, psycopg.InterfaceError)

RV = TypeVar("RV")


class Silent(psycopg.OperationalError):
    """The server was silent for too long."""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that gives up a silent server: libpq itself would wait forever."""

    silence_s = Waits().silence_s
    lock_wait: LockWait | None = None

    def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        began_s = time.monotonic()
        try:
            return super().wait(_heard(gen, self.silence_s), *args, **kwargs)
        except Silent:
            self.close()  # nothing more may be sent, not even ROLLBACK: it would not be answered either
            raise
        finally:
            if self.lock_wait:
                self.lock_wait.took(time.monotonic() - began_s)


LOG: Final = PsycopgLog(BoundedConnection)


def _heard(gen: PQGen[RV], silence_s: float) -> PQGen[RV]:
    """The generator, limited: it raises if nothing is sent or received for too long."""
    ready: Any = None
    heard_s = time.monotonic()
    while True:
        try:
            wanted = gen.send(ready)
        except StopIteration as end:
            return cast("RV", end.value)
        ready = yield wanted
        if ready:
            heard_s = time.monotonic()
        elif time.monotonic() - heard_s > silence_s:
            raise Silent(f"no answer for {silence_s:g} s")


class Turn(psycopg.Cursor[Any]):
    """A cursor that sends the beginning of a transaction together with its first statement, if possible.

    Later statements of a transaction may wait for locks only as long as the earlier ones have left.
    """

    opening = ""
    lock_ms = 0  # how long the server lets a statement of this transaction wait for a lock

    def execute(self, query: Any, params: Any = None, **kwargs: Any) -> Self:
        if not self.opening or params is not None:
            self._open()
            return super().execute(query, params, **kwargs)
        opening, self.opening = self.opening, ""
        super().execute(f"{opening}; {query}", **kwargs)
        for _ in range(opening.count(";") + 1):
            self.nextset()
        return self

    def executemany(self, *args: Any, **kwargs: Any) -> None:
        self._open()
        super().executemany(*args, **kwargs)

    def copy(self, *args: Any, **kwargs: Any) -> Any:
        self._open()
        return super().copy(*args, **kwargs)

    def _open(self) -> None:
        if self.opening:
            opening, self.opening = self.opening, ""
            super().execute(opening)
        elif (left_ms := self.left_ms) < self.lock_ms:
            self.lock_ms = left_ms
            super().execute(f"SET LOCAL lock_timeout = '{left_ms:d}ms'")

    @property
    def left_ms(self) -> int:
        """How long the next statement may wait for a lock."""
        lock_wait = cast("BoundedConnection", self.connection).lock_wait
        if lock_wait is None:
            return self.lock_ms
        return round(1000 * (lock_wait.left_s if lock_wait.looked else min(LOOK_S, lock_wait.left_s)))


class KeyDumper(Dumper):
    """Plain bytes are keys of jobs: 16 bytes, which PostgreSQL stores as uuid."""

    oid = UUID

    def dump(self, obj: bytes) -> Buffer:
        return obj.hex().encode()


class KeyLoader(Loader):
    """A uuid in the text format."""

    def load(self, data: Buffer) -> bytes:
        return bytes.fromhex(bytes(data).decode().replace("-", ""))


class BinaryKeyLoader(Loader):
    """A uuid in the binary format."""

    format = Format.BINARY

    def load(self, data: Buffer) -> bytes:
        return bytes(data)


def adapt(adapters: AdaptersMap) -> None:
    """Register the conversion of keys on a connection or a cursor."""
    adapters.register_dumper(bytes, KeyDumper)
    adapters.register_dumper(Blob, BytesDumper)
    adapters.register_loader(UUID, KeyLoader)
    adapters.register_loader(UUID, BinaryKeyLoader)


class PostgresDriver(Driver):
    """A PostgreSQL server."""

    kind = "PostgreSQL"
    Error: ClassVar[type[Exception]] = psycopg.Error
    sqlalchemy = frozenset({"postgresql+psycopg"})
    deadlocks = "the server's log shows its participants"

    def __init__(self, arguments: dict[str, Any], location: str, waits: Waits) -> None:
        LOG.listen()
        self.dialect = PostgresDialect()
        self.waits = waits
        self._begin = BEGIN.format(idle_s=waits.idle_s)
        self.location = location
        self.secrets = [str(arguments[name]) for name in SECRET if name in arguments]
        self._arguments = arguments

    def connect(self) -> Connection:
        return cast("Connection", self._connected(self._arguments))

    def _connected(self, said: dict[str, Any]) -> BoundedConnection:
        arguments = KEPT_ALIVE | said
        try:
            # Prepared statements would keep the plans of empty tables, and a pooler may send each to another server.
            connection = BoundedConnection.connect(**arguments, autocommit=True, prepare_threshold=None)
        except psycopg.OperationalError as error:
            raise understood(error, arguments) from error
        adapt(connection.adapters)
        connection.cursor_factory = Turn
        connection.silence_s = self.waits.silence_s
        return connection

    def borrowed(self, connection: Any) -> Cursor:
        cursor = connection.cursor()
        adapt(cursor.adapters)
        return cast("Cursor", cursor)

    def commits_by_itself(self, connection: Any) -> bool:
        return bool(connection.autocommit)

    def begin(self, cursor: Cursor, lock_wait: LockWait) -> None:
        turn = cast("Turn", cursor)
        cast("BoundedConnection", turn.connection).lock_wait = lock_wait
        turn.lock_ms = turn.left_ms
        turn.opening = self._begin.format(lock_ms=turn.lock_ms)

    def commit(self, cursor: Cursor) -> None:
        _end(cast("Turn", cursor), "COMMIT")

    def roll_back(self, cursor: Cursor) -> None:
        _end(cast("Turn", cursor), "ROLLBACK")

    def fault(self, error: Exception) -> Fault:
        for kinds, meaning in MEANINGS:
            if isinstance(error, kinds):
                return meaning
        if isinstance(error, psycopg.OperationalError) and (error.sqlstate or "08")[:2] in {"08", "57"}:
            return self._fault_of_words(str(error))
        return Fault.OTHER

    def _fault_of_words(self, words: str) -> Fault:
        if "FATAL" not in words:
            return Fault.LOST
        if any(known in words for known in NOT_NOW):
            return Fault.NOT_NOW
        return Fault.OTHER if _is_refusal(words) or NO_DATABASE in words else Fault.LOST

    def translated(self, error: Exception) -> SchedulerError:
        said = self.said(error)
        match error:
            case errors.InvalidPassword() | errors.InvalidAuthorizationSpecification():
                return StoreMismatch(f"{self.location} refuses the user or the password ({said}): check store.url")
            case errors.InvalidCatalogName():
                return self._no_database(said)
            case errors.InsufficientPrivilege():
                return StoreBroken(
                    f"{self.location}: rights are missing ({said}): grant them, or set store.ddl = false"
                )
            case errors.ReadOnlySqlTransaction():
                return StoreUnavailable(f"{self.location} takes no writes ({said}): is it a standby?")
            case errors.DiskFull():
                return StoreBroken(f"{self.location}: no space left ({said}); nothing was committed")
            case errors.LockNotAvailable():
                return StoreBusy(
                    f"{self.location}: waited {self.waits.lock_s} s for locks of other transactions ({said}), nothing "
                    "was written: look for their transactions in pg_stat_activity"
                )
            case _ if isinstance(error, AWAY) or self.fault(error) is Fault.LOST:
                return self._away(error, said)
            case _:
                return StoreBroken(f"{self.location} refused a statement ({said})")

    def _away(self, error: Exception, said: str) -> SchedulerError:
        """The error for a connection that could not be opened, or was lost."""
        if self.fault(error) is Fault.NOT_NOW:
            return StoreUnavailable(f"{self.location} takes no connection at the moment ({said})")
        if "FATAL" in said and _is_refusal(said):
            return StoreMismatch(f"{self.location} refuses the user or the password ({said}): check store.url")
        if "FATAL" in said and NO_DATABASE in said:
            return self._no_database(said)
        if "resolve" in said or "translate host name" in said:
            return StoreUnavailable(f"{self.location}: the host name is unknown ({said}): check store.url")
        if "refused" in said:
            return StoreUnavailable(
                f"{self.location}: nothing listens there ({said}): is the server up, the port right?"
            )
        return StoreUnavailable(f"{self.location} does not answer ({said})")

    def _no_database(self, said: str) -> StoreMismatch:
        return StoreMismatch(f"{self.location}: {said}; create it with `infinite-scheduler migrate --create`")

    def end_stuck(self, cursor: Cursor) -> int:
        cursor.execute(END_STUCK, (self.waits.idle_s,))
        return cursor.rowcount

    def lock_tables(self, cursor: Cursor) -> None:
        cursor.connection.silence_s = DDL_SILENCE_S  # type: ignore[attr-defined]
        cursor.execute("BEGIN")
        cursor.execute(
            f"SET LOCAL lock_timeout = '{DDL_WAIT_S}s';"
            f" SET LOCAL idle_in_transaction_session_timeout = '{self.waits.idle_s}s'"
        )
        try:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (DDL_LOCK,))
        except errors.LockNotAvailable as error:
            raise self.occupied(DDL_WAIT_S) from error

    def unlock_tables(self, cursor: Cursor) -> None:
        cursor.execute("COMMIT")

    def lock_table(self, cursor: Cursor, table: str) -> bool:
        cursor.execute(f"SET LOCAL lock_timeout = '{DROP_WAIT_S}s'; SAVEPOINT unlocked")
        try:
            cursor.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        except errors.LockNotAvailable:
            cursor.execute("ROLLBACK TO SAVEPOINT unlocked")
            return False
        return True

    def unlock_table(self, cursor: Cursor) -> None:
        """Do nothing: the end of the transaction unlocks it."""

    def create_database(self) -> bool:
        try:
            self.connect().close()
        except (psycopg.OperationalError, errors.InvalidCatalogName):
            with self._connected({**self._arguments, "dbname": MAINTENANCE}) as connection:
                connection.execute(f"SET lock_timeout = '{self.waits.lock_s}s'")
                return _make_database(connection, self._arguments["dbname"])
        return False


def _end(cursor: Turn, word: str) -> None:
    """End the transaction, if it has begun."""
    cast("BoundedConnection", cursor.connection).lock_wait = None
    if cursor.opening:
        cursor.opening = ""
    else:
        cursor.execute(word)


def _make_database(connection: psycopg.Connection[Any], name: str) -> bool:
    if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone():
        return False
    make = SQL("CREATE DATABASE {} ENCODING 'UTF8' TEMPLATE template0").format(Identifier(name))
    with suppress(errors.DuplicateDatabase):
        connection.execute(make)
        return True
    return False


def understood(error: psycopg.OperationalError, arguments: dict[str, Any]) -> psycopg.Error:
    """A refused login with its code, if its message is not in English: that takes a second try."""
    words = str(error)
    if error.sqlstate or not server_spoke(words):
        return error
    if "FATAL" in words and any(known in words for known in (*REFUSED, *NOT_NOW, NO_DATABASE)):
        return error
    code = code_of_refusal(arguments)
    return next((kind(words) for kind in REFUSALS if kind.sqlstate == code), error)


def _is_refusal(words: str) -> bool:
    return any(known in words for known in REFUSED)
