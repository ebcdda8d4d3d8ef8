"""Commands by the URL of a server: they do what they do by the store's own URL, or say that they need that."""

import asyncio
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from infinite_scheduler import SyncClient
from infinite_scheduler.cli.run import BAD_INPUT, NO_STORE, NOT_FOUND, TOO_LATE, run
from infinite_scheduler.model import JobId
from infinite_scheduler.store import open_store
from infinite_scheduler.store.inbox import DeadLetter, LetterState, Source, new_letter_id
from infinite_scheduler.testing import ManualClock
from tests.remote.remote_rig import APP, RemoteRig, remote_rig

NOBODY = str(JobId.make(4_000_000_000_000, 0, 1))
TOKEN = "0b2d5e0ff3a94ab0a2c4"


class Shell:
    """Runs commands on one store, and reads what they print."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._url = url
        self._capsys = capsys

    def run(self, *words: str, code: int = 0) -> str:
        """What the command prints; on standard error if it is refused."""
        ended = run([*words, "--store", self._url])
        out, err = self._capsys.readouterr()
        assert ended == code, err or out
        return err if code else out

    def records(self, *words: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run(*words, "--json").splitlines()]

    def record(self, *words: str) -> dict[str, Any]:
        (found,) = self.records(*words)
        return found


@pytest.fixture
def shell(remote: RemoteRig, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(remote.url, capsys)


def test_a_job_is_scheduled_shown_changed_and_explained(shell: Shell) -> None:
    job = shell.record("schedule", APP, "--in", "1h", "--data", '{"n": 9007199254740993}', "--key", "k")["id"]
    assert shell.record("schedule", APP, "--in", "1h", "--data", '{"n": 9007199254740993}', "--key", "k")["repeated"]
    assert [one["id"] for one in shell.records("jobs", "list", "--app", APP)] == [job]
    assert '"n": 9007199254740993' in shell.run("jobs", "show", job)
    assert shell.record("jobs", "reschedule", job, "--in", "2h")["status"] == "pending"
    explained = shell.record("explain", job)
    assert explained["reason"] == "no_node" or explained["reason"] == "not_due"
    assert explained["table"].startswith(f"{APP}_scheduled_jobs_")
    assert shell.record("jobs", "cancel", job)["status"] == "cancelled"
    assert shell.record("jobs", "retry", job)["attempt"] == 2
    assert shell.run("jobs", "run-now", job).startswith("runs now:")


def test_a_file_of_jobs_is_checked_and_scheduled(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "jobs.ndjson"
    lines = [json.dumps({"at": "in 1h", "data": n, "idempotency_key": f"k{n}"}) for n in range(20)]
    file.write_text("\n".join(lines))
    assert len(shell.records("schedule", APP, "--from", str(file))) == 20
    file.write_text("\n".join([*lines[:2], json.dumps({"at": "in 1h", "data": 99, "idempotency_key": "k1"})]))
    assert "line 3" in shell.run("schedule", APP, "--from", str(file), code=BAD_INPUT)
    assert len(shell.records("jobs", "list", "--app", APP)) == 20


def test_apps_and_nodes_are_listed_held_back_and_let_go(shell: Shell) -> None:
    assert shell.record("apps", "list")["app"] == APP
    assert shell.record("apps", "pause", APP)["paused"]
    assert shell.record("apps", "list")["paused"]
    assert not shell.record("apps", "resume", APP)["paused"]
    assert shell.record("apps", "recount", APP) == {"app": APP, "before": 0, "counted": 0}
    assert shell.records("nodes", "list") == []
    assert "no node 'n1'" in shell.run("nodes", "drain", "n1", code=NOT_FOUND)


def test_errors_have_their_words_and_exit_codes(shell: Shell) -> None:
    assert f"no job {NOBODY}" in shell.run("jobs", "show", NOBODY, code=NOT_FOUND)
    assert "unknown app 'nobody'; known apps: shop" in shell.run("schedule", "nobody", "--in", "1h", code=BAD_INPUT)
    job = shell.record("schedule", APP, "--in", "1h")["id"]
    shell.run("jobs", "cancel", job)
    assert f"too late to run now job {job}" in shell.run("jobs", "run-now", job, code=TOO_LATE)


async def _keep(own: str, letters: list[DeadLetter]) -> None:
    store = open_store(own, ManualClock())
    await store.open()
    await store.inbox().take([], letters, [])
    await store.close()


def _letter(offset: int, value: bytes) -> DeadLetter:
    return DeadLetter(
        id=new_letter_id(1_767_225_600_000 + offset),
        source=Source("door", "orders", 0),
        offset=offset,
        key=b"\xff",
        value=value,
        headers=(("h", b"\0\xff"),),
        error="unknown app",
        failed_ms=1_767_225_600_000,
        dlq_topic=None,
        state=LetterState.KEPT,
    )


def test_dead_letters_are_listed_shown_and_replayed(
    remote: RemoteRig, shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    good = _letter(
        1, b'{"appName": "shop", "scheduledTime": "2030-01-01T00:00:00Z", "jobData": {"n": 9007199254740993}}'
    )
    bad = _letter(2, b"\xff not JSON")
    asyncio.run(_keep(remote.own, [good, bad]))
    assert [one["id"] for one in shell.records("dlq", "list")] == [bad.id, good.id]
    assert shell.record("dlq", "show", bad.id) == Shell(remote.own, capsys).record("dlq", "show", bad.id)
    job = shell.record("dlq", "replay", good.id)["job"]
    assert b"9007199254740993" in _payload(remote.own, job)
    assert shell.record("dlq", "replay", good.id) == {"letter": good.id, "job": job, "due_ms": None, "repeated": True}
    assert "still bad" in shell.run("dlq", "replay", bad.id, code=2)
    assert "no dead letter" in shell.run("dlq", "show", "0" * 32, code=NOT_FOUND)


def _payload(own: str, job: str) -> bytes:
    with SyncClient(own) as client:
        return client.get(job).job.payload


NEEDING: dict[str, list[str]] = {
    "serve": ["serve"],
    "http": ["http"],
    "migrate": ["migrate"],
    "topics create": ["topics", "create", "--preset", "sms-retry"],
    "ingest offsets --reset": ["ingest", "offsets", "--reset", "orders=earliest", "--yes"],
    "tokens create": ["tokens", "create", "ci"],
    "tokens list": ["tokens", "list"],
    "tokens revoke": ["tokens", "revoke", "ci"],
}


@pytest.mark.parametrize("command", NEEDING)
def test_what_works_on_the_store_itself_says_that_it_needs_its_url(shell: Shell, command: str) -> None:
    told = shell.run(*NEEDING[command], code=BAD_INPUT)
    assert f"{command} needs the store's own URL, such as postgresql://USER@HOST/DATABASE: http://127.0.0.1:" in told
    assert "speaks for a store that nodes work on elsewhere" in told


@pytest.mark.parametrize("command", [["status", "--topic", "orders"], ["offsets"]], ids=["status", "offsets"])
def test_how_far_topics_are_read_is_for_the_store_to_say(shell: Shell, command: list[str]) -> None:
    told = shell.run("ingest", *command, code=BAD_INPUT)
    assert "cannot take in messages of topics: use the store's own URL" in told


# Who may come in


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[RemoteRig]:
    tokens = {"ci": {"token": TOKEN, "role": "submit"}}
    with remote_rig(tmp_path, {"http.tokens": tokens}) as rig:
        yield rig


def test_the_token_comes_from_the_environment_or_the_settings(
    guarded: RemoteRig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shell = Shell(guarded.url, capsys)
    told = shell.run("jobs", "list", code=BAD_INPUT)
    assert "a token is needed" in told
    assert "INFINITE_SCHEDULER_STORE__TOKEN" in told
    monkeypatch.setenv("INFINITE_SCHEDULER_STORE__TOKEN", "wrong-" + TOKEN)
    told = shell.run("jobs", "list", code=BAD_INPUT)
    assert "the token is unknown or was revoked" in told
    assert TOKEN not in told
    monkeypatch.setenv("INFINITE_SCHEDULER_STORE__TOKEN", TOKEN)
    job = shell.record("schedule", APP, "--in", "1h")["id"]
    told = shell.run("apps", "pause", APP, code=BAD_INPUT)
    assert "the token ci has the role submit, and this needs operate" in told
    monkeypatch.delenv("INFINITE_SCHEDULER_STORE__TOKEN")
    config = tmp_path / "remote.toml"
    config.write_text(f'[store]\nurl = "{guarded.url}"\ntoken = "{TOKEN}"\n[apps.{APP}]\nfunction = "tasks:f"\n')
    assert run(["jobs", "show", job, "--config", str(config)]) == 0, "an app that exists needs no right to add it"


def test_a_token_beside_another_store_is_left_alone(
    remote: RemoteRig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFINITE_SCHEDULER_STORE__TOKEN", TOKEN)
    assert Shell(remote.own, capsys).records("jobs", "list") == []


# What is not a server


def test_a_server_that_is_away_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    told = Shell("http://127.0.0.1:9", capsys).run("jobs", "list", code=NO_STORE)
    assert "http://127.0.0.1:9 cannot be reached: " in told


@contextmanager
def answering(status: int, content: bytes, **headers: str) -> Iterator[tuple[str, list[str]]]:
    """A server that answers everything alike, and the tokens that it was shown."""
    shown: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            shown.append(self.headers.get("Authorization", ""))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", shown
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "content", "code", "words"),
    [
        (200, b"<html>", BAD_INPUT, "does not answer as an Infinite Scheduler does (its answer cannot be read"),
        (200, b"{}", BAD_INPUT, "does not answer as an Infinite Scheduler does"),
        (404, b"not here", BAD_INPUT, "does not answer as an Infinite Scheduler does (it answers 404)"),
        (404, b'{"type": "about:blank", "detail": "x"}', BAD_INPUT, "(it answers 404)"),
        (403, b"go away", BAD_INPUT, "lets nobody in with this token, and answers 403"),
        (502, b"<html>", NO_STORE, "answers 502, as a proxy does whose server is away"),
        (429, b"slow down", NO_STORE, "lets nobody in for the moment, and answers 429: try again later"),
        (418, b'{"type": "urn:infinite-scheduler:problem:new", "detail": "too new"}', BAD_INPUT, "error: too new"),
        (
            404,
            b'{"type": "urn:infinite-scheduler:problem:no-such-path", "detail": "there is nothing"}',
            BAD_INPUT,
            "is it of another version?",
        ),
    ],
)
def test_what_answers_otherwise_is_called_so(
    capsys: pytest.CaptureFixture[str], status: int, content: bytes, code: int, words: str
) -> None:
    with answering(status, content) as (url, _):
        assert words in Shell(url, capsys).run("jobs", "list", code=code)


def test_a_token_is_not_sent_to_where_somebody_else_points(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFINITE_SCHEDULER_STORE__TOKEN", TOKEN)
    with answering(200, b"{}") as (other, shown), answering(307, b"", Location=f"{other}/v1/survey") as (url, _):
        assert "it redirects to" in Shell(url, capsys).run("jobs", "list", code=BAD_INPUT)
        assert not shown


def test_fields_that_a_newer_server_adds_are_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    survey = {"now_ms": 1, "view": {"nodes": [], "shards": [], "apps": [], "moons": 2}, "counts": {}, "tides": []}
    with answering(200, json.dumps(survey).encode()) as (url, _):
        assert Shell(url, capsys).records("nodes", "list") == []
