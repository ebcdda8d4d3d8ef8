"""The nodes: taking a shard over, owning it, doubting, draining and dying."""

from __future__ import annotations

from tests.model.line.state import (
    CANCEL,
    CANCELLED,
    DEAD,
    EXCLUSIVE,
    OPEN,
    PENDING,
    RELEASED,
    SHARE,
    Held,
    Left,
    LineNode,
    Orphan,
    State,
    moment_of,
    start_of,
)
from tests.model.line.transactions import (
    Advance,
    Consume,
    Decide,
    MoveLow,
    Release,
    Scan,
    Settle,
    TakeOver,
    Transaction,
    forget,
)
from tests.model.line.variant import Variant, answer, free, owns
from tests.model.line.wheel import load, read, reads_entries
from tests.model.search import Step

NAMES = ("node 0", "node 1")


class Turn:
    """One node in one state, and all that it may do next."""

    __slots__ = ("idle", "index", "mine", "node", "out", "state", "variant")

    def __init__(self, variant: Variant, state: State, index: int, out: list[Step]) -> None:
        self.variant, self.state, self.index, self.out = variant, state, index, out
        self.node = state.nodes[index]
        self.mine = owns(state, index, self.node.epoch)
        self.idle = self.node.lane is None and self.node.beside is None

    def steps(self) -> None:
        node = self.node
        if not node.up:
            self.go(("restarts",), self.variant.blank)
            return
        self.crash()
        self.commit("lane", node.lane)
        self.commit("beside", node.beside)
        if not node.epoch:
            self.take_over()
            return
        self.lease()
        if node.doubt:
            self.reload()
        else:
            self.own()

    def go(
        self,
        label: tuple[object, ...],
        node: LineNode,
        state: State | None = None,
        violation: str | None = None,
        progress: bool = True,
    ) -> None:
        state = state or self.state
        nodes = (state.nodes[0], node) if self.index else (node, state.nodes[1])
        self.out.append(Step((NAMES[self.index], *label), state._replace(nodes=nodes), violation, progress))

    def begin(
        self,
        transaction: Transaction,
        fence: str = "",
        slot: str = "lane",
        node: LineNode | None = None,
        state: State | None = None,
    ) -> None:
        """Begin when the lane is free, the lock can be had and, under it, the shard is still owned [1, 2]."""
        if self.node.slot(slot) is not None or not free(self.state, transaction.lock):
            return
        if self.mine or (fence and not self.variant.on[fence]):
            self.go(("begins", transaction), (node or self.node).with_slot(slot, transaction), state)

    def crash(self) -> None:
        state, node, faults = self.state, self.node, self.state.faults
        if faults.crash and (node.epoch or node.lane):
            owner = DEAD if state.owner == self.index else state.owner
            after = state._replace(owner=owner, faults=faults._replace(crash=faults.crash - 1), excused=True, handed=())
            self.go(("CRASHES",), self.variant.blank._replace(up=False), after, progress=False)

    def commit(self, slot: str, transaction: Transaction | None) -> None:
        """A transaction commits and takes effect in memory, or its answer is lost [10]."""
        if transaction is None:
            return
        state, node, faults = self.state, self.node, self.state.faults
        written = transaction.write(self.variant, state, self.index, node.epoch)
        if written:
            after, violation = written
            left = node.with_slot(slot, None)
            self.go(("commits", transaction), transaction.remember(self.variant, state, after, left), after, violation)
        if faults.doubt and not state.orphan and not isinstance(transaction, Scan):
            self.lose_answer(slot, transaction)

    def lose_answer(self, slot: str, transaction: Transaction) -> None:
        """The transaction stays open at the server; its node must not guess how it ends [10]."""
        state, node, faults = self.state, self.node, self.state.faults
        orphan = Orphan(self.index, node.epoch, transaction)
        after = state._replace(orphan=orphan, faults=faults._replace(doubt=faults.doubt - 1))
        if self.variant.on["doubt_reloads"]:
            node = forget(self.variant, node)
        else:
            node = node.with_slot(slot, None)
            if isinstance(transaction, Decide) and transaction.off_wheel:
                node = node._replace(held=node.held | {transaction.off_wheel})
        self.go(("hears NO ANSWER to", transaction), node, after, progress=False)

    def take_over(self) -> None:
        """A shard that is released, whose owner is gone, or that bears this nonce after a lost answer [9, lease]."""
        state, node, other = self.state, self.node, 1 - self.index
        if node.lane:
            return
        silent = state.owner == other and bool(state.nodes[other].lapsed)
        if not self.variant.on["takeover_checks_heartbeat_again"]:
            # `lapsed` of a node without the shard: what it saw of the other one.
            if silent and not node.lapsed:
                self.go(("sees the other's heartbeat stand still",), node._replace(lapsed=1))
            silent = state.owner == other and bool(node.lapsed)
        lock = self.variant.lock("takeover_locks_exclusively", EXCLUSIVE)
        if (silent or state.owner in (RELEASED, DEAD, self.index)) and free(state, lock):
            self.go(("begins a takeover",), node._replace(lane=TakeOver(lock, state.epoch)))

    def lease(self) -> None:
        """A lapse stops the firing; after the renewal the owner is checked again [lease, 10]."""
        state, node, on = self.state, self.node, self.variant.on
        if state.faults.lapse and not node.lapsed and not node.doubt:
            faults = state.faults._replace(lapse=state.faults.lapse - 1)
            after = state._replace(faults=faults, excused=True, handed=())
            self.go(("LAPSES",), node._replace(lapsed=1), after, progress=False)
        if not self.idle:
            return
        if node.lapsed and on["lapsed_node_renews_then_checks"]:
            checked = forget(self.variant, node) if on["lapse_reloads"] else node._replace(doubt=node.doubt or 2)
            self.go(("renews, must check",), checked._replace(lapsed=0))
        elif node.lapsed == 1 and self.mine:
            self.go(("checks that it is the owner",), node._replace(lapsed=2))
        elif node.lapsed == 2:
            self.go(("renews, goes on",), node._replace(lapsed=0))
        if not self.mine and not node.doubt:
            self.go(("learns that it lost the shard",), self.variant.blank)

    def reload(self) -> None:
        """Wait until nothing else of this shard is open, check the owner, load again [10]."""
        if not self.idle or not free(self.state, self.variant.lock("reload_waits_for_lock", EXCLUSIVE)):
            return
        if not self.mine:
            self.go(("checks: not the owner any more",), self.variant.blank)
        elif self.node.doubt == 2:
            self.go(("checks: still the owner",), self.node._replace(doubt=0))
        else:
            self.go(("checks and loads again",), load(self.variant, self.state, self.node))

    def own(self) -> None:
        self.fire()
        self.settle()
        self.decide()
        self.drain()
        if self.node.lane:
            return
        self.consume()
        self.advance()
        self.scan()
        self.move_low()

    def fire(self) -> None:
        """Hand over what is due: beside the lane, at any moment."""
        state, node, on = self.state, self.node, self.variant.on
        if (node.lapsed and on["lapse_stops_firing"]) or (node.draining and on["drain_stops_firing"]):
            return
        for held in node.held:
            if held.handed_over or (state.now < held.due and on["fires_when_due"]):
                continue
            handed = state.handed
            if not state.excused:
                bits = handed[held.job] | 1 << held.attempt
                handed = (*handed[: held.job], bits, *handed[held.job + 1 :])
            after = node._replace(held=node.held - {held} | {held._replace(handed_over=True)})
            violation = _wrong_to_fire(state, held)
            self.go(("HANDS OVER", held, "at", state.now), after, state._replace(handed=handed), violation)

    def settle(self) -> None:
        """A handler has ended: Done, or Retry at some moment [5, 11]."""
        state, variant = self.state, self.variant
        slot = "lane" if variant.on["settle_in_lane"] else "beside"
        if self.node.slot(slot):
            return
        retries: set[int] = set()
        if state.faults.retry:
            retries = {0} if variant.scenario.past_retry else {state.now + 1, state.line}
        spent = state._replace(faults=state.faults._replace(retry=state.faults.retry - 1))
        for held in self.node.held:
            if not held.handed_over:
                continue
            self.begin(
                Settle(variant.lock("settle_holds_lock", SHARE), held.job, held.attempt), "settle_is_fenced", slot
            )
            for at in sorted(at for at in retries if at <= variant.scenario.horizon):
                lock = variant.lock_of_low("settle_holds_lock", at < state.low)
                self.begin(Settle(lock, held.job, held.attempt, at), "settle_is_fenced", slot, state=spent)

    def decide(self) -> None:
        """A request to cancel or reschedule: handed over: no; held: off the wheel, then yes; else by the row [7]."""
        state, node, on = self.state, self.node, self.variant.on
        slot = "lane" if on["answer_in_lane.decision"] else "beside"
        for ask in state.asks:
            held = next((held for held in node.held if held.job == ask.job), None)
            if held and held.handed_over and on["handed_over_is_too_late"]:
                if self.mine and node.slot(slot) is None and free(state, SHARE):
                    self.go(("says too late", ask), node, answer(self.variant, state, ask))
                continue
            off_wheel = held if held and not held.handed_over and on["off_wheel_before_decision"] else None
            lowers = ask.due != CANCEL and ask.due < state.low
            decision = Decide(self.variant.lock_of_low("answer_holds_lock.decision", lowers), ask, off_wheel)
            kept = node.held - {off_wheel} if off_wheel else node.held
            self.begin(decision, "answer_is_fenced.decision", slot, node._replace(held=kept))

    def drain(self) -> None:
        """A planned move: no new hand-overs, those in flight settled, then released; or called off [drain]."""
        state, node, on = self.state, self.node, self.variant.on
        if node.draining and (not node.lane or not on["drain_is_called_off_in_lane"]):
            self.go(("calls the DRAIN OFF",), node._replace(draining=False), progress=False)
        if node.lane:
            return
        if state.faults.drain and not node.draining and not node.lapsed:
            after = state._replace(faults=state.faults._replace(drain=state.faults.drain - 1))
            self.go(("DRAINS",), node._replace(draining=True), after, progress=False)
        if node.draining and not (on["drain_waits_for_settles"] and any(held.handed_over for held in node.held)):
            self.begin(Release(self.variant.lock("release_locks_exclusively", EXCLUSIVE)))

    def consume(self) -> None:
        """Delete the wakes that are there and read the rows that they name [6]."""
        state, on = self.state, self.variant.on
        wakes = frozenset(
            wake for wake in state.wakes if on["requests_are_read_without_cursor"] or wake.number > self.node.seen
        )
        if not wakes:
            return
        found = []
        for job in sorted({job for wake in wakes for job, _ in wake.named}):
            row = state.rows[job]
            if row and row.status == PENDING and (row.due < state.line or not on["wake_takes_only_before_line"]):
                found.append(Held(job, row.due, row.attempt))
        self.begin(
            Consume(self.variant.lock_of_low("answer_holds_lock.wake"), wakes, tuple(found)), "answer_is_fenced.wake"
        )

    def advance(self) -> None:
        """Move the line a step [4]."""
        state, node, variant = self.state, self.node, self.variant
        bounds = variant.scenario
        new = max(state.line, min(state.line + 1, state.now + bounds.lookahead, bounds.horizon + bounds.beyond))
        if node.draining or any(left and left.end != OPEN for left in node.left):
            return
        if not variant.on["line_moves_before_scan"]:
            if new > node.line and node.left == variant.nothing_left:
                fresh = (Left(start_of(node.line)),) * len(node.left)
                self.go(("will scan up to", new, "and move the line then"), node._replace(line=new, left=fresh))
            if node.left != variant.nothing_left or node.line == state.line:
                return
            new = node.line
        elif new <= node.line:
            return
        start = node.line if variant.on["scan_starts_at_remembered_line"] else state.line
        self.begin(Advance(variant.lock("advance_locks_exclusively.line", EXCLUSIVE), start, new), "advance_is_fenced")

    def scan(self) -> None:
        """Read rows or entries of a page, in a snapshot of their own [4, 5]."""
        for priority, left in enumerate(self.node.left):
            if left:
                found, end = read(self.variant, self.state, self.node, priority)
                what = "entries" if reads_entries(self.variant, left) else "rows"
                scan = Scan(priority, end, found)
                self.go(("reads", what, "from", left.cursor, scan), self.node._replace(lane=scan))

    def move_low(self) -> None:
        """Low follows the earliest moment that is still needed [8]."""
        state, node, on = self.state, self.node, self.variant.on
        low = min(node.line, state.now) if on["low_stays_before_now"] else node.line
        if on["low_stays_before_unscanned"]:
            low = min([low] + [moment_of(left.cursor) for left in node.left if left])
        if on["low_stays_before_unsettled"]:
            low = min([low] + [held.due for held in node.held])
        if low > state.low and not node.draining:
            self.begin(MoveLow(self.variant.lock_of_low("advance_locks_exclusively.low"), low))


def _wrong_to_fire(state: State, held: Held) -> str | None:
    row = state.rows[held.job]
    assert row
    if row.status == CANCELLED:
        return "respected: fires after an acknowledged cancel"
    if state.now < row.due:
        return "never early: fires before row.due, or against an acknowledged reschedule"
    if row.status != PENDING or row.attempt != held.attempt:
        return "once: fires what is settled"
    if not state.excused and state.handed[held.job] & 1 << held.attempt:
        return "once: handed over twice without a crash or a lapse"
    return None
