"""The port of the owner of shards: what one node does to the jobs that it hands over."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from infinite_scheduler.model import Change, Job, Owner, Priority, Shard, Status
from infinite_scheduler.store.cluster_state import HeldBack, View
from infinite_scheduler.store.marks import Lifted, Marks


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A request to own a shard, with what was seen when it was decided."""

    shard: Shard
    seen: Owner
    beat: int | None = None  # the last heartbeat seen of that owner; None: it was not listed as a node
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
    limit: int  # jobs, at most
    room: int  # bytes of payload after which no more jobs are read; at least one is
    priority: Priority | None = None


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


class OwnerDecision(msgspec.Struct, frozen=True, kw_only=True):
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
    decisions: Sequence[OwnerDecision]
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
    shown: bool = False  # it was shown as running, so its end is, too

    @property
    def shard(self) -> Shard:
        return Shard(self.job.app, self.job.shard)


class Running(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A delivery that has been running for a while, to be shown to people."""

    job: Job
    started_ms: int


class SettleResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of recording settlements."""

    lost: frozenset[Shard]  # not owned any more: nothing was recorded there
    missed: frozenset[Shard]  # a job was not as this node remembered it: reload the shard
    low_ms: Mapping[Shard, int]  # where low was moved back to


class Upkeep(msgspec.Struct, frozen=True, kw_only=True):
    """What one round of maintenance did."""

    made: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    rows_pruned: int = 0


Poke = Callable[[Collection[Shard]], None]
"""Tells a node of this process that requests wait for these shards, so that it need not wait for its next poll."""


class Ownership(ABC):
    """What one node does to the shards it owns; every write is fenced by (nonce, epoch), never by a time.

    At most one call per lane may be in progress at a time, and it is applied to memory before the next one.
    """

    lanes: int
    """How many lanes may work at once; a shard belongs to lane `number % lanes`."""

    marks: Marks | None = None
    """Where suspects are marked, by the same lanes; None: this store cannot, and says so in its abilities."""

    @abstractmethod
    async def beat(
        self,
        *,
        renew: bool = True,
        draining: bool = False,
        clock_off: bool = False,
        clock_offset_ms: int | None = None,
        held_back: Mapping[str, HeldBack] | None = None,
        vitals: bytes | None = None,
    ) -> View:
        """Renew the lease, durably on return, and look at the cluster; or only look.

        What the node says of itself is written on renewal. The view has a sample of the store's clock, if it has one.
        Vitals are for people: the view has none. Those beyond VITALS_BYTES are left out, as the lease matters more.
        """

    @abstractmethod
    async def leave(self) -> None:
        """Remove this node; it must not own a shard any more."""

    @abstractmethod
    async def take(self, claims: Sequence[Claim]) -> Sequence[Grant]:
        """Own these shards, unless they have changed since they were seen; the epoch grows by one."""

    @abstractmethod
    async def release(self, owners: Mapping[Shard, Owner], low_ms: Mapping[Shard, int], lifted: Lifted) -> None:
        """Give shards up in good order: nothing of them is in flight, so all marks in `lifted` are."""

    @abstractmethod
    async def reload(
        self, owners: Mapping[Shard, Owner], handed_over: Collection[bytes], lifted: Lifted
    ) -> Sequence[Grant]:
        """After doubt: wait for any transaction that is still open on these shards, then return those still owned.

        The marks in `lifted` are, of jobs that are not handed over.
        """

    @abstractmethod
    async def advance(self, steps: Sequence[Step]) -> frozenset[Shard]:
        """Move lines and lows. Returns the shards that are lost: nothing was moved there."""

    @abstractmethod
    async def scan(self, scan: Scan) -> Page:
        """Read pending jobs by position in one fresh snapshot."""

    async def apps_without_jobs(self, scans: Sequence[Scan]) -> Collection[str]:
        """The apps of these scans (one per app, all of one lane) that have no job in the range.

        An app may be left out although it has none. Nodes with many apps ask for them in one fresh snapshot, as each
        scan would be.
        """
        del scans
        return ()

    @abstractmethod
    async def requests(self, shards: Collection[Shard], *, poked: bool, limit: int) -> Sequence[Request]:
        """Requests that wait for these shards, until they name `limit` jobs; if they name fewer, these are all.

        They come in any order, and reading them changes nothing: to get more, consume these first. It is a call of the
        lane of the first shard; shards of other lanes may follow it.

        Without a poke, a store that knows that nothing was written since the last call may answer without looking.
        """

    @abstractmethod
    async def answer(
        self,
        owners: Mapping[Shard, Owner],
        requests: Sequence[Request],
        handed_over: Collection[bytes],
        room: int,
    ) -> Answers:
        """Consume requests: read the jobs named by wakes, decide the changes, refuse those of jobs already handed over.

        Of the jobs that the owner has to hold now, as many are read as fit into `room` bytes of payload, the earliest
        first, at least one; the others are left to scan.
        """

    @abstractmethod
    async def settle(
        self,
        owners: Mapping[Shard, Owner],
        settlements: Sequence[Settlement],
        running: Sequence[Running] = (),
        came_back: Sequence[Job] = (),
    ) -> SettleResult:
        """Record how deliveries ended, all or none of each shard. Durable on return.

        Those that are running are shown to people; those that came back, as if they had not begun, are shown no more.
        """

    @abstractmethod
    async def maintain(self) -> Upkeep:
        """Prepare for coming days and remove what is past its retention: a short slice, by one node at a time."""
