"""Poison jobs end as Failed after a few deaths, no innocent one is charged, and what hangs holds nobody else up."""

from __future__ import annotations

import os

import pytest

from tests.model.poison import CAUGHT_BY, LARGE, RULES, SCENARIOS, PoisonModel
from tests.model.search import search

SOAK = bool(os.environ.get("INFINITE_SCHEDULER_SOAK"))


@pytest.mark.parametrize("name", SCENARIOS)
def test_poison_jobs_are_narrowed_down_and_innocent_ones_get_done(name: str) -> None:
    result = search(PoisonModel(SCENARIOS[name]))
    assert result.complete
    assert result.violation is None, "\n".join(result.trace)


@pytest.mark.skipif(not SOAK, reason="minutes: set INFINITE_SCHEDULER_SOAK=1")
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", LARGE)
def test_poison_jobs_are_narrowed_down_with_several_faults_at_once(name: str) -> None:
    result = search(PoisonModel(LARGE[name]))
    assert result.complete
    assert result.violation is None, "\n".join(result.trace)


@pytest.mark.parametrize("rule", RULES)
def test_a_promise_about_poison_jobs_breaks_without_the_rule(rule: str) -> None:
    scenario, promise = CAUGHT_BY[rule]
    result = search(PoisonModel(SCENARIOS[scenario], [rule]))
    assert (result.violation or "").startswith(f"{promise}:"), RULES[rule]


def test_an_innocent_job_is_charged_when_being_alone_is_not_enforced_at_all() -> None:
    off = ["alone_before_marked", "alone_until_settled"]
    result = search(PoisonModel(SCENARIOS["poison-late"], off))
    assert (result.violation or "").startswith("innocent:")
