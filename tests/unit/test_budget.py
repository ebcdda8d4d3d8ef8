"""The memory budget that apps share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from infinite_scheduler.policy.budget import Budget

APPS = st.sampled_from(("a", "b", "c", "d"))


class BudgetAgainstItsJobs(RuleBasedStateMachine):
    """Jobs are taken and given back one by one; beside the budget's own numbers stands the list of jobs."""

    @initialize(total=st.integers(1, 1_000))
    def begin(self, total: int) -> None:
        self.budget = Budget(total)
        self.joined: set[str] = set()
        self.jobs: dict[str, list[int]] = {}
        self.beside: dict[str, int] = {}

    @rule(app=APPS)
    def join(self, app: str) -> None:
        self.budget.join(app)
        self.joined.add(app)
        self.jobs.setdefault(app, [])

    @precondition(lambda self: self.joined)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        app = data.draw(st.sampled_from(sorted(self.joined)))
        self.budget.leave(app)
        self.joined.remove(app)

    @precondition(lambda self: self.joined)
    @rule(data=st.data(), size=st.integers(1, 1_500))
    def take(self, data: st.DataObject, size: int) -> None:
        app = data.draw(st.sampled_from(sorted(self.joined)))
        fits = size <= self.budget.free(app)
        taken = self.budget.take(app, size)
        assert taken is (fits or not self.jobs[app])
        if taken:
            if not fits:
                self.beside[app] = size
            self.jobs[app].append(size)

    @precondition(lambda self: any(self.jobs.values()))
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        app = data.draw(st.sampled_from(sorted(app for app, jobs in self.jobs.items() if jobs)))
        size = data.draw(st.sampled_from(self.jobs[app]))
        self.budget.give(app, size)
        self.jobs[app].remove(size)
        if self.beside.get(app) == size:
            del self.beside[app]

    @invariant()
    def the_sum_never_exceeds_the_total_but_for_one_oversize_job_an_app(self) -> None:
        assert self.budget.used_total == sum(sum(jobs) for jobs in self.jobs.values())
        assert all(self.budget.used(app) == sum(jobs) for app, jobs in self.jobs.items())
        assert self.budget.used_total - sum(self.beside.values()) <= self.budget.total


TestBudgetAgainstItsJobs = BudgetAgainstItsJobs.TestCase


@given(
    st.integers(1, 10_000),
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 12_000)), max_size=60),
    st.integers(0, 5),
    st.data(),
)
def test_an_app_always_gets_what_it_asks_for_up_to_its_reserve(
    total: int, apps: int, others: list[tuple[int, int]], chosen: int, data: st.DataObject
) -> None:
    budget = Budget(total)
    names = [f"app{number}" for number in range(apps)]
    for name in names:
        budget.join(name)
    me = names[chosen % apps]
    assert budget.reserve(me) == total // (2 * apps)
    for number, size in others:
        if (name := names[number % apps]) != me:
            budget.take(name, size)
    while left := budget.reserve(me) - budget.used(me):
        assert budget.take(me, data.draw(st.integers(1, left)))


@given(st.integers(10, 10_000))
def test_an_app_alone_may_use_everything(total: int) -> None:
    budget = Budget(total)
    budget.join("a")
    assert budget.free("a") == total
    assert budget.take("a", total - 1)
    assert not budget.take("a", 2)
    assert budget.take("a", 1)


def test_an_app_that_joins_a_full_budget_gets_its_reserve_as_the_others_give_back() -> None:
    budget = Budget(100)
    budget.join("a")
    assert all(budget.take("a", 10) for _ in range(10))
    budget.join("b")
    assert budget.take("b", 5)  # it holds nothing: one job always
    assert not budget.take("b", 5)
    budget.give("a", 10)
    assert not budget.take("a", 1)
    assert budget.take("b", 10)


def test_an_oversize_job_takes_nothing_from_the_others() -> None:
    budget = Budget(100)
    budget.join("a")
    budget.join("b")
    assert budget.take("a", 1_000)
    assert budget.free("b") == 75
    assert budget.take("b", 75)
    budget.give("a", 1_000)
    assert budget.used_total == 75


def test_what_an_app_that_left_still_holds_stays_counted() -> None:
    budget = Budget(100)
    budget.join("a")
    budget.join("b")
    assert budget.take("a", 60)
    budget.leave("a")
    assert budget.free("b") == 40
    budget.give("a", 60)
    assert budget.free("b") == 100


def test_what_cannot_be_is_refused() -> None:
    budget = Budget(100)
    with pytest.raises(KeyError, match="'a' has not joined"):
        budget.take("a", 1)
    budget.join("a")
    budget.take("a", 5)
    with pytest.raises(ValueError, match="'a' gives back 6 bytes and holds 5"):
        budget.give("a", 6)
    with pytest.raises(ValueError, match="total is 0"):
        Budget(0)
