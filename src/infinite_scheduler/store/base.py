"""The port of a store: where jobs wait, durably, until an owner hands them over.

`Store` is for doors and people, in any process. `Ownership` is what one node does to the shards it owns, fenced by
(nonce, epoch). The rules of both are in docs/concepts/line-protocol.md.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from infinite_scheduler.model import DAY_MS, Accepted, Change, Job, JobRecord, JobSpec, Owner, Priority, Shard, Status
from infinite_scheduler.store.inbox import Inbox

MANY, FEW, ALONE = 1000, 30, 1
"""The windows in which suspects are handed over: a job whose process ended while it was in one goes into the next.

A size below ALONE marks a job that was alone and still ran: it has survived ALONE - size watches.
"""


ROOM = 8 << 20
"""Bytes of payload that are read at a time: little compared to a node's memory, and worth a transaction."""


NAMED = 1000
"""Requests are read until they name this many jobs: a flood of them is answered page by page."""


class StoreLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What the settings say about a store."""

    shards: int = 16
    retention_ms: int = 7 * DAY_MS
    idempotency_ms: int = DAY_MS
    lanes: int = 2  # on a server: how many connections work for owned shards
    connections: int = 2  # on a server: how many connections the doors share
    idle_in_transaction_ms: int = 5_000  # on a server, as the next two: how long a transaction may stay idle,
    lock_wait_ms: int = 10_000  # how long a statement waits for a lock,
    silence_ms: int = 20_000  # and how long the server may be silent within a statement before it is given up
    ddl: bool = True  # on a server: may this process create and drop tables?
    tables: str = "daily"  # the span of time of one table, for new apps: daily or hourly


class AppInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An app as the store has it."""

    name: str
    shards: int
    paused: bool
    created_ms: int
    span: str = "daily"  # of time that one of its tables covers; daily or hourly


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A node as the others see it; `beat` changes with every heartbeat."""

    nonce: str
    node_id: str
    apps: frozenset[str]
    started_ms: int
    draining: bool = False  # it gives up its shards and takes none: it is stopping, was asked to, or its clock is off
    drain_asked: bool = False  # an operator asked it to
    clock_off: bool = False  # its clock differs too much from the store's
    clock_offset_ms: int | None = None  # the store's clock minus its own, if the store has one
    beat: int = 0
    beat_ms: int = 0


class ShardInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A shard row: its owner, the line up to which the owner decides, and the low before which all is settled."""

    shard: Shard
    owner: Owner
    line_ms: int
    low_ms: int

    @property
    def released(self) -> bool:
        """Has it no owner?"""
        return not self.owner.nonce


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The store's clock, read once between two readings of the asking process's steady clock."""

    store_ms: int  # rounded down
    asked_us: int
    answered_us: int


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What a node learns from a heartbeat: the cluster at one moment."""

    nodes: tuple[NodeInfo, ...]
    shards: tuple[ShardInfo, ...]
    apps: tuple[AppInfo, ...]
    dead: frozenset[str] = frozenset()  # nonces of processes that are proven to have ended
    clock: Sample | None = None  # None: the store has no clock of its own


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A request to own a shard, with what was seen when it was decided."""

    shard: Shard
    seen: Owner
    beat: int | None = None  # the last heartbeat seen of that owner; None: it had no node row
    dead: bool = False  # the owner's process is proven to have ended


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """A shard that this node owns, as the store has it."""

    shard: Shard
    owner: Owner
    line_ms: int
    low_ms: int
    unclean: bool  # its former owner did not release it: what was in flight is unknown
    suspects: Mapping[bytes, int] = {}  # jobs that were marked when their process ended: key → size of the window


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """Move the line of a shard to `line_ms` and its low to `low_ms`."""

    shard: Shard
    owner: Owner
    line_ms: int
    low_ms: int


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """Which pending jobs to read: positions in [start, end) of these shards of one app."""

    app: str
    shards: frozenset[int]
    start: bytes
    end: bytes
    priority: Priority | None = None
    limit: int = 1000
    room: int = ROOM  # bytes of payload after which no more rows or entries are read; at least one of each


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs in the order of their positions; all before `next` were read, or all of the range if it is None."""

    jobs: Sequence[Job]
    next: bytes | None


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the owner of a shard; without a change it is a wake: look at these jobs."""

    id: bytes
    shard: Shard
    change: Change | None
    keys: tuple[bytes, ...]
    due_ms: int | None = None


def named(requests: Iterable[Request]) -> int:
    """How many jobs these requests name; one that names none counts as one."""
    return sum(len(request.keys) or 1 for request in requests)


class Ruling(msgspec.Struct, frozen=True, kw_only=True):
    """How a request for a change was decided."""

    request: Request
    claimed: bool  # False: the caller had withdrawn it, and nothing was decided
    granted: bool
    job: Job | None = None  # the job as it is now, if it is pending, not handed over, and was read


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """The result of answering requests."""

    lost: frozenset[Shard]  # not owned any more: nothing was consumed or decided there
    woken: Sequence[Job]  # pending, due before the line
    left: Sequence[tuple[Shard, bytes]]  # positions of more such jobs: there was no room to read them
    rulings: Sequence[Ruling]
    low_ms: Mapping[Shard, int]  # the current low


class Settlement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How one delivery ended; pending means: again at `due_ms`, as the next attempt."""

    job: Job
    status: Status
    started_ms: int
    finished_ms: int
    due_ms: int = 0
    error: str | None = None
    marked: bool = False  # it was handed over in a marked batch

    @property
    def shard(self) -> Shard:
        return Shard(self.job.app, self.job.shard)


class Running(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A delivery that has been running for a while, to be shown to people."""

    job: Job
    started_ms: int


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """The result of recording settlements."""

    lost: frozenset[Shard]  # not owned any more: nothing was recorded there
    missed: frozenset[Shard]  # a row was not as this node remembered it: reload the shard
    low_ms: Mapping[Shard, int]  # where low was moved back to


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request to change a job; not granted means too late."""

    granted: bool
    record: JobRecord


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs to list, in the order of their ids; the range is of the moment in the id."""

    app: str | None = None
    status: Status | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    tag: str | None = None
    newest_first: bool = False
    limit: int = 100
    cursor: str | None = None


class Holder(msgspec.Struct, frozen=True):
    """The job that has an idempotency key, and the digest of its content."""

    key: bytes
    digest: bytes


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a listing; `cursor` asks for the next."""

    records: Sequence[JobRecord]
    cursor: str | None


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about the cluster that people ask for."""

    view: View
    counts: Mapping[
        str, Mapping[str, int]
    ]  # app → accepted, done, failed, expired, cancelled, retried: within retention


class Upkeep(msgspec.Struct, frozen=True, kw_only=True):
    """What one round of maintenance did."""

    tables_made: tuple[str, ...] = ()
    tables_dropped: tuple[str, ...] = ()
    rows_pruned: int = 0


Poke = Callable[[Collection[Shard]], None]
"""Tells a node of this process that requests wait for these shards, so that it need not wait for its next poll."""


class Store(ABC):
    """Where jobs are kept durably, as doors and people use it."""

    @abstractmethod
    async def open(self) -> None:
        """Connect, and bring the schema up to date under a lock.

        Raises StoreBroken or StoreMismatch with what to change when it cannot be used.
        """

    @abstractmethod
    async def close(self) -> None:
        """Finish calls in progress and disconnect; a second call does nothing."""

    @abstractmethod
    async def register(self, app: str, shards: int | None = None) -> AppInfo:
        """Add the app to the store, with its shards and tables, or return it if it exists.

        Raises StoreMismatch if it exists with another number of shards.
        """

    @abstractmethod
    async def pause(self, app: str, *, paused: bool) -> None:
        """Stop or resume handing over the jobs of an app, on every node; jobs are still accepted."""

    @abstractmethod
    async def drain(self, node_id: str, *, draining: bool) -> int:
        """Ask all nodes of this name to give up their shards and take none, or to take shards again.

        They follow at their next look at the cluster. Returns how many nodes have this name.
        """

    @abstractmethod
    async def add(self, specs: Sequence[JobSpec]) -> Sequence[Accepted]:
        """Accept jobs, all or none, in order. Durable on return.

        A job whose idempotency key is known answers with the id of the first one; KeyConflict if its digest differs.
        After a lost answer the insert is repeated without creating a second job. Raises UnknownApp for an app that is
        not registered.
        """

    @abstractmethod
    async def holders(self, app: str, keys: Collection[str]) -> Mapping[str, Holder]:
        """Those of these idempotency keys that already belong to a job; the others stay free."""

    @abstractmethod
    async def change(
        self,
        change: Change,
        key: bytes,
        *,
        due_ms: int | None = None,
        app: str | None = None,
        patience_ms: int = 15_000,
    ) -> Verdict:
        """Cancel, reschedule, run now or retry one job. Durable on return.

        A granted cancel is never handed over, a granted reschedule not at the old time. Asks the owner if the owner
        decides; raises Unavailable if the owner does not answer within `patience_ms`: then nothing was and nothing will
        be decided. Raises UnknownJob.
        """

    @abstractmethod
    async def get(self, key: bytes, *, app: str | None = None) -> JobRecord | None:
        """One job with its attempts, or None."""

    @abstractmethod
    async def find(self, query: Query) -> Found:
        """List jobs, a page at a time."""

    @abstractmethod
    async def survey(self) -> Survey:
        """Apps, nodes, shards and counts at one moment."""

    @abstractmethod
    def inbox(self) -> Inbox:
        """The part of this store that takes messages read from topics; the store must be open."""

    @abstractmethod
    def ownership(self, node: NodeInfo, poke: Poke) -> "Ownership":
        """The owner's side of this store, for one node of this process."""


class Ownership(ABC):
    """What one node does to the shards it owns; every write is fenced by (nonce, epoch), never by a time.

    At most one call per lane may be in progress at a time, and it is applied to memory before the next one.
    """

    lanes: int
    """How many lanes may work at once; a shard belongs to lane `number % lanes`."""

    @abstractmethod
    async def beat(
        self,
        *,
        renew: bool = True,
        draining: bool = False,
        clock_off: bool = False,
        clock_offset_ms: int | None = None,
    ) -> View:
        """Renew the lease, durably on return, and look at the cluster; or only look.

        What the node says of itself is written on renewal. The view has a sample of the store's clock, if it has one.
        """

    @abstractmethod
    async def leave(self) -> None:
        """Remove this node; it must not own a shard any more."""

    @abstractmethod
    async def take(self, claims: Sequence[Claim]) -> Sequence[Grant]:
        """Own these shards, unless they have changed since they were seen; the epoch grows by one."""

    @abstractmethod
    async def release(self, owners: Mapping[Shard, Owner], low_ms: Mapping[Shard, int]) -> None:
        """Release shards: nothing of them is in flight.

        A job that was marked to be handed over alone is one of a FEW suspects again.
        """

    @abstractmethod
    async def reload(self, owners: Mapping[Shard, Owner], handed_over: Collection[bytes]) -> Sequence[Grant]:
        """After doubt: wait for any transaction that is still open on these shards, then return those still owned.

        A job that was marked to be handed over alone, and was not, is one of a FEW suspects again.
        """

    @abstractmethod
    async def advance(self, steps: Sequence[Step]) -> frozenset[Shard]:
        """Move lines and lows. Returns the shards that are lost: nothing was moved there."""

    @abstractmethod
    async def scan(self, scan: Scan) -> Page:
        """Read pending jobs by position in one fresh snapshot, from rows and entries."""

    @abstractmethod
    async def requests(self, shards: Collection[Shard], *, poked: bool, limit: int = NAMED) -> Sequence[Request]:
        """Requests that wait for these shards, until they name `limit` jobs; if they name fewer, these are all.

        They come in any order, and reading them changes nothing: to get more, consume these first.

        Without a poke, a store that knows that nothing was written since the last call may answer without looking.
        """

    @abstractmethod
    async def answer(
        self,
        owners: Mapping[Shard, Owner],
        requests: Sequence[Request],
        handed_over: Collection[bytes],
        room: int = ROOM,
    ) -> Answers:
        """Consume requests: read the jobs named by wakes, decide the changes, refuse those of jobs already handed over.

        Of the jobs that the owner has to hold now, as many are read as fit into `room` bytes of payload, the earliest
        first, at least one; the others are left to scan.
        """

    @abstractmethod
    async def settle(
        self, owners: Mapping[Shard, Owner], settlements: Sequence[Settlement], running: Sequence[Running] = ()
    ) -> Settled:
        """Record how deliveries ended, all or none of each shard. Durable on return."""

    @abstractmethod
    async def mark(self, owners: Mapping[Shard, Owner], jobs: Sequence[Job], size: int) -> frozenset[Shard]:
        """Record that these jobs are in a window of `size`, instead of another. Returns the lost shards."""

    @abstractmethod
    async def maintain(self) -> Upkeep:
        """Create tables ahead, drop old ones, prune and fold: a short slice of work, by one node at a time."""
