"""The handlers of the acceptance tests: they run inside the nodes and write down what they were given.

The file is copied beside a test's configuration, so it imports nothing of the tests, and nothing of the scheduler.
"""

import asyncio
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LOG = HERE / "handed_over.log"
ENDED = HERE / "ended.log"

RECORD = 128
"""Bytes of a line. As it divides a page, no line lies on two, and a kill in the middle of write(2) cannot tear one."""


def write_down(job: Any, path: Path = LOG) -> None:
    """One line, in one write, in the order in which processes come."""
    line = f"{job.id} {job.attempt} {job.due_ms} {time.time_ns() // 1_000_000} {os.getpid()}"
    os.write(_opened(path), line.ljust(RECORD - 1).encode() + b"\n")


_handles: dict[Path, int] = {}


def _opened(path: Path) -> int:
    if path not in _handles:
        _handles[path] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    return _handles[path]


async def record(job: Any) -> None:
    """Write the hand-over down, nothing else."""
    write_down(job)


OWN_LOG, OWN_ENDED = (HERE / f"{name}-{os.getpid()}.log" for name in ("handed_over", "ended"))
"""Files of this process alone."""


async def record_apart(job: Any) -> None:
    """Write the hand-over down in a file of this process alone."""
    write_down(job, OWN_LOG)


async def testify(job: Any) -> None:
    """Work for as many seconds as the data says, then fail: the error that is kept says which process was heard."""
    write_down(job, OWN_LOG)
    await asyncio.sleep(job.data)
    write_down(job, OWN_ENDED)
    raise RuntimeError(f"heard from process {os.getpid()}")


async def linger(job: Any) -> None:
    """Write the hand-over down, work for as many seconds as the data says, write the end down."""
    write_down(job)
    await asyncio.sleep(job.data)
    write_down(job, ENDED)


def never_end(job: Any) -> None:
    """A sync function that nothing can stop."""
    write_down(job)
    threading.Event().wait()


async def maybe_die(job: Any) -> None:
    """Kill the process, if the data says so."""
    write_down(job)
    if job.data == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(0.01)


def maybe_die_in_a_thread(job: Any) -> None:
    """A sync function that ends the process without a word, if the data says so."""
    write_down(job)
    if job.data == "exit":
        os._exit(7)
    time.sleep(0.01)


async def fail_at_first(job: Any) -> None:
    """Fail the first attempt of every job."""
    write_down(job)
    if job.attempt == 1:
        raise ConnectionError("the other side is not there yet")


def compute(job: Any) -> None:
    """Work for a process of a pool."""
    write_down(job)
    time.sleep(0.02)
