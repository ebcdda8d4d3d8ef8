"""A store that is away: told once, and told once more when it is back."""

from infinite_scheduler.clock import Clock
from infinite_scheduler.engine.judge import describe
from infinite_scheduler.observe.events import Observer, StoreAway, StoreBack


class Absence:
    """Whether the store of one lane is away, and since when."""

    def __init__(self, clock: Clock, tell: Observer) -> None:
        self._clock = clock
        self._tell = tell
        self._since_ms: int | None = None

    @property
    def lasts(self) -> bool:
        return self._since_ms is not None

    def begin(self, error: Exception, kept: int) -> None:
        """It does not answer; so many outcomes are kept for it."""
        if self._since_ms is None:
            self._since_ms = self._clock.steady_ms()
            self._tell(StoreAway(error=describe(error), kept=kept))

    def end(self) -> None:
        """It has taken a write: that it can be read says little, as a full disk can be."""
        if self._since_ms is not None:
            self._tell(StoreBack(away_ms=self._clock.steady_ms() - self._since_ms))
            self._since_ms = None
