"""Servers for one test alone: to restart, to kill, or with a clock of their own."""

import fcntl
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tests.services import clock
from tests.services.catalogue import KINDS
from tests.services.folder import home
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
def private_server(kind: Kind, *, durable: bool = False) -> Iterator[Server]:
    """A server of this test's own, gone at the end: tests that run beside this one do not notice what is done to it."""
    with _folder(kind) as folder, _running(KINDS[kind](folder, durable=durable)) as server:
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
def private_kafka() -> Iterator[Kafka]:
    """A broker of this test's own, to stop, restart or kill."""
    with _folder("kafka") as folder, _running(Kafka(folder)) as server:
        yield server


@contextmanager
def guarded_kafka() -> Iterator[GuardedKafka]:
    """The same, which wants a password and lets a guest do nothing."""
    with _folder("kafka") as folder, _running(GuardedKafka(folder)) as server:
        yield server


@contextmanager
def safe_kafka() -> Iterator[SafeKafka]:
    """The same, which speaks TLS only."""
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
    """Remove private servers whose test was killed."""
    for folder in _all().glob("*-*"):
        kind = next(kind for kind in KINDS if folder.name.startswith(kind))
        with (folder / "maker").open("w") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # its test is still at work
            KINDS[kind](folder).remove()


def _all() -> Path:
    return home() / "private"


@contextmanager
def _folder(kind: Kind) -> Iterator[Path]:
    """A new folder, held by a lock for as long as this process lives."""
    folder = _all() / f"{kind}-{secrets.token_hex(4)}"
    folder.mkdir(parents=True)
    with (folder / "maker").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield folder


@contextmanager
def _running(server: Some) -> Iterator[Some]:
    try:
        server.start()
        yield server
    finally:
        server.remove()
