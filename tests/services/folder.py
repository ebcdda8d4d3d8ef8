"""Where the servers keep their data, and the account they run as."""

import hashlib
import os
import pwd
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import TypedDict

PROJECT = Path(__file__).parents[2]

MEMORY = Path("/dev/shm")
ROOM = 6 << 30
"""Bytes that must be free there: a run of all tests needs less than half of it."""


class Account(TypedDict, total=False):
    """Arguments of `subprocess` by which a process runs as somebody else; none: as whoever started the tests."""

    user: int
    group: int
    extra_groups: list[int]


def is_root() -> bool:
    return os.geteuid() == 0


@cache
def account() -> Account:
    """Who runs the servers: neither refuses nor deserves to be root, and nobody has no rights anywhere else."""
    if not is_root():
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


@cache
def home() -> Path:
    """The folder of servers on disk: `.services/` of the project, or a temporary one if servers cannot reach that."""
    inside = PROJECT / ".services"
    inside.mkdir(exist_ok=True)
    return inside if _can_be_entered(inside) else _outside(Path(tempfile.gettempdir()))


@cache
def passing_home() -> Path:
    """The folder of servers that need not survive a loss of power: in memory if there is room, else on disk too.

    Most of what tests write is databases that are dropped at once: on disk that takes a fifth more of the processor.
    """
    made = _outside_path(MEMORY)
    return _outside(MEMORY) if made.exists() or in_memory() else home()


@cache
def in_memory() -> bool:
    """Is there a file system in memory with room for all that tests write?"""
    if not MEMORY.is_dir() or not os.access(MEMORY, os.W_OK):
        return False
    found = os.statvfs(MEMORY)
    return found.f_bavail * found.f_frsize >= ROOM


def _outside_path(parent: Path) -> Path:
    key = hashlib.sha256(str(PROJECT).encode()).hexdigest()[:16]
    return parent / f"infinite-scheduler-services-{os.geteuid()}-{key}"


def _outside(parent: Path) -> Path:
    """A folder of this project's own below this one."""
    outside = _outside_path(parent)
    outside.mkdir(mode=0o755, exist_ok=True)
    if outside.is_symlink() or outside.stat().st_uid != os.geteuid():
        raise PermissionError(f"{outside} belongs to somebody else")
    return outside


@cache
def kept() -> Path:
    """The folder of what was fetched: `.cache/` of the project, which outlives the servers, if they can reach that."""
    inside = PROJECT / ".cache"
    inside.mkdir(exist_ok=True)
    return inside.resolve() if _can_be_entered(inside.resolve()) else home()


def give(path: Path) -> None:
    """Let a file or folder belong to the servers' account."""
    if who := account():
        os.chown(path, who["user"], who["group"])


def _can_be_entered(folder: Path) -> bool:
    return subprocess.run(["test", "-x", str(folder)], check=False, cwd="/", **account()).returncode == 0
