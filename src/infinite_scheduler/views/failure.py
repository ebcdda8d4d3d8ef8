"""What failed on a node, as people see it."""

import msgspec

from infinite_scheduler.observe.recent_failures import DeadLetters, FailedAttempt, Failure
from infinite_scheduler.views.times import IsoTime, iso, iso_or_none


class FailedAttemptView(msgspec.Struct, frozen=True, kw_only=True):
    """A handler failed on a job, or gave up; `next_attempt_at` is None if no attempt is left."""

    at: IsoTime
    node: str
    app: str
    job: str
    attempt: int
    error: str
    next_attempt_at: IsoTime | None


class DeadLettersView(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a topic could not become jobs; the error is that of the first."""

    at: IsoTime
    node: str
    topic: str
    count: int
    error: str


def failure_view(failure: Failure, node: str) -> FailedAttemptView | DeadLettersView:
    """What failed, with the name of the node."""
    match failure:
        case FailedAttempt():
            return FailedAttemptView(
                at=iso(failure.at_ms),
                node=node,
                app=failure.app,
                job=failure.job_id,
                attempt=failure.attempt,
                error=failure.error,
                next_attempt_at=iso_or_none(failure.next_due_ms),
            )
        case DeadLetters():
            return DeadLettersView(
                at=iso(failure.at_ms), node=node, topic=failure.topic, count=failure.count, error=failure.error
            )
