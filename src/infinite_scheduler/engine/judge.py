"""From the end of a delivery to what the store records."""

from collections.abc import Callable
from datetime import timedelta
from typing import assert_never

import msgspec

from infinite_scheduler.model import (
    MAX_DUE_MS,
    Cancelled,
    Done,
    Expired,
    Failed,
    Job,
    Outcome,
    Retry,
    Status,
    datetime_of,
)
from infinite_scheduler.policy.retry import RetryPolicy
from infinite_scheduler.store.ownership import Settlement

MS = timedelta(milliseconds=1)

ERROR_CHARS = 2000
"""Longer errors are cut: an attempt row is for people to read."""


class Judge(msgspec.Struct, frozen=True):
    """Decides what follows from an outcome, by the retry policy of one app."""

    policy: RetryPolicy
    rand: Callable[[], float]

    def settlement(
        self,
        job: Job,
        outcome: Outcome | BaseException,
        *,
        started_ms: int,
        finished_ms: int,
        marked: bool = False,
        shown: bool = False,
    ) -> Settlement:
        """What the store shall record for this delivery."""
        if type(outcome) is Done:  # the common case
            return Settlement(
                job=job, status=Status.DONE, started_ms=started_ms, finished_ms=finished_ms, marked=marked, shown=shown
            )
        try:
            status, due_ms, error = self._result(job, outcome, finished_ms)
        except Exception as broken:  # noqa: BLE001 - a policy that fails must not leave a job without an outcome
            status, due_ms, error = Status.FAILED, 0, f"the retry policy failed to decide: {describe(broken)}"
        return Settlement(
            job=job,
            status=status,
            started_ms=started_ms,
            finished_ms=finished_ms,
            due_ms=min(due_ms, MAX_DUE_MS),
            error=None if error is None else printable(error),
            marked=marked,
            shown=shown,
        )

    def _result(self, job: Job, outcome: Outcome | BaseException, now_ms: int) -> tuple[Status, int, str | None]:
        match outcome:
            case Done():
                return Status.DONE, 0, None
            case Failed(reason):
                return Status.FAILED, 0, reason or "the handler gave up"
            case Expired(reason):
                return Status.EXPIRED, 0, reason or "too late"
            case Cancelled():
                return Status.CANCELLED, 0, None
            case Retry(after, at, reason):
                if at is not None:
                    since = at - datetime_of(0)
                    wished = since // MS + bool(since % MS)  # rounded up: never early
                elif after is not None:
                    wished = now_ms + after // MS + bool(after % MS)
                else:
                    wished = None
                return self._again(job, reason or "the handler asked for another attempt", None, wished, now_ms)
            case BaseException():
                return self._again(job, describe(outcome), outcome, None, now_ms)
            case _:
                assert_never(outcome)

    def _again(
        self, job: Job, reason: str, error: BaseException | None, wished_ms: int | None, now_ms: int
    ) -> tuple[Status, int, str | None]:
        """Another attempt, unless the policy says to give up."""
        next_ms = self.policy.next_attempt_ms(
            attempt=job.attempt, created_ms=job.created_ms, finished_ms=now_ms, error=error, rand=self.rand
        )
        if next_ms is None:
            return Status.FAILED, 0, reason
        return Status.PENDING, max(now_ms, next_ms if wished_ms is None else wished_ms), reason


def describe(error: BaseException) -> str:
    """An error in one line."""
    name = type(error).__name__
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - an error that cannot even be shown
        return f"{name} (its text cannot be shown)"
    return printable(f"{name}: {text}" if text else name)


def printable(text: object) -> str:
    """Text that any store can keep and any terminal can show, cut to a maximum."""
    text = str(text)[:ERROR_CHARS].replace("\0", "\N{REPLACEMENT CHARACTER}")  # PostgreSQL cannot store NUL
    return text.encode("utf-8", "replace").decode()


def interrupted(job: Job, why: str, *, started_ms: int, finished_ms: int, marked: bool) -> Settlement:
    """A delivery was cut short, through no fault of its own: again at once, as a new attempt, whatever the policy."""
    return Settlement(
        job=job,
        status=Status.PENDING,
        started_ms=started_ms,
        finished_ms=finished_ms,
        due_ms=finished_ms,
        error=f"interrupted: {why}",
        marked=marked,
    )


def unrecordable(settlement: Settlement, error: Exception) -> Settlement:
    """The store refused to record this outcome: the job fails with the reason."""
    return Settlement(
        job=settlement.job,
        status=Status.FAILED,
        started_ms=settlement.started_ms,
        finished_ms=settlement.finished_ms,
        error=f"its outcome could not be recorded: {describe(error)}",
        marked=settlement.marked,
    )
