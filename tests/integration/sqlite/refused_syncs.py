"""A process whose disk takes no sync: the kernel answers every fsync and fdatasync with an error."""

import ctypes
import errno
import os
import platform
import struct
import sys
from typing import Final, NamedTuple


class Calls(NamedTuple):
    """The numbers of system calls on one architecture, and the number of that one."""

    architecture: int
    seccomp: int
    fsync: int
    fdatasync: int


CALLS: Final = {
    "x86_64": Calls(0xC000003E, 317, 74, 75),
    "aarch64": Calls(0xC00000B7, 277, 82, 83),
}

POSSIBLE: Final = sys.platform == "linux" and platform.machine() in CALLS

_NO_NEW_PRIVILEGES: Final = 38
_SET_FILTER, _ALL_THREADS = 1, 1
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EIO

_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
"""Instructions of the kernel's filters: load a word, go on by whether it is equal, return."""


class _Filter(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("program", ctypes.c_char_p))


def refuse_syncs() -> None:
    """Let every sync of this process fail from now on, in all of its threads; it cannot be undone."""
    calls = CALLS[platform.machine()]
    program = b"".join(
        struct.pack("@HBBI", *instruction)
        for instruction in (
            (_LOAD, 0, 0, 4),  # the architecture
            (_EQUAL, 0, 4, calls.architecture),
            (_LOAD, 0, 0, 0),  # the number of the call
            (_EQUAL, 1, 0, calls.fsync),
            (_EQUAL, 0, 1, calls.fdatasync),
            (_RETURN, 0, 0, _REFUSE),
            (_RETURN, 0, 0, _ALLOW),
        )
    )
    libc = ctypes.CDLL(None, use_errno=True)
    wanted = _Filter(len(program) // 8, program)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.syscall(
        calls.seccomp, _SET_FILTER, _ALL_THREADS, ctypes.byref(wanted)
    ):
        raise OSError(ctypes.get_errno(), "the kernel takes no filter of system calls")
    _check()


def _check() -> None:
    """Make sure that syncs fail, and nothing else."""
    handle = os.open(__file__, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        return
    finally:
        os.close(handle)
    raise AssertionError("syncs do not fail")
