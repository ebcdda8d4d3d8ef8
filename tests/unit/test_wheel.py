"""The timer wheel, against a plain dictionary."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from infinite_scheduler.engine.wheel import Wheel

NOW = 1_762_000_000_000
KEYS = st.binary(min_size=1, max_size=1)
MOMENTS = st.one_of(
    st.integers(NOW, NOW + 5), st.integers(NOW - 10_000, NOW + 10_000), st.integers(-(2**63), 2**63 - 1)
)
LIMITS = st.none() | st.integers(0, 4)


class WheelAgainstADictionary(RuleBasedStateMachine):
    """Every step is done on a wheel and on a dictionary of key to due moment; the item is the key and a count."""

    @initialize()
    def begin(self) -> None:
        self.wheel: Wheel[tuple[bytes, int]] = Wheel()
        self.held: dict[bytes, tuple[int, tuple[bytes, int]]] = {}
        self.count = 0

    @rule(due_ms=MOMENTS, key=KEYS)
    def add(self, due_ms: int, key: bytes) -> None:
        self.count += 1
        item = (key, self.count)
        if key in self.held:
            with pytest.raises(KeyError):
                self.wheel.add(due_ms, key, item)
        else:
            self.wheel.add(due_ms, key, item)
            self.held[key] = (due_ms, item)

    @rule(key=KEYS)
    def remove_any(self, key: bytes) -> None:
        self.remove(key)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def remove_held(self, data: st.DataObject) -> None:
        self.remove(data.draw(st.sampled_from(sorted(self.held))))

    def remove(self, key: bytes) -> None:
        _, item = self.held.pop(key, (0, None))
        assert self.wheel.remove(key) == item

    @rule(now_ms=MOMENTS, limit=LIMITS)
    def pop_due(self, now_ms: int, limit: int | None) -> None:
        popped = self.wheel.pop_due(now_ms, limit)
        due = sorted((due_ms, item[1]) for due_ms, item in self.held.values() if due_ms <= now_ms)
        expected = [moment for moment, _ in due][: len(due) if limit is None else limit]
        assert [self.held.pop(key)[0] for key, _ in popped] == expected

    @rule()
    def pop_latest(self) -> None:
        popped = self.wheel.pop_latest()
        if popped is None:
            assert not self.held
        else:
            due_ms, item = popped
            assert due_ms == max(due for due, _ in self.held.values())
            assert self.held.pop(item[0]) == (due_ms, item)

    @invariant()
    def both_hold_the_same(self) -> None:
        dues = [due_ms for due_ms, _ in self.held.values()]
        assert len(self.wheel) == len(dues)
        assert self.wheel.next_due_ms() == min(dues, default=None)
        assert self.wheel.latest_due_ms() == max(dues, default=None)
        assert all(key in self.wheel for key in self.held)


TestWheelAgainstADictionary = WheelAgainstADictionary.TestCase


@given(st.lists(st.integers(NOW, NOW + 30), max_size=100), st.integers(1, 7))
def test_items_come_out_by_due_and_then_as_they_were_added(dues: list[int], limit: int) -> None:
    wheel: Wheel[tuple[int, int]] = Wheel()
    for number, due_ms in enumerate(dues):
        wheel.add(due_ms, number.to_bytes(2, "big"), (due_ms, number))
    popped: list[tuple[int, int]] = []
    while portion := wheel.pop_due(NOW + 30, limit):
        assert len(portion) <= limit
        popped += portion
    assert popped == sorted((due_ms, number) for number, due_ms in enumerate(dues))


@given(st.lists(MOMENTS), st.lists(MOMENTS))
def test_nothing_is_popped_before_its_moment_however_the_clock_jumps(dues: list[int], clock: list[int]) -> None:
    wheel: Wheel[int] = Wheel()
    for number, due_ms in enumerate(dues):
        wheel.add(due_ms, number.to_bytes(2, "big"), due_ms)
    for now_ms in clock:
        assert all(due_ms <= now_ms for due_ms in wheel.pop_due(now_ms))
        next_due_ms = wheel.next_due_ms()
        assert next_due_ms is None or next_due_ms > now_ms


def test_a_herd_in_one_millisecond_comes_out_whole_in_portions_while_others_are_removed() -> None:
    wheel: Wheel[int] = Wheel()
    herd = 100_000
    for number in range(herd):
        wheel.add(NOW, number.to_bytes(4, "big"), number)
    for number in range(0, herd, 10):
        assert wheel.remove(number.to_bytes(4, "big")) == number
    popped: list[int] = []
    while portion := wheel.pop_due(NOW, 7):
        popped += portion
    assert popped == [number for number in range(herd) if number % 10]
    assert len(wheel) == 0


def test_an_item_added_to_a_millisecond_that_a_limit_cut_short_is_not_forgotten() -> None:
    wheel: Wheel[str] = Wheel()
    for name in ("a", "b", "c"):
        wheel.add(NOW, name.encode(), name)
    assert wheel.pop_due(NOW, 1) == ["a"]
    wheel.add(NOW, b"a", "a again")
    assert wheel.remove(b"b") == "b"
    assert wheel.pop_due(NOW, 1) == ["c"]
    assert wheel.pop_due(NOW, 5) == ["a again"]


@pytest.mark.parametrize("how", ["pop_due", "pop_latest", "remove"])
def test_a_wheel_that_is_empty_again_keeps_nothing(how: str) -> None:
    wheel: Wheel[int] = Wheel()
    for number in range(1_000):
        wheel.add(NOW + number // 3 * 700, number.to_bytes(4, "big"), number)
    assert len(wheel.pop_due(NOW + 50_000, 100)) == 100
    while len(wheel):
        match how:
            case "pop_due":
                wheel.pop_due(NOW + 10**6)
            case "pop_latest":
                wheel.pop_latest()
            case _:
                wheel.remove(next(iter(wheel._due)))
    assert (wheel._due, wheel._buckets, wheel._unfinished) == ({}, {}, {})
