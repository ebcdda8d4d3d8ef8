"""Remembers the last failed attempts and dead letters of this process, for those who follow what happens."""

from collections import deque
from collections.abc import Sequence
from threading import Lock
from typing import Final, NamedTuple

import msgspec

from infinite_scheduler.clock import Clock
from infinite_scheduler.observe.events import AttemptFailed, DeadLettersKept, Event

MOST: Final = 50
"""How many are remembered: of those in one second, the last ones."""

TEXT: Final = 500
"""How many characters of an error are remembered."""


class FailedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """A handler failed on a job, or gave up; `next_due_ms` is None if no attempt is left."""

    at_ms: int
    app: str
    job_id: str
    attempt: int
    error: str
    next_due_ms: int | None


class DeadLetters(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a topic could not become jobs; the error is that of the first."""

    at_ms: int
    topic: str
    count: int
    error: str


Failure = FailedAttempt | DeadLetters


class NewFailures(NamedTuple):
    """What failed since an earlier look, how many more there were, and the number to ask with the next time."""

    failures: Sequence[Failure]
    left_out: int
    number: int


class RecentFailures:
    """An observer that keeps a bounded number of failures, without what their handlers raised; safe in any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._last: deque[Failure] = deque(maxlen=MOST)
        self._count = 0

    def __call__(self, event: Event) -> None:
        """Remember it, if it is a failure."""
        if isinstance(event, AttemptFailed | DeadLettersKept):
            with self._lock:
                self._last.append(_failure(event, self._clock.wall_ms()))
                self._count += 1

    @property
    def number(self) -> int:
        """The number to ask with for what fails from now on."""
        return self._count

    def since(self, number: int) -> NewFailures:
        """What has failed since this number was told."""
        with self._lock:
            new = self._count - number
            kept = min(new, len(self._last))
            failures = list(self._last)[len(self._last) - kept :]
            return NewFailures(failures, new - kept, self._count)


def _failure(event: AttemptFailed | DeadLettersKept, now_ms: int) -> Failure:
    if isinstance(event, DeadLettersKept):
        error = event.errors[0] if event.errors else ""
        return DeadLetters(at_ms=now_ms, topic=event.topic, count=event.count, error=error[:TEXT])
    return FailedAttempt(
        at_ms=now_ms,
        app=event.app,
        job_id=event.job_id,
        attempt=event.attempt,
        error=event.error[:TEXT],
        next_due_ms=event.next_due_ms,
    )
