"""The time that counts for a hand-over: the earlier of this machine's clock and the store's, minus its uncertainty."""

from infinite_scheduler.clock import Clock
from infinite_scheduler.store.cluster_state import Sample

DRIFT_PPM = 100
"""Microseconds per second by which two steady clocks may drift apart: an older sample is less certain."""


class StoreClock:
    """The store's clock as known from samples: two bounds, carried forward by the steady clock.

    Each sample says that the store's clock was at `store_ms` at some time between question and answer. The bounds are
    what all samples together allow, so the one with the shortest round trip counts most. A sample that contradicts the
    bounds shows that a clock was set, and the others are forgotten.
    """

    def __init__(self) -> None:
        self._at_us: int | None = None  # of the steady clock: when the bounds were determined
        self._least_us = 0  # bounds of the store's clock minus the steady one
        self._most_us = 0

    @property
    def known(self) -> bool:
        """Has it been read at all?"""
        return self._at_us is not None

    def heard(self, sample: Sample) -> None:
        """Add a sample; samples come in the order in which they were asked for."""
        least_us = sample.store_ms * 1000 - (sample.answered_us + 1)
        most_us = (sample.store_ms + 1) * 1000 - sample.asked_us + _parted_us(sample.answered_us - sample.asked_us)
        if self._at_us is not None:
            faded_us = _parted_us(sample.answered_us - self._at_us)
            joint = max(least_us, self._least_us - faded_us), min(most_us, self._most_us + faded_us)
            if joint[0] <= joint[1]:
                least_us, most_us = joint
        self._at_us, self._least_us, self._most_us = sample.answered_us, least_us, most_us

    def earliest_us(self, steady_us: int) -> int:
        """The earliest possible reading of the store's clock in microseconds, at this reading of the steady clock."""
        return steady_us + self._least_us - _parted_us(steady_us - (self._at_us or 0))

    def latest_us(self, steady_us: int) -> int:
        """The latest possible reading."""
        return steady_us + self._most_us + _parted_us(steady_us - (self._at_us or 0))


def _parted_us(elapsed_us: int) -> int:
    """How far two clocks may have drifted apart in this time."""
    return elapsed_us * DRIFT_PPM // 1_000_000 + 1


class AgreedClock:
    """The moment that both this machine's clock and the store's have reached: jobs due by then may be handed over.

    If the store has no clock of its own, this machine's alone counts.
    """

    def __init__(self, clock: Clock, limit_ms: int) -> None:
        self._clock = clock
        self._limit_ms = limit_ms
        self._store = StoreClock()
        self.off = False  # this machine's clock differs too much from the store's

    def heard(self, sample: Sample | None) -> None:
        """Take a sample of the store's clock; None: the store has no clock."""
        if sample is None:
            return
        self._store.heard(sample)
        least_ms, most_ms = self._offsets_ms()
        # Only certainty changes it: a slow answer does not, and a clock close to the limit does not make it flicker.
        if least_ms > self._limit_ms or most_ms < -self._limit_ms:
            self.off = True
        elif -self._limit_ms <= least_ms and most_ms <= self._limit_ms:
            self.off = False

    def now_ms(self) -> int:
        """Jobs due up to here may be handed over."""
        wall_ms = self._clock.wall_ms()
        if not self._store.known:
            return wall_ms
        return min(wall_ms, self._store.earliest_us(self._clock.steady_us()) // 1000)

    def wait_ms(self, due_ms: int) -> float:
        """Time until this moment, unless a clock is set; negative if it has passed."""
        wait_ms: float = due_ms - self._clock.wall_ms()
        if self._store.known:
            wait_ms = max(wait_ms, due_ms - self._store.earliest_us(self._clock.steady_us()) / 1000)
        return wait_ms

    def offset_ms(self) -> int | None:
        """The store's clock minus this machine's, approximately; None if the store has no clock."""
        if not self._store.known:
            return None
        least_ms, most_ms = self._offsets_ms()
        return round((least_ms + most_ms) / 2)

    def _offsets_ms(self) -> tuple[float, float]:
        """The least and the most by which the store's clock can be ahead of this machine's."""
        steady_us, wall_ms = self._clock.steady_us(), self._clock.wall_ms()
        store = self._store
        return store.earliest_us(steady_us) / 1000 - wall_ms - 1, store.latest_us(steady_us) / 1000 - wall_ms
