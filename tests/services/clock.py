"""A clock that a test can set, for one server: libfaketime between the server and the kernel."""

from collections.abc import Mapping
from pathlib import Path


def library() -> str | None:
    """The path of the library for programs with threads."""
    return next((str(path) for path in Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")), None)


def environment(file: Path) -> Mapping[str, str]:
    """What lets a process read its wall clock through `file`; time-outs stay true."""
    return {
        "LD_PRELOAD": library() or "libfaketimeMT.so.1",
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_NO_CACHE": "1",  # a new offset counts at the next look at the clock
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DISABLE_SHM": "1",  # what a killed server would leave in /dev/shm
    }


def set_offset(file: Path, offset_s: float) -> None:
    """Let the clock be wrong by some seconds from now on."""
    new = file.with_suffix(".new")
    new.write_text(f"{offset_s:+.3f}\n")
    new.replace(file)  # the server never reads half of it
