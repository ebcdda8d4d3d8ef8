"""A store outage: reported once when it begins, and once when it ends."""

from infinite_scheduler.clock import Clock
from infinite_scheduler.engine.judge import describe
from infinite_scheduler.observe.events import Observer, StoreAway, StoreBack


class StoreOutage:
    """Whether the store of one lane answers, and since when it does not."""

    def __init__(self, clock: Clock, tell: Observer) -> None:
        self._clock = clock
        self._tell = tell
        self._since_ms: int | None = None

    @property
    def ongoing(self) -> bool:
        return self._since_ms is not None

    def begin(self, error: Exception, kept: int) -> None:
        """The store does not answer; `kept` outcomes wait for it."""
        if self._since_ms is None:
            self._since_ms = self._clock.steady_ms()
            self._tell(StoreAway(error=describe(error), kept=kept))

    def end(self) -> None:
        """The store took a write. A successful read says little: a full disk can still be read."""
        if self._since_ms is not None:
            self._tell(StoreBack(away_ms=self._clock.steady_ms() - self._since_ms))
            self._since_ms = None
