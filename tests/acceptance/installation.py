"""The product as users get it: the wheel, built from this source and installed in an environment of its own."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.command import NO_HTTP

ROOT = Path(__file__).parents[2]
DRIVERS = "mysql,postgres"
WHEELS = ROOT / ".cache" / "wheels"
PLACES = ROOT / ".cache" / "acceptance"

KEPT_S = 3600
"""An environment that no test run has begun with for an hour is removed."""


class Installation(NamedTuple):
    """An environment that has the wheel and what it needs, nothing else."""

    folder: Path

    @property
    def command(self) -> str:
        return str(self.folder / "bin" / "infinite-scheduler")

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")


def install(extras: str = "") -> Installation:
    """Build the wheel and install it offline, with these extras; the same is installed once, whoever asks."""
    PLACES.mkdir(parents=True, exist_ok=True)
    with _alone():
        folder = PLACES / _name(extras)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _make(folder, extras)
        (folder / "complete").touch()
        _remove_old(folder)
    return Installation(folder)


@contextmanager
def _alone() -> Iterator[None]:
    """One process at a time: several workers of one test run, or several runs, may ask at once."""
    with (PLACES / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _name(extras: str) -> str:
    """The same for the same sources, on the same Python, with the same packages around it."""
    digest = hashlib.sha256(f"{sys.version} {sys.prefix} {extras}".encode())
    for path in sorted(_sources()):
        digest.update(f"{path.relative_to(ROOT)} {path.stat().st_size} ".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _sources() -> Iterator[Path]:
    """The files that the wheel, and what is installed beside it, are made from."""
    yield from (ROOT / name for name in ("pyproject.toml", "requirements.lock", "README.md", "LICENSE"))
    for path in (ROOT / "src").rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            yield path


def _make(folder: Path, extras: str) -> None:
    with tempfile.TemporaryDirectory(dir=PLACES, prefix="build-") as build:
        _run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", build, str(ROOT))
        (wheel,) = Path(build).glob("*.whl")
        _install(folder, f"{wheel}[{extras}]" if extras else str(wheel))


def _install(folder: Path, wheel: str) -> None:
    # As pip would do it, in a third of the time.
    uv = (str(Path(sys.executable).with_name("uv")), "--quiet", "--no-config", "--no-cache", "--offline")
    _run(*uv, "venv", "--python", sys.executable, str(folder))
    place = ("--python", str(folder / "bin" / "python"), "--no-index", "--find-links", str(WHEELS))
    _run(*uv, "pip", "install", "--compile-bytecode", *place, wheel)


def _remove_old(current: Path) -> None:
    for folder in PLACES.iterdir():
        if not folder.is_dir() or folder == current or folder.name.startswith("build-"):
            continue
        stamp = folder / "complete"
        if not stamp.exists() or time.time() - stamp.stat().st_mtime > KEPT_S:
            shutil.rmtree(folder, ignore_errors=True)


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, env=clean_environment())
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")


def clean_environment() -> dict[str, str]:
    """This process's environment without anything that would lead Python or the scheduler elsewhere."""
    leading = ("PYTHON", "INFINITE_SCHEDULER_", "PIP_", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(leading)} | NO_HTTP


if __name__ == "__main__":  # before the tests begin, so that none has to wait for it
    install()
    install(DRIVERS)
