"""What time it is for a hand-over: the earlier of this machine's clock and the store's, less its uncertainty."""

from infinite_scheduler.clock import Clock
from infinite_scheduler.store.cluster import Sample

DRIFT_PPM = 100
"""So many microseconds of each second two steady clocks may part: the older a sample, the less it says."""


class StoreClock:
    """The store's clock, as far as samples of it tell: between two bounds, which the steady clock carries on.

    Each sample says that the store's clock was at `store_ms` at some time between question and answer. All samples
    together leave what all of them allow, so the one with the shortest round trip counts most. One that contradicts
    what the others have left shows that a clock was set, and the others are forgotten.
    """

    def __init__(self) -> None:
        self._at_us: int | None = None  # of the steady clock: when the bounds were as they stand here
        self._least_us = 0  # bounds of the store's clock less the steady one
        self._most_us = 0

    @property
    def known(self) -> bool:
        """Has it been read at all?"""
        return self._at_us is not None

    def heard(self, sample: Sample) -> None:
        """Take in a sample; they come in the order in which they were asked for."""
        least_us = sample.store_ms * 1000 - (sample.answered_us + 1)
        most_us = (sample.store_ms + 1) * 1000 - sample.asked_us + _parted_us(sample.answered_us - sample.asked_us)
        if self._at_us is not None:
            faded_us = _parted_us(sample.answered_us - self._at_us)
            joint = max(least_us, self._least_us - faded_us), min(most_us, self._most_us + faded_us)
            if joint[0] <= joint[1]:
                least_us, most_us = joint
        self._at_us, self._least_us, self._most_us = sample.answered_us, least_us, most_us

    def earliest_us(self, steady_us: int) -> int:
        """The store's clock in microseconds, at this reading of the steady clock, is not before this."""
        return steady_us + self._least_us - _parted_us(steady_us - (self._at_us or 0))

    def latest_us(self, steady_us: int) -> int:
        """Nor is it after this."""
        return steady_us + self._most_us + _parted_us(steady_us - (self._at_us or 0))


def _parted_us(elapsed_us: int) -> int:
    """How far two clocks may have parted in this time."""
    return elapsed_us * DRIFT_PPM // 1_000_000 + 1


class Agreed:
    """The moment that this machine's clock and the store's have both reached: jobs due by then may be handed over.

    Where the store has no clock of its own, this machine's alone counts.
    """

    def __init__(self, clock: Clock, limit_ms: int) -> None:
        self._clock = clock
        self._limit_ms = limit_ms
        self._store = StoreClock()
        self.off = False  # this machine's clock is too far from the store's to go by

    def heard(self, sample: Sample | None) -> None:
        """A look at the store has brought a sample of its clock, or none: it has no clock."""
        if sample is None:
            return
        self._store.heard(sample)
        least_ms, most_ms = self._offsets_ms()
        # Only what is certain changes it: a slow answer does not, and a clock right at the limit does not flicker.
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
        """How long it takes until this moment has come, unless a clock is set; below 0: it has."""
        wait_ms: float = due_ms - self._clock.wall_ms()
        if self._store.known:
            wait_ms = max(wait_ms, due_ms - self._store.earliest_us(self._clock.steady_us()) / 1000)
        return wait_ms

    def offset_ms(self) -> int | None:
        """The store's clock less this machine's, about; None where the store has none."""
        if not self._store.known:
            return None
        least_ms, most_ms = self._offsets_ms()
        return round((least_ms + most_ms) / 2)

    def _offsets_ms(self) -> tuple[float, float]:
        """The least and the most by which the store's clock can be ahead of this machine's."""
        steady_us, wall_ms = self._clock.steady_us(), self._clock.wall_ms()
        store = self._store
        return store.earliest_us(steady_us) / 1000 - wall_ms - 1, store.latest_us(steady_us) / 1000 - wall_ms
