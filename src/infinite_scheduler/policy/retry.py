"""When a failed attempt is tried again, and when it is given up."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from math import isfinite
from typing import Literal, NamedTuple

from infinite_scheduler.errors import InvalidTime
from infinite_scheduler.model import MAX_DUE_MS
from infinite_scheduler.policy.calendar import Delay, parse_duration


class _Waits(NamedTuple):
    """The delays of a policy in milliseconds, as they are used in calculations."""

    delays: tuple[int, ...] | None
    initial: int
    maximum: int
    floor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a job is tried, and with which delays.

    Names and values are those of the settings `apps.NAME.retry`: a length of time is text such as "10s", a `timedelta`
    or a number of seconds.

    The delays are a list (`delays`), or they grow exponentially: `initial`, multiplied by `factor` each time, at most
    `maximum`. A list that is shorter than the number of attempts repeats its last delay. The default is 1 s, 2 s, 4 s,
    8 s, 16 s, each up to a tenth longer: six attempts in all.

    `count_from="attempt"` counts a delay from the end of the failed attempt. `count_from="creation"` counts it from the
    creation of the job; a repeated delay is then added to the one before it, so delays of 1 and 5 minutes mean attempts
    1, 5, 10, 15 ... minutes after creation.

    `floor` is the shortest time between the end of an attempt and the next one. After a downtime, it keeps late
    attempts from following each other in a burst.

    An error is retried if it is one of `retry_on`, not one of `give_up_on`, and has no `retryable = False` of its own.
    """

    delays: Sequence[Delay] | None = None
    initial: Delay = timedelta(seconds=1)
    factor: float = 2.0
    maximum: Delay = timedelta(hours=1)
    jitter: float = 0.1  # each delay is longer by up to this fraction: jobs that failed together are spread out
    max_attempts: int = 6
    count_from: Literal["attempt", "creation"] = "attempt"
    floor: Delay = timedelta(milliseconds=100)
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    give_up_on: tuple[type[BaseException], ...] = ()
    _waits: _Waits = field(init=False, repr=False)

    def __post_init__(self) -> None:
        waits = _Waits(
            delays=self._read_delays(),
            initial=self._read("initial", self.initial),
            maximum=self._read("maximum", self.maximum),
            floor=self._read("floor", self.floor),
        )
        object.__setattr__(self, "_waits", waits)
        self._check("factor", isfinite(self.factor) and self.factor >= 1, "1 or more")
        self._check("maximum", waits.maximum >= waits.initial, f"at least initial, which is {self.initial!r}")
        self._check("jitter", 0 <= self.jitter <= 1, "between 0 and 1")
        self._check("count_from", self.count_from in {"attempt", "creation"}, "'attempt' or 'creation'")
        self._check("max_attempts", self.max_attempts >= 1, "1 or more")
        for name in ("retry_on", "give_up_on"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
            kinds = getattr(self, name)
            fine = isinstance(kinds, tuple) and all(isinstance(k, type) and issubclass(k, BaseException) for k in kinds)
            self._check(name, fine, "a tuple of exception classes")

    def next_attempt_ms(
        self,
        *,
        attempt: int,
        created_ms: int,
        finished_ms: int,
        error: BaseException | None,
        rand: Callable[[], float],
    ) -> int | None:
        """When the attempt after number `attempt`, which ended at `finished_ms`, is due; None means give up.

        `error` is None if the attempt ended without one, as when it was interrupted. `rand` is like `random.random`.
        """
        if attempt >= self.max_attempts or not self._is_retryable(error):
            return None
        if self.count_from == "creation":
            start, delay = created_ms, self._offset_ms(attempt)
        else:
            start, delay = finished_ms, self._delay_ms(attempt)
        delay += int(delay * self.jitter * rand())
        return min(max(start + delay, finished_ms + self._waits.floor), MAX_DUE_MS)

    def _is_retryable(self, error: BaseException | None) -> bool:
        if error is None:
            return True
        if getattr(error, "retryable", True) is False:
            return False
        return isinstance(error, self.retry_on) and not isinstance(error, self.give_up_on)

    def _delay_ms(self, attempt: int) -> int:
        """The delay after this attempt, without jitter."""
        waits = self._waits
        if waits.delays is not None:
            return waits.delays[min(attempt, len(waits.delays)) - 1]
        try:
            return min(int(waits.initial * self.factor ** (attempt - 1)), waits.maximum)
        except OverflowError:
            return waits.maximum

    def _offset_ms(self, attempt: int) -> int:
        """How long after creation the attempt after this one is due, without jitter."""
        delay = self._delay_ms(attempt)
        times = 1
        while times < attempt and self._delay_ms(attempt - times) == delay:
            times += 1
        return delay * times

    def _read_delays(self) -> tuple[int, ...] | None:
        if self.delays is None:
            return None
        fine = not isinstance(self.delays, str) and len(self.delays) > 0
        self._check("delays", fine, "a list of at least one delay")
        object.__setattr__(self, "delays", tuple(self.delays))
        delays_ms = tuple(self._read("delays", delay) for delay in self.delays)
        if self.count_from == "creation":
            self._check("delays", sorted(delays_ms) == list(delays_ms), "delays from creation in ascending order")
        return delays_ms

    @staticmethod
    def _read(name: str, value: Delay) -> int:
        try:
            return parse_duration(value)
        except InvalidTime as error:
            raise ValueError(f"{name}: {error}") from None

    def _check(self, name: str, fine: bool, expected: str) -> None:
        if not fine:
            raise ValueError(f"{name} is {getattr(self, name)!r}; expected {expected}")
