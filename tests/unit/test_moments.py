"""The sorted set of milliseconds."""

from hypothesis import given
from hypothesis import strategies as st

from infinite_scheduler.policy.moments import Moments

MOMENTS = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.integers(-3, 3), st.integers(1_762_000_000_000, 1_762_000_003_000)
)


@given(st.lists(st.tuples(st.sampled_from(("add", "remove", "pop")), MOMENTS)))
def test_first_and_last_are_those_of_a_plain_set(steps: list[tuple[str, int]]) -> None:
    moments = Moments()
    held: set[int] = set()
    for step, ms in steps:
        if step == "add" and ms not in held:
            held.add(ms)
            moments.add(ms)
        elif step == "remove" and held:
            chosen = sorted(held)[ms % len(held)]
            held.remove(chosen)
            moments.remove(chosen)
        elif step == "pop":
            held.discard(min(held, default=0))
            assert moments.pop_first() == min(held, default=None)
        assert moments.first == min(held, default=None)
        assert moments.last == max(held, default=None)


@given(st.sets(MOMENTS))
def test_nothing_is_left_behind_when_all_are_removed(held: set[int]) -> None:
    moments = Moments()
    for ms in held:
        moments.add(ms)
    while moments.first is not None:
        moments.remove(moments.first)
    assert moments._top == []
    assert moments._levels == [{}, {}, {}]
