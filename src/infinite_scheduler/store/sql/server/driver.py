"""What sessions need from a database server's driver, besides the SQL of its dialect."""

import enum
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final, Protocol, Self

import msgspec

from infinite_scheduler.errors import SchedulerError, StoreUnavailable
from infinite_scheduler.secrets import HIDDEN, without_secrets
from infinite_scheduler.store.sql.dialect import Cursor, Dialect
from infinite_scheduler.store.sql.limits import SqlLimits
from infinite_scheduler.store.sql.server.address import shown_url
from infinite_scheduler.store.sql.server.lock_wait import LockWait

DDL_WAIT_S: Final = 30
DROP_WAIT_S: Final = 1
"""How long the creation of tables waits for its turn, and a drop for a table to be free."""

DDL_SILENCE_S: Final = 600.0
"""How long a server may be silent while tables are changed: a large table takes time."""

KEEPALIVE: Final = {"idle": 10, "interval": 5, "count": 3}
"""Seconds, seconds and times: TCP keep-alive, so that an idle connection to a lost machine is known to be dead."""

UNACKNOWLEDGED_MS: Final = 15_000
"""What the other machine has not acknowledged for this long will never arrive."""


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """How long the server and this process wait, in seconds; servers count in whole ones."""

    idle_s: int = 5
    """A transaction that is idle for longer is ended by the server: its process may be frozen while it holds locks."""

    lock_s: int = 10
    """How long a call waits for locks, in all."""

    silence_s: float = 20.0
    """A server that is silent for this long within a statement is given up: it is frozen or disconnected.

    Longer than a statement may wait for a lock, after which the server would answer.
    """

    @classmethod
    def of(cls, limits: SqlLimits) -> Self:
        """The waits from the settings."""
        return cls(
            idle_s=math.ceil(limits.idle_in_transaction_ms / 1000),
            lock_s=math.ceil(limits.lock_wait_ms / 1000),
            silence_s=limits.silence_ms / 1000,
        )


class Fault(enum.Enum):
    """What an error of the driver means for the current transaction."""

    AGAIN = "a deadlock or a serialization failure: nothing was done, and another try may succeed"
    MISSING_TABLE = "a statement named a table that does not exist"
    REPEATED = "a bulk insert met a row that already exists"
    LOST = "the connection is lost, or useless: the server behind it takes no writes"
    HELD = "a lock was not free within this time; the process that holds it may be stuck"
    NOT_NOW = "the server takes no connection at the moment: it is starting, stopping, or has too many"
    OTHER = "anything else: the caller must know"


class Connection(Protocol):
    """The part of a DB-API connection that the sessions use."""

    def cursor(self) -> Any: ...

    def close(self) -> object: ...


class Driver(ABC):
    """One kind of server, at one address."""

    kind: ClassVar[str]
    """What people call the server."""

    Error: ClassVar[type[Exception]]
    """The root of the driver's errors."""

    sqlalchemy: ClassVar[frozenset[str]]
    """The SQLAlchemy dialects whose connections can take jobs in a transaction of the user's own."""

    dialect: Dialect

    location: str
    """The address for people, without its secrets."""

    secrets: Sequence[str] = ()
    """Texts that no message may show."""

    waits: Waits

    deadlocks: ClassVar[str]
    """Where the server shows the participants of a deadlock."""

    @abstractmethod
    def connect(self) -> Connection:
        """Open a connection in autocommit mode; raises the driver's errors."""

    @abstractmethod
    def begin(self, cursor: Cursor, lock_wait: LockWait) -> None:
        """Begin a transaction that writes: READ COMMITTED, and ended by the server if it is idle for too long.

        Its statements wait for locks as long as `lock_wait` allows.
        """

    @abstractmethod
    def commit(self, cursor: Cursor) -> None: ...

    @abstractmethod
    def roll_back(self, cursor: Cursor) -> None: ...

    @abstractmethod
    def borrowed(self, connection: Any) -> Cursor:
        """A cursor on a connection of the user's that understands our values; theirs are not affected."""

    @abstractmethod
    def commits_by_itself(self, connection: Any) -> bool:
        """Does this connection of the user's commit every statement?"""

    @abstractmethod
    def fault(self, error: Exception) -> Fault:
        """What the error means."""

    def said(self, error: Exception) -> str:
        """The driver's message in one line, without secrets: neither known forms nor those of this address."""
        text = without_secrets(str(error), shown_url)
        for secret in filter(None, self.secrets):
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", HIDDEN, text)
        return " ".join(text.split())

    @abstractmethod
    def translated(self, error: Exception) -> SchedulerError:
        """The error as a caller sees it: what went wrong and what to change."""

    def busy(self, error: Exception) -> SchedulerError:
        """The error if another process held a lock for too long."""
        return StoreUnavailable(f"{self.location}: another process holds a lock ({self.said(error)})")

    def occupied(self, seconds: int) -> SchedulerError:
        """The error if another process keeps changing tables."""
        return StoreUnavailable(
            f"{self.location}: another process has changed tables for {seconds} s; nothing was done"
        )

    def end_stuck(self, cursor: Cursor) -> int:
        """End transactions of this program whose processes are silent, on servers that do not do so themselves.

        Returns how many there were.
        """
        del cursor
        return 0

    @abstractmethod
    def lock_tables(self, cursor: Cursor) -> None:
        """Begin to change tables: wait until no other process does, and keep it so until `unlock_tables`."""

    @abstractmethod
    def unlock_tables(self, cursor: Cursor) -> None:
        """Make the changes since `lock_tables` permanent."""

    @abstractmethod
    def lock_table(self, cursor: Cursor, table: str) -> bool:
        """Lock a table exclusively, within `lock_tables`; False if it is in use for longer than a second.

        Other transactions queue behind this lock: hence not longer.
        """

    @abstractmethod
    def unlock_table(self, cursor: Cursor) -> None:
        """Unlock a locked table, dropped or not: at once, or with `unlock_tables`."""

    @abstractmethod
    def create_database(self) -> bool:
        """Create the database itself, unless it exists; True: it was created."""
