"""What the line protocol needs from a database: statements inside one transaction, and sessions that run transactions.

Everything that the protocol promises is decided above this interface (protocol/anybody.py, protocol/owner.py); below it
are only statements. So the same protocol runs on SQLite, on database servers, and on the simulated READ COMMITTED
database of the tests.
"""

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from infinite_scheduler.model import Attempt, Job, JobRecord, JobSpec, Shard, Status, position
from infinite_scheduler.store.cluster_state import NodeInfo, ShardInfo
from infinite_scheduler.store.inbox import DeadLetter, LetterQuery, LetterState, Move, TopicPosition
from infinite_scheduler.store.ledger import AuditQuery, AuditRecord, Token
from infinite_scheduler.store.looking import Query
from infinite_scheduler.store.ownership import Request, Scan, Upkeep
from infinite_scheduler.store.sql.dialect import TableSize
from infinite_scheduler.store.sql.tables import SqlApp

T = TypeVar("T")

Entries = Sequence[tuple[bytes, bytes]]
"""Positions, each with the key of a job."""


class NewRow(msgspec.Struct, frozen=True, gc=False):
    """A job that is about to be inserted under `key`, due at the moment in it."""

    key: bytes
    spec: JobSpec
    created_ms: int


class Update(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A compare-and-set of one row: it happens only if status, attempt and due are as remembered."""

    key: bytes
    was_status: Status
    was_attempt: int
    was_due_ms: int
    status: Status
    attempt: int
    due_ms: int
    scheduled_ms: int | None = None  # None: unchanged
    finished_ms: int | None = None
    error: str | None = None


class Head(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A row without its content: what decisions need, and the size of the payload."""

    key: bytes
    due_ms: int
    attempt: int
    status: Status
    size: int

    @property
    def position(self) -> bytes:
        """Where a scan finds the job."""
        return position(self.key, self.due_ms)


class LookAt(enum.Enum):
    """What a look goes through."""

    ROWS = "the rows of periods, by their keys"
    LATER = "the rows for later jobs, by their keys"
    MOVED = "pending jobs that were moved, by their positions"
    ENDED = "jobs that failed or expired, by their keys"


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """A bounded look at the jobs of an app: where, and for what."""

    at: LookAt
    app: str
    start: bytes
    end: bytes
    query: Query  # status, tag, job_name, group, request_id, error and newest_first count here
    most: int  # rows that may be looked at
    limit: int  # jobs after which it may end


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """What a look has found: places, which are keys or positions, each with the key of a job, in order."""

    found: Sequence[tuple[bytes, bytes]]
    rows: int  # that were looked at
    left: bytes | None  # where the rest of the range begins, or ends if newest first; None: there is none


class DueCount(msgspec.Struct, frozen=True, kw_only=True):
    """Pending jobs of an app to be counted: those due in [start_ms, end_ms), by units of time from its start.

    Rows are counted by keys in [from_ms, end_ms), and entries there that lead to other keys.
    """

    at: LookAt
    app: str
    start_ms: int
    from_ms: int
    end_ms: int
    unit_ms: int
    most: int  # rows that may be looked at


class DueCounted(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs are due in each unit of time, up to a moment."""

    units: Mapping[int, int]
    rows: int  # that were looked at
    to_ms: int


class Statements(ABC):
    """One open transaction at READ COMMITTED: each statement sees what is committed by then, and its own writes."""

    @abstractmethod
    def lock_shards(self, shards: Collection[Shard], *, exclusive: bool) -> Mapping[Shard, ShardInfo]:
        """Lock shard rows in order, until the end of the transaction, then read them; missing ones are left out."""

    @abstractmethod
    def ownership_version(self) -> object:
        """A value that changes whenever a shard has another owner, or there are other shards; cheaper than reading."""

    @abstractmethod
    def read_shards(self) -> Sequence[ShardInfo]:
        """All shard rows, without a lock."""

    @abstractmethod
    def write_shards(self, rows: Iterable[ShardInfo]) -> None:
        """Write owner, line and low of shards that are locked exclusively."""

    @abstractmethod
    def insert_jobs(self, app: str, rows: Sequence[NewRow]) -> Collection[bytes]:
        """Insert pending rows, in the table that each key names. Returns the keys that exist: those are left alone."""

    @abstractmethod
    def read_jobs(self, app: str, keys: Collection[bytes]) -> Sequence[JobRecord]:
        """The rows with these keys that exist, in any order, without their attempts."""

    @abstractmethod
    def read_heads(self, app: str, keys: Collection[bytes]) -> Sequence[Head]:
        """The heads of the rows with these keys that exist, in any order."""

    @abstractmethod
    def scan_rows(self, scan: Scan) -> tuple[Sequence[Job], bytes | None]:
        """Pending rows by key in [start, end), in order; then the key up to which all were read, None: all of them.

        At most `limit` rows, and no more once their payloads have `room` bytes; at least one.
        """

    @abstractmethod
    def apps_without_jobs(self, scans: Sequence[Scan]) -> Collection[str]:
        """Of these scans, one per app, the apps that have neither rows nor entries in the range.

        Shards, status and priority are not looked at.
        """

    @abstractmethod
    def scan_entries(self, scan: Scan) -> tuple[Sequence[tuple[bytes, Job]], bytes | None]:
        """Entries by position in [start, end), in order, with their pending rows; then where reading ended, as above.

        Limited as rows are, but entries of one position come together.
        """

    @abstractmethod
    def update_jobs(self, app: str, updates: Sequence[Update]) -> Collection[bytes]:
        """Compare and set rows. Returns the keys of those that were not as remembered."""

    @abstractmethod
    def insert_entries(self, app: str, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Insert or ignore entries (position, key)."""

    @abstractmethod
    def delete_entries(self, app: str, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Delete entries (position, key)."""

    @abstractmethod
    def look(self, probe: Probe) -> Probed:
        """Probe at a bounded number of rows or entries for jobs that meet conditions; no payload is read."""

    @abstractmethod
    def count_due(self, wanted: DueCount) -> DueCounted:
        """Count pending jobs at their present due moments.

        Rows count if their keys lie in the range too. Entries count if the keys of their rows do not: so each job is
        counted once, wherever it was moved.
        """

    @abstractmethod
    def table_sizes(self) -> Sequence[TableSize]:
        """All tables of the database, in any order."""

    @abstractmethod
    def lows(self, app: str | None = None) -> Mapping[str, int]:
        """The smallest `low` of the shards of each app, or of one."""

    @abstractmethod
    def ends_known_from(self) -> int:
        """Jobs due before this moment may have failed or expired without a word of it in their attempts."""

    @abstractmethod
    def insert_requests(self, requests: Iterable[Request]) -> None: ...

    @abstractmethod
    def read_requests(self, shards: Collection[Shard], limit: int) -> Sequence[Request]:
        """Requests for these shards, in any order, up to the one with which they name `limit` jobs."""

    @abstractmethod
    def delete_requests(self, ids: Collection[bytes]) -> Collection[bytes]:
        """Delete requests. Returns the ids of those that existed."""

    @abstractmethod
    def write_decisions(self, decisions: Mapping[bytes, bool], now_ms: int) -> None:
        """Answer the callers of these requests: granted or not."""

    @abstractmethod
    def read_decisions(self, requests: Collection[bytes]) -> Mapping[bytes, bool]:
        """The answers to those of these requests that have one; maintenance deletes old ones."""

    @abstractmethod
    def claim_keys(self, app: str, rows: Sequence[NewRow]) -> Mapping[str, tuple[bytes, bytes]]:
        """Insert or ignore idempotency keys. Returns, for each key that another job has, that job's id and digest."""

    @abstractmethod
    def read_keys(self, app: str, keys: Collection[str]) -> Mapping[str, tuple[bytes, bytes]]:
        """For each of these idempotency keys that a job has, that job's id and digest."""

    @abstractmethod
    def write_attempts(
        self, app: str, attempts: Iterable[tuple[bytes, Attempt]], ended: Mapping[bytes, Status] | None = None
    ) -> None:
        """Insert or replace attempts of jobs; `ended` names those that failed or expired with it."""

    @abstractmethod
    def delete_unfinished(self, attempts: Iterable[tuple[bytes, int]]) -> None:
        """Delete attempts that were written as running, as far as they were: no handler works on them."""

    @abstractmethod
    def read_attempts_of(self, app: str, keys: Collection[bytes]) -> Mapping[bytes, Sequence[Attempt]]:
        """The attempts of each of these jobs that has any, in order."""

    def read_attempts(self, app: str, key: bytes) -> Sequence[Attempt]:
        """The attempts of one job, in order."""
        return self.read_attempts_of(app, [key]).get(key, ())

    @abstractmethod
    def write_marks(self, marks: Iterable[tuple[Shard, bytes, int]]) -> None:
        """Insert or replace the size of the window in which a job is about to be handed over."""

    @abstractmethod
    def read_marks(self, shards: Collection[Shard]) -> Mapping[Shard, Mapping[bytes, int]]:
        """The marks of these shards: key → size of the window; a shard without marks is left out."""

    @abstractmethod
    def delete_marks(self, keys: Iterable[tuple[Shard, bytes]]) -> None: ...

    @abstractmethod
    def add_counts(
        self,
        deltas: Mapping[tuple[str, str], int],
        now_ms: int,
        waiting: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        """Add to this process's counters: of (app, what) for today, and of what waits by (app, due day)."""

    @abstractmethod
    def read_counts(self) -> Mapping[str, Mapping[str, int]]:
        """What has happened to the jobs of each app."""

    @abstractmethod
    def read_waiting(self, app: str | None = None) -> Mapping[str, Mapping[int, int]]:
        """How many jobs wait by the counters: app → day → jobs; a day without any is left out."""

    @abstractmethod
    def count_waiting(self, app: str) -> tuple[Mapping[int, int], Mapping[int, int]]:
        """How many jobs of an app wait, by the day on which they are due: counted, and by the counters just then."""

    @abstractmethod
    def correct_waiting(self, app: str, deltas: Mapping[int, int]) -> None:
        """Add to the counters of what waits, by day; another process may do the same at once."""

    @abstractmethod
    def read_apps(self) -> Sequence[SqlApp]: ...

    @abstractmethod
    def insert_app(self, app: SqlApp, now_ms: int) -> None:
        """Insert an app, its shard rows (released, line and low at `now_ms`) and tables, unless it exists."""

    def insert_apps(self, apps: Sequence[SqlApp], now_ms: int) -> None:
        """Insert apps as `insert_app` does, with their tables made together."""
        for app in apps:
            self.insert_app(app, now_ms)

    @abstractmethod
    def has_tables_of(self, app: str) -> bool:
        """Do the tables exist that `insert_app` makes?"""

    @abstractmethod
    def set_paused(self, app: str, *, paused: bool) -> bool:
        """Set or clear the pause of an app. Returns whether the app exists."""

    @abstractmethod
    def read_nodes(self, *, vitals: bool = False) -> Sequence[NodeInfo]:
        """All nodes; their vitals, which may be large, only if asked for."""

    @abstractmethod
    def write_node(self, node: NodeInfo) -> None:
        """Insert or replace a node's row, except for what others have asked of it."""

    @abstractmethod
    def set_drain(self, node_id: str, *, asked: bool) -> int:
        """Ask all nodes of this name to drain, or to take shards again. Returns how many there are."""

    @abstractmethod
    def now_ms(self) -> int | None:
        """The database's own clock, rounded down; None if it has none."""

    @abstractmethod
    def delete_node(self, nonce: str) -> None: ...

    @abstractmethod
    def move_position(self, move: Move, now_ms: int) -> bool:
        """Compare and set a position; one that was not seen is inserted unless it exists. False: it is another.

        Waits for a transaction that is about to write it. Without a topic id, the stored one stays.
        """

    @abstractmethod
    def read_positions(self, group: str | None, topic: str | None) -> Sequence[TopicPosition]:
        """Positions by group, topic and partition, in this order."""

    @abstractmethod
    def letter_room(self) -> int | None:
        """The largest message that a dead letter can have in this database, in bytes; None: any."""

    @abstractmethod
    def insert_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Insert dead letters; an existing one is left alone."""

    @abstractmethod
    def find_letters(self, query: LetterQuery, after: bytes | None, limit: int) -> Sequence[tuple[bytes, int]]:
        """Ids of dead letters with the size of their messages, in the requested order, from after this id."""

    @abstractmethod
    def read_letters(self, keys: Collection[bytes]) -> Sequence[DeadLetter]:
        """The dead letters with these ids that exist, in any order."""

    @abstractmethod
    def read_letter_states(self, keys: Collection[bytes]) -> Mapping[bytes, LetterState]:
        """The states of those of these dead letters that exist, without a look at their messages."""

    @abstractmethod
    def mark_letters(
        self, keys: Collection[bytes], state: LetterState, note: str | None, *, among: Collection[LetterState]
    ) -> int:
        """Compare and set the state of letters that are in one of these states. Returns how many were.

        Waits for a transaction that is about to do the same. Without a note, the stored one stays.
        """

    @abstractmethod
    def count_letters(self) -> Mapping[tuple[str, str], int]:
        """How many dead letters there are, by topic and state."""

    @abstractmethod
    def count_keys(self) -> int:
        """How many idempotency keys there are; an estimate if they are very many."""

    @abstractmethod
    def insert_audit(self, records: Sequence[AuditRecord]) -> None:
        """Insert records; an existing one is left alone."""

    @abstractmethod
    def find_audit(self, query: AuditQuery, before: bytes | None, limit: int) -> Sequence[AuditRecord]:
        """Records in the order of their ids, newest first, from before this id."""

    @abstractmethod
    def lock_tokens(self) -> None:
        """Keep other transactions from adding tokens until the end of this one."""

    @abstractmethod
    def read_tokens(self) -> Sequence[Token]:
        """All tokens, in the order of their names."""

    @abstractmethod
    def insert_token(self, token: Token) -> bool:
        """Insert a token; False: its name is taken."""

    @abstractmethod
    def revoke_token(self, name: str, now_ms: int) -> None:
        """Set the moment at which a valid token was revoked."""


Body = Callable[[Statements], T]
"""A transaction: statements, then a result. It may run more than once, so it changes nothing outside."""


class Session(ABC):
    """One connection that runs one transaction at a time, in the order of the calls."""

    @abstractmethod
    async def write(self, body: Body[T]) -> T:
        """Run a transaction that writes, and commit it. Durable on return.

        Raises StoreUnavailable if it is unknown whether it was committed, or if the database does not answer.
        """

    @abstractmethod
    async def read(self, body: Body[T]) -> T:
        """Run a transaction that only reads."""

    @abstractmethod
    async def changed(self) -> bool:
        """May another process have written since the last call? True if that cannot be found out cheaply."""

    @abstractmethod
    async def close(self) -> None: ...


class Database(ABC):
    """A database that can hold the SQL store."""

    kind: str
    """What people call it."""

    has_clock: bool
    """Has it a clock of its own?"""

    lanes: int
    """How many lanes of owned shards may work at once."""

    found: int
    """The version of the schema found when it was opened; 0: there was none."""

    @abstractmethod
    async def open(self) -> None:
        """Connect, and bring the schema up to date under a lock."""

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    def session(self, name: str) -> Session:
        """A session for one purpose: `lane-0`, `door`, ...; a database with one writer returns the same one for all."""

    @abstractmethod
    async def maintain(self, *, now_ms: int, retention_ms: int, idempotency_ms: int) -> Upkeep:
        """Create tables ahead, drop or prune what is settled and past its retention, fold counters: a short slice."""

    async def existing_periods(self, app: str) -> frozenset[int] | None:
        """The periods for which the app has a table, for a process that may not create any; None: it may."""
        del app
        return None

    @abstractmethod
    def dead(self, nodes: Sequence[NodeInfo]) -> frozenset[str]:
        """The nonces among these whose processes are proven to have ended."""

    def presumed_dead(self, nodes: Sequence[NodeInfo]) -> frozenset[str]:
        """Those whose processes have ended as it seems, unless their heartbeats go on."""
        del nodes
        return frozenset()

    @abstractmethod
    def live(self, nonce: str) -> None:
        """Begin to prove that the process with this nonce is alive, for as long as it is."""
