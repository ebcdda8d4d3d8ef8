"""The queue of what is due."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infinite_scheduler.model import Priority
from infinite_scheduler.policy.priority import TURNS, PriorityQueue

DUES = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5) | st.integers(0, 5_000)
PUSHES = st.tuples(st.sampled_from(Priority), DUES)
FEW_DUES = st.tuples(st.just(Priority.NORMAL), st.integers(0, 3))
TAKES = st.just("pop") | st.tuples(st.sampled_from(Priority), st.integers(0, 3), st.booleans())
Item = tuple[Priority, int, int]


@settings(max_examples=3 * settings().max_examples)
@given(st.lists(PUSHES | TAKES) | st.lists(FEW_DUES | TAKES, min_size=8))
def test_each_priority_comes_out_by_due_and_then_as_it_came(
    steps: list[tuple[Priority, int] | tuple[Priority, int, bool] | str],
) -> None:
    queue: PriorityQueue[Item] = PriorityQueue()
    held: list[Item] = []
    for number, step in enumerate(steps):
        match step:
            case (priority, due_ms):
                queue.push(priority, due_ms, (priority, due_ms, number))
                held.append((priority, due_ms, number))
            case str():
                if held:
                    item = queue.pop()
                    assert item == min(other for other in held if other[0] == item[0])
                    held.remove(item)
            case (by, share, owed):
                dropped = queue.drop_last(by, share, owed=owed)
                own = [other for other in held if other[0] == by]
                assert dropped is not None or not own
                if dropped is not None:
                    assert dropped == max(other for other in held if other[0] == dropped[0])
                    held.remove(dropped)
        assert len(queue) == len(held)
        assert [queue.waiting(p) for p in Priority] == [sum(other[0] == p for other in held) for p in Priority]
        assert queue.peek_due_ms() == min((due_ms for _, due_ms, _ in held), default=None)
        for priority in Priority:
            first = min((due_ms for other, due_ms, _ in held if other == priority), default=None)
            assert queue.peek_due_ms(priority) == first


@given(st.lists(st.one_of(st.lists(PUSHES, min_size=1, max_size=30), st.integers(1, 40))))
def test_a_waiting_priority_is_passed_over_eight_times_in_a_row_at_most(
    steps: list[list[tuple[Priority, int]] | int],
) -> None:
    queue: PriorityQueue[Priority] = PriorityQueue()
    waiting = dict.fromkeys(Priority, 0)
    passed = dict.fromkeys(Priority, 0)
    for step in steps:
        if isinstance(step, list):
            for priority, due_ms in step:
                queue.push(priority, due_ms, priority)
                waiting[priority] += 1
            continue
        for _ in range(min(step, len(queue))):
            taken = queue.pop()
            waiting[taken] -= 1
            passed[taken] = 0
            for lower in Priority:
                if lower > taken:
                    passed[lower] = passed[lower] + 1 if waiting[lower] else 0
            assert max(passed.values()) <= TURNS


@given(st.lists(PUSHES, max_size=TURNS))
def test_a_higher_priority_goes_first_as_long_as_nobody_starves(pushes: list[tuple[Priority, int]]) -> None:
    queue: PriorityQueue[Item] = PriorityQueue()
    items = [(priority, due_ms, number) for number, (priority, due_ms) in enumerate(pushes)]
    for item in items:
        queue.push(item[0], item[1], item)
    assert [queue.pop() for _ in items] == sorted(items)


def test_an_unbroken_stream_of_high_lets_normal_and_low_through() -> None:
    queue: PriorityQueue[str] = PriorityQueue()
    for number in range(100):
        for priority in Priority:
            queue.push(priority, number, priority.name[0])
    assert "".join(queue.pop() for _ in range(20)) == "HHHHHHHHLNHHHHHHHLHN"


def test_an_empty_queue_says_so() -> None:
    queue: PriorityQueue[int] = PriorityQueue()
    with pytest.raises(IndexError):
        queue.pop()
    assert queue.drop_last(Priority.HIGH, 0, owed=True) is None


def queue_of(items: str) -> PriorityQueue[str]:
    """A queue with items like H1: a priority and a due moment."""
    queue: PriorityQueue[str] = PriorityQueue()
    names = {priority.name[0]: priority for priority in Priority}
    for item in items.split():
        queue.push(names[item[0]], int(item[1:]), item)
    return queue


def drops(queue: PriorityQueue[str], by: Priority, share: int, *, owed: bool = False) -> str:
    """What is dropped, one after the other."""
    dropped = iter(lambda: queue.drop_last(by, share, owed=owed), None)
    return " ".join(dropped)


def test_a_higher_priority_displaces_lower_ones_beyond_their_share_the_lowest_first() -> None:
    everything = "H1 H2 N1 N2 N3 L1 L2 L3"
    assert drops(queue_of(everything), Priority.HIGH, 0) == "L3 L2 L1 N3 N2 N1 H2 H1"
    assert drops(queue_of(everything), Priority.HIGH, 2) == "L3 N3 H2 H1"
    assert drops(queue_of(everything), Priority.NORMAL, 2) == "L3 N3 N2 N1"
    assert drops(queue_of(everything), Priority.LOW, 2) == "L3 L2 L1"


def test_a_lower_priority_to_which_room_is_owed_displaces_higher_ones() -> None:
    everything = "H1 H2 N1 N2 N3 L1"
    assert drops(queue_of(everything), Priority.LOW, 2, owed=True) == "N3 H2 H1 L1"
    assert drops(queue_of(everything), Priority.NORMAL, 1, owed=True) == "H2 H1 N3 N2 N1"


def test_a_priority_that_was_displaced_altogether_waits_anew_for_its_turn() -> None:
    queue = queue_of("L1 " + " ".join(f"H{n}" for n in range(20)))
    for _ in range(TURNS):
        assert queue.pop().startswith("H")
    assert queue.drop_last(Priority.HIGH, 0) == "L1"
    queue.push(Priority.LOW, 1, "L1")
    assert queue.pop() == "H8"


def test_a_herd_that_is_popped_while_it_grows_keeps_no_consumed_places() -> None:
    queue: PriorityQueue[int] = PriorityQueue()
    queue.push(Priority.LOW, 10, -1)
    for number in range(10_000):
        queue.push(Priority.LOW, 5, number)
    for number in range(10_000, 20_000):
        queue.push(Priority.LOW, 5, number)
        assert queue.pop() == number - 10_000
    assert len(queue) == 10_001
    assert len(queue._lanes[Priority.LOW]._aside._buckets[5]) <= 20_000


@settings(max_examples=3 * settings().max_examples)
@given(st.lists(PUSHES | st.just("pop") | st.integers(1, 4)) | st.lists(FEW_DUES | st.just("pop") | st.integers(1, 4)))
def test_what_is_retained_comes_out_as_if_the_others_had_never_come(
    steps: list[tuple[Priority, int] | str | int],
) -> None:
    queue: PriorityQueue[Item] = PriorityQueue()
    held: list[Item] = []
    for number, step in enumerate(steps):
        match step:
            case (priority, due_ms):
                queue.push(priority, due_ms, (priority, due_ms, number))
                held.append((priority, due_ms, number))
            case int():
                held = [item for item in held if item[2] % step != 0]
                queue.retain(held.__contains__)
            case str():
                if held:
                    item = queue.pop()
                    assert item == min(other for other in held if other[0] == item[0])
                    held.remove(item)
        assert [queue.waiting(p) for p in Priority] == [sum(other[0] == p for other in held) for p in Priority]
        assert queue.peek_due_ms() == min((due_ms for _, due_ms, _ in held), default=None)


def test_a_priority_of_which_nothing_is_retained_waits_anew_for_its_turn() -> None:
    queue = queue_of("L1 N1 " + " ".join(f"H{n}" for n in range(20)))
    for _ in range(TURNS):
        assert queue.pop().startswith("H")
    queue.retain(lambda item: item.startswith("H"))
    queue.push(Priority.LOW, 1, "L1")
    queue.push(Priority.NORMAL, 1, "N1")
    assert queue.pop() == "H8"


def test_what_is_outdated_is_dropped_once_it_may_be_half_of_the_queue() -> None:
    queue = queue_of(" ".join(f"N{n}" for n in range(10)))
    wanted = {f"N{n}" for n in range(6, 10)}
    queue.outdate(5, wanted.__contains__)
    assert len(queue) == 10
    queue.outdate(1, wanted.__contains__)
    assert len(queue) == 4
    queue.outdate(1, wanted.__contains__)
    queue.outdate(1, set[str]().__contains__)
    assert len(queue) == 4, "those that are dropped already do not count"
    for _ in range(2):
        queue.pop()
    queue.outdate(0, set[str]().__contains__)
    assert len(queue) == 0


@given(st.integers(0, 200), st.integers(1, 20))
def test_a_queue_without_a_wanted_item_is_empty_however_they_were_outdated(count: int, portion: int) -> None:
    queue: PriorityQueue[int] = PriorityQueue()
    wanted = set(range(count))
    for number in range(count):
        queue.push(Priority.NORMAL, number, number)
    looks = 0

    def look(item: int) -> bool:
        nonlocal looks
        looks += 1
        return item in wanted

    for start in range(0, count, portion):
        wanted -= set(range(start, start + portion))
        queue.outdate(min(portion, count - start), look)
    assert len(queue) == 0
    assert looks <= 2 * count
