"""Each rule of the line protocol is needed: without it the judge finds a broken promise within a few seeds."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.rules import RULES, without
from tests.simulation.scenario import PROFILES, first_violation

ROOT = Path(__file__).parents[2]

FOUND_IN: dict[str, tuple[str, int]] = {}
"""In which kind of trouble a missing rule shows, and within how many seeds."""


def main() -> None:
    """Take one rule out, look for what breaks in one kind of trouble, and print it."""
    name, profile, seeds = sys.argv[1:]
    found = first_violation(range(int(seeds)), functools.partial(without, name), PROFILES[profile])
    if found is None:
        sys.exit(f"without {name} nothing breaks in {seeds} seeds of {profile}")
    print(f"seed {found.seed}:", *found.violations, sep="\n  ")


@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", FOUND_IN)
def test_without_the_rule_a_promise_is_broken(name: str) -> None:
    profile, seeds = FOUND_IN[name]
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation.test_rules", name, profile, str(seeds)],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_rule_is_tried() -> None:
    assert RULES.keys() == FOUND_IN.keys()


if __name__ == "__main__":
    main()
