"""When a failed attempt is tried again."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from infinite_scheduler.errors import InvalidPayload, StoreUnavailable
from infinite_scheduler.model import MAX_DUE_MS
from infinite_scheduler.policy.retry import RetryPolicy

CREATED = 1_762_000_000_000
BOOM = RuntimeError("boom")

POLICIES = st.builds(
    RetryPolicy,
    delays_ms=st.none()
    | st.lists(st.integers(0, 10**9), min_size=1, max_size=8).map(lambda delays: tuple(sorted(delays))),
    initial_ms=st.integers(0, 60_000),
    factor=st.floats(1, 1e300),
    maximum_ms=st.integers(60_000, 10**9),
    jitter=st.floats(0, 1),
    counted_from=st.sampled_from(("attempt", "creation")),
    max_attempts=st.integers(1, 50),
    floor_ms=st.integers(0, 10_000),
)
RANDOM = st.floats(0, 1, exclude_max=True)


def moments(policy: RetryPolicy, runs_ms: int = 0, rand: float = 0.0, first_ms: int = CREATED) -> list[int]:
    """When each attempt begins, counted from creation, if each takes `runs_ms` and fails."""
    began = [first_ms]
    while True:
        finished_ms = began[-1] + runs_ms
        following = policy.next_attempt_ms(
            attempt=len(began), created_ms=CREATED, finished_ms=finished_ms, error=BOOM, rand=lambda: rand
        )
        if following is None:
            return [moment - CREATED for moment in began]
        began.append(following)


@given(POLICIES, RANDOM, st.integers(0, 10**6), st.integers(0, 10**10))
def test_there_are_never_more_attempts_than_allowed_and_all_keep_the_floor(
    policy: RetryPolicy, rand: float, runs_ms: int, late_ms: int
) -> None:
    began = moments(policy, runs_ms, rand, CREATED + late_ms)
    assert len(began) == policy.max_attempts
    for before, after in pairwise(began):
        assert after >= before + runs_ms + policy.floor_ms


@given(POLICIES, RANDOM, st.integers(1, 60))
def test_jitter_only_lengthens_a_delay_and_by_its_fraction_at_most(
    policy: RetryPolicy, rand: float, attempt: int
) -> None:
    assume(attempt < policy.max_attempts)

    def delay(chance: float) -> int:
        due_ms = policy.next_attempt_ms(
            attempt=attempt, created_ms=CREATED, finished_ms=CREATED, error=BOOM, rand=lambda: chance
        )
        assert due_ms is not None
        return due_ms - CREATED

    assert delay(0.0) <= delay(rand) <= max(delay(0.0) * (1 + policy.jitter), policy.floor_ms)


@given(POLICIES, st.integers(1, 60), st.integers(0, MAX_DUE_MS))
def test_the_next_attempt_is_a_moment_that_can_be_stored(policy: RetryPolicy, attempt: int, finished_ms: int) -> None:
    due_ms = policy.next_attempt_ms(
        attempt=attempt, created_ms=CREATED, finished_ms=finished_ms, error=None, rand=lambda: 0.5
    )
    assert due_ms is None or finished_ms <= due_ms <= MAX_DUE_MS


def test_by_default_six_attempts_double_their_distance() -> None:
    assert moments(RetryPolicy()) == [0, 1_000, 3_000, 7_000, 15_000, 31_000]


def test_exponential_delays_stop_at_the_maximum_and_do_not_overflow() -> None:
    policy = RetryPolicy(initial_ms=1_000, factor=10, maximum_ms=60_000, max_attempts=2_000, jitter=0)
    assert moments(policy)[:5] == [0, 1_000, 11_000, 71_000, 131_000]
    assert len(moments(policy)) == 2_000


def test_a_list_repeats_its_last_delay() -> None:
    policy = RetryPolicy(delays_ms=(60_000, 300_000), max_attempts=5, jitter=0)
    assert moments(policy) == [0, 60_000, 360_000, 660_000, 960_000]


def test_delays_counted_from_creation_do_not_depend_on_how_long_attempts_take() -> None:
    policy = RetryPolicy(
        delays_ms=(500, 2_000, 4_000, 8_000, 16_000), counted_from="creation", max_attempts=6, jitter=0, floor_ms=100
    )
    assert moments(policy, runs_ms=300) == [0, 500, 2_000, 4_000, 8_000, 16_000]


def test_a_delay_from_creation_that_repeats_counts_on() -> None:
    listed = RetryPolicy(delays_ms=(60_000, 300_000), counted_from="creation", max_attempts=5, jitter=0)
    assert moments(listed) == [0, 60_000, 300_000, 600_000, 900_000]
    grown = RetryPolicy(initial_ms=1_000, factor=3, maximum_ms=5_000, counted_from="creation", max_attempts=6, jitter=0)
    assert moments(grown) == [0, 1_000, 3_000, 5_000, 10_000, 15_000]


def test_after_a_downtime_the_attempts_do_not_follow_in_a_burst() -> None:
    policy = RetryPolicy(
        delays_ms=(500, 2_000, 4_000), counted_from="creation", max_attempts=4, jitter=0, floor_ms=1_000
    )
    hour = 3_600_000
    assert moments(policy, first_ms=CREATED + hour) == [hour, hour + 1_000, hour + 2_000, hour + 3_000]


class Busy(Exception):
    """An error of somebody else's."""


@pytest.mark.parametrize(
    ("error", "retried"),
    [
        (None, True),
        (BOOM, True),
        (StoreUnavailable("away"), True),
        (InvalidPayload("no JSON"), False),
        (Busy(), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_only_what_is_worth_it_is_retried(error: BaseException | None, retried: bool) -> None:
    policy = RetryPolicy(give_up_on=(Busy,))
    due_ms = policy.next_attempt_ms(attempt=1, created_ms=CREATED, finished_ms=CREATED, error=error, rand=lambda: 0.0)
    assert (due_ms is not None) is retried


def test_retry_on_narrows_what_is_retried() -> None:
    policy = RetryPolicy(retry_on=(Busy,))
    for error, due_ms in ((Busy(), CREATED + 1_000), (BOOM, None)):
        assert due_ms == policy.next_attempt_ms(
            attempt=1, created_ms=CREATED, finished_ms=CREATED, error=error, rand=lambda: 0.0
        )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"delays_ms": ()}, r"delays_ms is \(\); expected at least one delay"),
        ({"delays_ms": (5, -1)}, r"delays_ms is \(5, -1\); expected delays of 0 or more"),
        ({"delays_ms": (5, 1), "counted_from": "creation"}, "delays_ms .* ascending"),
        ({"initial_ms": -1}, "initial_ms is -1; expected 0 or more"),
        ({"factor": 0.5}, "factor is 0.5; expected 1 or more"),
        ({"factor": float("nan")}, "factor is nan; expected 1 or more"),
        ({"maximum_ms": 10}, r"maximum_ms is 10; expected at least initial_ms \(1000\)"),
        ({"jitter": 1.5}, "jitter is 1.5; expected between 0 and 1"),
        ({"counted_from": "birth"}, "counted_from is 'birth'; expected 'attempt' or 'creation'"),
        ({"max_attempts": 0}, "max_attempts is 0; expected 1 or more"),
        ({"floor_ms": -5}, "floor_ms is -5; expected 0 or more"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RetryPolicy(**wrong)
