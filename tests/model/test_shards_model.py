"""Several shards in one transaction: each is fenced, woken and doubted for itself, and nobody waits for ever."""

from __future__ import annotations

import os

import pytest

from tests.model.search import NO_WAY_LEFT, search
from tests.model.shards.model import ShardsModel
from tests.model.shards.scenarios import CAUGHT_BY, LARGE, RULES, SCENARIOS

SOAK = bool(os.environ.get("INFINITE_SCHEDULER_SOAK"))


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_transaction_over_two_shards_keeps_every_promise(name: str) -> None:
    result = search(ShardsModel(SCENARIOS[name]))
    assert result.complete
    assert result.violation is None, "\n".join(result.trace)


@pytest.mark.skipif(not SOAK, reason="minutes: set INFINITE_SCHEDULER_SOAK=1")
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", LARGE)
def test_a_transaction_over_two_shards_keeps_every_promise_with_several_faults(name: str) -> None:
    result = search(ShardsModel(LARGE[name]))
    assert result.complete
    assert result.violation is None, "\n".join(result.trace)


@pytest.mark.parametrize("rule", RULES)
def test_a_promise_breaks_without_the_rule(rule: str) -> None:
    scenario, promise = CAUGHT_BY[rule]
    result = search(ShardsModel(SCENARIOS[scenario], [rule]))
    assert (result.violation or "").startswith(f"{promise}:"), RULES[rule]


@pytest.mark.parametrize(
    ("rule", "scenario"), [("shards_are_locked_in_order", "shards"), ("exclusive_from_start", "shards-crash")]
)
def test_a_deadlock_is_found_as_no_progress(rule: str, scenario: str) -> None:
    result = search(ShardsModel(SCENARIOS[scenario], [rule]))
    assert result.violation == NO_WAY_LEFT
    assert "commits" not in result.trace[-1]
