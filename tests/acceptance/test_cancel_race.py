"""A cancel that is acknowledged never fires, however close to the moment it comes; one that is too late says so."""

import random
from collections import Counter

import pytest

from tests.acceptance.checker import Cancel, judge
from tests.acceptance.place import SOAK, Killer, Place, now_ms

JOBS, SPAN_S = (20_000, 60) if SOAK else (2_400, 6)


@pytest.mark.endurance
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kills", [0, 12 if SOAK else 3])
def test_an_acknowledged_cancel_never_fires_and_a_late_one_always_did(place: Place, kills: int) -> None:
    chance = random.Random()
    place.configure(node='request_poll = "10ms"')
    killer = Killer(place)
    place.nodes[0].ready()
    start_ms = now_ms() + JOBS // 4 + 3000
    killer.moments = [start_ms + chance.randrange(SPAN_S * 1000) for _ in range(kills)]
    promised = place.schedule({"at": start_ms + chance.randrange(SPAN_S * 1000)} for _ in range(JOBS))
    wishes = place.folder / "wishes"
    # The owner hears of a cancel within its poll of 10 ms and the commit, so that these come in at the very moment.
    wishes.write_text("".join(f"{job} {due_ms + chance.randint(-60, 10)}\n" for job, due_ms in promised.items()))
    killer.start()
    out, err = place.script("cancels.py", f"sqlite:///{place.database}", place.app, str(wishes)).communicate(
        timeout=SPAN_S + 90
    )
    assert not err
    killer.join()
    place.settled()

    lines = [line.split(maxsplit=2) for line in out.splitlines()]
    counts = Counter(answer for _, _, answer in lines)
    print(f"{len(promised):,} cancels at their moment, {kills} kills: {dict(counts)}")
    assert counts.keys() == {"acknowledged", "late"}
    cancels = {job: Cancel(answer == "acknowledged", int(at_ms)) for job, at_ms, answer in lines}
    assert cancels.keys() == promised.keys()
    verdict = judge(place.evidence(promised, killer.made, cancels))
    assert not verdict.faults
    assert kills or not verdict.explained
    rows = place.rows()
    assert all(rows[job][0] == ("cancelled" if cancels[job].acknowledged else "done") for job in promised)
    assert place.nodes[-1].stop() == 0
