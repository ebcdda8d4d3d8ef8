"""Turns between processes that want SQLite's write lock: a waiting process is not overtaken."""

import fcntl
import os
import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Final
from weakref import WeakSet

COURTESY_S: Final = 0.1
"""How long a process waits for its turn: one that was stopped during its own must not block the others."""


class Turns:
    """A lock on a file, held only while a process waits for the write lock.

    SQLite gives its lock to whichever process asks at the right moment. A process that writes all the time asks again
    at once; others, which ask from time to time, would find it free only by luck.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None
        _all.add(self)

    def __enter__(self) -> None:
        # Opened again each time: a handle that is kept would be shared with children, and with it the lock.
        with suppress(OSError):  # without the file there are no turns, which does no harm
            self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            began = time.monotonic()
            while not _taken(self._handle) and time.monotonic() - began < COURTESY_S:
                pause()

    def __exit__(self, *_: object) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


_all: WeakSet[Turns] = WeakSet()


def _let_go() -> None:
    """Close a forked child's copy of the handle, which would keep the lock for as long as the child lives."""
    for turns in list(_all):
        with suppress(OSError):
            turns.__exit__()


os.register_at_fork(after_in_child=_let_go)


def pause() -> None:
    """Wait a moment: short, since transactions are; at random, so that two waiting processes do not keep step."""
    time.sleep(random.uniform(0.0001, 0.0005))  # noqa: S311 - nothing secret


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
