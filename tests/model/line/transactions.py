"""The transactions of an owner's lane: the lock of each, what it writes, and what its node remembers of it.

`write` is what the server does, also when the answer is lost: the new state and a broken promise, or nothing when it
cannot commit at all. `remember` is the effect in memory, applied before the lane goes on [2].
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from tests.model.line.state import (
    CANCEL,
    DONE,
    NO_LOCK,
    NO_RETRY,
    PENDING,
    RELEASED,
    ChangeRequest,
    Held,
    Left,
    LineNode,
    State,
    Wake,
    position,
    start_of,
)
from tests.model.line.variant import Variant, acknowledge, answer, owns, with_row
from tests.model.line.wheel import load, put_page, take

Written: TypeAlias = tuple[State, str | None] | None


def forget(variant: Variant, node: LineNode) -> LineNode:
    """In doubt: what was handed over stays tracked, the rest is forgotten [10]."""
    keep = variant.on["reload_keeps_handed_over"]
    held = frozenset(h for h in node.held if h.handed_over and keep)
    return node._replace(doubt=1, held=held, left=variant.nothing_left, lane=None, beside=None)


class TakeOver(NamedTuple):
    lock: int
    epoch: int
    kind: str = "takeover"

    def write(self, variant: Variant, state: State, index: int, epoch: int) -> Written:
        """Compare-and-set of nonce and epoch [9]."""
        return (state._replace(owner=index, epoch=state.epoch + 1) if state.epoch == self.epoch else state), None

    def remember(self, variant: Variant, before: State, after: State, node: LineNode) -> LineNode:
        return load(variant, after, variant.blank._replace(epoch=after.epoch)) if after.epoch != before.epoch else node


class Release(NamedTuple):
    lock: int
    kind: str = "release"

    def write(self, variant: Variant, state: State, index: int, epoch: int) -> Written:
        return state._replace(owner=RELEASED), None

    def remember(self, variant: Variant, before: State, after: State, node: LineNode) -> LineNode:
        return variant.blank


class Advance(NamedTuple):
    lock: int
    start: int
    line: int
    kind: str = "advance"

    def write(self, variant: Variant, state: State, index: int, epoch: int) -> Written:
        return state._replace(line=self.line), None

    def remember(self, variant: Variant, before: State, after: State, node: LineNode) -> LineNode:
        """The line has moved, what it passed is left to scan [4]."""
        if not variant.on["line_moves_before_scan"]:
            return node
        fresh = Left(start_of(self.start))
        return node._replace(line=self.line, left=tuple(left or fresh for left in node.left))


class MoveLow(NamedTuple):
    lock: int
    low: int
    kind: str = "low"

    def write(self, variant: Variant, state: State, index: int, epoch: int) -> Written:
        return state._replace(low=self.low), None

    def remember(self, variant: Variant, before: State, after: State, node: LineNode) -> LineNode:
        return node


class Consume(NamedTuple):
    lock: int
    wakes: frozenset[Wake]
    found: tuple[Held, ...]
    kind: str = "consume"

    def write(self, variant: Variant, state: State, index: int, epoch: int) -> Written:
        """The wakes go, low is lowered to the smallest position that they name [6]."""
        low = state.low
        if variant.on["answer_lowers_low.wake"]:
            low = min(low, *(due for wake in self.wakes for _, due in wake.named))
        kept = state.wakes - self.wakes if variant.on["only_read_requests_are_deleted"] else frozenset[Wake]()
        return state._replace(wakes=kept, low=low), None

    def remember(self, variant: Variant, before: State, after: State, node: LineNode) -> LineNode:
        node = node._replace(seen=max(wake.number for wake in self.wakes))
        return take(variant, after, node, self.found if variant.on["wake_reads_its_rows"] else ())


class Decide(NamedTuple):
    lock: int
    ask: ChangeRequest
    off_wheel: Held | None
    kind: str = "decide"

    def write(self, variant: Variant, state: State, index: int, epoch: int) -> Written:
        """The request is deleted first: when it is gone nothing is decided [7]."""
        asked = self.ask in state.asks
        row = state.rows[self.ask.job]
        assert row
        if row.status != PENDING or (not asked and variant.on["withdrawn_request_is_not_decided"]):
            return answer(variant, state, self.ask), None
        lost = _settles_lost_shard(state, index, epoch)
        if not asked:
            lost = "respected: decides a request that was taken back, its caller said Unavailable"
        state, violation = acknowledge(
            answer(variant, state, self.ask), self.ask, variant.on["reschedule_writes_entry.owner"]
        )
        if self.ask.due != CANCEL and variant.on["answer_lowers_low.decision"]:
            state = state._replace(low=min(state.low, self.ask.due))
        return state, lost or violation

    def remember(self, variant: Variant, before: State, after: State, node: LineNode) -> LineNode:
        job, due = self.ask
        if self.ask not in before.asks:  # taken back meanwhile: the job returns to the wheel [7]
            back = (self.off_wheel,) if self.off_wheel and variant.on["undecided_job_returns_to_wheel"] else ()
            return take(variant, after, node, back)
        node = node._replace(held=frozenset(h for h in node.held if h.job != job or h.handed_over))
        row = after.rows[job]
        assert row
        if row.status != PENDING or row.due != due or due >= node.line:
            return node
        return take(variant, after, node, (Held(job, due, row.attempt),))


class Settle(NamedTuple):
    """Done, or Retry(at)."""

    lock: int
    job: int
    attempt: int
    retry_at: int = NO_RETRY
    kind: str = "settle"

    def write(self, variant: Variant, state: State, index: int, epoch: int) -> Written:
        """Compare-and-set on (pending, attempt) [11]."""
        row = state.rows[self.job]
        assert row
        if row.status != PENDING or (row.attempt != self.attempt and variant.on["settle_compares_attempt"]):
            return state, None
        lost = _settles_lost_shard(state, index, epoch)
        if row.attempt != self.attempt:
            lost = "once: settles an attempt that was not handed over"
        if self.retry_at == NO_RETRY:
            return with_row(state, self.job, row._replace(status=DONE)), lost
        return self._write_retry(variant, state, lost)

    def _write_retry(self, variant: Variant, state: State, lost: str | None) -> Written:
        """The row moves on, an entry says where to, and low does not stay behind it [5, 8]."""
        entry, row = position(self.retry_at, self.job), state.rows[self.job]
        assert row
        if entry in state.entries and not variant.on["existing_entry_is_ignored"]:
            return None
        state = with_row(state, self.job, row._replace(due=self.retry_at, attempt=self.attempt + 1))
        if variant.on["retry_writes_entry"]:
            state = state._replace(entries=state.entries | {entry})
        if variant.on["retry_lowers_low"]:
            state = state._replace(low=min(state.low, self.retry_at))
        return state, lost

    def remember(self, variant: Variant, before: State, after: State, node: LineNode) -> LineNode:
        gone = (self.job, self.attempt, True)
        node = node._replace(held=frozenset(h for h in node.held if (h.job, h.attempt, h.handed_over) != gone))
        if after.rows[self.job] == before.rows[self.job]:  # no row changed [10]
            return forget(variant, node) if variant.on["missed_settle_reloads"] else node
        if self.retry_at == NO_RETRY or self.retry_at >= node.line:
            return node
        return take(variant, after, node, (Held(self.job, self.retry_at, self.attempt + 1),))


class Scan(NamedTuple):
    """A read of a page, not yet put onto the wheel. It holds no lock and writes nothing."""

    priority: int
    end: int
    found: tuple[Held, ...]
    lock: int = NO_LOCK
    kind: str = "scan"

    def write(self, variant: Variant, state: State, index: int, epoch: int) -> Written:
        return state, None

    def remember(self, variant: Variant, before: State, after: State, node: LineNode) -> LineNode:
        return put_page(variant, after, node, self.priority, self.end, self.found)


Transaction: TypeAlias = TakeOver | Release | Advance | MoveLow | Consume | Decide | Settle | Scan


def _settles_lost_shard(state: State, index: int, epoch: int) -> str | None:
    return None if owns(state, index, epoch) else "fenced: a node that lost the shard settles"
