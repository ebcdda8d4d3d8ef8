"""A door rests while its node is behind: as long as it worked or longer, but never for good."""

import asyncio

import pytest

from infinite_scheduler.ingest.throttle import LONGEST_MS, PART, TELL_MS, Throttle
from infinite_scheduler.observe.events import Event, IngestThrottled
from infinite_scheduler.testing import ManualClock


class Patience:
    """Lets the time pass at once."""

    stopping = False

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.pauses = 0

    async def pause(self, ms: int) -> None:
        self.pauses += 1
        self._clock.advance(ms)
        await asyncio.sleep(0)


class Scene:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.consumer_thread = Patience(self.clock)
        self.told: list[Event] = []
        self.strains = [0.0]
        self.throttle = Throttle("jobs", self._saturation, self.consumer_thread, self.clock, self.told.append)  # type: ignore[arg-type]

    def _saturation(self) -> float:
        return self.strains.pop(0) if len(self.strains) > 1 else self.strains[0]

    async def rested_ms(self, worked_ms: int, *strains: float) -> int:
        self.strains = list(strains)
        began_ms = self.clock.steady_ms()
        await self.throttle.rest(worked_ms)
        return self.clock.steady_ms() - began_ms


@pytest.mark.parametrize(
    ("worked_ms", "saturation", "rested_ms"),
    [
        (100, 0, 0),
        (100, 0.99, 0),
        (100, 1, 100),
        (100, 2.5, 250),
        (100, 4, 400),
        (100, 50, 400),
        (5, 1, 5),
        (0, 3, 0),
        (30_000, 2, LONGEST_MS),
    ],
)
async def test_a_rest_is_as_long_as_the_work_and_the_strain(worked_ms: int, saturation: float, rested_ms: int) -> None:
    assert await Scene().rested_ms(worked_ms, saturation) == rested_ms


async def test_a_rest_ends_when_nobody_is_behind_any_more() -> None:
    assert await Scene().rested_ms(1000, 1, 1, 0) == 40


async def test_a_rest_is_cut_short_when_the_strain_falls() -> None:
    assert await Scene().rested_ms(100, *[4] * 10, 1) == 200


async def test_a_door_that_stops_does_not_rest() -> None:
    scene = Scene()
    scene.consumer_thread.stopping = True
    assert await scene.rested_ms(100, 4) == 0
    assert not scene.consumer_thread.pauses


async def test_somebody_is_told_once_a_minute_while_it_rests_much() -> None:
    scene = Scene()
    for _ in range(2 * TELL_MS // 1000):
        await scene.rested_ms(200, 1)
        scene.clock.advance(800)
    assert [type(event) for event in scene.told] == [IngestThrottled]
    slowed = scene.told[0]
    assert isinstance(slowed, IngestThrottled)
    assert TELL_MS <= slowed.of_ms < TELL_MS + 1000
    assert slowed.rested_ms == pytest.approx(slowed.of_ms / 5, rel=0.02)


@pytest.mark.parametrize("later_ms", [TELL_MS, 10 * TELL_MS, 600 * TELL_MS])
async def test_a_peak_of_long_ago_is_not_worth_a_word(later_ms: int) -> None:
    scene = Scene()
    await scene.rested_ms(TELL_MS // PART // 6, 1)
    scene.clock.advance(later_ms)
    await scene.rested_ms(100, 0)
    assert not scene.told
    for _ in range(TELL_MS // 1000 + 1):  # and what comes next is counted from its own beginning
        await scene.rested_ms(500, 1)
        scene.clock.advance(500)
    assert len(scene.told) == 1
