"""The machine's clocks."""

import asyncio
import time

import pytest

from infinite_scheduler.clock import SystemClock, sleep, wait

WAIT_MS = 20
RESOLUTION_S = 1e-6
"""An event loop calls back up to its clock's resolution, and a rounding of floats, before the moment."""


@pytest.fixture
def clock() -> SystemClock:
    return SystemClock()


def test_the_wall_clock_shows_the_time(clock: SystemClock) -> None:
    before_ns = time.time_ns()
    shown = clock.wall_ms()
    assert before_ns // 1_000_000 <= shown <= time.time_ns() // 1_000_000
    assert isinstance(shown, int)


def test_both_clocks_move_forward(clock: SystemClock) -> None:
    wall, steady = clock.wall_ms(), clock.steady_ms()
    until = time.monotonic() + 10
    while (clock.wall_ms() <= wall or clock.steady_ms() <= steady) and time.monotonic() < until:
        assert clock.steady_ms() >= steady
    assert clock.wall_ms() > wall
    assert clock.steady_ms() > steady


def test_the_steady_clock_never_goes_back(clock: SystemClock) -> None:
    read = [clock.steady_ms() for _ in range(10_000)]
    assert read == sorted(read)


@pytest.mark.parametrize(
    ("ns", "ms"), [(0, 0), (999_999, 0), (1_000_000, 1), (1_767_225_600_123_999_999, 1_767_225_600_123)]
)
def test_the_wall_clock_rounds_down(clock: SystemClock, monkeypatch: pytest.MonkeyPatch, ns: int, ms: int) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: ns)
        shown = clock.wall_ms()
    assert shown == ms


def test_the_steady_clock_does_not_follow_the_wall(clock: SystemClock, monkeypatch: pytest.MonkeyPatch) -> None:
    before = clock.steady_ms()
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: 0)
        after = clock.steady_ms()
    assert before <= after < before + 60_000


async def test_it_calls_back_not_before_its_time(clock: SystemClock) -> None:
    called = asyncio.Event()
    start = time.monotonic()
    clock.call_later(WAIT_MS, called.set)
    await asyncio.wait_for(called.wait(), 10)
    assert time.monotonic() - start >= WAIT_MS / 1000 - RESOLUTION_S


async def test_it_calls_back_in_order(clock: SystemClock) -> None:
    called: list[int] = []
    all_called = asyncio.Event()
    clock.call_later(3, all_called.set)
    clock.call_later(2, lambda: called.append(2))
    clock.call_later(1, lambda: called.append(1))
    await asyncio.wait_for(all_called.wait(), 10)
    assert called == [1, 2]


@pytest.mark.parametrize("ms", [0, -1, -1e9])
async def test_what_is_past_is_called_soon_but_not_at_once(clock: SystemClock, ms: float) -> None:
    called = asyncio.Event()
    clock.call_later(ms, called.set)
    assert not called.is_set()
    await asyncio.wait_for(called.wait(), 10)


async def test_a_cancelled_timer_is_silent(clock: SystemClock) -> None:
    called: list[str] = []
    end = asyncio.Event()
    clock.call_later(1, lambda: called.append("cancelled")).cancel()
    clock.call_later(2, end.set)
    await asyncio.wait_for(end.wait(), 10)
    assert not called


def test_timers_need_an_event_loop(clock: SystemClock) -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        clock.call_later(1, lambda: None)


async def test_sleep_takes_its_time(clock: SystemClock) -> None:
    start = time.monotonic()
    await asyncio.wait_for(sleep(clock, WAIT_MS), 10)
    assert time.monotonic() - start >= WAIT_MS / 1000 - RESOLUTION_S


async def test_wait_ends_with_the_event(clock: SystemClock) -> None:
    event = asyncio.Event()
    waiting = asyncio.create_task(wait(clock, event, 3_600_000))
    event.set()
    await asyncio.wait_for(waiting, 10)
    assert waiting.done()
