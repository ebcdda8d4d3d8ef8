"""Shows other processes that a database is in use, even if this process has lost SQLite's own locks on it.

SQLite's locks are POSIX record locks, which a process loses when it closes *any* handle of the file: a handler that
copies the database is enough. Two of them are held for as long as a connection is open, and SQLite never takes them
again. If the one on the database file is missing, the next process that closes it believes that it is the last: it
removes the log that this process goes on writing to, and no other sees those commits. If the one on the `-shm` file is
missing, the next process that opens the database empties that file, which is the memory that all of them share.

Locks of open file descriptions exclude the same processes, and stay.
"""

import os
import threading
from contextlib import suppress
from typing import Final, NamedTuple

from infinite_scheduler.store.sql.sqlite import file_lock

SHARED: Final = (0x40000002, 510)
"""What SQLite locks in a database file that is open, as first byte and length."""

OPEN: Final = (128, 1)
"""What SQLite locks in a `-shm` file that is open."""

File = tuple[int, int]
"""The device and the number of a file."""


class _Held(NamedTuple):
    handle: int
    users: set[object]


_held: dict[File, _Held] = {}
"""The files of this process: one handle each, since closing a second one would cost SQLite its locks."""

_turn = threading.Lock()


def _let_go() -> None:
    """Close a forked child's copies of the handles: the locks stay with the parent."""
    global _turn  # noqa: PLW0603 - another thread of the parent may have it for ever
    _turn = threading.Lock()
    for held in _held.values():
        with suppress(OSError):
            os.close(held.handle)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


class InUse:
    """The claim of one store that its database is in use. Needs a system with OFD locks; elsewhere it does nothing."""

    def __init__(self, path: str) -> None:
        self._files: list[File] = []
        if file_lock.OFD:
            for name, part in ((path, SHARED), (f"{path}-shm", OPEN)):
                try:
                    with _turn:
                        self._files.append(self._claim(name, part))
                except OSError as error:
                    file_lock.tell_failed(name, error)

    def _claim(self, name: str, part: tuple[int, int]) -> File:
        file = _file(os.stat(name))  # noqa: PTH116 - opening it to find out would be too late
        if file not in _held:
            _held[file] = _Held(os.open(name, os.O_RDONLY), set())
        file_lock.share(_held[file].handle, *part)
        _held[file].users.add(self)
        return file

    def give_up(self) -> None:
        """Let go of what no other store of this process uses: the last connection of all tidies up when it closes."""
        with _turn:
            for held in [_held[file] for file in self._files if file in _held]:  # a forked child has none
                held.users.discard(self)
                if not held.users:
                    file_lock.release(held.handle)
            self._files.clear()

    def close(self) -> None:
        """Close what is not used any more, after the connections were closed.

        A handle whose file is also open elsewhere in this process stays for later: the program may use the database
        with connections of its own, and would lose their locks.
        """
        with _turn:
            unused = [file for file, held in _held.items() if not held.users]
            open_files = _open_files() if unused else []
            for file in unused:
                if open_files.count(file) == 1:  # this one
                    os.close(_held.pop(file).handle)


def _open_files() -> list[File]:
    """The file of each handle of this process."""
    files = []
    with suppress(OSError):  # if /proc is not there, nothing is known
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - plain numbers
            with suppress(OSError):
                files.append(_file(os.fstat(int(name))))
    return files


def _file(found: os.stat_result) -> File:
    return found.st_dev, found.st_ino
