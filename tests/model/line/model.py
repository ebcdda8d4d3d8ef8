"""The line protocol of one shard as a model: how it begins, what may happen next, and what must always hold.

A transaction is two steps (locks and reads; writes and the effect in memory), a scan four (rows read, put, entries
read, put), and anything else may come between any two of them. Time moves at any moment; a poke is a poll, and polls
come at any moment. A pause is a node that takes no step.
"""

from __future__ import annotations

from collections.abc import Collection

from tests.model.line.callers import caller_steps
from tests.model.line.nodes import Turn
from tests.model.line.state import ANSWERED, PENDING, START, UNAVAILABLE, Caller, LineNode, State, position
from tests.model.line.variant import Scenario, Variant
from tests.model.line.wheel import covered
from tests.model.search import Step

SETTLED_PHASES = (START, ANSWERED, UNAVAILABLE)


class LineModel:
    """Invariants: never lost, never early, respected (cancel, reschedule), fenced, once, findable (low)."""

    def __init__(self, scenario: Scenario, off: Collection[str] = ()) -> None:
        self.variant = Variant(scenario, off)

    def initial(self) -> State:
        variant = self.variant
        nobody, jobs = frozenset[int](), variant.jobs
        return State(
            now=0,
            owner=0,
            epoch=1,
            line=1,
            low=0,
            rows=(None,) * jobs,
            entries=nobody,
            wakes=frozenset(),
            asks=frozenset(),
            callers=(Caller(),) * len(variant.scenario.callers),
            nodes=(variant.blank._replace(epoch=1, line=1), variant.blank),
            orphan=None,
            faults=variant.scenario.faults,
            excused=False,
            handed=(0,) * jobs,
        )

    def steps(self, state: State) -> list[Step]:
        out: list[Step] = []
        if state.now < self.variant.scenario.horizon:
            out.append(Step(("it is", state.now + 1), state._replace(now=state.now + 1)))
        for number in range(len(state.callers)):
            caller_steps(self.variant, state, number, out)
        self._end_orphan(state, out)
        for index in (0, 1):
            Turn(self.variant, state, index, out).steps()
        return out

    def _end_orphan(self, state: State, out: list[Step]) -> None:
        """The server commits what nobody waits for any more, or rolls it back."""
        if not state.orphan:
            return
        index, epoch, transaction = state.orphan
        written = transaction.write(self.variant, state, index, epoch)
        if written:
            after, violation = written
            out.append(Step(("the server commits", transaction), after._replace(orphan=None), violation))
        out.append(Step(("the server rolls back", transaction), state._replace(orphan=None)))

    def violation(self, state: State) -> str | None:
        named = {job for wake in state.wakes for job, _ in wake.named}
        owner = self._quiet_owner(state)
        held = {held.job for held in owner.held} if owner else set()
        for job, row in enumerate(state.rows):
            if not row or row.status != PENDING:
                continue
            if row.key != row.due and position(row.due, job) not in state.entries:
                return f"findable: job {job} has neither key nor entry at {row.due}"
            if row.due >= state.line or job in named:
                continue
            if row.due < state.low:
                return f"findable: low {state.low} has passed job {job}, due {row.due}"
            if owner and job not in held and not covered(self.variant, owner, job, row, state.entries):
                return f"never lost: the owner neither holds job {job}, due {row.due}, nor will it scan that"
        return None

    def _quiet_owner(self, state: State) -> LineNode | None:
        """The owner, when nothing is under way: then it must know of everything before the line."""
        if state.owner > 1 or state.orphan:
            return None
        node = state.nodes[state.owner]
        busy = node.lane or node.beside or node.doubt
        return None if busy or node.epoch != state.epoch or node.line != state.line else node

    def finished(self, state: State) -> bool:
        horizon = self.variant.scenario.horizon
        if any(row and row.status == PENDING and row.due <= horizon for row in state.rows):
            return False
        return all(caller.phase in SETTLED_PHASES for caller in state.callers)
