"""Proof that a process is alive: it holds a lock on a file named after its nonce for as long as it is."""

import fcntl
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

SUFFIX: Final = ".lock"

_held: dict[Path, int] = {}
"""The lock files of this process. POSIX locks belong to a process, not to a file handle: a test of one's own lock would
say "free", and closing the handle of the test would release it. A forked child does not have its parent's locks."""

os.register_at_fork(after_in_child=_held.clear)


class LockFolder:
    """The lock files of all processes that use one database.

    POSIX record locks and not flock: a flock lock survives in children that were forked for a process pool, so that the
    death of their parent would go unnoticed.
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
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unready.rename(path)  # so that a visible lock file is already locked
        _held[path] = handle

    def drop(self, nonce: str) -> None:
        """Release the lock of a process that has left in good order."""
        path = self._path(nonce)
        handle = _held.pop(path, None)
        if handle is not None:
            path.unlink(missing_ok=True)
            os.close(handle)

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
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        else:
            return True
        finally:
            os.close(handle)

    def _path(self, nonce: str) -> Path:
        return self._folder / f"{nonce}{SUFFIX}"
