"""One shard: every scenario is clean, and every rule is needed."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.model.line.model import LineModel
from tests.model.line.rules import RULES, SURVIVORS
from tests.model.line.scenarios import CAUGHT_BY, LARGE, SCENARIOS
from tests.model.search import search

SOAK = bool(os.environ.get("INFINITE_SCHEDULER_SOAK"))
PROTOCOL = Path(__file__).parents[2] / "docs" / "concepts" / "line-protocol.md"


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_protocol_keeps_every_promise(name: str) -> None:
    result = search(LineModel(SCENARIOS[name]))
    assert result.complete
    assert result.violation is None, "\n".join(result.trace)


@pytest.mark.skipif(not SOAK, reason="minutes: set INFINITE_SCHEDULER_SOAK=1")
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", LARGE)
def test_the_protocol_keeps_every_promise_with_several_faults_at_once(name: str) -> None:
    result = search(LineModel(LARGE[name]))
    assert result.complete
    assert result.violation is None, "\n".join(result.trace)


@pytest.mark.parametrize("rule", CAUGHT_BY)
def test_a_promise_breaks_without_the_rule(rule: str) -> None:
    scenario, promise = CAUGHT_BY[rule]
    result = search(LineModel(SCENARIOS[scenario], [rule]))
    assert (result.violation or "").startswith(f"{promise}:"), RULES[rule].without
    assert result.trace


@pytest.mark.skipif(not SOAK, reason="minutes: set INFINITE_SCHEDULER_SOAK=1")
@pytest.mark.timeout(0)
@pytest.mark.parametrize("rule", SURVIVORS)
def test_a_rule_that_is_kept_for_another_reason_is_not_missed_alone(rule: str) -> None:
    for name in SCENARIOS:
        assert search(LineModel(SCENARIOS[name], [rule])).violation is None, SURVIVORS[rule]


def test_a_job_is_lost_without_both_the_fence_of_the_advance_and_the_scan_from_memory() -> None:
    result = search(LineModel(SCENARIOS["insert-lapse"], ["scan_starts_at_remembered_line", "advance_is_fenced"]))
    assert (result.violation or "").startswith("never lost:")


def test_every_rule_is_either_caught_or_a_named_survivor() -> None:
    assert set(CAUGHT_BY) | set(SURVIVORS) == set(RULES)
    assert not set(CAUGHT_BY) & set(SURVIVORS)


def test_every_rule_stands_in_its_own_section_of_the_protocol() -> None:
    text = PROTOCOL.read_text(encoding="utf-8")
    named: dict[str, set[str]] = {}
    for section in re.split(r"^##+ ", text, flags=re.MULTILINE)[1:]:
        listed = re.search(r"^\*Rules:\*(.*?)(?:\n\n|\Z)", section, flags=re.MULTILINE | re.DOTALL)
        title = re.match(r"\d+|[A-Za-z ]+", section)
        assert title
        named[title[0].lower()] = set(re.findall(r"`(\w+)`", listed[1])) if listed else set()
    for name, rule in RULES.items():
        assert name.partition(".")[0] in named[rule.source], f"{name} is missing under {rule.source}"


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="no_such_rule"):
        LineModel(SCENARIOS["insert-past"], ["no_such_rule"])
