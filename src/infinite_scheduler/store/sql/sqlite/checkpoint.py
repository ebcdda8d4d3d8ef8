"""Moves committed pages from SQLite's log into the database file, in a thread beside the lane."""

import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

FRAMES: Final = 8000
"""Pages (32 MB) in the log between two checkpoints: rare enough that their syncs do not matter."""

LONG_LOG: Final = 2
"""At this many times that length, the log is finished in the lane: under steady load it would grow forever."""

PAGE: Final = 4096
SHARE: Final = 4
"""On a small disk the log may use this part of the space: moving it into the database may take as much again."""

LEAST: Final = 500
MOST: Final = 20_000
"""Rows between two checkpoints: how many fill that many pages is learned, within these limits."""

COMMIT: Final = 4
"""A commit counts as this many changed rows: even a small one writes a few pages."""


class Checkpointer:
    """A thread with a connection of its own that checkpoints when enough was written.

    SQLite would do it in whichever commit finds the log long, which delays that commit by tens of milliseconds. A log
    starts over only if all of it was moved before the next commit: under steady load `finish` does the last part, in
    the lane.
    """

    def __init__(
        self,
        path: str,
        connect: Callable[[], sqlite3.Connection],
        finish: Callable[[Callable[[], None]], None],
        turn: AbstractContextManager[bool],
    ) -> None:
        self._path = path
        self._connect = connect
        self._finish = finish
        self._turn = turn
        self._written = 0
        self._enough = frames_for(path)
        self._wake = threading.Event()
        self._finished = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name="sqlite-checkpoint", daemon=True)
        self._thread.start()

    def committed(self, rows: int) -> None:
        """Count a commit of the lane that changed this many rows."""
        self._written += rows + COMMIT
        if self._written >= self._enough:
            self._wake.set()

    def failed(self) -> None:
        """A commit was refused: if the disk is full, moving the log frees its space."""
        self._wake.set()

    def close(self) -> None:
        """Stop, after a checkpoint in progress."""
        self._stopped = True
        self._wake.set()
        self._finished.set()
        self._thread.join()

    def _work(self) -> None:
        connection = self._connect()
        before = 0
        while self._wake.wait() and not self._stopped:
            self._wake.clear()
            written, self._written = self._written, 0
            with self._turn as mine:
                frames = checkpoint(connection) if mine else None
            if frames is None:
                continue
            most = frames_for(self._path)
            added = frames - before if frames > before else frames
            if added > 0:
                self._enough = min(MOST, max(LEAST, FRAMES * written // added)) * most // FRAMES
            before = frames
            if frames >= LONG_LOG * most:
                self._finish_in_lane()
        connection.close()

    def _finish_in_lane(self) -> None:
        """Wait for the lane to do the last part: two at once would only block each other."""
        self._finished.clear()
        if not self._stopped:
            self._finish(self._finished.set)
            self._finished.wait()


def frames_for(path: str) -> int:
    """How many pages may stay in the log: fewer on a disk with little space for it."""
    try:
        disk, log = os.statvfs(path), Path(f"{path}-wal").stat().st_size  # a log that starts over reuses its space
    except OSError:
        return FRAMES
    return max(1, min(FRAMES, (disk.f_bavail * disk.f_frsize + log) // SHARE // PAGE))


def checkpoint(connection: sqlite3.Connection) -> int | None:
    """Move what can be moved without waiting. Returns how many pages the log has, if that is known."""
    try:
        busy, frames, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    except sqlite3.Error:  # the disk fails: the next commit will report it
        return None
    return None if busy else int(frames)
