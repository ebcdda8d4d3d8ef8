"""One test's nodes on a database server, the load they bear, and what the server and the handlers say about it."""

import subprocess
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.acceptance.checker import Blow, Evidence, HandOver, Verdict, judge, read_log
from tests.acceptance.installation import Installation, clean_environment
from tests.acceptance.place import SCRIPTS, SOAK, Place, ServeProcess
from tests.services.databases import execute
from tests.waiting import PATIENCE_S, now_ms, until

LEASE_MS, HEARTBEAT_MS = (10_000, 2_000) if SOAK else (4_000, 1_000)

WINDOW = "" if SOAK else '[window]\nlookahead = "2s"\nfetch_interval = "1s"\n'
"""A short run has a short window, so that lines move and jobs are found in every way."""

AHEAD_MS = 40_000 if SOAK else 3_000
"""So long before their moment jobs are asked for at most: some within the window, some beyond it."""

SLACK_MS = 0 if SOAK else 8_000
"""What a busy machine may add to a delay in a short run."""

COMMON, RARE = "work", "rare"
"""An app that every node runs, and one that only some do."""

RATES = {COMMON: 1900, RARE: 100} if SOAK else {COMMON: 270, RARE: 30}
"""Jobs due in a second."""

FEW = 20
"""Jobs due in a second of an app whose handler takes long."""


class Accepted(NamedTuple):
    """A job that was asked for, and the answer that it is durable."""

    app: str
    due_ms: int
    accepted_ms: int


class Load:
    """A process that brings jobs in until it is told that it is enough."""

    def __init__(self, command: Sequence[str], answers: Path) -> None:
        self._answers = answers
        self._errors = answers.with_suffix(".err")
        with self._answers.open("wb") as out, self._errors.open("wb") as err:
            self._process = subprocess.Popen(command, stdout=out, stderr=err, env=clean_environment())
        until(lambda: self._answers.stat().st_size or self._process.poll() is not None, "the first jobs")
        self.start_ms = now_ms()

    def lasts_ms(self) -> int:
        """For how long it has brought jobs in."""
        return now_ms() - self.start_ms

    def accepted(self) -> dict[str, Accepted]:
        """Let it end; all jobs that were accepted, by their ids."""
        self._process.terminate()
        code = self._process.wait(PATIENCE_S)
        assert code == 0, f"the load ended with {code}: {self._errors.read_text()}"
        lines = (line.split() for line in self._answers.read_text().splitlines())
        return {job: Accepted(app, int(due_ms), int(accepted_ms)) for job, app, due_ms, accepted_ms in lines}

    def end(self) -> None:
        """Whatever it does, it is over."""
        self._process.kill()
        self._process.wait(PATIENCE_S)


class Report(NamedTuple):
    """What is to be said about a run."""

    verdict: Verdict
    late_ms: Sequence[int]  # how late each job was handed over first, after its moment or its acceptance, in order

    @property
    def latest_ms(self) -> int:
        return self.late_ms[-1]

    def __str__(self) -> str:
        late = self.late_ms
        return (
            f"{len(late):,} jobs, {len(self.verdict.explained)} + {len(self.verdict.woken)} repeats explained, "
            f"late by p50 {late[len(late) // 2]} ms, p99 {late[len(late) * 99 // 100]} ms, most {late[-1]} ms"
        )


class Cluster(Place):
    """A folder where nodes of two kinds, and the load, work on one database of a server."""

    def __init__(self, folder: Path, installation: Installation, url: str) -> None:
        super().__init__(folder, installation)
        self.url = url
        self.common = folder / "common.toml"
        self._load: Load | None = None
        self.arrange()

    def arrange(self, more: str = "") -> None:
        """Write a configuration with all apps, and one with the common app alone; `more` is for the end of both."""
        head = f'[store]\nurl = "{self.url}"\n[node]\nlease = "{LEASE_MS}ms"\nheartbeat = "{HEARTBEAT_MS}ms"\n{WINDOW}'
        common = f'[apps.{COMMON}]\nfunction = "handlers:record_apart"\n'
        rare = f'[apps.{RARE}]\nfunction = "handlers:record_apart"\nshards = 4\n'
        self.common.write_text(head + common + more)
        self.config.write_text(head + common + rare + more)

    # Processes

    def three_nodes(self) -> list[ServeProcess]:
        """Two that run all apps and one that runs the common one, when each has its part of the work."""
        nodes = [self.node(), self.node(), self.node(self.common)]
        self.shared(nodes)
        return nodes

    def shared(self, nodes: Collection[ServeProcess]) -> None:
        """Wait until each of these nodes owns its part of the common app's shards, and nobody else owns any."""
        for node in nodes:
            node.ready()
        names = {node.node_id for node in nodes}
        until(lambda: self._is_shared(names), f"{len(names)} nodes share the work", every_s=0.1)

    def _is_shared(self, names: Collection[str]) -> bool:
        owners = self.owners()
        return owners.keys() == names and max(owners.values()) - min(owners.values()) <= 1

    def load(self, **more: int) -> Load:
        """Begin to bring jobs in; `more` are other apps of which a few come in each second, and their data."""
        streams = [f"{app}:{rate}:0" for app, rate in RATES.items()]
        streams += [f"{app}:{FEW}:{data}" for app, data in more.items()]
        script = str(SCRIPTS / "load.py")
        command = [self.installation.python, script, self.url, str(AHEAD_MS), *streams]
        self._load = Load(command, self.folder / "load.answers")
        return self._load

    def end(self) -> None:
        if self._load is not None:
            self._load.end()
        super().end()

    # Evidence

    def report(self, accepted: Mapping[str, Accepted], blows: Sequence[Blow] = (), slow: str = "") -> Report:
        """Judge the run by what the handlers wrote down; all but the slow app's end at once."""
        handed_over = sorted(self.handed_over(), key=lambda one: -one.wall_ms)
        quick = [one for one in handed_over if one.job not in accepted or accepted[one.job].app != slow]
        promised = {job: answer.due_ms for job, answer in accepted.items()}
        first_ms = {one.job: one.wall_ms for one in handed_over}
        late_ms = [ms - max(accepted[job][1:]) for job, ms in first_ms.items() if job in accepted]
        evidence = Evidence(promised, handed_over, blows, ended=quick + self._written_down("ended"))
        return Report(judge(evidence), sorted(late_ms))

    def handed_over(self) -> list[HandOver]:
        """What every process wrote down, each in a file of its own."""
        return self._written_down("handed_over")

    def _written_down(self, what: str) -> list[HandOver]:
        return [one for path in self.folder.glob(f"{what}-*.log") for one in read_log(path)]

    def rows(self, app: str | None = None) -> dict[str, tuple[str, str | None]]:
        """Status and error of every job of one app in the database, read without the scheduler."""
        return {
            str(job): (status, error)
            for table in self._tables(app or self.app)
            for job, status, error in execute(self.url, f"SELECT job_id, status, error FROM {table}")
        }

    def unsettled(self) -> set[tuple[str, int]]:
        pending = "SELECT job_id, attempt FROM {} WHERE status = 'pending'"
        return {
            (str(job), attempt) for table in self._tables() for job, attempt in execute(self.url, pending.format(table))
        }

    def alone(self) -> set[str]:
        return set()  # no node is killed so often, and so soon after another, that it comes to this

    def statuses(self) -> Counter[str]:
        """How many jobs of all apps have which status."""
        found: Counter[str] = Counter()
        for table in self._tables():
            found.update(dict(execute(self.url, f"SELECT status, count(*) FROM {table} GROUP BY status")))
        return found

    def settled(self, within_s: float = PATIENCE_S + AHEAD_MS / 1000) -> None:
        until(lambda: not self.statuses()["pending"], "all jobs settled", within_s, every_s=0.2)

    def owners(self) -> Counter[str]:
        query = (
            "SELECT coalesce(n.node_id, s.owner_nonce), count(*) FROM scheduler_shards s "
            "LEFT JOIN scheduler_nodes n ON n.nonce = s.owner_nonce WHERE s.app = %s GROUP BY 1"
        )
        return Counter(dict(execute(self.url, query, [self.app])))

    def _tables(self, app: str = "") -> list[str]:
        query = "SELECT table_name FROM information_schema.tables WHERE table_schema IN (%s, 'public')"
        found = execute(self.url, query, [urlsplit(self.url).path[1:]])
        return [table for (table,) in found if f"{app}_scheduled_jobs_" in table]
