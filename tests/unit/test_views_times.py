"""Moments and lengths of time as people read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infinite_scheduler.model import MAX_DUE_MS
from infinite_scheduler.views.times import iso, ms_of, relative, span, when

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (999, "999ms"),
        (SECOND, "1s"),
        (59_600, "1m"),
        (4 * MINUTE + 10 * SECOND, "4m 10s"),
        (HOUR - 1, "1h"),
        (HOUR + 5 * SECOND, "1h"),
        (2 * DAY + 3 * HOUR + MINUTE, "2d 3h"),
    ],
)
def test_a_span_has_its_two_largest_units(ms: int, text: str) -> None:
    assert span(ms) == text


def test_a_moment_is_shown_in_utc_to_the_millisecond() -> None:
    assert iso(1_893_456_000_007) == "2030-01-01T00:00:00.007Z"


def test_a_moment_says_how_far_away_it_is() -> None:
    assert relative(5000, 5000) == "now"
    assert relative(5000 + 250 * SECOND, 5000) == "in 4m 10s"
    assert relative(2000, 5000) == "3s ago"
    assert when(0, 3000) == "1970-01-01T00:00:00.000Z (3s ago)"


@given(st.integers(min_value=0, max_value=MAX_DUE_MS))
def test_a_moment_is_the_same_after_it_was_written(ms: int) -> None:
    assert ms_of(iso(ms)) == ms
