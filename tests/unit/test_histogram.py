import pytest
from hypothesis import given
from hypothesis import strategies as st

from infinite_scheduler.model import MAX_DUE_MS
from infinite_scheduler.observe.histogram import Histogram, upper

VALUES = st.lists(st.integers(0, MAX_DUE_MS), min_size=1)
EXPONENTS = range(40)


def histogram_of(*values: int) -> Histogram:
    histogram = Histogram()
    histogram.add(values)
    return histogram


@given(VALUES, st.floats(0.01, 1))
def test_a_quantile_is_never_too_small_and_at_most_an_eighth_too_large(values: list[int], fraction: float) -> None:
    histogram = histogram_of(*values)
    rank = fraction * len(values)
    exact = next(value for index, value in enumerate(sorted(values), 1) if index >= rank)
    assert exact <= histogram.quantile(fraction) <= exact + exact // 8
    assert histogram.largest == max(values)
    assert histogram.total == sum(values)
    assert histogram.count == sum(histogram.counts) == len(values)


@given(VALUES)
def test_what_is_below_a_power_of_two_is_counted_exactly(values: list[int]) -> None:
    exact = [sum(value < 2**exponent for value in values) for exponent in EXPONENTS]
    assert histogram_of(*values).below(EXPONENTS) == exact
    assert histogram_of(*values).below([0, 10, 39]) == [exact[0], exact[10], exact[39]]


@given(VALUES, st.floats(0.01, 1))
def test_sparse_buckets_are_few_and_enough_for_quantiles(values: list[int], fraction: float) -> None:
    histogram = histogram_of(*values)
    sparse = histogram.sparse()
    again = Histogram.of(sparse)
    assert again.count == len(values)
    rank = fraction * len(values)
    exact = next(value for index, value in enumerate(sorted(values), 1) if index >= rank)
    assert exact <= again.quantile(fraction) <= exact + exact // 2


def test_all_values_up_to_half_an_hour_have_forty_sparse_buckets() -> None:
    assert len(histogram_of(*range(0, 1_800_000, 7), *range(100)).sparse()) == 42


def test_buckets_that_cannot_be_are_left_out() -> None:
    assert Histogram.of({-1: 5, Histogram.BUCKETS: 5, 3: -1, 4: 0}).count == 0


@pytest.mark.parametrize("bucket", [0, 1, 15, 16, 17, 200, Histogram.BUCKETS - 1])
def test_buckets_have_no_gaps(bucket: int) -> None:
    for value, expected in ((upper(bucket), bucket), (upper(bucket) + 1, min(bucket + 1, Histogram.BUCKETS - 1))):
        assert histogram_of(value).counts.index(1) == expected


def test_values_below_zero_count_as_zero() -> None:
    histogram = histogram_of(-5)
    assert (histogram.count, histogram.total, histogram.largest, histogram.quantile(0.5)) == (1, 0, 0, 0)


def test_nothing_at_all_is_zero() -> None:
    assert (Histogram().quantile(0.5), Histogram().sparse(), Histogram().below([3])) == (0, {}, [0])
