"""Runs a command while the servers run, and stops afterwards what was started for it."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from tests.services.catalogue import VARIABLES, each, shared_servers
from tests.services.folder import MEMORY, home, in_memory
from tests.services.private import remove_left_over
from tests.services.server import Server

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(command: Sequence[str], *, durable: bool = False) -> int:
    """The exit code of the command, which finds the servers' addresses in its environment."""
    child = Child()
    with child.signals_passed_on(), _in_use(durable=durable):
        addresses = {VARIABLES[server.kind]: server.url for server in shared_servers(durable=durable)}
        return child.run(command, _place_for_files(durable=durable) | os.environ | addresses)


def _place_for_files(*, durable: bool) -> dict[str, str]:
    """Where tests make their files, unless TMPDIR says it: not on a disk, for which most would wait."""
    return {"TMPDIR": str(MEMORY)} if in_memory() and not durable else {}


class Child:
    """The command, once it runs. Signals before that end this process, in order; later ones go to the command."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._done = False

    def run(self, command: Sequence[str], environment: dict[str, str]) -> int:
        try:
            self._process = subprocess.Popen(command, env=environment)
            code = self._process.wait()
        except OSError as error:
            print(f"{command[0]}: {error.strerror}", file=sys.stderr)
            return 127
        finally:
            self._done = True  # nothing but the stopping of servers is left, and that is not to be disturbed
        return code if code >= 0 else 128 - code  # as a shell says that it was killed

    @contextmanager
    def signals_passed_on(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._receive) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._done:
            return
        if self._process is None:
            self._done = True
            raise SystemExit(128 + number)
        if number != signal.SIGINT or not _in_foreground():
            self._process.send_signal(number)


@contextmanager
def _in_use(*, durable: bool) -> Iterator[None]:
    """Start what does not run. Whoever is the last to need it stops what was started by a run, and only that."""
    servers = shared_servers(durable=durable)
    with (home() / ("in-use-durable" if durable else "in-use")).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        try:
            each(servers, lambda server: server.start(temporary=True))
            yield
        finally:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass  # another run goes on; it stops them
            else:
                remove_left_over()
                each([server for server in servers if server.temporary], Server.stop)


def _in_foreground() -> bool:
    """Whether Ctrl+C reaches the command without our help."""
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False
