"""What time it is for a hand-over: the store's clock from samples, and what both clocks agree on."""

import math
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from infinite_scheduler.engine.agreed_clock import DRIFT_PPM, AgreedClock, StoreClock
from infinite_scheduler.store.cluster_state import Sample
from infinite_scheduler.testing import ManualClock

LIMIT_MS = 5000


class Reading(NamedTuple):
    """A sample of a store whose true clock is known, in true microseconds of the steady clock."""

    asked: float
    read: float
    answered: float

    def sample(self, offset_us: float, rate: float) -> Sample:
        store_us = offset_us + self.read * rate
        return Sample(
            store_ms=math.floor(store_us / 1000), asked_us=math.floor(self.asked), answered_us=math.floor(self.answered)
        )


@st.composite
def readings(draw: st.DrawFn) -> list[Reading]:
    """Samples one after the other, some with long round trips."""
    now = draw(st.floats(0, 1e9))
    found = []
    for _ in range(draw(st.integers(1, 12))):
        there = draw(st.sampled_from([10.0, 300.0, 40_000.0, 3e6])) * draw(st.floats(0, 1))
        back = draw(st.sampled_from([10.0, 300.0, 40_000.0, 3e6])) * draw(st.floats(0, 1))
        found.append(Reading(now, now + there, now + there + back))
        now += there + back + draw(st.floats(0, 5e6))
    return found


rates = st.floats(1 - DRIFT_PPM / 1e6, 1 + DRIFT_PPM / 1e6)
offsets = st.floats(1e15, 2e15)


@given(readings(), offsets, rates, st.floats(0, 60e6))
def test_the_stores_clock_is_never_outside_its_bounds(
    some: list[Reading], offset_us: float, rate: float, later_us: float
) -> None:
    clock = StoreClock()
    for reading in some:
        clock.heard(reading.sample(offset_us, rate))
        for steady in (reading.answered, reading.answered + later_us):
            truth = offset_us + steady * rate
            assert clock.earliest_us(math.floor(steady)) <= truth + 1  # what floats of this size can tell apart
            assert clock.latest_us(math.floor(steady)) >= truth - 1


@given(readings(), offsets)
def test_the_bounds_are_as_tight_as_the_shortest_round_trip(some: list[Reading], offset_us: float) -> None:
    clock = StoreClock()
    for reading in some:
        clock.heard(reading.sample(offset_us, 1.0))
    end = math.floor(some[-1].answered)
    width_us = clock.latest_us(end) - clock.earliest_us(end)
    shortest = min(some, key=lambda r: r.answered - r.asked)
    faded_us = 2 * DRIFT_PPM * (some[-1].answered - shortest.asked) / 1e6
    assert width_us <= shortest.answered - shortest.asked + 1000 + faded_us + 5 * (len(some) + 1)


@given(readings(), offsets)
def test_bounds_that_only_get_tighter_never_go_back(some: list[Reading], offset_us: float) -> None:
    clock = StoreClock()
    clock.heard(some[0].sample(offset_us, 1.0))
    for reading in some[1:]:
        at_us = math.floor(reading.answered)
        before_us = clock.earliest_us(at_us)
        clock.heard(reading.sample(offset_us, 1.0))
        assert clock.earliest_us(at_us) >= before_us - 1


@given(readings(), offsets, st.floats(-3600e6, 3600e6).filter(lambda step: abs(step) > 7e6))
def test_a_step_of_the_stores_clock_is_followed_by_the_next_sample(
    some: list[Reading], offset_us: float, step_us: float
) -> None:
    clock = StoreClock()
    for reading in some:
        clock.heard(reading.sample(offset_us, 1.0))
    begin = some[-1].answered + 1e6
    after = Reading(begin, begin + 100, begin + 200)
    clock.heard(after.sample(offset_us + step_us, 1.0))
    truth = offset_us + step_us + after.answered
    assert truth - 1300 <= clock.earliest_us(math.floor(after.answered)) <= truth + 1
    assert truth - 1 <= clock.latest_us(math.floor(after.answered)) <= truth + 1300


def sample(clock: ManualClock, ahead_ms: int, *, round_trip_ms: int = 0) -> Sample:
    """The store's clock is so far ahead of the wall clock; the answer took so long, and comes now."""
    answered_us = clock.steady_us()
    return Sample(
        store_ms=clock.wall_ms() + ahead_ms, asked_us=answered_us - round_trip_ms * 1000, answered_us=answered_us
    )


def test_without_a_clock_of_the_store_the_machines_counts() -> None:
    clock = ManualClock()
    agreed_clock = AgreedClock(clock, LIMIT_MS)
    agreed_clock.heard(None)
    assert agreed_clock.now_ms() == clock.wall_ms()
    assert agreed_clock.wait_ms(clock.wall_ms() + 70) == 70
    assert agreed_clock.offset_ms() is None
    assert not agreed_clock.off


def test_the_earlier_of_both_clocks_counts() -> None:
    clock = ManualClock()
    agreed_clock = AgreedClock(clock, LIMIT_MS)
    agreed_clock.heard(sample(clock, +400))
    assert agreed_clock.now_ms() == clock.wall_ms()
    clock.step_wall(900)  # now the store's is behind
    agreed_clock.heard(sample(clock, -500))
    assert clock.wall_ms() - 502 <= agreed_clock.now_ms() <= clock.wall_ms() - 500
    assert agreed_clock.offset_ms() in (-500, -499)


def test_when_the_wait_is_over_the_moment_has_come() -> None:
    clock = ManualClock()
    agreed_clock = AgreedClock(clock, LIMIT_MS)
    agreed_clock.heard(sample(clock, -500))
    due_ms = clock.wall_ms() + 100
    wait_ms = math.ceil(agreed_clock.wait_ms(due_ms))
    assert 600 <= wait_ms <= 602
    clock.advance(wait_ms - 2)
    assert agreed_clock.now_ms() < due_ms
    clock.advance(2)
    assert agreed_clock.now_ms() >= due_ms


def test_a_clock_beyond_the_limit_is_off_until_it_is_within() -> None:
    clock = ManualClock()
    agreed_clock = AgreedClock(clock, LIMIT_MS)
    for ahead_ms, off in ((4990, False), (5010, True), (4990, False), (-5010, True), (-4990, False)):
        agreed_clock.heard(sample(clock, ahead_ms))
        clock.advance(1000)
        assert agreed_clock.off is off


def test_a_slow_answer_alone_makes_no_clock_off() -> None:
    clock = ManualClock()
    agreed_clock = AgreedClock(clock, LIMIT_MS)
    agreed_clock.heard(sample(clock, -8000, round_trip_ms=9000))  # read right after the question, so it was right
    assert not agreed_clock.off
    agreed_clock.heard(sample(clock, -7000, round_trip_ms=10))
    assert agreed_clock.off
    clock.advance(1000)
    agreed_clock.heard(sample(clock, -3000, round_trip_ms=9000))  # it may be right, or not
    assert agreed_clock.off
