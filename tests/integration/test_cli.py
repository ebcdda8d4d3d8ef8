"""The command line: every command in JSON, beside nodes as processes, and all bad input with its exit code."""

import contextlib
import ctypes
import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from infinite_scheduler.store.sql.sqlite import session as sqlite_session
from tests.command import NO_HTTP, run_here
from tests.waiting import until

HANDLERS = """
import time
from pathlib import Path

from infinite_scheduler import DestinationAway

def remind(job):
    if job.data == "away" and not Path("gateway").exists():
        raise DestinationAway("the gateway is closed", retry_after=0.1)
    if job.data == "fail":
        raise ValueError("no such number")
    if job.data == "slow":
        time.sleep(30)
"""
CONFIG = """
[store]
url = "sqlite:///jobs.db"
[node]
id = "node-1"
stop_timeout = "500ms"
[log]
format = "json"
[apps.reminders]
function = "handlers:remind"
retry = { delays = ["1h"], max_attempts = 2 }
[apps.others]
function = "handlers:remind"
retry = { max_attempts = 1 }
shards = 4
"""
NO_JOB = "019a8b7c-3d20-8014-9f3a-5c1e2b7d4a60"
CAP_DAC_OVERRIDE, PR_CAPBSET_DROP = 1, 24
PATIENCE_S = 30


class Ended:
    """How a command ended."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def answer(self) -> Any:
        assert self.code == 0, self.err
        (answer,) = self.lines
        return answer

    @property
    def error(self) -> str:
        """The message of the last line on stderr, which has the exit code too."""
        told = json.loads(self.err.splitlines()[-1])
        assert told["code"] == self.code
        assert "Traceback" not in self.err
        return str(told["error"])


class Shell:
    """A folder with a configuration, in which commands are run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        own = {name: value for name, value in os.environ.items() if not name.startswith("INFINITE_SCHEDULER_")}
        self.env = own | NO_HTTP
        (folder / "handlers.py").write_text(HANDLERS, encoding="utf-8")
        self.write("scheduler.toml", CONFIG)

    def write(self, name: str, text: str) -> Path:
        (self.folder / name).write_text(text, encoding="utf-8")
        return self.folder / name

    def plain(self, *arguments: str, stdin: str = "") -> Ended:
        """Run a command as it is given."""
        return Ended(run_here(arguments, self.folder, self.env, stdin))

    def process(self, *arguments: str, stdin: str = "", prepare: Callable[[], None] | None = None) -> Ended:
        """The same in a process of its own."""
        return Ended(
            subprocess.run(
                [sys.executable, "-m", "infinite_scheduler", *arguments],
                cwd=self.folder,
                env=self.env,
                input=stdin,
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
                preexec_fn=prepare,
            )
        )

    def run(self, *arguments: str, config: str = "scheduler.toml", **options: Any) -> Ended:
        """Run a command with the configuration, in JSON; what imports handlers does so in a process of its own."""
        run = self.process if options.keys() & {"prepare"} or arguments[0] == "serve" else self.plain
        return run(*arguments, "--config", config, "--json", **options)

    def schedule(self, data: str = "1", delay: str = "1h", app: str = "reminders", *more: str) -> str:
        """Schedule a job and return its id."""
        answer = self.run("schedule", app, "--in", delay, "--data", data, *more).answer
        assert set(answer) == {"id", "due_ms", "repeated"}
        return str(answer["id"])

    def jobs(self, *filters: str) -> list[Any]:
        listed = self.run("jobs", "list", *filters)
        assert listed.code == 0, listed.err
        return listed.lines

    @contextlib.contextmanager
    def node(self) -> Iterator[subprocess.Popen[str]]:
        """A node that is ready."""
        process = subprocess.Popen(
            [sys.executable, "-m", "infinite_scheduler", "serve", "--config", "scheduler.toml", "--json"],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            started = json.loads(process.stdout.readline())
            assert started["event"] == "started"
            assert (started["node"], started["apps"]) == ("node-1", ["others", "reminders"])
            yield process
        finally:
            process.kill()
            process.communicate()

    def until(self, job: str, **wanted: Any) -> Any:
        """The job, when these fields have these values."""

        def shown() -> Any:
            found = self.run("jobs", "show", job).answer
            return found if all(found[name] == value for name, value in wanted.items()) else None

        return until(shown, f"job {job} is {wanted}", every_s=0.05)

    def until_reason(self, job: str, reason: str) -> None:
        """Wait until this is why the job has not fired."""
        until(lambda: self.run("explain", job).answer["reason"] == reason, f"job {job} is {reason}", every_s=0.05)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


# Commands


def test_a_job_is_scheduled_with_everything_it_may_have(shell: Shell) -> None:
    options = ["--priority", "high", "--key", "k", "--tag", "a", "--tag", "b", "--name", "n", "--group", "g"]
    job = shell.run("schedule", "reminders", "--at", "2030-01-31T09:00:00Z", "--data", '{"to": "Ada"}', *options).answer
    assert job["due_ms"] == 1_896_080_400_000
    again = shell.run(
        "schedule", "reminders", "--at", "2030-01-31T09:00:00Z", "--data", '{"to": "Ada"}', *options
    ).answer
    assert (again["id"], again["repeated"]) == (job["id"], True)
    shown = shell.run("jobs", "show", job["id"]).answer
    expected = {
        "id": job["id"],
        "app": "reminders",
        "status": "pending",
        "due_at": "2030-01-31T09:00:00.000Z",
        "due_ms": job["due_ms"],
        "scheduled_time": "2030-01-31T09:00:00.000Z",
        "data": {"to": "Ada"},
        "attempt": 1,
        "priority": "high",
        "job_name": "n",
        "group": "g",
        "tags": ["a", "b"],
        "request_id": None,
        "idempotency_key": "k",
        "finished_at": None,
        "error": None,
        "attempts": [],
        "audit": [],
        "kept_in": "reminders_scheduled_jobs_later",
    }
    assert [entry["step"] for entry in shown.pop("timeline")] == ["accepted", "due"]
    assert {name: value for name, value in shown.items() if name != "created_at"} == expected


def test_a_moment_without_a_zone_is_in_the_zone_of_the_settings(shell: Shell) -> None:
    shell.write("berlin.toml", CONFIG + '[time]\nzone = "Europe/Berlin"\n')
    moment = ("schedule", "reminders", "--at", "2030-01-31T09:00", "--data", "1")
    assert shell.run(*moment).answer["due_ms"] == 1_896_080_400_000
    assert shell.run(*moment, config="berlin.toml").answer["due_ms"] == 1_896_080_400_000 - 3_600_000


def test_a_file_of_jobs_is_scheduled_in_order(shell: Shell) -> None:
    lines = [f'{{"at": {1_896_080_400_000 - i}, "data": {i}, "tags": ["many"]}}' for i in range(2500)]
    shell.write("jobs.ndjson", "\n".join(lines))
    answers = shell.run("schedule", "reminders", "--from", "jobs.ndjson").lines
    assert [(a["line"], a["due_ms"]) for a in answers] == [(i + 1, 1_896_080_400_000 - i) for i in range(2500)]
    first, last = answers[0]["id"], answers[-1]["id"]
    assert (shell.run("jobs", "show", first).answer["data"], shell.run("jobs", "show", last).answer["data"]) == (
        0,
        2499,
    )
    assert len(shell.jobs("--tag", "many", "--limit", "3000")) == 2500


def test_standard_input_is_a_file_too(shell: Shell) -> None:
    answers = shell.run("schedule", "reminders", "--from", "-", stdin='{"at": "in 5m"}\n\n{"at": "in 5m"}\n').lines
    assert [answer["line"] for answer in answers] == [1, 3]
    assert answers[0]["due_ms"] == answers[1]["due_ms"]


def test_a_bad_line_keeps_the_whole_file_out_unless_it_is_skipped(shell: Shell) -> None:
    text = '{"at": "in 1h", "data": 1}\nnonsense\n{"at": "in -5m"}\n{"at": "in 1h", "pririty": "high"}\n'
    refused = shell.run("schedule", "reminders", "--from", "-", stdin=text)
    assert (refused.code, refused.out) == (2, "")
    assert "3 bad lines among 4" in refused.error
    assert [json.loads(line)["line"] for line in refused.err.splitlines()[:-1]] == [2, 3, 4]
    assert not (shell.folder / "jobs.db").exists()
    skipped = shell.run("schedule", "reminders", "--from", "-", "--skip-bad", stdin=text)
    assert (skipped.code, [answer["line"] for answer in skipped.lines]) == (0, [1])
    assert len(shell.jobs()) == 1


def test_a_key_that_the_store_knows_for_another_job_is_a_bad_line(shell: Shell) -> None:
    shell.schedule("1", "1h", "reminders", "--key", "k")
    text = (
        '{"at": "in 1h", "data": 1}\n' * 1500
        + '{"at": "in 1h", "data": 2, "idempotency_key": "k"}\n'
        + '{"at": "in 1h", "data": 3}\n'
    )
    refused = shell.run("schedule", "reminders", "--from", "-", stdin=text)
    assert (refused.code, refused.out) == (2, "")
    assert "1 bad line among 1,502, so nothing was accepted" in refused.error
    told = json.loads(refused.err.splitlines()[0])
    assert (told["line"], "'k'" in told["error"]) == (1501, True)
    assert len(shell.jobs()) == 1
    skipped = shell.run("schedule", "reminders", "--from", "-", "--skip-bad", stdin=text)
    assert (skipped.code, [answer["line"] for answer in skipped.lines]) == (0, [*range(1, 1501), 1502])
    assert [json.loads(line)["line"] for line in skipped.err.splitlines()] == [1501]


def test_jobs_are_listed_by_filters_and_in_pages(shell: Shell) -> None:
    first = shell.schedule("1", "1h", "reminders", "--tag", "vip")
    second = shell.schedule("2", "2h", "others")
    third = shell.schedule("3", "3h")
    assert [job["id"] for job in shell.jobs()] == [first, second, third]
    assert [job["id"] for job in shell.jobs("--newest", "--limit", "2")] == [third, second]
    more = shell.run("jobs", "list", "--newest", "--limit", "2").err
    assert "there are more: --cursor" in more
    cursor = more.split()[-1]
    assert [job["id"] for job in shell.jobs("--newest", "--limit", "2", "--cursor", cursor)] == [first]
    assert [job["id"] for job in shell.jobs("--app", "others")] == [second]
    assert [job["id"] for job in shell.jobs("--tag", "vip")] == [first]
    assert [job["id"] for job in shell.jobs("--from", "in 90m", "--to", "in 150m")] == [second]
    shell.run("jobs", "cancel", first)
    assert [job["id"] for job in shell.jobs("--status", "cancelled")] == [first]


def test_a_waiting_job_is_cancelled_and_rescheduled_and_revived(shell: Shell) -> None:
    job = shell.schedule()
    moved = shell.run("jobs", "reschedule", job, "--at", "2030-01-31T09:00:00Z").answer
    assert (moved["status"], moved["due_ms"], moved["scheduled_time"]) == (
        "pending",
        1_896_080_400_000,
        "2030-01-31T09:00:00.000Z",
    )
    assert shell.run("jobs", "cancel", job).answer["status"] == "cancelled"
    assert shell.run("jobs", "reschedule", job, "--in", "5m").code == 4
    revived = shell.run("jobs", "retry", job).answer
    assert (revived["status"], revived["attempt"]) == ("pending", 2)


def test_apps_are_listed_paused_and_resumed(shell: Shell) -> None:
    assert shell.run("apps", "pause", "reminders").answer == {"app": "reminders", "paused": True}
    listed = {app["app"]: app for app in shell.run("apps", "list").lines}
    assert {name: (app["paused"], app["shards"]) for name, app in listed.items()} == {
        "reminders": (True, 16),
        "others": (False, 4),
    }
    assert shell.run("apps", "resume", "reminders").answer == {"app": "reminders", "paused": False}
    assert shell.run("nodes").lines == []


def test_a_node_hands_over_and_can_be_watched(shell: Shell) -> None:
    with shell.node() as process:
        job, failing = shell.schedule("1", "100ms"), shell.schedule('"fail"', "100ms")
        shell.until(job, status="done")
        shown = shell.until(failing, attempt=2)
        assert [(a["attempt"], a["node"], a["error"]) for a in shown["attempts"]] == [
            (1, "node-1", "ValueError: no such number")
        ]
        waiting = shell.run("explain", failing).answer
        assert (waiting["reason"], waiting["owner"]["node"], waiting["owner"]["state"]) == ("retry", "node-1", "alive")
        assert waiting["table"].startswith("reminders_scheduled_jobs_2")
        shell.run("jobs", "run-now", failing)
        assert shell.until(failing, status="failed")["error"] == "ValueError: no such number"
        assert shell.run("explain", failing).answer["reason"] == "settled"
        late = shell.run("jobs", "cancel", job)
        assert (late.code, "done" in late.error) == (4, True)
        (node,) = shell.run("nodes").lines
        assert (node["node"], node["state"], node["apps"], node["shards"]) == (
            "node-1",
            "alive",
            ["others", "reminders"],
            20,
        )
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out) == (0, "")
        assert failing in [json.loads(line).get("job_id") for line in err.splitlines()]
    assert shell.run("nodes").lines == []


def test_the_exit_code_tells_whether_an_app_is_held_back(shell: Shell) -> None:
    with shell.node():
        assert shell.run("apps", "list").code == 0
        job = shell.schedule('"away"', "100ms")
        until(lambda: shell.run("apps", "list").code == 1, "the app is held back")
        for listed in (shell.run("apps", "list"), shell.plain("apps", "list", "--config", "scheduler.toml")):
            assert (listed.code, listed.err) == (1, "")
            assert "the gateway is closed" in listed.out
        shell.run("apps", "pause", "reminders")
        assert shell.run("apps", "list").code == 1
        shell.run("apps", "resume", "reminders")
        shell.write("gateway", "open")
        assert shell.until(job, status="done")["attempt"] == 1
        until(lambda: shell.run("apps", "list").code == 0, "the app goes on")


def test_a_node_is_drained_and_resumed(shell: Shell) -> None:
    with shell.node():
        shell.until(shell.schedule("1", "100ms"), status="done")
        unknown = shell.run("nodes", "drain", "node-2")
        assert unknown.code == 3
        assert "known nodes: node-1" in unknown.error
        drained = shell.run("nodes", "drain", "node-1", "--wait").answer
        assert drained == {"node": "node-1", "drain_asked": True, "nodes": 1, "shards": 0}
        (node,) = shell.run("nodes", "list").lines
        assert (node["state"], node["shards"], node["clock_offset_ms"]) == ("drained", 0, None)
        assert {app["app"]: app["nodes"] for app in shell.run("apps", "list").lines} == {"others": [], "reminders": []}
        job = shell.schedule("2", "100ms")
        why = shell.run("explain", job).answer
        assert "node node-1 was drained; resume it: infinite-scheduler nodes resume node-1" in why["notes"]
        told = shell.plain("nodes", "drain", "node-1", "--wait", "--config", "scheduler.toml")
        assert told.out.splitlines()[-1] == "node-1 owns no shards any more"
        assert shell.run("nodes", "resume", "node-1").answer["drain_asked"] is False
        shell.until(job, status="done")
        assert shell.plain("nodes", "--config", "scheduler.toml").out.split()[:4] == ["node", "nonce", "state", "apps"]
        misplaced = shell.run("nodes", "--json", "resume", "node-1")
        assert (misplaced.code, "--json goes after resume" in misplaced.error) == (2, True)


def test_a_node_that_has_to_leave_something_says_so(shell: Shell) -> None:
    with shell.node() as process:
        job = shell.schedule('"slow"', "0s")
        shell.until_reason(job, "in_flight")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 1
        assert job in err
    answer = shell.run("explain", job).answer
    assert answer["reason"] == "no_node"
    assert any("attempt 1 began at" in note for note in answer["notes"])


def test_a_second_ctrl_c_ends_a_node_at_once_and_charges_no_job(shell: Shell) -> None:
    shell.write("scheduler.toml", CONFIG.replace("500ms", "60s"))
    with shell.node() as process:
        job = shell.schedule('"slow"', "0s")
        shell.until_reason(job, "in_flight")
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        while "Stopping" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    shown = shell.run("jobs", "show", job).answer
    assert (shown["status"], shown["attempt"], shown["error"]) == ("pending", 1, None)


SHORT_DEMO = """
import sys
from infinite_scheduler.cli import demo, main
demo.MESSAGES = demo.MESSAGES[3:]  # one that is taken at once, and one that is refused once
sys.exit(main())
"""


def test_the_demo_delivers_everything_in_time_and_leaves_nothing(shell: Shell) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHORT_DEMO, "demo", "--json"],
        cwd=shell.folder,
        env=shell.env,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    summary = Ended(done).lines[-1]
    assert (done.returncode, summary["delivered"], summary["early"], summary["lost"]) == (0, 2, 0, 0)
    assert list(shell.folder.glob("*.db")) == []


def test_people_get_tables(shell: Shell) -> None:
    job = shell.schedule('{"to": "Ada"}', "1h", "reminders", "--name", "greeting [bold]")
    for arguments, words in (
        (["jobs", "list"], [job, "pending", "greeting [bold]"]),
        (["jobs", "show", job], ["reminders", '{"to": "Ada"}']),
        (["explain", job], ["It is not due yet", "no node runs app reminders", "kept in"]),
        (["apps", "list"], ["reminders", "no node"]),
        (["jobs", "cancel", job], [f"cancelled {job}"]),
        (["jobs", "retry", job], [f"tried again: {job}"]),
        (["apps", "pause", "reminders"], ["paused reminders"]),
    ):
        told = shell.process(*arguments, "--config", "scheduler.toml")
        assert (told.code, told.err) == (0, "")
        assert [word for word in words if word not in told.out] == []


def test_the_file_and_the_store_may_come_from_the_environment_and_the_option(shell: Shell) -> None:
    shell.env["INFINITE_SCHEDULER_CONFIG"] = "scheduler.toml"
    made = shell.plain("schedule", "reminders", "--in", "1h", "--store", "sqlite:///other.db", "--json").answer
    assert not (shell.folder / "jobs.db").exists()
    del shell.env["INFINITE_SCHEDULER_CONFIG"]
    assert [job["id"] for job in shell.plain("jobs", "list", "--store", "sqlite:///other.db", "--json").lines] == [
        made["id"]
    ]


def test_nobody_reading_is_no_reason_to_complain(shell: Shell) -> None:
    shell.run("schedule", "reminders", "--from", "-", stdin='{"at": "in 1h", "data": "xxxxxxxxxxxxxxxxxxxx"}\n' * 2000)
    command = f"{sys.executable} -m infinite_scheduler jobs list --limit 2000 --config scheduler.toml --json | head -1"
    told = subprocess.run(
        ["/bin/sh", "-c", command], cwd=shell.folder, env=shell.env, capture_output=True, text=True, check=True
    )
    assert (told.stdout.count("\n"), told.stderr) == (1, "")


# Bad input


def bad(shell: Shell, *arguments: str, code: int = 2, config: str = "scheduler.toml", **options: Any) -> str:
    """Run a command that must be refused; returns what it says."""
    ended = shell.run(*arguments, config=config, **options)
    assert (ended.code, ended.out) == (code, ""), ended.err
    return ended.error


def test_an_unknown_app_is_refused_with_the_known_ones(shell: Shell) -> None:
    shell.schedule()
    for arguments in (
        ("schedule", "nope", "--in", "5m"),
        ("schedule", "nope", "--from", "scheduler.toml"),
        ("apps", "pause", "nope"),
        ("jobs", "list", "--app", "nope"),
    ):
        assert "unknown app 'nope'; known apps: others, reminders" in bad(shell, *arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--at", "whenever"), "'whenever' is not a time"),
        (("--at", "2030-02-31T09:00:00Z"), "is not a valid time"),
        (("--at", "99999999999999999"), "out of range"),
        (("--in", "soon"), "not a delay"),
        (("--in", "-5s"), "negative"),
        (("--in", "5m", "--data", "hello"), "not valid JSON"),
        (("--in", "5m", "--data", '{"a": 1'), "not valid JSON"),
        (("--in", "5m", "--data", '1, "at": "now"'), "not valid JSON"),
        (("--in", "5m", "--data", "NaN"), "not valid JSON"),
        (("--in", "5m", "--data", '"\udcff"'), "UTF-8"),
        (("--in", "5m", "--data", "[" * 200 + "]" * 200), "deep"),
        (("--in", "5m", "--priority", "urgent"), "priority 'urgent' is unknown"),
        (("--in", "5m", "--key", ""), "idempotency_key is empty"),
        (("--in", "5m", "--tag", "\x07"), "tags[0]"),
    ],
)
def test_a_job_that_cannot_be_read_is_refused(shell: Shell, arguments: Sequence[str], words: str) -> None:
    assert words in bad(shell, "schedule", "reminders", *arguments)
    assert not (shell.folder / "jobs.db").exists()


def test_data_that_is_too_large_is_refused_with_the_limit(shell: Shell) -> None:
    shell.write("small.toml", CONFIG + '[limits]\npayload = "100B"\n')
    told = bad(shell, "schedule", "reminders", "--in", "5m", "--data", json.dumps("x" * 100), config="small.toml")
    assert "102 bytes" in told
    assert "limits.payload" in told


@pytest.mark.parametrize("name", ["Reminders", "re-minders", "1st", "x" * 33, "a;b"])
def test_an_app_name_that_is_no_identifier_is_refused(shell: Shell, name: str) -> None:
    assert "is not allowed" in bad(shell, "schedule", name, "--in", "5m")
    shell.write("bad.toml", f'[apps."{name}"]\nfunction = "handlers:remind"\n')
    assert "app name" in bad(shell, "serve", config="bad.toml")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("[apps.a]\nfunction = 'handlers:remind'\n[apps.a]\nfunction = 'handlers:remind'\n", "line 3"),
        ("[window]\nlookahead = '10s'\nfetch_interval = '25s'\n", "window.lookahead"),
        ("[apps.a]\nfunction = 'nowhere:remind'\n", "no module 'nowhere'"),
        ("[apps.a]\nfunction = 'handlers:remimd'\n", "did you mean 'remind'?"),
        ("[apps.a]\nfunction = 'broken:remind'\n", "cannot be imported"),
        ("[apps.a]\nfunction = 'handlers:remind'\nconcurency = 3\n", "did you mean apps.a.concurrency?"),
        ("[store]\nurl = 'sqlite:///x.db'\n", "has no apps"),
        ("[store]\nurl = 'oracle://x'\n[apps.a]\nfunction = 'handlers:remind'\n", "oracle"),
        ("[store", "line 1"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(shell: Shell, config: str, words: str) -> None:
    shell.write("broken.py", "import nothing_of_this_name\n")
    shell.write("bad.toml", config)
    assert words in bad(shell, "serve", config="bad.toml")
    assert list(shell.folder.glob("*.db")) == []


def test_a_configuration_that_does_not_exist_is_refused(shell: Shell) -> None:
    assert "does not exist" in bad(shell, "jobs", "list", config="nowhere.toml")


def test_a_node_without_any_configuration_says_what_it_needs(shell: Shell) -> None:
    told = shell.process("serve")
    assert (told.code, told.out) == (2, "")
    assert told.err.startswith("error: without --config FILE the configuration has no apps")


@pytest.mark.parametrize("command", ["show", "cancel", "run-now", "retry"])
def test_an_unknown_job_ends_with_3_and_what_is_no_id_with_2(shell: Shell, command: str) -> None:
    shell.schedule()
    assert NO_JOB in bad(shell, "jobs", command, NO_JOB, code=3)
    assert "is not a job id" in bad(shell, "jobs", command, "nonsense")


def test_a_change_that_makes_no_sense_is_refused(shell: Shell) -> None:
    job = shell.schedule()
    assert "nothing to retry" in bad(shell, "jobs", "retry", job)
    assert "either --at MOMENT or --in DELAY" in bad(shell, "jobs", "reschedule", job)
    assert "is not a time" in bad(shell, "jobs", "reschedule", job, "--at", "whenever")
    assert "unknown status" in bad(shell, "jobs", "list", "--status", "lost")
    assert "is not one of this list" in bad(shell, "jobs", "list", "--cursor", "nonsense")
    assert "cannot be read" in bad(shell, "schedule", "reminders", "--from", "nowhere.ndjson")


def without_override() -> None:
    """Root may write what is read-only; a process that lost this capability may not."""
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE)


def test_a_read_only_database_is_refused(shell: Shell) -> None:
    shell.schedule()
    (shell.folder / "jobs.db").chmod(0o444)
    told = bad(shell, "schedule", "reminders", "--in", "5m", code=5, prepare=without_override)
    assert "cannot be written" in told


def test_a_damaged_database_is_refused(shell: Shell) -> None:
    (shell.folder / "jobs.db").write_bytes(b"this is no database, and never was one" * 100)
    for arguments in (("schedule", "reminders", "--in", "5m"), ("jobs", "list"), ("serve",)):
        assert "is not a SQLite database" in bad(shell, *arguments, code=5)


def test_a_database_of_a_newer_schema_is_refused(shell: Shell) -> None:
    shell.schedule()
    with contextlib.closing(sqlite3.connect(shell.folder / "jobs.db")) as database:
        database.execute("UPDATE scheduler_schema SET version = 99")
        database.commit()
    for arguments in (("schedule", "reminders", "--in", "5m"), ("jobs", "list"), ("serve",)):
        assert "schema version 99" in bad(shell, *arguments)


def test_a_disk_that_takes_no_more_is_reported_and_nothing_is_half_written(shell: Shell) -> None:
    shell.schedule()
    size = (shell.folder / "jobs.db").stat().st_size

    def full() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    big = '{"at": "in 1h", "data": "%s"}\n' % ("x" * 100_000)
    ended = shell.run("schedule", "reminders", "--from", "-", stdin=big * 20, prepare=full)
    assert (ended.code, ended.out) == (5, "")
    assert "jobs.db" in ended.error
    assert json.loads(ended.err.splitlines()[0])["accepted"] == 0
    assert len(shell.jobs()) == 1


def test_a_database_whose_folder_is_missing_is_refused(shell: Shell) -> None:
    told = bad(shell, "schedule", "reminders", "--in", "5m", "--store", "sqlite:///nowhere/jobs.db", code=5)
    assert "there is no folder" in told


def test_two_different_shard_counts_are_refused(shell: Shell) -> None:
    shell.schedule()
    shell.write("other.toml", CONFIG.replace("shards = 4", "shards = 8"))
    for arguments in (("schedule", "others", "--in", "5m"), ("serve",)):
        assert "has 4 shards in this store, but 8 are configured" in bad(shell, *arguments, config="other.toml")
    assert len(shell.run("jobs", "list", config="other.toml").lines) == 1


def test_a_database_that_somebody_else_holds_is_unavailable(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_session, "LOCK_WAIT_S", 0.1)
    shell.schedule()
    with contextlib.closing(sqlite3.connect(shell.folder / "jobs.db", isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        assert "write lock" in bad(shell, "schedule", "reminders", "--in", "5m", code=5)


def test_ctrl_c_ends_a_command_with_130(shell: Shell) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "infinite_scheduler", "demo", "--json"],
        cwd=shell.folder,
        env=shell.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")


def test_a_database_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "orders.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
    connection.close()
    before = path.read_bytes()
    done = subprocess.run(
        [sys.executable, "-m", "infinite_scheduler", "jobs", "list", "--store", f"sqlite:///{path}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "is not a store: it has no table scheduler_schema" in done.stderr
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["orders.db"]
