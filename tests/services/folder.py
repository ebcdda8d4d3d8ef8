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
    """The folder of all servers: `.services/` of the project, or a temporary one where servers cannot reach that."""
    inside = PROJECT / ".services"
    inside.mkdir(exist_ok=True)
    if _can_be_entered(inside):
        return inside
    key = hashlib.sha256(str(PROJECT).encode()).hexdigest()[:16]
    outside = Path(tempfile.gettempdir()) / f"infinite-scheduler-services-{os.geteuid()}-{key}"
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
