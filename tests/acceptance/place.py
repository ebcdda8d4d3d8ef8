"""One test's folder: configuration, handlers, database, evidence, and the processes that work there."""

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from tests.acceptance.checker import Blow, Cancel, Evidence, HandOver, read_log
from tests.acceptance.installation import Installation, clean_environment
from tests.waiting import PATIENCE_S, now_ms, until

HANDLERS = Path(__file__).with_name("handlers.py")
SCRIPTS = Path(__file__).parent

LOOK_S = 2
"""How long a look at the file may take while a node stands still: who writes keeps nobody from reading."""

CONCURRENCY = 20
"""How many calls of handlers a node begins at once, if not configured otherwise."""

SOAK = os.environ.get("INFINITE_SCHEDULER_SOAK") == "1"


class ServeProcess:
    """A process that runs `serve`."""

    def __init__(self, command: Sequence[str], folder: Path, name: str) -> None:
        self._out = folder / f"{name}.out"
        self._err = folder / f"{name}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=clean_environment()
            )
        self.name = name
        self.pid = self.process.pid

    @property
    def stderr(self) -> str:
        return self._err.read_text()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def started(self) -> bool:
        return '"started"' in self._out.read_text()

    @property
    def node_id(self) -> str:
        """Its name in the store."""
        return str(json.loads(self._out.read_text().splitlines()[0])["node"])

    def ready(self) -> "ServeProcess":
        """Wait until it says that it runs."""
        until(lambda: self.started or not self.alive, f"start of {self.name}")
        assert self.started, f"{self.name} ended with {self.process.returncode}: {self.stderr}"
        return self

    def kill(self) -> None:
        """Let it die without any chance to do something about it."""
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def freeze(self) -> None:
        """Let it stand still; on return it does."""
        self.process.send_signal(signal.SIGSTOP)
        until(lambda: _state(self.pid) == "T", f"{self.name} frozen", every_s=0.001)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def ask_to_stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def stop(self, within_s: float = PATIENCE_S) -> int:
        """Ask it to stop, and wait for the exit code."""
        self.ask_to_stop()
        return self.exit_code(within_s)

    def exit_code(self, within_s: float = PATIENCE_S) -> int:
        return self.process.wait(within_s)

    def end(self) -> None:
        """Whatever it does, it is over."""
        if self.alive:
            self.thaw()
            self.process.kill()
        self.process.wait(PATIENCE_S)


def _state(pid: int) -> str:
    """The letter by which the kernel says what a process does."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


class Place:
    """A folder where nodes and commands of one test work on one database."""

    app = "work"

    def __init__(self, folder: Path, installation: Installation) -> None:
        self.folder = folder
        self.installation = installation
        self.database = folder / "jobs.db"
        self.config = folder / "scheduler.toml"
        self.log = folder / "handed_over.log"
        self.nodes: list[ServeProcess] = []
        shutil.copy(HANDLERS, folder / "handlers.py")

    # Set-up

    def configure(self, function: str = "record", *, node: str = "", app: str = "", more: str = "") -> None:
        """Write the configuration: one app, with further lines for [node], [apps.work] and the end."""
        self.config.write_text(
            f'[store]\nurl = "sqlite:///{self.database}"\n[node]\n{node}\n'
            f'[apps.{self.app}]\nfunction = "handlers:{function}"\n{app}\n{more}\n'
        )

    # Processes

    def node(self, config: Path | None = None) -> ServeProcess:
        """Start a node."""
        command = [self.installation.command, "serve", "--config", str(config or self.config), "--json"]
        node = ServeProcess(command, self.folder, f"node-{len(self.nodes) + 1}")
        self.nodes.append(node)
        return node

    def run(self, *arguments: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        done = subprocess.run(
            [self.installation.command, *arguments, "--config", str(self.config)],
            cwd=self.folder,
            check=False,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
            env=clean_environment(),
        )
        assert code is None or done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def script(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        """Start one of the scripts beside this file, with the installed product."""
        return subprocess.Popen(
            [self.installation.python, str(SCRIPTS / name), *arguments],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(),
        )

    def freeze(self, *nodes: ServeProcess) -> list[Blow]:
        """Let nodes stand still, and look what the store has not heard of; when they go on is for the caller to say."""
        for node in nodes:
            node.freeze()
        blow = Blow(0, now_ms())
        # One that is just opening the file keeps it from everybody, and has nothing in its hands.
        with suppress(sqlite3.OperationalError):
            blow = blow._replace(unsettled=self.unsettled(), alone=self.alone())
        return [blow._replace(pid=node.pid) for node in nodes]

    def kill(self, *nodes: ServeProcess) -> list[Blow]:
        """Let nodes die without any chance to do something about it."""
        blows = self.freeze(*nodes)
        for node in nodes:
            node.kill()
        return blows

    def end(self) -> None:
        """End every node that still runs."""
        for node in self.nodes:
            node.end()

    # Work

    def schedule(self, jobs: Iterable[Mapping[str, Any]], app: str | None = None) -> dict[str, int]:
        """Schedule the jobs; the ids that were answered, and their moments."""
        file = self.folder / f"jobs-{now_ms()}.ndjson"
        file.write_text("".join(f"{json.dumps(job)}\n" for job in jobs))
        lines = self.run("schedule", app or self.app, "--from", str(file), "--json").stdout.splitlines()
        return {answer["id"]: answer["due_ms"] for answer in map(json.loads, lines)}

    # Evidence

    def handed_over(self) -> list[HandOver]:
        return read_log(self.log)

    def evidence(
        self, promised: Mapping[str, int], blows: Sequence[Blow] = (), cancels: Mapping[str, Cancel] | None = None
    ) -> Evidence:
        return Evidence(promised, self.handed_over(), blows, cancels or {})

    def rows(self) -> dict[str, tuple[str, str | None]]:
        """Status and error of every job in the database, read without the scheduler."""
        return {job: (status, error) for job, status, error in self._each("SELECT job_id, status, error FROM {table}")}

    def unsettled(self) -> set[tuple[str, int]]:
        """The deliveries, job and attempt, of which the database does not say how they ended."""
        return set(self._each("SELECT job_id, attempt FROM {table} WHERE status = 'pending'", LOOK_S))

    def alone(self) -> set[str]:
        """The jobs that were handed over alone, as what they were with had ended its process before."""
        query = "SELECT job_id FROM {table} JOIN scheduler_marks ON scheduler_marks.id = {table}.id WHERE size = 1"
        return {job for (job,) in self._each(query, LOOK_S)}

    def all_done(self, jobs: Collection[str], blows: Sequence[Blow] = ()) -> None:
        """Every job is done; one that was alone in the hands of a process that was struck may have failed instead."""
        rows = self.rows()
        blamed = {job for blow in blows for job in blow.alone if rows[job][0] == "failed"}
        assert rows.keys() == set(jobs)
        undone = {job: row for job, row in rows.items() if row[0] != "done" and job not in blamed}
        assert not undone, f"{len(undone)} jobs: {list(undone.items())[:3]}"

    def _each(self, query: str, within_s: float = PATIENCE_S) -> list[tuple[Any, ...]]:
        """What a query finds in all tables of jobs."""
        with closing(self.connect(within_s)) as database:
            like = f"{self.app}_scheduled_jobs_%"
            tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE ?", (like,))
            return [
                row for (table,) in tables.fetchall() for row in database.execute(query.format(table=table)).fetchall()
            ]

    def statuses(self) -> Counter[str]:
        """How many jobs have which status."""
        return Counter(status for status, _ in self.rows().values())

    def settled(self, within_s: float = PATIENCE_S) -> None:
        """Wait until no job is pending."""
        until(lambda: not self.statuses()["pending"], "all jobs settled", within_s)

    def owners(self) -> Counter[str]:
        """How many shards each node owns, by its id; "" for nobody."""
        query = (
            "SELECT coalesce(n.node_id, s.owner_nonce), count(*) FROM scheduler_shards s "
            "LEFT JOIN scheduler_nodes n ON n.nonce = s.owner_nonce WHERE s.app = ? GROUP BY 1"
        )
        with closing(self.connect()) as database:
            return Counter(dict(database.execute(query, (self.app,)).fetchall()))

    def connect(self, within_s: float = PATIENCE_S) -> sqlite3.Connection:
        return sqlite3.connect(self.database, timeout=within_s, isolation_level=None)


class Killer(threading.Thread):
    """Kills the node at given moments, and starts another one each time."""

    def __init__(self, place: Place, moments: Sequence[int] = ()) -> None:
        super().__init__()
        self._place = place
        self.moments = moments
        self.made: list[Blow] = []
        self._node = place.node()

    def run(self) -> None:
        for moment_ms in sorted(self.moments):
            time.sleep(max(0, moment_ms - now_ms()) / 1000)
            if random.random() < 0.8:  # on a busy machine it would always be while they start
                self._node.ready()
                time.sleep(random.uniform(0, 0.5))
            self.made += self._place.kill(self._node)
            self._node = self._place.node()
        self._node.ready()
