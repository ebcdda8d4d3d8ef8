"""When a failed attempt is tried again, and when it is given up."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from infinite_scheduler.model import MAX_DUE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how far apart a job is tried.

    The delays are a list (`delays_ms`) or grow exponentially: `initial_ms`, times `factor` each time, `maximum_ms` at
    most. A list that is shorter than the attempts repeats its last delay. The default is 1 s, 2 s, 4 s, 8 s, 16 s, each
    up to a tenth longer: six attempts in all.

    `counted_from="attempt"` counts a delay from the end of the attempt that failed. `counted_from="creation"` counts it
    from the moment the job was created; a delay that repeats then counts on from the one before it, so delays of 1 and
    5 minutes mean attempts 1, 5, 10, 15 ... minutes after creation.

    `floor_ms` is the least time between the end of an attempt and the next one. It keeps the attempts that a downtime
    made late from following each other in a burst.

    An error is retried if it is one of `retry_on`, none of `give_up_on`, and does not say `retryable = False` itself.
    """

    delays_ms: tuple[int, ...] | None = None
    initial_ms: int = 1_000
    factor: float = 2.0
    maximum_ms: int = 3_600_000
    jitter: float = 0.1  # each delay is longer by up to this fraction: those that failed together come back apart
    counted_from: Literal["attempt", "creation"] = "attempt"
    max_attempts: int = 6
    floor_ms: int = 100
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    give_up_on: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if self.delays_ms is not None:
            object.__setattr__(self, "delays_ms", tuple(self.delays_ms))
            self._check_delays(self.delays_ms)
        self._check("initial_ms", self.initial_ms >= 0, "0 or more")
        self._check("factor", isfinite(self.factor) and self.factor >= 1, "1 or more")
        self._check("maximum_ms", self.maximum_ms >= self.initial_ms, f"at least initial_ms ({self.initial_ms})")
        self._check("jitter", 0 <= self.jitter <= 1, "between 0 and 1")
        self._check("counted_from", self.counted_from in {"attempt", "creation"}, "'attempt' or 'creation'")
        self._check("max_attempts", self.max_attempts >= 1, "1 or more")
        self._check("floor_ms", self.floor_ms >= 0, "0 or more")
        for field in ("retry_on", "give_up_on"):
            if isinstance(getattr(self, field), list):
                object.__setattr__(self, field, tuple(getattr(self, field)))
            kinds = getattr(self, field)
            fine = isinstance(kinds, tuple) and all(isinstance(k, type) and issubclass(k, BaseException) for k in kinds)
            self._check(field, fine, "a tuple of exception classes")

    def next_attempt_ms(
        self,
        *,
        attempt: int,
        created_ms: int,
        finished_ms: int,
        error: BaseException | None,
        rand: Callable[[], float],
    ) -> int | None:
        """The moment of the attempt after number `attempt`, which ended at `finished_ms`; None means give up.

        `error` is None if the attempt ended without one, as when it was interrupted. `rand` is like `random.random`.
        """
        if attempt >= self.max_attempts or not self._is_retryable(error):
            return None
        if self.counted_from == "creation":
            start, delay = created_ms, self._offset_ms(attempt)
        else:
            start, delay = finished_ms, self._delay_ms(attempt)
        delay += int(delay * self.jitter * rand())
        return min(max(start + delay, finished_ms + self.floor_ms), MAX_DUE_MS)

    def _is_retryable(self, error: BaseException | None) -> bool:
        if error is None:
            return True
        if getattr(error, "retryable", True) is False:
            return False
        return isinstance(error, self.retry_on) and not isinstance(error, self.give_up_on)

    def _delay_ms(self, attempt: int) -> int:
        """The delay after this attempt, without jitter."""
        if self.delays_ms is not None:
            return self.delays_ms[min(attempt, len(self.delays_ms)) - 1]
        try:
            return min(int(self.initial_ms * self.factor ** (attempt - 1)), self.maximum_ms)
        except OverflowError:
            return self.maximum_ms

    def _offset_ms(self, attempt: int) -> int:
        """How long after creation the attempt after this one is due, without jitter."""
        delay = self._delay_ms(attempt)
        times = 1
        while times < attempt and self._delay_ms(attempt - times) == delay:
            times += 1
        return delay * times

    def _check_delays(self, delays_ms: tuple[int, ...]) -> None:
        self._check("delays_ms", len(delays_ms) > 0, "at least one delay")
        self._check("delays_ms", min(delays_ms) >= 0, "delays of 0 or more")
        if self.counted_from == "creation":
            self._check("delays_ms", sorted(delays_ms) == list(delays_ms), "delays from creation in ascending order")

    def _check(self, field: str, fine: bool, expected: str) -> None:
        if not fine:
            raise ValueError(f"{field} is {getattr(self, field)!r}; expected {expected}")
