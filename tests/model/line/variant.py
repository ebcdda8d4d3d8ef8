"""What holds for a whole scenario: its bounds and rules, and what the store does for everybody."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tests.model.line.rules import RULES
from tests.model.line.state import (
    ANSWERED,
    ASKED,
    CANCEL,
    CANCELLED,
    DEAD,
    EXCLUSIVE,
    NO_LOCK,
    PENDING,
    SHARE,
    Caller,
    ChangeRequest,
    Faults,
    LineNode,
    Row,
    State,
    job_at,
    position,
)


@dataclass(frozen=True)
class Insert:
    """Rows (job, due) in one transaction; `user`: a transaction of the user's own, which takes no lock."""

    rows: tuple[tuple[int, int], ...]
    user: bool = False


@dataclass(frozen=True)
class Change:
    """A cancel, or a reschedule to `due`."""

    job: int
    due: int = CANCEL


@dataclass(frozen=True)
class Scenario:
    callers: tuple[Insert | Change, ...]
    faults: Faults
    horizon: int = 3  # the last moment of time
    lookahead: int = 2
    beyond: int = 1  # how far the line may go beyond the horizon; what is due there need not be done
    page: int = 9  # how many rows a scan reads at once
    room: int = 9  # how many jobs fit the memory
    less_urgent: tuple[int, ...] = ()  # jobs of the second priority
    entries_first: bool = False
    past_retry: bool = False


class Variant:
    """One scenario under the protocol, or under a variant of it that lacks some rules."""

    def __init__(self, scenario: Scenario, off: Collection[str] = ()) -> None:
        if unknown := set(off) - set(RULES):
            raise ValueError(f"unknown rules: {', '.join(sorted(unknown))}")
        self.scenario = scenario
        self.on = {rule: rule not in off for rule in RULES}
        self.room, self.page, self.entries_first = scenario.room, scenario.page, scenario.entries_first
        self.jobs = 1 + max(job for c in scenario.callers if isinstance(c, Insert) for job, _ in c.rows)
        self.priority = tuple(int(job in scenario.less_urgent) for job in range(self.jobs))
        self.nothing_left = (None,) * (1 + max(self.priority))
        self.blank = LineNode(True, 0, 0, False, 0, 0, frozenset(), self.nothing_left, None, None, 0)

    def lock(self, rule: str, mode: int) -> int:
        return mode if self.on[rule] else NO_LOCK

    def lock_of_low(self, rule: str, lowers: bool = True) -> int:
        """Exclusive from the start for what will write low [1]."""
        return self.lock(rule, EXCLUSIVE if lowers and self.on["low_write_locks_exclusively"] else SHARE)


def free(state: State, lock: int) -> bool:
    """Can this lock be had now, beside those that open transactions hold? [1]"""
    if lock == NO_LOCK:
        return True
    limit = SHARE if lock == SHARE else NO_LOCK
    if state.orphan and state.orphan.transaction.lock > limit:
        return False
    for node in state.nodes:
        if (node.lane and node.lane.lock > limit) or (node.beside and node.beside.lock > limit):
            return False
    return all(caller.lock <= limit for caller in state.callers)


def owns(state: State, index: int, epoch: int) -> bool:
    """Does the shard bear the nonce and epoch of this node, or of its process that crashed?"""
    return state.epoch == epoch and state.owner in (index, DEAD)


def with_row(state: State, job: int, row: Row) -> State:
    """Write a row; the entries of a job that ended go with it."""
    rows = (*state.rows[:job], row, *state.rows[job + 1 :])
    if row.status == PENDING or not state.entries:
        return state._replace(rows=rows)
    return state._replace(rows=rows, entries=frozenset(pos for pos in state.entries if job_at(pos) != job))


def with_caller(state: State, number: int, caller: Caller) -> State:
    return state._replace(callers=(*state.callers[:number], caller, *state.callers[number + 1 :]))


def acknowledge(state: State, ask: ChangeRequest, entry: bool) -> tuple[State, str | None]:
    """A cancel or reschedule succeeds: row and entry, and it must not be too late [5, 7]."""
    row = state.rows[ask.job]
    assert row
    violation = None
    for index, node in enumerate(state.nodes):
        flying = any(h.job == ask.job and h.attempt == row.attempt and h.handed_over for h in node.held)
        if flying and owns(state, index, node.epoch):
            violation = "respected: a cancel or reschedule is acknowledged for a job that is handed over"
    if ask.due == CANCEL:
        return with_row(state, ask.job, row._replace(status=CANCELLED)), violation
    state = with_row(state, ask.job, row._replace(due=ask.due))
    return (state._replace(entries=state.entries | {position(ask.due, ask.job)}) if entry else state), violation


def answer(variant: Variant, state: State, ask: ChangeRequest) -> State:
    """The request is deleted and its caller hears the decision."""
    callers = tuple(
        Caller(ANSWERED) if caller.phase == ASKED and what == Change(*ask) else caller
        for what, caller in zip(variant.scenario.callers, state.callers, strict=True)
    )
    return state._replace(asks=state.asks - {ask}, callers=callers)
