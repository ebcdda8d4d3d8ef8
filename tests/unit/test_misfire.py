"""What happens to a job that comes too late."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infinite_scheduler.model import MAX_DUE_MS
from infinite_scheduler.policy.calendar import Delay
from infinite_scheduler.policy.misfire import ExpireAfter, FireNow, Misfire, Skip

MS = st.integers(0, 2**48)


@given(MS, MS, MS, MS)
def test_fire_now_never_expires_a_job(due_ms: int, accepted_ms: int, now_ms: int, threshold_ms: int) -> None:
    assert FireNow().decide(due_ms=due_ms, accepted_ms=accepted_ms, now_ms=now_ms, threshold_ms=threshold_ms) is None


@given(MS, MS, MS, MS)
def test_skip_expires_exactly_what_is_later_than_the_threshold(
    due_ms: int, accepted_ms: int, now_ms: int, threshold_ms: int
) -> None:
    reason = Skip().decide(due_ms=due_ms, accepted_ms=accepted_ms, now_ms=now_ms, threshold_ms=threshold_ms)
    assert (reason is not None) is (now_ms > max(due_ms, accepted_ms) + threshold_ms)


@given(MS, MS, MS, MS, st.integers(0, MAX_DUE_MS))
def test_expire_after_goes_by_its_own_duration_whatever_the_threshold(
    due_ms: int, accepted_ms: int, now_ms: int, threshold_ms: int, after_ms: int
) -> None:
    reason = ExpireAfter(timedelta(milliseconds=after_ms)).decide(
        due_ms=due_ms, accepted_ms=accepted_ms, now_ms=now_ms, threshold_ms=threshold_ms
    )
    assert (reason is not None) is (now_ms > max(due_ms, accepted_ms) + after_ms)


@pytest.mark.parametrize("policy", [FireNow(), Skip(), ExpireAfter(0)])
@given(due_ms=MS, accepted_ms=MS)
def test_a_job_that_was_asked_for_after_its_moment_is_not_late_when_it_is_accepted(
    policy: Misfire, due_ms: int, accepted_ms: int
) -> None:
    now_ms = max(due_ms, accepted_ms)
    assert policy.decide(due_ms=due_ms, accepted_ms=accepted_ms, now_ms=now_ms, threshold_ms=0) is None


def test_the_reason_says_how_late_and_what_was_allowed() -> None:
    late = {"due_ms": 1_000, "accepted_ms": 0, "now_ms": 71_000, "threshold_ms": 60_000}
    assert Skip().decide(**late) == "70000 ms late, more than the misfire threshold of 60000 ms"
    assert ExpireAfter(expire_after="5s").decide(**late) == "70000 ms late, more than expire_after of 5000 ms"


def test_a_negative_duration_is_refused() -> None:
    with pytest.raises(ValueError, match="expire_after: a delay cannot be negative: -1; expected"):
        ExpireAfter(-1)


@pytest.mark.parametrize("given", ["5m", timedelta(minutes=5), 300])
def test_the_duration_is_given_as_in_the_settings(given: Delay) -> None:
    allowed = {"due_ms": 0, "accepted_ms": 0, "now_ms": 300_000, "threshold_ms": 0}
    assert ExpireAfter(given).decide(**allowed) is None
    assert ExpireAfter(given).decide(**{**allowed, "now_ms": 300_001}) is not None
