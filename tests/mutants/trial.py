"""Runs tests on a copy of the package, in which one guard may be missing."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.mutants.mutant import PACKAGE, Mutant

ROOT = PACKAGE.parents[1]

OPTIONS = ("-n", "0", "-x", "-q", "-p", "no:cacheprovider", "-p", "tests.mutants.copy_check")

COPY = "MUTANT_COPY"
"""The environment variable that tells the tests where the package must come from."""

FAILED = 1
"""Pytest's exit code if a test was red; all others but 0 mean that no test was judged."""

MEMORY = Path("/dev/shm")
"""Where there is such a folder, files of tests are kept in memory: what waits for a disk most of the time is faster."""

LEAST_S = 10.0
SLOWER = 3
"""A test hangs if it takes longer than this, or than so many times the whole set with all guards."""

TEST_HUNG = re.compile(r"Timeout \(?>?\d")

_running: set["subprocess.Popen[str]"] = set()


@dataclass(frozen=True, slots=True)
class Trial:
    """How a set of tests has ended."""

    code: int
    took_s: float
    output: str
    hung: bool = False

    @property
    def green(self) -> bool:
        return self.code == 0

    @property
    def red(self) -> bool:
        """Has a test failed, or taken forever? Tests that could not be run are neither red nor green."""
        return self.hung or self.code == FAILED

    @property
    def first_red(self) -> str:
        """The name of the test that has failed."""
        found = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - |$)", self.output, re.MULTILINE)
        return found[1].rpartition("::")[2] if found else ""


@contextmanager
def copied(mutant: Mutant | None = None) -> Iterator[Path]:
    """A folder with a copy of the package; the working tree stays as it is."""
    with TemporaryDirectory(prefix="mutant-", dir=MEMORY if MEMORY.is_dir() else None) as folder:
        shutil.copytree(PACKAGE, Path(folder, PACKAGE.name))
        if mutant is not None:
            Path(folder, PACKAGE.name, mutant.file).write_text(mutant.applied(), encoding="utf-8")
        yield Path(folder)


def environment(folder: Path) -> dict[str, str]:
    """Python finds the package in this folder before the installed one; processes that tests start inherit that."""
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path, COPY: str(folder)}


def origin(folder: Path) -> str:
    """Where a new process finds the package."""
    command = [sys.executable, "-c", "import infinite_scheduler; print(infinite_scheduler.__file__)"]
    done = subprocess.run(command, cwd=ROOT, env=environment(folder), capture_output=True, text=True, check=True)
    return done.stdout.strip()


def run(tests: tuple[str, ...], mutant: Mutant | None = None, usual_s: float | None = None) -> Trial:
    """Run tests without a guard, or with all of them."""
    longest_s = None if usual_s is None else LEAST_S + SLOWER * usual_s
    limit = () if longest_s is None else ("--timeout", f"{longest_s:.0f}")
    with copied(mutant) as folder:
        began_s = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *OPTIONS, "--basetemp", f"{folder}/files", *limit, *tests],
            cwd=ROOT,
            env=environment(folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        _running.add(process)
        try:
            output, _ = process.communicate(timeout=longest_s and 2 * longest_s)
        except subprocess.TimeoutExpired:
            _end(process)
            output, _ = process.communicate()
            return Trial(FAILED, time.monotonic() - began_s, output, hung=True)
        except BaseException:
            _end(process)
            raise
        finally:
            _running.discard(process)
        took_s = time.monotonic() - began_s
        hung = process.returncode == FAILED and TEST_HUNG.search(output) is not None
        return Trial(process.returncode, took_s, output, hung)


def end_all() -> None:
    """End all tests that are being run, in whatever thread."""
    for process in set(_running):
        if process.poll() is None:
            _end(process)


def _end(process: "subprocess.Popen[str]") -> None:
    """End the tests, and what they have started."""
    os.killpg(process.pid, signal.SIGKILL)
