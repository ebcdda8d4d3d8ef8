"""Waiting for what other threads, processes and servers bring about, and the wall clock that they go by."""

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

What = str | Callable[[], str] | None
"""What was waited for; a function can tell how things are when time is up."""

PATIENCE_S = 60.0
"""How long anything may take before a test gives up: the machine may be busy."""


def now_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


def until(holds: Callable[[], T], what: What = None, within_s: float = PATIENCE_S, every_s: float = 0.02) -> T:
    """Wait until this is true, and return what it was; or fail and say `what` was waited for, or how the test asked."""
    deadline = time.monotonic() + within_s
    while not (found := holds()):
        if time.monotonic() > deadline:
            raise too_late(holds, what, within_s)
        time.sleep(every_s)
    return found


async def until_async(
    holds: Callable[[], Any], what: What = None, within_s: float = PATIENCE_S, every_s: float = 0.01
) -> Any:
    """`until` for a test that shares its event loop with what it waits for; what it asks may be a coroutine."""
    deadline = time.monotonic() + within_s
    while True:
        found = holds()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        if time.monotonic() > deadline:
            raise too_late(holds, what, within_s)
        await asyncio.sleep(every_s)


def too_late(holds: Callable[[], Any], what: What, within_s: float) -> AssertionError:
    """Says what was waited for."""
    words = what() if callable(what) else what or words_of(holds)
    return AssertionError(f"not within {within_s:g} s: {words}")


def words_of(holds: Callable[[], Any]) -> str:
    """A condition as the test writes it, and where."""
    try:
        lines, number = inspect.getsourcelines(holds)
    except (OSError, TypeError):
        return repr(holds)
    return f"{inspect.getsourcefile(holds)}:{number}: {' '.join(line.strip() for line in lines)}"
