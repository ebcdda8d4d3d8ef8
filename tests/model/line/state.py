"""The values of the model of one shard. All are nested tuples of numbers, so that a state is hashed quickly.

A position is a moment with the job's number behind it: rows by their key and entries by their new due moment share one
order, as the 16-byte ids do in the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tests.model.line.transactions import Transaction

JOB_BITS = 2
NO_LOCK, SHARE, EXCLUSIVE = 0, 1, 2
PENDING, DONE, CANCELLED = 0, 1, 2
RELEASED, DEAD = 2, 3  # owners beside node 0 and node 1: given back by plan; a process that crashed for good
CANCEL = -1  # the "new due moment" of a cancel
NO_RETRY = -1
OPEN = -1  # no page is under way

# Phases of a caller.
START, SAW_LINE, IN_TRANSACTION, FOUND_RELEASED, ASKED, GIVING_UP, ANSWERED, UNAVAILABLE = range(8)


def position(due: int, job: int) -> int:
    return due << JOB_BITS | job


def start_of(moment: int) -> int:
    """The first position of a moment."""
    return moment << JOB_BITS


def moment_of(pos: int) -> int:
    return pos >> JOB_BITS


def job_at(pos: int) -> int:
    return pos & (1 << JOB_BITS) - 1


class Row(NamedTuple):
    """A job in the store. `key` never changes, `due` is the truth."""

    key: int
    due: int
    status: int = PENDING
    attempt: int = 0


class Held(NamedTuple):
    """A job in a node's memory: on the wheel, or handed over."""

    job: int
    due: int
    attempt: int
    handed_over: bool = False


class Wake(NamedTuple):
    named: tuple[tuple[int, int], ...]  # (job, due)
    number: int = 0  # its id


class ChangeRequest(NamedTuple):
    """A request to cancel or reschedule."""

    job: int
    due: int


class Left(NamedTuple):
    """What is left to scan of one priority: [cursor, line).

    While a page is under way, one of its two reads is done up to `end`, and the other one of [cursor, end) is to come.
    """

    cursor: int
    end: int = OPEN


class Caller(NamedTuple):
    """How far a caller is, and what its open transaction has read."""

    phase: int = START
    lock: int = NO_LOCK
    line: int = 0
    row: Row | None = None
    number: int = 0
    owner: int = 0
    decides: bool = False


class LineNode(NamedTuple):
    up: bool
    lapsed: int
    epoch: int  # 0: owns nothing, as far as it knows
    draining: bool
    doubt: int  # 1: must reload, 2: must check that it is the owner
    line: int  # the line that memory knows
    held: frozenset[Held]
    left: tuple[Left | None, ...]  # one for each priority
    lane: Transaction | None
    beside: Transaction | None  # used only when a rule of the lane is switched off
    seen: int  # the cursor of a reader of requests that must not have one

    def slot(self, name: str) -> Transaction | None:
        return self.lane if name == "lane" else self.beside

    def with_slot(self, name: str, transaction: Transaction | None) -> LineNode:
        return self._replace(lane=transaction) if name == "lane" else self._replace(beside=transaction)


class Faults(NamedTuple):
    """How often each may still happen."""

    crash: int = 0
    lapse: int = 0
    doubt: int = 0
    drain: int = 0
    retry: int = 0


class Orphan(NamedTuple):
    """A transaction whose answer was lost: open at the server with its locks until it commits or rolls back."""

    node: int
    epoch: int
    transaction: Transaction


class State(NamedTuple):
    now: int
    owner: int
    epoch: int
    line: int
    low: int
    rows: tuple[Row | None, ...]
    entries: frozenset[int]  # positions
    wakes: frozenset[Wake]
    asks: frozenset[ChangeRequest]
    callers: tuple[Caller, ...]
    nodes: tuple[LineNode, LineNode]
    orphan: Orphan | None
    faults: Faults
    excused: bool  # a crash or a lapse happened: what was in flight may be handed over again
    handed: tuple[int, ...]  # for each job a bit for each attempt handed over; not kept once excused
