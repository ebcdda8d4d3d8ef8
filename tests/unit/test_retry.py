"""When a failed attempt is tried again."""

from datetime import timedelta
from itertools import pairwise
from typing import Any, get_type_hints

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from infinite_scheduler.config import RetrySettings
from infinite_scheduler.errors import InvalidPayload, StoreUnavailable
from infinite_scheduler.model import MAX_DUE_MS
from infinite_scheduler.policy.calendar import parse_duration
from infinite_scheduler.policy.retry import RetryPolicy

CREATED = 1_762_000_000_000
BOOM = RuntimeError("boom")


def spans(low_ms: int, high_ms: int) -> st.SearchStrategy[timedelta]:
    return st.integers(low_ms, high_ms).map(lambda ms: timedelta(milliseconds=ms))


POLICIES = st.builds(
    RetryPolicy,
    delays=st.none() | st.lists(spans(0, 10**9), min_size=1, max_size=8).map(sorted),
    initial=spans(0, 60_000),
    factor=st.floats(1, 1e300),
    maximum=spans(60_000, 10**9),
    jitter=st.floats(0, 1),
    count_from=st.sampled_from(("attempt", "creation")),
    max_attempts=st.integers(1, 50),
    floor=spans(0, 10_000),
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
        assert after >= before + runs_ms + parse_duration(policy.floor)


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

    assert delay(0.0) <= delay(rand) <= max(delay(0.0) * (1 + policy.jitter), parse_duration(policy.floor))


@given(POLICIES, st.integers(1, 60), st.integers(0, MAX_DUE_MS))
def test_the_next_attempt_is_a_moment_that_can_be_stored(policy: RetryPolicy, attempt: int, finished_ms: int) -> None:
    due_ms = policy.next_attempt_ms(
        attempt=attempt, created_ms=CREATED, finished_ms=finished_ms, error=None, rand=lambda: 0.5
    )
    assert due_ms is None or finished_ms <= due_ms <= MAX_DUE_MS


def test_by_default_six_attempts_double_their_distance() -> None:
    assert moments(RetryPolicy()) == [0, 1_000, 3_000, 7_000, 15_000, 31_000]


def test_exponential_delays_stop_at_the_maximum_and_do_not_overflow() -> None:
    policy = RetryPolicy(initial="1s", factor=10, maximum="1m", max_attempts=2_000, jitter=0)
    assert moments(policy)[:5] == [0, 1_000, 11_000, 71_000, 131_000]
    assert len(moments(policy)) == 2_000


def test_a_list_repeats_its_last_delay() -> None:
    policy = RetryPolicy(delays=("1m", "5m"), max_attempts=5, jitter=0)
    assert moments(policy) == [0, 60_000, 360_000, 660_000, 960_000]


def test_delays_counted_from_creation_do_not_depend_on_how_long_attempts_take() -> None:
    policy = RetryPolicy(delays=("500ms", 2, 4, 8, 16), count_from="creation", max_attempts=6, jitter=0, floor="100ms")
    assert moments(policy, runs_ms=300) == [0, 500, 2_000, 4_000, 8_000, 16_000]


def test_a_delay_from_creation_that_repeats_counts_on() -> None:
    listed = RetryPolicy(delays=("1m", "5m"), count_from="creation", max_attempts=5, jitter=0)
    assert moments(listed) == [0, 60_000, 300_000, 600_000, 900_000]
    grown = RetryPolicy(initial="1s", factor=3, maximum="5s", count_from="creation", max_attempts=6, jitter=0)
    assert moments(grown) == [0, 1_000, 3_000, 5_000, 10_000, 15_000]


def test_after_a_downtime_the_attempts_do_not_follow_in_a_burst() -> None:
    policy = RetryPolicy(delays=("500ms", "2s", "4s"), count_from="creation", max_attempts=4, jitter=0, floor="1s")
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
        ({"delays": ()}, r"delays is \(\); expected a list of at least one delay"),
        ({"delays": "10s"}, r"delays is '10s'; expected a list of at least one delay"),
        ({"delays": (5, -1)}, "delays: a delay cannot be negative: -1"),
        ({"delays": (5, 1), "count_from": "creation"}, "delays .* ascending"),
        ({"initial": -1}, "initial: a delay cannot be negative: -1"),
        ({"initial": "soon"}, "initial: 'soon' is not a delay; expected '90s'"),
        ({"factor": 0.5}, "factor is 0.5; expected 1 or more"),
        ({"factor": float("nan")}, "factor is nan; expected 1 or more"),
        ({"initial": "2s", "maximum": "1s"}, "maximum is '1s'; expected at least initial, which is '2s'"),
        ({"jitter": 1.5}, "jitter is 1.5; expected between 0 and 1"),
        ({"count_from": "birth"}, "count_from is 'birth'; expected 'attempt' or 'creation'"),
        ({"max_attempts": 0}, "max_attempts is 0; expected 1 or more"),
        ({"floor": timedelta(-5)}, "floor: a delay cannot be negative: -5 days"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RetryPolicy(**wrong)


def test_names_and_defaults_are_those_of_the_settings() -> None:
    policy, settings = RetryPolicy(), RetrySettings()
    names = {name for name in get_type_hints(RetryPolicy) if not name.startswith("_")}
    assert names == RetrySettings.model_fields.keys()
    for name in names - {"retry_on", "give_up_on"}:  # names in a file, classes in Python
        assert getattr(policy, name) == getattr(settings, name)


def test_a_length_of_time_is_given_as_in_the_settings() -> None:
    ladder = RetryPolicy(delays=["90s", 90, timedelta(seconds=90), "1m30s"], max_attempts=5, jitter=0)
    assert moments(ladder) == [0, 90_000, 180_000, 270_000, 360_000]
