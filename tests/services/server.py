"""One private server: it is made, started, stopped, killed and found again by what is in its folder."""

import fcntl
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal

from tests.services import process
from tests.services.folder import account, give, home

Kind = Literal["mariadb", "postgres", "kafka"]

ADMIN = "admin"
"""The user that may do everything."""


class NotStarted(RuntimeError):
    """A server did not come up; the message has the end of its log."""


class Server(ABC):
    """A server with a folder of its own, reached on loopback by a port that is chosen once."""

    kind: ClassVar[Kind]
    ask: ClassVar[signal.Signals]  # what makes it stop without waiting for its clients
    is_copied: ClassVar[bool] = False  # whether its empty data folder is a copy: making one takes seconds

    def __init__(self, folder: Path, *, durable: bool = False, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.durable = durable
        self.data = folder / "data"
        self.log = folder / "log"
        self._temporary_files = folder / "tmp"  # its own: MariaDB removes those of others when it starts
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None

    # What differs between servers

    @property
    @abstractmethod
    def url(self) -> str:
        """Where the user `admin` finds it; a database server's leads to a database that is always there."""

    @abstractmethod
    def _initialise(self, data: Path) -> None:
        """Make an empty data folder that knows the user `admin`."""

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """What runs in the foreground until it is told to stop."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it takes connections."""

    @abstractmethod
    def _forget_last_run(self) -> None:
        """Remove what a killed server leaves behind that would keep the next one from starting."""

    # What is remembered

    @property
    def port(self) -> int:
        return int(self._remembered()["port"])

    @property
    def password(self) -> str:
        return str(self._remembered()["password"])

    @property
    def pid(self) -> int | None:
        """Its process, if that is alive and really this server."""
        try:
            pid = int((self.folder / "pid").read_text())
        except (FileNotFoundError, ValueError):
            return None
        return pid if process.is_ours(pid, self.data) else None

    @property
    def temporary(self) -> bool:
        """Whether it was started for the length of a run only."""
        return bool(self._remembered().get("temporary"))

    # Life

    def start(self, *, temporary: bool = False) -> bool:
        """Make sure that it runs and answers; True if it did not run before."""
        with self._alone():
            if self.pid is not None:
                if self._process and self._process.poll() is not None:
                    self._process = None  # it was killed and started again by somebody else
                self._wait()
                self._remember(temporary=temporary and self.temporary)
                return False
            self._prepare()
            for _ in range(3):
                self._remember(port=self._free_port(), temporary=temporary)
                if self._launch():
                    return True
            raise NotStarted(f"{self.kind} found no free port\n{self._end_of_log()}")

    def stop(self) -> None:
        """Let it stop as an operator would."""
        with self._alone():
            if (pid := self.pid) is not None:
                process.end(pid, self.data, self.ask)
            self._reap()

    def kill(self) -> None:
        """Let it die without any chance to do something about it."""
        with self._alone():
            if (pid := self.pid) is not None:
                process.kill(pid, self.data)
            self._reap()

    def restart(self, away_s: float = 0) -> None:
        """Stop it, stay away for some seconds, start it again on the same port."""
        temporary = self.temporary
        self.stop()
        time.sleep(away_s)
        self.start(temporary=temporary)

    def remove(self) -> None:
        """Kill it and remove its data."""
        self.kill()
        shutil.rmtree(self.folder)

    # Parts of starting

    def _prepare(self) -> None:
        (self.folder / "pid").unlink(missing_ok=True)
        self._temporary_files.mkdir(mode=0o700, exist_ok=True)
        give(self._temporary_files)
        if self.data.exists():
            self._forget_last_run()
            return
        half_made = self.folder / "data.new"
        shutil.rmtree(half_made, ignore_errors=True)
        if self.is_copied and self.folder != self._blank.folder:
            self._copy_blank(half_made)
        else:
            self._remember(password=secrets.token_hex(8))
            half_made.mkdir(mode=0o700)
            give(half_made)
            self._initialise(half_made)
        half_made.rename(self.data)

    @property
    def _blank(self) -> "Server":
        """One that never runs: it has the data folder that others begin with, and the password that is in it."""
        return type(self)(home() / "blank" / self.kind)

    def _copy_blank(self, data: Path) -> None:
        blank = self._blank
        with blank._alone():
            if not blank.data.exists():
                blank._prepare()
        self._remember(password=blank.password)
        subprocess.run(["cp", "--archive", "--sparse=never", str(blank.data), str(data)], check=True)

    def _launch(self) -> bool:
        """Start it and wait for its first answer; False if somebody else took the port in between."""
        with self.log.open("ab") as log:
            self._process = self._spawn(self._command(), stdout=log, stderr=log)
        (self.folder / "pid").write_text(str(self._process.pid))
        if self._wait():
            return True
        if is_free(self.port):
            raise NotStarted(f"{self.kind} ended with {self._process.poll()}\n{self._end_of_log()}")
        return False

    def _wait(self) -> bool:
        """Wait until it answers; False if it ended instead."""
        deadline = time.monotonic() + process.PATIENCE_S
        while not self._answers():
            if self._process and self._process.poll() is not None:
                return False
            if time.monotonic() > deadline:
                raise NotStarted(f"{self.kind} did not answer in {process.PATIENCE_S} s\n{self._end_of_log()}")
            time.sleep(0.03)
        return True

    def _run(self, *command: str) -> None:
        """Run a command of the server's package to its end."""
        done = self._spawn(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output, _ = done.communicate(timeout=2 * process.PATIENCE_S)
        if done.returncode:
            raise NotStarted(f"{command[0]} ended with {done.returncode}\n{output.decode(errors='replace')}")

    def _spawn(self, command: Sequence[str], *, stdout: Any, stderr: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={
                "PATH": os.environ["PATH"],
                "HOME": "/",
                "LC_ALL": "C.UTF-8",
                "TZ": "UTC",
                "TMPDIR": str(self._temporary_files),
                **self._environment,
            },
            start_new_session=True,  # Ctrl+C is for the tests, not for the server
            **account(),
        )

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait(process.PATIENCE_S)
            self._process = None

    def _end_of_log(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:]) if self.log.exists() else "no log"

    # Parts of remembering

    def _free_port(self) -> int:
        """The port of the last time, if nobody took it."""
        if (port := self._remembered().get("port")) and is_free(port):
            return int(port)
        return free_port()

    def _remembered(self) -> dict[str, Any]:
        try:
            remembered: dict[str, Any] = json.loads((self.folder / "server.json").read_text())
        except FileNotFoundError:
            return {}
        return remembered

    def _remember(self, **facts: Any) -> None:
        file = self.folder / "server.json"
        new = file.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text(json.dumps(self._remembered() | facts))
        new.replace(file)  # readers never see half of it

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process at a time: several workers of one test run, or several runs, may start and stop it at once."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def free_port() -> int:
    """A port that nobody listens on."""
    return next(port for port in iter(_any_port, None) if is_free(port))


def is_free(port: int) -> bool:
    """Whether a server could listen there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _any_port() -> int:
    """A port that the kernel gives to no client: one of those could take the port while the server is away.

    It could even be the one that tries to reconnect, which would then talk to itself.
    """
    first_of_clients = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return random.randrange(10_000, max(first_of_clients, 20_000))
