"""Proof that a process is alive: it holds a lock on a file named after its nonce for as long as it is."""

import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from infinite_scheduler.store.sql.sqlite import file_lock

SUFFIX: Final = ".lock"

_held: dict[Path, int] = {}
"""The lock files of this process, with their handles. They are not opened to be tested: without OFD locks, closing the
handle of the test would release the lock."""


def _let_go() -> None:
    """Close a forked child's copies of the handles: the locks stay with the parent, and end with it."""
    for handle in _held.values():
        with suppress(OSError):
            os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


class LockFolder:
    """The lock files of all processes that use one database.

    A child that has a copy of a handle after all, because it was not forked by Python, keeps the lock for as long as it
    lives: then the death of its parent shows when its lease ends.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def make(self) -> None:
        """Create the folder unless it exists."""
        self._folder.mkdir(exist_ok=True)

    def hold(self, nonce: str) -> None:
        """Hold the lock of this nonce until it is dropped or the process ends."""
        path = self._path(nonce)
        if path in _held:
            return
        self.make()
        unready = path.with_suffix(".new")
        handle = os.open(unready, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        file_lock.lock(handle)
        unready.rename(path)  # so that a visible lock file is already locked
        _held[path] = handle

    def drop(self, nonce: str) -> None:
        """Release the lock of a process that has left in good order."""
        path = self._path(nonce)
        handle = _held.pop(path, None)
        if handle is not None:
            path.unlink(missing_ok=True)
            os.close(handle)

    @property
    def lasting(self) -> bool:
        """Does a process keep its locks for as long as it lives, whatever it does to the files?"""
        return file_lock.OFD

    def free(self, nonces: Iterable[str]) -> frozenset[str]:
        """Those whose lock is free. A missing file proves nothing: it may have been deleted by hand."""
        return frozenset(nonce for nonce in nonces if self._is_free(self._path(nonce)))

    def sweep(self, keep: Collection[str]) -> None:
        """Delete the lock files that are free, except those to keep."""
        for path in self._folder.glob(f"*{SUFFIX}"):
            if path.stem not in keep and self._is_free(path):
                path.unlink(missing_ok=True)

    def _is_free(self, path: Path) -> bool:
        if path in _held:
            return False
        try:
            handle = os.open(path, os.O_RDWR)
        except OSError:
            return False
        try:
            return not file_lock.is_locked(handle)
        except OSError:
            return False
        finally:
            os.close(handle)

    def _path(self, nonce: str) -> Path:
        return self._folder / f"{nonce}{SUFFIX}"
