"""Each rule of the line protocol is needed: without it the judge finds a broken promise within a few seeds.

Rules whose absence shows in few seeds only are shown by interleavings, or by an order of events in one node.
"""

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.interleavings import INTERLEAVINGS
from tests.simulation.rules import RULES, without
from tests.simulation.scenario import PROFILES, first_violation
from tests.unit.test_engine_rules import NEEDED

ROOT = Path(__file__).parents[2]

FOUND_IN = {
    "share_insert": ("slow", 15),
    "share_cas": ("restless", 40),
    "excl_advance": ("moves", 20),
    "excl_take": ("calm", 5),
    "settle_fenced": ("lapses", 120),
    "consume_fenced": ("lapses", 400),
    "wake": ("calm", 5),
    "wake_names_all": ("calm", 5),
    "cas_wake": ("calm", 5),
    "retry_entry": ("calm", 5),
    "change_entry": ("calm", 5),
    "stale_row": ("restless", 150),
    "consume_lowers": ("tight", 15),
    "low_unscanned": ("tight", 15),
    "low_held": ("tight", 15),
    "low_in_flight": ("calm", 5),
    "full_range": ("tight", 10),
    "takeover_scan": ("moves", 20),
    "takeover_heartbeat": ("pauses", 30),
    "in_flight_too_late": ("calm", 20),
    "unwheel_first": ("calm", 10),
    "decide_claims": ("restless", 25),
    "give_up_claims": ("tight", 50),
    "doubt_reload": ("doubt", 80),
    "reload_tracks": ("doubt", 15),
    "drain_no_fire": ("moves", 50),
    "drain_settles": ("moves", 30),
    "held_once": ("tight", 30),
    "not_early": ("calm", 5),
}
"""In which kind of trouble a missing rule shows, and within how many seeds: several times what it takes today."""


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
    interleaved = {name for order in INTERLEAVINGS for name in order.rules}
    assert RULES.keys() == FOUND_IN.keys() | interleaved | NEEDED.keys()


def test_the_page_names_the_rules_that_no_server_shows() -> None:
    interleaved = {name for order in INTERLEAVINGS for name in order.rules}
    page = (ROOT / "docs" / "concepts" / "line-protocol.md").read_text(encoding="utf-8")
    (named,) = re.findall(r"^Twelve more rules of a node's memory .*?:(.*?)\.", page, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`(\w+)`", named)) == FOUND_IN.keys() - interleaved - NEEDED.keys()


if __name__ == "__main__":
    main()
