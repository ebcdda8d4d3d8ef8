"""What SQLite reports, as errors of ours that say what to change."""

import sqlite3

from infinite_scheduler.errors import SchedulerError, StoreBroken, StoreUnavailable

IN_THE_WAY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


def code_of(error: sqlite3.Error) -> int:
    """SQLite's primary result code, 0 if it is the driver's own error."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    """Does another process hold the lock?"""
    return code_of(error) in IN_THE_WAY


def is_missing_table(error: sqlite3.Error) -> bool:
    """Did the statement name a table that does not exist?"""
    return code_of(error) == sqlite3.SQLITE_ERROR and "no such table" in str(error)


def translated(error: sqlite3.Error, path: str) -> SchedulerError:
    """The error that a caller sees."""
    match code_of(error):
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return StoreBroken(
                f"the database {path} cannot be written ({error}): give this user write access to the file and to its "
                "folder, where SQLite keeps the -wal and -shm files beside it"
            )
        case sqlite3.SQLITE_CANTOPEN:
            return StoreBroken(
                f"the database {path} cannot be opened ({error}): does its folder exist, and may this user write there?"
            )
        case sqlite3.SQLITE_NOTADB:
            return StoreBroken(f"{path} is not a SQLite database: name another file, or move this one away")
        case sqlite3.SQLITE_CORRUPT:
            return StoreBroken(
                f"the database {path} is damaged ({error}): stop all nodes and restore it, or try sqlite3's .recover"
            )
        case sqlite3.SQLITE_FULL:
            return StoreBroken(
                f"no space left for the database {path} ({error}): free some space on its disk; nothing was committed"
            )
        case sqlite3.SQLITE_IOERR:
            return StoreBroken(f"the disk of the database {path} fails ({error}): see the system's log")
        case code if code in IN_THE_WAY:
            return StoreUnavailable(f"another process has locked the database {path} ({error})")
        case _:
            return StoreBroken(f"the database {path} refused a statement ({error})")


def replaced(error: sqlite3.Error | None, path: str) -> SchedulerError:
    """The error if the path leads to another file than the open one: no other process would see what is written."""
    told = f" ({error})" if error else ""
    return StoreBroken(
        f"the database file {path} was deleted or replaced while in use{told}; nothing more is written to the old one: "
        "put it back, or restart this process"
    )


def too_busy(error: sqlite3.Error, path: str, waited_s: float) -> SchedulerError:
    """The error if another process holds the lock for too long."""
    return StoreUnavailable(
        f"another process has held the write lock of the database {path} for {waited_s:.0f} s ({error}): look for a "
        "long transaction, a backup or an open sqlite3 shell; fuser shows which processes have the file open"
    )


def in_doubt(error: sqlite3.Error, path: str) -> SchedulerError:
    """The error of a commit; a full disk has certainly committed nothing, in other cases it is unknown."""
    if code_of(error) == sqlite3.SQLITE_FULL:
        return translated(error, path)
    return StoreUnavailable(f"a commit to the database {path} failed ({error}); it is unknown whether it took place")
