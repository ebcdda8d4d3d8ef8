"""Prometheus' promtool, which checks alert rules: the machine's own, or taken out of Debian's package.

Installing that package would start a Prometheus at each boot.
"""

import fcntl
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.services.folder import kept


class NoPromtool(RuntimeError):
    """It is not here and could not be fetched; the message has what was said."""


def program() -> str | None:
    """Where it is."""
    own = _own()
    return shutil.which("promtool") or (str(own) if own.exists() else None)


def fetch(update: Callable[[], None]) -> None:
    """Make sure that it is here; where it is, this does nothing. `update` brings the list of packages up to date."""
    with _own().with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if program() is None:
            print("fetching promtool", flush=True)
            update()
            _fetch(_own().with_suffix(".new"))


def _own() -> Path:
    return kept() / "promtool"


def _fetch(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    _run(folder, "apt-get", "--quiet", "-o", "APT::Sandbox::User=root", "download", "prometheus")
    (package,) = folder.glob("prometheus_*.deb")
    _run(folder, "dpkg-deb", "--extract", package.name, ".")
    (folder / "usr" / "bin" / "promtool").rename(_own())
    shutil.rmtree(folder)


def _run(folder: Path, *command: str) -> None:
    done = subprocess.run(
        command,
        check=False,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise NoPromtool(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}")
