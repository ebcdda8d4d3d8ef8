"""Servers for one test alone: to restart, to kill, or with a clock of their own.

A server that takes long to start is lent: the next test, of whichever worker, has it as the last one left it.
"""

import fcntl
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TypeVar

from tests.services import clock
from tests.services.catalogue import KINDS
from tests.services.folder import passing_home
from tests.services.kafka import GuardedKafka, Kafka, SafeKafka
from tests.services.server import Kind, Server

Some = TypeVar("Some", bound=Server)


class Clock:
    """A server's wall clock."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0)

    def set(self, offset_s: float) -> None:
        """Let it be wrong by some seconds from now on."""
        clock.set_offset(self._file, offset_s)


@contextmanager
def private_server(kind: Kind) -> Iterator[Server]:
    """A server of this test's own, gone at the end: tests that run beside this one do not notice what is done to it."""
    with _folder(kind) as folder, _running(KINDS[kind](folder)) as server:
        yield server


@contextmanager
def clocked_server(kind: Kind) -> Iterator[tuple[Server, Clock]]:
    """The same, with a wall clock that the test can set while the server runs."""
    with _folder(kind) as folder:
        file = folder / "clock"
        its_clock = Clock(file)
        with _running(KINDS[kind](folder, environment=clock.environment(file))) as server:
            yield server, its_clock


@contextmanager
def lent_kafka() -> Iterator[Kafka]:
    """A broker to stop, restart or kill, for this test until the end of it."""
    with _lent("kafka", copies=2) as folder:
        yield _started(Kafka, folder)


@contextmanager
def lent_guarded_kafka() -> Iterator[GuardedKafka]:
    """The same, which wants a password and lets a guest do nothing."""
    with _lent("kafka-guarded", copies=1) as folder:
        yield _started(GuardedKafka, folder)


@contextmanager
def safe_kafka() -> Iterator[SafeKafka]:
    """A broker of this test's own that speaks TLS only."""
    with _folder("kafka") as folder, _running(SafeKafka(folder)) as server:
        yield server


@contextmanager
def small_disk_server(kind: Kind, size: str) -> Iterator[tuple[Server, Path]]:
    """The same on a disk of its own, and the folder where that is mounted; needs the right to mount."""
    with _folder(kind) as folder:
        disk = folder / "disk"
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], check=True)
        try:
            server = KINDS[kind](disk)
            try:
                server.start()
                yield server, disk
            finally:
                server.kill()
        finally:
            subprocess.run(["umount", "--lazy", str(disk)], check=True)
            shutil.rmtree(folder)


def remove_left_over() -> None:
    """Remove servers that were lent, and those whose test was killed."""
    for folder in _all().glob("*-*"):
        kind = next(kind for kind in KINDS if folder.name.startswith(kind))
        with (folder / "maker").open("w") as held:
            if _locked(held):  # otherwise its test is still at work
                KINDS[kind](folder).remove()


def _all() -> Path:
    return passing_home() / "private"


@contextmanager
def _folder(kind: Kind) -> Iterator[Path]:
    """A new folder, held by a lock for as long as this process lives."""
    folder = _all() / f"{kind}-{secrets.token_hex(4)}"
    folder.mkdir(parents=True)
    with (folder / "maker").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield folder


@contextmanager
def _lent(name: str, copies: int) -> Iterator[Path]:
    """The folder of a server that stays until the end of the run; while it is lent to one test, others wait for it."""
    folders = [_all() / f"{name}-{i}" for i in range(copies)]
    with ExitStack() as opened:
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        locks = [opened.enter_context((folder / "maker").open("w")) for folder in folders]
        free = next((i for i, lock in enumerate(locks) if _locked(lock)), None)
        if free is None:
            free = os.getpid() % copies
            fcntl.flock(locks[free], fcntl.LOCK_EX)
        yield folders[free]


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_lent_before: dict[Path, Server] = {}
"""What this process has started lives on after it was given back."""


def _started(kind: type[Some], folder: Path) -> Some:
    server = _lent_before.setdefault(folder, kind(folder))
    assert isinstance(server, kind)
    server.start()
    return server


@contextmanager
def _running(server: Some) -> Iterator[Some]:
    try:
        server.start()
        yield server
    finally:
        server.remove()
