"""Two nodes to which everything happens at random: kills, freezes, stops in good order, and starts."""

import random
import threading
import time

import pytest

from tests.acceptance.checker import Blow, Stall, judge
from tests.acceptance.place import CONCURRENCY, SOAK, Place
from tests.waiting import now_ms

RATE, SPAN_S = (700, 120) if SOAK else (500, 12)
LEASE_MS = 2000


@pytest.mark.endurance
@pytest.mark.timeout(400)
def test_whatever_happens_to_two_nodes_nothing_is_lost_early_or_repeated_without_reason(place: Place) -> None:
    place.configure(node=f'lease = "{LEASE_MS}ms"\nheartbeat = "400ms"')
    fates = [_Fate(place), _Fate(place)]
    start_ms = now_ms() + 3000
    moments = [start_ms + random.randrange(SPAN_S * 1000) for _ in range(RATE * SPAN_S)]
    promised = place.schedule({"at": moment_ms} for moment_ms in moments)
    for fate in fates:
        fate.until_ms = max(moments)
        fate.start()
    for fate in fates:
        fate.join()
    place.settled(90)

    blows = [blow for fate in fates for blow in fate.blows]
    stalls = [Stall(blow.wall_ms, blow.until_ms) for blow in blows if blow.until_ms is not None]  # with the file's lock
    verdict = judge(place.evidence(promised, blows)._replace(stalls=stalls))
    frozen = sum(blow.until_ms is not None for blow in blows)
    stops = sum(fate.stops for fate in fates)
    late = max(one.wall_ms - one.due_ms for one in place.handed_over())
    print(
        f"{len(promised):,} jobs, {len(blows) - frozen} kills, {frozen} freezes, {stops} stops, "
        f"{len(verdict.explained)} + {len(verdict.woken)} repeats explained, latest by {late} ms"
    )
    assert not verdict.faults
    assert len(verdict.woken) <= frozen * CONCURRENCY
    place.all_done(promised, blows)
    for fate in fates:
        assert fate.trouble is None
        assert fate.node.stop() == 0


class _Fate(threading.Thread):
    """What happens to one of the nodes."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place
        self.node = place.node()
        self.until_ms = 0
        self.blows: list[Blow] = []
        self.stops = 0
        self.trouble: Exception | None = None

    def run(self) -> None:
        try:
            while now_ms() < self.until_ms:
                time.sleep(random.uniform(0, 3))
                random.choice([self._kill, self._freeze, self._restart])()
            self.node.ready()
        except Exception as error:  # noqa: BLE001 - the test reports it
            self.trouble = error

    def _kill(self) -> None:
        self.blows += self._place.kill(self.node)
        self.node = self._place.node()

    def _freeze(self) -> None:
        (blow,) = self._place.freeze(self.node)
        time.sleep(random.uniform(0, 2 * LEASE_MS / 1000))
        self.blows.append(blow._replace(until_ms=now_ms()))
        self.node.thaw()

    def _restart(self) -> None:
        code = self.node.ready().stop()
        assert code == 0, f"a stop in good order ended with {code}: {self.node.stderr}"
        self.stops += 1
        self.node = self._place.node()
