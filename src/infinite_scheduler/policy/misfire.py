"""What happens to a job that is late."""

from dataclasses import dataclass, field
from typing import TypeAlias

from infinite_scheduler.errors import InvalidTime
from infinite_scheduler.policy.calendar import Delay, parse_duration


@dataclass(frozen=True, slots=True)
class FireNow:
    """The job is handed over once, however late."""

    def decide(self, *, due_ms: int, accepted_ms: int, now_ms: int, threshold_ms: int) -> str | None:  # noqa: ARG002
        """None: every job is handed over."""
        return None


@dataclass(frozen=True, slots=True)
class Skip:
    """A job that is later than the misfire threshold expires."""

    def decide(self, *, due_ms: int, accepted_ms: int, now_ms: int, threshold_ms: int) -> str | None:
        """None to hand the job over, or why it expires."""
        late_ms = _late_ms(due_ms, accepted_ms, now_ms)
        if late_ms <= threshold_ms:
            return None
        return f"{late_ms} ms late, more than the misfire threshold of {threshold_ms} ms"


@dataclass(frozen=True, slots=True)
class ExpireAfter:
    """A job that is later than a duration of its own expires; the misfire threshold does not matter.

    The duration is given as in the settings: text such as "5m", a `timedelta` or a number of seconds.
    """

    expire_after: Delay
    _ms: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "_ms", parse_duration(self.expire_after))
        except InvalidTime as error:
            raise ValueError(f"expire_after: {error}") from None

    def decide(self, *, due_ms: int, accepted_ms: int, now_ms: int, threshold_ms: int) -> str | None:  # noqa: ARG002
        """None to hand the job over, or why it expires."""
        late_ms = _late_ms(due_ms, accepted_ms, now_ms)
        if late_ms <= self._ms:
            return None
        return f"{late_ms} ms late, more than expire_after of {self._ms} ms"


Misfire: TypeAlias = FireNow | Skip | ExpireAfter
"""What an app may choose for late jobs."""


def _late_ms(due_ms: int, accepted_ms: int, now_ms: int) -> int:
    """Lateness counts from acceptance if the job was already due when it was accepted."""
    return now_ms - max(due_ms, accepted_ms)
