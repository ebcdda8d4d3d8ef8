"""The command line of the models, as docs/concepts/line-protocol.md shows it."""

from __future__ import annotations

import pytest

from tests.model.__main__ import main
from tests.model.catalogue import LARGE, RULES, SCENARIOS, model_of


def test_a_trace_tells_the_steps_to_the_violation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "cancel-drain", "released_shard_is_checked_again"]) == 1
    said = capsys.readouterr().out
    assert "respected: fires after an acknowledged cancel" in said
    assert "HANDS OVER" in said.splitlines()[-1]


def test_a_clean_scenario_is_reported_as_ok(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scenarios", "retry-same"]) == 0
    assert "ok" in capsys.readouterr().out


def test_the_scenario_that_catches_a_missing_rule_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mutants", "release_puts_mark_back"]) == 0
    assert "poison-slow-drain" in capsys.readouterr().out


def test_without_arguments_the_usage_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "python -m tests.model trace" in capsys.readouterr().out


def test_names_of_scenarios_and_rules_are_unique() -> None:
    assert len({*SCENARIOS, *LARGE}) == len(SCENARIOS) + len(LARGE)
    assert len(set(RULES)) == len(RULES)


def test_an_unknown_scenario_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match="insert-crash"):
        model_of("no-such-scenario")
