"""Whatever goes wrong, in any order, no promise is broken.

Each chunk of seeds runs in a process of its own, whose sets have the order that a seed expects. What is broken is
printed with its seed: `PYTHONHASHSEED=0 python -m tests.simulation.scenario SEED` shows the whole history.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.scenario import PROFILES, run

CHUNKS = 10
SEEDS = int(os.environ.get("INFINITE_SCHEDULER_SEEDS", 12 * len(PROFILES)))
"""Of each kind of trouble the seeds that miss most rules; `test_rules` and interleavings show the rest."""
if os.environ.get("INFINITE_SCHEDULER_SOAK"):
    SEEDS = 20_000

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(0)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_promise_is_broken(chunk: int) -> None:
    first, last = SEEDS * chunk // CHUNKS, SEEDS * (chunk + 1) // CHUNKS
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.simulation.scenario", f"{first}:{last}"],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("profile", PROFILES)
def test_a_seed_always_tells_the_same_story(profile: str) -> None:
    one, two = run(4242, PROFILES[profile]), run(4242, PROFILES[profile])
    assert one.events == two.events
    assert one.tables == two.tables


WANTED = {
    *("killed", "paused", "away", "left", "third attempt", "done", "retry", "failed"),
    *("granted", "too late", "unavailable", "unknown", "refused"),
    *("ShardsTaken", "ShardsReleased", "ShardsLost", "Reloaded", "LeaseLapsed", "LeaseRenewed"),
}


def test_scenarios_see_what_they_are_for() -> None:
    """Trouble that never comes proves nothing."""
    missing = set(WANTED)
    for seed in range(120):
        for event in run(seed).events:
            missing -= {event.what, "third attempt" if event.facts.get("attempt", 0) > 2 else ""}
            missing.discard(str(event.facts.get("event", event.facts.get("decision", event.facts.get("outcome", "")))))
        if not missing:
            break
    assert not missing, "in no scenario"
