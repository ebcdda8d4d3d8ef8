"""MariaDB and MySQL through PyMySQL."""

import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar, Final, cast

import pymysql
import pymysql.cursors
from pymysql.constants import CLIENT, CR, ER
from pymysql.converters import conversions

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
from infinite_scheduler.store.sql.server.mariadb_connection import Bounded, Prompt
from infinite_scheduler.store.sql.server.mariadb_dialect import MariaDialect

LOST: Final = frozenset(
    {CR.CR_SERVER_GONE_ERROR, CR.CR_SERVER_LOST, CR.CR_CONN_HOST_ERROR, CR.CR_CONNECTION_ERROR, 0, 1927, 4031}
)
"""The connection is lost: 1927 killed, 4031 idle for too long; 0 is PyMySQL's own code."""

NOT_NOW: Final = frozenset(
    {ER.CON_COUNT_ERROR, ER.TOO_MANY_USER_CONNECTIONS, ER.USER_LIMIT_REACHED, ER.SERVER_SHUTDOWN}
)
READ_ONLY: Final = frozenset({ER.OPTION_PREVENTS_STATEMENT, 1792, 1836})
"""A replica, or a server that its operator has set read-only; 1792 a read-only transaction, 1836 a server."""

_RIGHTS: Final = (StoreBroken, "{location}: rights are missing ({said}): grant them, or set store.ddl = false")
_NO_SPACE: Final = (StoreBroken, "{location}: no space left ({said}); nothing was committed")
_NO_CONNECTION: Final = (StoreUnavailable, "{location} takes no connection at the moment ({said})")
_NO_WRITES: Final = (StoreUnavailable, "{location} takes no writes ({said}): is it a replica?")

FULL: Final = "Errcode: 28"
"""From the operating system: no space left. Table files that cannot be created have codes of their own."""

STATEMENT_TIMEOUT: Final = 1969
"""MariaDB ended a statement that exceeded its time limit."""

_LOOK: Final = "nothing was written: look for their transactions in information_schema.innodb_trx"
_WAITED: Final = (StoreBusy, f"{{location}}: waited {{lock_s}} s for locks of other transactions ({{said}}), {_LOOK}")
_ENDED: Final = (
    StoreBusy,
    f"{{location}} ended a statement that waited for locks of others, or had too much to do ({{said}}), {_LOOK}",
)

TRANSLATED: Final[Mapping[int, tuple[type[SchedulerError], str]]] = {
    ER.ACCESS_DENIED_ERROR: (
        StoreMismatch,
        "{location} refuses the user or the password ({said}): check store.url",
    ),
    ER.BAD_DB_ERROR: (StoreMismatch, "{location}: {said}; create it with `infinite-scheduler migrate --create`"),
    ER.DBACCESS_DENIED_ERROR: _RIGHTS,
    ER.TABLEACCESS_DENIED_ERROR: _RIGHTS,
    ER.COLUMNACCESS_DENIED_ERROR: _RIGHTS,
    ER.SPECIFIC_ACCESS_DENIED_ERROR: _RIGHTS,
    ER.DISK_FULL: _NO_SPACE,
    ER.RECORD_FILE_FULL: _NO_SPACE,
    ER.NET_PACKET_TOO_LARGE: (StoreBroken, "{location}: {said}: set max_allowed_packet to at least 16M"),
    ER.LOCK_WAIT_TIMEOUT: _WAITED,
    STATEMENT_TIMEOUT: _ENDED,
    **dict.fromkeys(NOT_NOW, _NO_CONNECTION),
    **dict.fromkeys(READ_ONLY, _NO_WRITES),
}

EXACT: Final = {"MariaDB": "utf8mb4_nopad_bin", "MySQL": "utf8mb4_0900_bin"}
"""Each server's collation for exact comparison, including trailing spaces."""

TIMEOUTS: Final = ("read_timeout", "write_timeout")

HEARD: Final = 0.9
"""The part of the silence limit after which the server itself ends a statement, so that its answer still arrives."""

ISOLATION: Final = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
SETTINGS: Final = (
    "SET SESSION innodb_lock_wait_timeout = {lock_s}, SESSION lock_wait_timeout = {lock_s},"
    " SESSION net_write_timeout = {idle_s},"  # a client that does not read an answer is as stuck as an idle one
    " SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', SESSION time_zone = '+00:00'"
)


def _escaped(value: bytes, mapping: object = None) -> str:
    """Bytes as a literal."""
    del mapping
    return f"_binary X'{value.hex()}'"


class MariaDriver(Driver):
    """A MariaDB or MySQL server."""

    kind = "MariaDB"
    Error: ClassVar[type[Exception]] = pymysql.err.Error
    sqlalchemy = frozenset({"mysql+pymysql", "mariadb+pymysql"})
    deadlocks = "SHOW ENGINE INNODB STATUS shows the participants of the latest one"

    def __init__(self, arguments: dict[str, Any], location: str, waits: Waits) -> None:
        self.waits = waits
        self.dialect = MariaDialect(EXACT["MariaDB"])
        self.location = location
        self.secrets = [arguments.get("password", b"").decode()]
        self._arguments = arguments
        self._is_mariadb = True

    def connect(self) -> Connection:
        return cast("Connection", self._connected(self._arguments))

    def _connected(self, arguments: dict[str, Any]) -> Prompt:
        asked = {name: arguments.get(name, self.waits.silence_s) for name in TIMEOUTS}
        handshake = dict.fromkeys(TIMEOUTS, arguments["connect_timeout"])
        connection = Prompt(
            **arguments | handshake,
            autocommit=True,
            charset="utf8mb4",
            client_flag=CLIENT.FOUND_ROWS,  # count the rows that an update found, even if it changed nothing
            conv={**conversions, Blob: _escaped},
            cursorclass=Bounded,
        )
        _keep_alive(connection)
        _set_silence(connection, **asked)
        self._is_mariadb = "MariaDB" in str(connection.get_server_info())  # type: ignore[no-untyped-call]
        self.dialect = MariaDialect(EXACT["MariaDB" if self._is_mariadb else "MySQL"], is_mariadb=self._is_mariadb)
        cursor = connection.cursor()
        cursor.execute(ISOLATION)
        cursor.execute(SETTINGS.format(lock_s=self.waits.lock_s, idle_s=self.waits.idle_s))
        with suppress(pymysql.err.OperationalError):  # MySQL has no such setting
            cursor.execute(f"SET SESSION idle_transaction_timeout = {self.waits.idle_s}")
        return connection

    def borrowed(self, connection: Any) -> Cursor:
        connection.encoders[Blob] = _escaped  # a type of ours: nothing of theirs changes
        return cast("Cursor", connection.cursor(pymysql.cursors.Cursor))

    def commits_by_itself(self, connection: Any) -> bool:
        return bool(connection.get_autocommit())

    def begin(self, cursor: Cursor, lock_wait: LockWait) -> None:
        bounded = cast("Bounded", cursor)
        bounded.lock_wait = lock_wait if self._is_mariadb else None  # MySQL cannot limit the time of a write
        bounded.longest_s = HEARD * float(self._arguments.get("read_timeout", self.waits.silence_s))
        cursor.execute("BEGIN")

    def commit(self, cursor: Cursor) -> None:
        cast("Bounded", cursor).lock_wait = None
        cursor.execute("COMMIT")

    def roll_back(self, cursor: Cursor) -> None:
        cast("Bounded", cursor).lock_wait = None
        cursor.execute("ROLLBACK")

    def fault(self, error: Exception) -> Fault:
        match error.args[0] if error.args else 0:
            case ER.LOCK_DEADLOCK | ER.TABLE_DEF_CHANGED:  # the latter: a table is newer than the snapshot
                return Fault.AGAIN
            case ER.NO_SUCH_TABLE | ER.BAD_TABLE_ERROR:
                return Fault.MISSING_TABLE
            case ER.DUP_ENTRY:
                return Fault.REPEATED
            case code if code in LOST or code in READ_ONLY:
                return Fault.LOST
            case code if code in NOT_NOW:
                return Fault.NOT_NOW
            case _:
                return Fault.OTHER

    def translated(self, error: Exception) -> SchedulerError:
        said = self.said(error)
        known = _NO_SPACE if FULL in said else TRANSLATED.get(error.args[0] if error.args else 0)
        if known is not None:
            kind, text = known
            return kind(text.format(location=self.location, said=said, lock_s=self.waits.lock_s))
        if isinstance(error, pymysql.err.OperationalError | pymysql.err.InterfaceError):
            return self._away(error, said)
        return StoreBroken(f"{self.location} refused a statement ({said})")

    def _away(self, error: Exception, said: str) -> SchedulerError:
        """The error for a connection that could not be opened, or was lost."""
        cause = getattr(error, "original_exception", None)
        if isinstance(cause, socket.gaierror):
            return StoreUnavailable(f"{self.location}: the host name is unknown ({said}): check store.url")
        if isinstance(cause, ConnectionRefusedError):
            return StoreUnavailable(
                f"{self.location}: nothing listens there ({said}): is the server up, the port right?"
            )
        return StoreUnavailable(f"{self.location} does not answer ({said})")

    def lock_tables(self, cursor: Cursor) -> None:
        _set_silence(cursor.connection, **dict.fromkeys(TIMEOUTS, DDL_SILENCE_S))  # type: ignore[attr-defined]
        cursor.execute(f"SET SESSION wait_timeout = {DDL_WAIT_S}")  # a frozen process loses its locks after this
        cursor.execute("SELECT GET_LOCK(CONCAT('infinite_scheduler.', LEFT(SHA1(DATABASE()), 32)), %s)", (DDL_WAIT_S,))
        if cursor.fetchone()[0] != 1:
            raise self.occupied(DDL_WAIT_S)

    def unlock_tables(self, cursor: Cursor) -> None:
        cursor.execute("SELECT RELEASE_LOCK(CONCAT('infinite_scheduler.', LEFT(SHA1(DATABASE()), 32)))")

    def lock_table(self, cursor: Cursor, table: str) -> bool:
        cursor.execute(f"SET SESSION lock_wait_timeout = {DROP_WAIT_S}")
        try:
            cursor.execute(f"LOCK TABLES {table} WRITE")
        except pymysql.err.OperationalError as error:
            if error.args[0] == ER.LOCK_WAIT_TIMEOUT:
                return False
            raise
        return True

    def unlock_table(self, cursor: Cursor) -> None:
        cursor.execute("UNLOCK TABLES")  # until then only the locked tables can be used

    def create_database(self) -> bool:
        try:
            self.connect().close()
        except pymysql.err.OperationalError as error:
            if error.args[0] != ER.BAD_DB_ERROR:
                raise
        else:
            return False
        name = self._arguments["database"].replace("`", "``")
        without = {key: value for key, value in self._arguments.items() if key != "database"}
        with self._connected(without) as connection, connection.cursor() as cursor:
            return bool(cursor.execute(f"CREATE DATABASE IF NOT EXISTS `{name}` CHARACTER SET utf8mb4"))


def _set_silence(connection: Any, *, read_timeout: float, write_timeout: float) -> None:
    """Set PyMySQL's time-outs, which it reads before each read and write; it has no public way to change them."""
    connection._read_timeout, connection._write_timeout = read_timeout, write_timeout  # noqa: SLF001


def _keep_alive(connection: Any) -> None:
    sock: socket.socket = connection._sock  # noqa: SLF001 - PyMySQL has no public way
    if sock.family == socket.AF_UNIX:
        return
    options = {
        "TCP_KEEPIDLE": KEEPALIVE["idle"],
        "TCP_KEEPINTVL": KEEPALIVE["interval"],
        "TCP_KEEPCNT": KEEPALIVE["count"],
        "TCP_USER_TIMEOUT": UNACKNOWLEDGED_MS,
    }
    for name, value in options.items():
        if hasattr(socket, name):  # not every system has all of them
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
