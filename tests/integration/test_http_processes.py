"""`serve` and `http` as processes: requests over HTTP, a kill between commit and answer, a stop under load."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from infinite_scheduler import SyncClient
from tests.command import NO_HTTP, run_here
from tests.snippets import ROOT, Reader, commands, write_files
from tests.waiting import until, until_async

CONFIG = """
[store]
url = "sqlite:///jobs.db"

[http]
port = 0

[apps.reminders]
function = "tasks:remind"
shards = 2
required = ["to"]
"""
TASKS = "def remind(job):\n    with open('done.txt', 'a') as file:\n        print(job.data['to'], file=file)\n"
JOB = {"app": "reminders", "delay": "1h", "data": {"to": "Ada"}}
GUIDE = ROOT / "docs" / "how-to" / "http.md"


class Running:
    """A process that answers, and how to ask it."""

    def __init__(self, process: subprocess.Popen[str], started: dict[str, Any]) -> None:
        self.process = process
        self.started = started
        self.url = started["http"]

    def ask(self, path: str, body: Any = None, **headers: str) -> Any:
        request = urllib.request.Request(
            f"{self.url}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", **headers},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def scrape(self) -> list[str]:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            lines: list[str] = answer.read().decode().splitlines()
            return lines

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def environment() -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("INFINITE_SCHEDULER_")}
    return {**own, "INFINITE_SCHEDULER_LOG__FORMAT": "json"}


@contextlib.contextmanager
def running(folder: Path, *arguments: str) -> Iterator[Running]:
    """A process that has started; it ends with the block."""
    command = [sys.executable, "-m", "infinite_scheduler", *arguments, "--json"]
    with (folder / "log.txt").open("ab") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (folder / "log.txt").read_text()
        yield Running(process, json.loads(line))
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "scheduler.toml").write_text(CONFIG)
    (tmp_path / "tasks.py").write_text(TASKS)
    return tmp_path


def test_a_job_that_was_posted_to_a_node_is_handed_over(folder: Path) -> None:
    with running(folder, "serve", "--config", "scheduler.toml") as node:
        accepted = node.ask("/v1/jobs", {**JOB, "delay": 0})
        until(lambda: node.ask(f"/v1/jobs/{accepted['id']}")["status"] == "done")
        assert (folder / "done.txt").read_text() == "Ada\n"
        with pytest.raises(urllib.error.HTTPError, match="422"):
            node.ask("/v1/jobs", {**JOB, "data": {}})
        assert node.ask("/health/alarms") == {"alarms": []}
        until(lambda: 'infinite_scheduler_jobs_done_total{app="reminders"} 1.0' in node.scrape())
        assert 'infinite_scheduler_shards_owned{app="reminders"} 2.0' in node.scrape()
        (listed,) = node.ask("/v1/nodes")["nodes"]
        assert listed["node"] == node.started["node"]
        assert node.stop() == 0


def test_a_process_that_only_answers_owns_no_shards_and_needs_no_handlers(folder: Path) -> None:
    with SyncClient(f"sqlite:///{folder / 'jobs.db'}") as client:
        client.register("reminders")
    with running(folder, "http", "--store", "sqlite:///jobs.db", "--port", "0") as server:
        accepted = server.ask("/v1/jobs", JOB)
        assert server.ask("/v1/nodes") == {"nodes": []}
        lines = server.scrape()
        for wanted in ('jobs_accepted_total{app="reminders"}', 'waiting_jobs{app="reminders"}'):
            assert f"infinite_scheduler_{wanted} 1.0" in lines
        assert server.stop() == 0
    with SyncClient(f"sqlite:///{folder / 'jobs.db'}") as client:
        assert client.get(accepted["id"]).job.data == {"to": "Ada"}


def test_a_handler_that_cannot_be_loaded_does_not_keep_it_from_answering(folder: Path) -> None:
    (folder / "tasks.py").unlink()
    with running(folder, "http", "--config", "scheduler.toml") as server:
        server.ask("/v1/jobs", {**JOB, "data": {}})
        assert server.stop() == 0
    assert "cannot be loaded here" in (folder / "log.txt").read_text()


def test_a_port_that_was_asked_for_and_is_taken_ends_the_command(folder: Path) -> None:
    with running(folder, "http", "--config", "scheduler.toml") as server:
        port = server.url.rpartition(":")[2]
        for command in ("serve", "http"):
            ended = subprocess.run(
                [sys.executable, "-m", "infinite_scheduler", command, "--config", "scheduler.toml"],
                cwd=folder,
                env={**environment(), "INFINITE_SCHEDULER_HTTP__PORT": port},
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            assert ended.returncode == 2
            assert f"127.0.0.1:{port} is in use by another process" in ended.stderr


def test_a_post_that_is_killed_between_commit_and_answer_and_repeated_is_one_job(folder: Path) -> None:
    """The process is killed while posts with keys are on their way; each is repeated until it is answered."""
    keys = [f"key-{number}" for number in range(60)]
    known: dict[str, str] = {}

    def post_all(server: Running) -> None:
        for key in keys:
            with contextlib.suppress(OSError):
                known[key] = server.ask(
                    "/v1/jobs", {**JOB, "at": "2030-01-01", "delay": None}, **{"Idempotency-Key": key}
                )["id"]

    def killed_after(answers: int) -> None:
        with running(folder, "http", "--config", "scheduler.toml") as server:
            posting = threading.Thread(target=post_all, args=(server,))
            posting.start()
            until(lambda: len(known) >= answers or not posting.is_alive(), every_s=0.002)
            server.process.kill()
            posting.join(60)

    for answers in (5, 20, 40):
        killed_after(answers)
    before = dict(known)
    with running(folder, "http", "--config", "scheduler.toml") as server:
        post_all(server)
        listed = server.ask("/v1/jobs?limit=1000")["jobs"]
    assert len(listed) == len(keys)
    assert {job["idempotency_key"]: job["id"] for job in listed} == known
    assert known == {**known, **before}


async def test_each_post_that_was_answered_before_a_stop_is_in_the_store(folder: Path) -> None:
    with running(folder, "http", "--config", "scheduler.toml") as server:
        accepted: list[str] = []

        async def post(session: aiohttp.ClientSession) -> None:
            with contextlib.suppress(aiohttp.ClientError, ConnectionError):
                while True:
                    async with session.post(f"{server.url}/v1/jobs", json=JOB) as answer:
                        if answer.status == 201:
                            accepted.append((await answer.json())["id"])

        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            posting = [asyncio.create_task(post(session)) for _ in range(32)]
            await until_async(lambda: len(accepted) >= 200)
            server.process.send_signal(signal.SIGTERM)
            await asyncio.gather(*posting)
        assert await asyncio.to_thread(server.process.wait, 60) == 0
    with SyncClient(f"sqlite:///{folder / 'jobs.db'}") as client:
        stored, cursor = set(), None
        while True:
            page = client.find("reminders", limit=1000, cursor=cursor)
            stored |= {record.id for record in page.records}
            cursor = page.cursor
            if cursor is None:
                break
    assert set(accepted) <= stored


def test_the_commands_of_the_guide_do_what_it_says(tmp_path: Path) -> None:
    write_files(GUIDE, tmp_path)
    reader = Reader(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    settings = ["export INFINITE_SCHEDULER_HTTP__ENABLED=true", f"export INFINITE_SCHEDULER_HTTP__PORT={port}"]
    reader.type(settings + [line.replace("7070", port) for line in commands(GUIDE)])
    output = reader.output.read_text(encoding="utf-8")
    assert '"accepted":2,"refused":0' in output
    assert '{"app":"reminders","paused":true}' in output
    assert '{"status":"ok"}' in output


def test_tokens_are_made_listed_and_revoked(tmp_path: Path) -> None:
    with SyncClient(f"sqlite:///{tmp_path / 'jobs.db'}") as client:
        client.register("reminders")

    def tokens(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_here(["tokens", *arguments, "--store", "sqlite:///jobs.db"], tmp_path, {**environment(), **NO_HTTP})

    made = tokens("create", "ci", "--role", "submit", "--json")
    token = json.loads(made.stdout)
    assert (token["name"], token["role"], token["state"]) == ("ci", "submit", "valid")
    assert token["token"].startswith("isk_")
    plain = tokens("create", "other")
    assert plain.stdout.startswith("isk_")
    assert tokens("create", "ci").returncode == 2
    assert tokens("create", "new", "--role", "king").returncode == 2
    assert tokens("create", "a b").returncode == 2
    assert tokens("revoke", "ci").returncode == 0
    assert tokens("revoke", "nobody").returncode == 2
    listed = tokens("list", "--json").stdout
    assert [(one["name"], one["state"]) for one in map(json.loads, listed.splitlines())] == [
        ("ci", "revoked"),
        ("other", "valid"),
    ]
    assert token["token"] not in listed
    assert "ci" in tokens("list").stdout
