"""A node that is killed again and again loses nothing, fires nothing early, repeats only what was in flight."""

import random
import threading
import time

import pytest

from tests.acceptance.checker import Blow, judge
from tests.acceptance.place import SOAK, Place, now_ms

JOBS, SPAN_S, KILLS = (100_000, 60, 30) if SOAK else (20_000, 20, 8)


@pytest.mark.endurance
@pytest.mark.timeout(400)
def test_a_node_killed_at_random_moments_loses_nothing_and_repeats_only_what_was_in_flight(place: Place) -> None:
    chance = random.Random()
    place.configure()
    start_ms = now_ms() + JOBS // 10 + 2000  # when all of them should be accepted
    promised = place.schedule(
        {"at": start_ms + chance.randrange(SPAN_S * 1000), "data": number} for number in range(JOBS * 4 // 5)
    )
    blows = _Killer(place, [start_ms + chance.randrange(SPAN_S * 1000) for _ in range(KILLS)])
    blows.start()
    promised |= place.schedule(  # the others while it goes on
        {"at": now_ms() + chance.randrange(SPAN_S * 1000), "data": number} for number in range(JOBS // 5)
    )
    blows.join()
    place.settled(SPAN_S + 60)

    verdict = judge(place.evidence(promised, blows.made))
    late = sorted(one.wall_ms - promised[one.job] for one in place.handed_over())
    print(
        f"{len(promised):,} jobs, {len(blows.made)} kills, {len(verdict.explained)} repeats explained, "
        f"lateness p50 {late[len(late) // 2]} ms, most {late[-1]} ms"
    )
    assert not verdict.faults
    assert place.statuses() == {"done": JOBS}
    assert place.nodes[-1].stop() == 0


class _Killer(threading.Thread):
    """Kills the node at given moments, and starts another one each time."""

    def __init__(self, place: Place, moments: list[int]) -> None:
        super().__init__()
        self._place = place
        self._moments = sorted(moments)
        self.made: list[Blow] = []
        self._node = place.node()

    def run(self) -> None:
        for moment_ms in self._moments:
            time.sleep(max(0, moment_ms - now_ms()) / 1000)
            self.made.append(self._node.kill())
            self._node = self._place.node()
        self._node.ready()
