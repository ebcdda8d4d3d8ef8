"""Locks on files that the system releases when their process ends, however it ends.

A POSIX record lock belongs to a process and a file: the process loses it when it closes *any* handle of that file, as a
program does that only reads it. Linux also has locks of open file descriptions, OFD: such a lock belongs to the handle
and goes with its last copy; forked children have copies. Locks of both kinds exclude each other.
"""

import errno
import fcntl
import logging
import os
import struct
import sys
from pathlib import Path
from typing import Final

# The same on all Linux machines; some Pythons have been built without the names.
_OFD_GETLK: Final = 36
_OFD_SETLK: Final = 37

_FLOCK: Final = "@hhqqi0q"
"""C's struct flock on Linux: l_type, l_whence, l_start, l_len, l_pid; the zero-length number at the end pads it."""

_WHOLE_FILE: Final = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def lock(handle: int) -> None:
    """Lock the file of this handle; raises an OSError if another one has locked it."""
    if OFD:
        fcntl.fcntl(handle, _OFD_SETLK, _WHOLE_FILE)
    else:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def share(handle: int, start: int, length: int) -> None:
    """Take a shared lock on a part of the file; it excludes exclusive locks. Needs OFD locks."""
    fcntl.fcntl(handle, _OFD_SETLK, struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, start, length, 0))


def release(handle: int) -> None:
    """Let go of all that this handle has locked. Needs OFD locks."""
    fcntl.fcntl(handle, _OFD_SETLK, struct.pack(_FLOCK, fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))


def is_locked(handle: int) -> bool:
    """Has another handle locked this file? Without OFD locks only those of other processes count."""
    if OFD:
        return _first_in_the_way(handle) != fcntl.F_UNLCK
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.lockf(handle, fcntl.LOCK_UN)
    return False


def _first_in_the_way(handle: int) -> int:
    """The type of a lock that excludes ours; F_UNLCK if there is none."""
    answer = fcntl.fcntl(handle, _OFD_GETLK, _WHOLE_FILE)
    return int(struct.unpack(_FLOCK, answer)[0])


_told: set[tuple[str, int | None]] = set()
"""The files that could not be locked, with the reason, as far as it was said."""


def tell_failed(path: Path | str, error: OSError) -> None:
    """Say, once, that a file has only SQLite's own locks. If it is gone, the next commit says so."""
    case = str(path), error.errno
    if error.errno != errno.ENOENT and case not in _told:
        _told.add(case)
        logging.getLogger("infinite_scheduler.store").warning(
            "%s cannot be locked (%s), so commits may be lost if this process also reads files of its database itself, "
            "as a handler does that copies them: make the file available, and start the process again",
            path,
            error.strerror or error,
        )


def _has_ofd() -> bool:
    if sys.platform != "linux":
        return False
    handle = os.open(os.devnull, os.O_RDWR)
    try:
        _first_in_the_way(handle)
    except OSError:  # an older kernel, or something that only looks like Linux
        return False
    else:
        return True
    finally:
        os.close(handle)


OFD: Final = _has_ofd()
"""Has this system OFD locks? If not, a process may lose its locks while it lives."""
