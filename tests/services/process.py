"""A process that may have been started by somebody else before: is it alive, is it ours, how does it end?"""

import os
import signal
import time
from pathlib import Path

PATIENCE_S = 60
"""How long a server may take to start or to stop: the machine may be busy."""


def command_of(pid: int) -> list[str]:
    """The command line of a process; empty if there is none, or if only its exit code is left."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def is_ours(pid: int, data: Path) -> bool:
    """Whether the process lives and works on this data folder: its number may be another process's by now."""
    return any(str(data) in argument for argument in command_of(pid))


def tree(pid: int) -> list[int]:
    """A process and its children, which are all that a server has."""
    children = [int(path.name) for path in Path("/proc").glob("[0-9]*") if _parent(path) == pid]
    return [pid, *children]


def end(pid: int, data: Path, ask: signal.Signals) -> None:
    """Ask a server to stop, and wait until it has; kill it if it does not."""
    os.kill(pid, ask)
    if not _gone(pid, data, PATIENCE_S):
        kill(pid, data)


def kill(pid: int, data: Path) -> None:
    """Let a server die at once, its children with it."""
    os.kill(pid, signal.SIGSTOP)  # it must not see its children die: it would start others
    for each in reversed(tree(pid)):
        os.kill(each, signal.SIGKILL)
    if not _gone(pid, data, PATIENCE_S):
        raise TimeoutError(f"process {pid} was killed and is still there")


def _parent(folder: Path) -> int | None:
    try:
        return int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def _gone(pid: int, data: Path, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while is_ours(pid, data):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
