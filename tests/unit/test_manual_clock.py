"""The clock that tests move by hand."""

from infinite_scheduler.testing import ManualClock


def test_time_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(start_ms=5000)
    before = clock.steady_ms()
    clock.advance(250)
    assert (clock.wall_ms(), clock.steady_ms() - before) == (5250, 250)


def test_a_timer_is_called_at_its_own_moment_and_in_order() -> None:
    clock = ManualClock(start_ms=0)
    seen: list[tuple[str, int]] = []
    clock.call_later(30, lambda: seen.append(("later", clock.wall_ms())))
    clock.call_later(10, lambda: seen.append(("sooner", clock.wall_ms())))
    clock.call_later(10, lambda: seen.append(("sooner too", clock.wall_ms())))
    clock.advance(29)
    assert seen == [("sooner", 10), ("sooner too", 10)]
    clock.advance(1)
    assert seen[2:] == [("later", 30)]


def test_a_timer_is_never_early_by_a_fraction() -> None:
    clock = ManualClock()
    seen: list[int] = []
    clock.call_later(0.2, lambda: seen.append(1))
    assert not clock.step(clock.steady_ms())
    clock.advance(1)
    assert seen == [1]


def test_a_timer_set_by_a_timer_is_called_in_the_same_advance() -> None:
    clock = ManualClock(start_ms=0)
    seen: list[int] = []
    clock.call_later(10, lambda: clock.call_later(5, lambda: seen.append(clock.wall_ms())))
    clock.advance(100)
    assert seen == [15]


def test_a_cancelled_timer_is_never_called() -> None:
    clock = ManualClock()
    seen: list[int] = []
    clock.call_later(10, lambda: seen.append(1)).cancel()
    clock.advance(100)
    assert not seen
    assert clock.next_timer_ms() is None


def test_a_step_of_the_wall_clock_moves_no_timer() -> None:
    clock = ManualClock(start_ms=1_000_000)
    seen: list[int] = []
    clock.call_later(10, lambda: seen.append(clock.wall_ms()))
    clock.step_wall(-5000)
    clock.advance(9)
    assert not seen
    clock.advance(1)
    assert seen == [995_010]
