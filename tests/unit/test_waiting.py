"""What tests wait with."""

import pytest

from tests.waiting import until, until_async


def test_what_was_waited_for_is_returned() -> None:
    found = iter([0, 0, 7])
    assert until(lambda: next(found), every_s=0) == 7


async def test_a_coroutine_is_waited_for_too() -> None:
    found = iter([0, 0, 7])

    async def ask() -> int:
        return next(found)

    assert await until_async(ask, every_s=0) == 7
    assert await until_async(lambda: 8) == 8


def test_what_does_not_come_is_named() -> None:
    with pytest.raises(AssertionError, match=r"not within 0 s: every job is done"):
        until(lambda: False, "every job is done", within_s=0)


def test_how_things_are_can_be_told_when_time_is_up() -> None:
    seen: list[int] = []
    with pytest.raises(AssertionError, match=r"not within 0 s: three, but there is \[1\]"):
        until(lambda: seen.append(1), lambda: f"three, but there is {seen}", within_s=0)


async def test_what_does_not_come_is_shown_as_the_test_writes_it_if_it_gives_no_name() -> None:
    done = 3
    with pytest.raises(AssertionError, match=r"test_waiting\.py:\d+: .*lambda: done == 4"):
        await until_async(lambda: done == 4, within_s=0)
