"""Turns between processes that write to one SQLite file: one that waits is not overtaken, and one writes at a time.

SQLite sees to the second by itself, with record locks on the `-shm` file. A process loses those when it closes any
other handle of that file, such as a handler does that copies the folder: amid a transaction, another process could then
write to the same place of the log. The locks here are of another kind, which is not lost, and on files of their own.
They are held beside SQLite's, never instead: a process whose wait times out goes on, and SQLite's lock decides.
"""

import fcntl
import os
import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple
from weakref import WeakSet

from infinite_scheduler.store.sql.sqlite import file_lock

TURN_WAIT_S: Final = 0.1
"""How long a process waits for its turn: one that was stopped during its own must not block the others."""

WRITING_S: Final = 1.0
"""How long a process waits for another one to end its transaction, before it tries with SQLite's lock alone."""

NEXT_WAIT: Final = 20
"""After a wait in vain, the next one begins this many waits later: a stuck process costs others 5 % of their time."""


class ProcessTurn:
    """The turn of a process that shares nothing: it has it whenever it wants."""

    def take(self) -> bool:
        """Wait for it; if it is held already, nothing happens. False: it was not free in time."""
        return True

    def give_back(self) -> None:
        """Let others have it; if it is not held, nothing happens."""

    def __enter__(self) -> bool:
        return self.take()

    def __exit__(self, *_: object) -> None:
        self.give_back()


class FileTurn(ProcessTurn):
    """The turn of a process that shares a file with others: a lock on it, held for a moment."""

    def __init__(self, path: Path, wait_s: float) -> None:
        self._path = path
        self._wait_s = wait_s
        self._handle: int | None = None
        self._next_wait = 0.0  # until then it is only tried: another process has not let go of it for a whole wait
        _all.add(self)

    def take(self) -> bool:
        if self._handle is not None:
            return True
        # Opened again each time: a handle that is kept would be shared with children, and with it the lock.
        try:
            self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            return self._lock(self._handle)
        except OSError as error:
            file_lock.tell_failed(self._path, error)
            return True

    def _lock(self, handle: int) -> bool:
        began = time.monotonic()
        wait_s = self._wait_s if began >= self._next_wait else 0
        while not _taken(handle):
            if time.monotonic() - began >= wait_s:
                if wait_s:
                    self._next_wait = time.monotonic() + NEXT_WAIT * wait_s
                return False
            pause()
        self._next_wait = 0.0
        return True

    def give_back(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            with suppress(OSError):  # a child may have a copy of the handle without knowing: then closing is not enough
                fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)

    def leave_to_parent(self) -> None:
        """Close a forked child's copy of the handle, which would keep the lock for as long as the child lives."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


class Turns(NamedTuple):
    """The turns of one connection that writes."""

    waiting: ProcessTurn = ProcessTurn()
    """Held only while the process waits for the write lock. SQLite gives that to whichever process asks at the right
    moment: one that writes all the time asks again at once, and others would find it free only by luck."""

    writing: ProcessTurn = ProcessTurn()
    """Held for a transaction."""

    checkpointing: ProcessTurn = ProcessTurn()
    """Held while pages are moved from the log into the database."""

    @classmethod
    def of_processes(cls, folder: Path) -> "Turns":
        """Turns by files in this folder."""
        return cls(
            waiting=FileTurn(folder / "turn", TURN_WAIT_S),
            writing=FileTurn(folder / "write", WRITING_S),
            checkpointing=FileTurn(folder / "checkpoint", 0),
        )


_all: WeakSet[FileTurn] = WeakSet()


def _let_go() -> None:
    for turn in list(_all):
        with suppress(OSError):
            turn.leave_to_parent()


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
