"""From an outcome to what is recorded."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from infinite_scheduler import Job, Retry, RetryPolicy, Status
from infinite_scheduler.engine.judge import Judge
from infinite_scheduler.store.ownership import Settlement

NOW = 1_893_456_000_000
JOB = Job(key=bytes(16), app="sms", due_ms=NOW, scheduled_ms=NOW, payload=b"{}", created_ms=NOW)


class BrokenPolicy(RetryPolicy):
    """One that a user has overridden, with a mistake."""

    def next_attempt_ms(self, **facts: Any) -> int | None:
        raise LookupError("no such plan")


def settled(outcome: Retry | Exception, policy: RetryPolicy | None = None) -> Settlement:
    judge = Judge(policy or RetryPolicy(), lambda: 0.0)
    return judge.settlement(JOB, outcome, started_ms=NOW, finished_ms=NOW)


def test_a_job_whose_policy_fails_to_decide_fails_and_says_so() -> None:
    found = settled(OSError("down"), BrokenPolicy())
    assert found.status is Status.FAILED
    assert found.error == "the retry policy failed to decide: LookupError: no such plan"


@pytest.mark.parametrize(
    "wish",
    [Retry(after=timedelta(microseconds=1_500_001)), Retry(at=datetime(2030, 1, 1, 0, 0, 1, 500_001, tzinfo=UTC))],
    ids=["a delay", "a moment"],
)
def test_a_part_of_a_millisecond_makes_the_next_attempt_later_and_never_early(wish: Retry) -> None:
    found = settled(wish)
    assert (found.status, found.due_ms) == (Status.PENDING, NOW + 1501)
