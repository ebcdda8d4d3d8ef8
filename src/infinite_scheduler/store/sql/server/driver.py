"""What a database server's driver must be told and asked, beside the words of its dialect."""

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
from infinite_scheduler.store.sql.server.patience import Patience

DDL_WAIT_S: Final = 30
DROP_WAIT_S: Final = 1
"""How long a maker of tables waits for its turn, and a drop for a table to be free."""

DDL_SILENCE_S: Final = 600.0
"""How long a server may say nothing while tables are changed: a large one takes its time."""

KEEPALIVE: Final = {"idle": 10, "interval": 5, "count": 3}
"""Seconds, seconds and times: so a connection to a machine that is gone is known to be dead, though nobody uses it."""

UNACKNOWLEDGED_MS: Final = 15_000
"""What the other machine has not acknowledged for so long never arrives."""


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """How long the server and this process are patient, in seconds; servers count in whole ones."""

    idle_s: int = 5
    """A transaction that is idle for longer is ended by the server: its process may be frozen, with locks in hand."""

    lock_s: int = 10
    """How long a call waits for locks, in all."""

    silence_s: float = 20.0
    """A server that says nothing for so long in the middle of a statement is given up: it is frozen or cut off.

    Longer than a statement may wait for a lock, after which the server would speak.
    """

    @classmethod
    def of(cls, limits: SqlLimits) -> Self:
        """What the settings say."""
        return cls(
            idle_s=math.ceil(limits.idle_in_transaction_ms / 1000),
            lock_s=math.ceil(limits.lock_wait_ms / 1000),
            silence_s=limits.silence_ms / 1000,
        )


class Fault(enum.Enum):
    """What an error of the driver means for the transaction under way."""

    AGAIN = "a deadlock or a serialization failure: nothing was done, and the same may succeed now"
    MISSING_TABLE = "a statement named a table that is not there"
    REPEATED = "a bulk insert met a row that is there already"
    LOST = "the connection is gone, or of no use: the server behind it takes no writes"
    HELD = "a lock was not to be had within this time; whoever holds it may be stuck"
    NOT_NOW = "the server takes no connection at the moment: it starts, stops, or has as many as it may"
    OTHER = "anything else: the caller must know"


class Connection(Protocol):
    """As much of a DB-API connection as the sessions use."""

    def cursor(self) -> Any: ...

    def close(self) -> object: ...


class Driver(ABC):
    """One kind of server, at one address."""

    kind: ClassVar[str]
    """What people call the server."""

    Error: ClassVar[type[Exception]]
    """The root of the driver's errors."""

    sqlalchemy: ClassVar[frozenset[str]]
    """The SQLAlchemy dialects whose connections can carry jobs in a transaction of the user's own."""

    dialect: Dialect

    place: str
    """The address as people may see it, without its secrets."""

    secrets: Sequence[str] = ()
    """What no message may show."""

    waits: Waits

    deadlocks: ClassVar[str]
    """Where the server shows who was in a deadlock."""

    @abstractmethod
    def connect(self) -> Connection:
        """Open a connection that commits by itself outside of transactions; raises the driver's errors."""

    @abstractmethod
    def begin(self, cursor: Cursor, patience: Patience) -> None:
        """Begin a transaction that writes: READ COMMITTED, and ended by the server if it stays idle for too long.

        Its statements wait for locks as long as there is patience left.
        """

    @abstractmethod
    def commit(self, cursor: Cursor) -> None: ...

    @abstractmethod
    def roll_back(self, cursor: Cursor) -> None: ...

    @abstractmethod
    def borrowed(self, connection: Any) -> Cursor:
        """A cursor on a connection of the user's, which understands our values; theirs stay as they are."""

    @abstractmethod
    def commits_by_itself(self, connection: Any) -> bool:
        """Does this connection of the user's commit every statement?"""

    @abstractmethod
    def fault(self, error: Exception) -> Fault:
        """What the error means."""

    def said(self, error: Exception) -> str:
        """What the driver says, in one line and without secrets, those of this address whatever stands around them."""
        text = without_secrets(str(error), shown_url)
        for secret in filter(None, self.secrets):
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", HIDDEN, text)
        return " ".join(text.split())

    @abstractmethod
    def translated(self, error: Exception) -> SchedulerError:
        """The error as a caller sees it: what went wrong and what to change."""

    def busy(self, error: Exception) -> SchedulerError:
        """The error when somebody else was in the way for too long."""
        return StoreUnavailable(f"{self.place}: somebody else is in the way ({self.said(error)})")

    def occupied(self, seconds: int) -> SchedulerError:
        """The error when somebody else changes tables all the while."""
        return StoreUnavailable(f"{self.place}: another process changes tables for {seconds} s; nothing was done")

    def end_stuck(self, cursor: Cursor) -> int:
        """End transactions of this program whose processes say nothing, where the server does not do so by itself.

        How many there were.
        """
        del cursor
        return 0

    @abstractmethod
    def lock_tables(self, cursor: Cursor) -> None:
        """Begin to change tables: wait until nobody else does, to the call of `unlock_tables`."""

    @abstractmethod
    def unlock_tables(self, cursor: Cursor) -> None:
        """What was changed since `lock_tables` stands."""

    @abstractmethod
    def lock_table(self, cursor: Cursor, table: str) -> bool:
        """Keep everybody else from a table, within `lock_tables`; False if somebody uses it for longer than a second.

        Whoever comes meanwhile waits behind this one: hence not longer.
        """

    @abstractmethod
    def unlock_table(self, cursor: Cursor) -> None:
        """Give a locked table back, dropped or not: at once, or with `unlock_tables`."""

    @abstractmethod
    def create_database(self) -> bool:
        """Make the database itself, unless it is there; True: it was made."""
