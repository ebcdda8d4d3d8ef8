"""A cancel that is acknowledged never fires, however close to the moment it comes; one that is too late says so."""

import random
from collections import Counter

import pytest

from tests.acceptance.checker import Cancel, judge
from tests.acceptance.place import SOAK, Killer, Place
from tests.waiting import until

JOBS, SPAN_S = (20_000, 60) if SOAK else (2_400, 6)


@pytest.mark.endurance
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kills", [0, 12 if SOAK else 3])
def test_an_acknowledged_cancel_never_fires_and_a_late_one_always_did(place: Place, kills: int) -> None:
    place.configure(node='request_poll = "10ms"')
    killer = Killer(place)
    place.nodes[0].ready()
    begun = place.folder / "begun"
    numbers = str(JOBS), str(SPAN_S * 1000)
    script = place.script("cancels.py", f"sqlite:///{place.database}", place.app, *numbers, str(begun))
    until(lambda: script.poll() is not None or (begun.exists() and begun.read_text()), "all jobs are accepted")
    assert script.poll() is None, script.communicate()[1]
    killer.moments = [int(begun.read_text()) + random.randrange(SPAN_S * 1000) for _ in range(kills)]
    killer.start()
    out, err = script.communicate(timeout=SPAN_S + 90)
    assert not err
    killer.join()
    place.settled()

    lines = [line.split(maxsplit=3) for line in out.splitlines()]
    counts = Counter(answer for *_, answer in lines)
    print(f"{len(lines):,} cancels at their moment, {kills} kills: {dict(counts)}")
    assert counts.keys() == {"acknowledged", "late"}
    promised = {job: int(due_ms) for job, due_ms, *_ in lines}
    cancels = {job: Cancel(answer == "acknowledged", int(at_ms)) for job, _, at_ms, answer in lines}
    assert len(promised) == JOBS
    verdict = judge(place.evidence(promised, killer.made, cancels))
    assert not verdict.faults
    assert kills or not verdict.explained
    rows = place.rows()
    assert all(rows[job][0] == ("cancelled" if cancels[job].acknowledged else "done") for job in promised)
    assert place.nodes[-1].stop() == 0
