"""Keeps a child that a handler has forked from going on as the node.

It has copies of the node's memory, files and sockets, and its event loop would wait on those of its parent. It may run
the code for which it was forked; when that returns or waits, the process ends, without any clean-up.
"""

import asyncio
import os
from collections import deque
from contextlib import suppress
from typing import Final, NoReturn
from weakref import WeakSet

EXIT_CODE: Final = 1
_MESSAGE: Final = (
    b"A process that a handler has forked came back into the node, and was ended. "
    b"End a forked process with os._exit(), or use subprocess or multiprocessing.\n"
)

depth = 0
"""How many forks lie between this process and the one that has imported this module. A call after which it has changed
has returned in a child."""


class ForkGuard:
    """Ends forked children in which an event loop goes on, until it is lifted."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        _guards.add(self)

    def lift(self) -> None:
        _guards.discard(self)

    def end_when_back(self) -> None:
        """End this process, a child, before its event loop runs anything else."""
        ready = getattr(self._loop, "_ready", None)
        if isinstance(ready, deque):
            ready.appendleft(asyncio.Handle(end, (), self._loop))
        else:  # a loop of another kind than asyncio's
            self._loop.call_soon(end)


_guards: WeakSet[ForkGuard] = WeakSet()


def end() -> NoReturn:
    """End this process, a child that came back."""
    with suppress(OSError):
        os.write(2, _MESSAGE)
    os._exit(EXIT_CODE)


def _in_child() -> None:
    global depth  # noqa: PLW0603 - it describes the process
    depth += 1
    for guard in list(_guards):
        guard.end_when_back()
    _guards.clear()


os.register_at_fork(after_in_child=_in_child)
