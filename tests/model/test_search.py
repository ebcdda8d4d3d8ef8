"""The search itself: shortest traces, and states from which nothing finishes."""

from __future__ import annotations

from tests.model.search import NO_WAY_LEFT, Step, search


class Counter:
    """Counts to a goal by one or two; may fall into a hole; must not reach what is forbidden."""

    def __init__(self, goal: int, forbidden: int = 999, hole: bool = False) -> None:
        self.goal, self.forbidden, self.hole = goal, forbidden, hole

    def initial(self) -> int:
        return 0

    def steps(self, state: int) -> list[Step]:
        if state < 0:
            return []
        out = [Step(("add", by), state + by) for by in (1, 2) if state + by <= self.goal]
        return [*out, Step(("fall",), -1, progress=False)] if self.hole and state == 3 else out

    def violation(self, state: int) -> str | None:
        return "forbidden" if state == self.forbidden else None

    def finished(self, state: int) -> bool:
        return state == self.goal


def test_every_state_is_visited_once() -> None:
    assert search(Counter(10)) == (11, None, [], True)


def test_the_trace_to_a_violation_is_the_shortest() -> None:
    result = search(Counter(10, forbidden=6))
    assert (result.violation, result.trace) == ("forbidden", ["add 2", "add 2", "add 2"])


def test_a_state_without_a_way_to_finish_is_a_violation_though_only_a_fault_leads_there() -> None:
    result = search(Counter(10, hole=True))
    assert (result.violation, result.trace[-1]) == (NO_WAY_LEFT, "fall")


def test_a_search_that_was_cut_short_says_so() -> None:
    assert not search(Counter(1000), limit=10).complete
