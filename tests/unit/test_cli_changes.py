"""Commands that change many jobs: by ids or by the options of `jobs list`, after a preview and a yes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infinite_scheduler.bulk_change import job_changes
from infinite_scheduler.cli.run import run
from infinite_scheduler.client import Client
from infinite_scheduler.errors import StoreUnavailable
from infinite_scheduler.model import Change, JobRecord

GONE = "019a8b7c-3d20-8014-9f3a-5c1e2b7d4a60"
Command = Callable[..., "Ended"]


class Ended:
    """How a command ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.delenv("INFINITE_SCHEDULER_CONFIG", raising=False)
    file = tmp_path / "scheduler.toml"
    file.write_text(f'[store]\nurl = "sqlite:///{tmp_path}/jobs.db"\n[apps.sms]\nhandler = "kafka"\ntopic = "out"\n')

    def do(*arguments: str) -> Ended:
        code = run([*arguments, "--config", str(file)])
        return Ended(code, *capsys.readouterr())

    assert do("migrate", "--create", "--days", "0").code == 0
    return do


def add(command: Command, count: int, *options: str) -> list[str]:
    ids = []
    for _ in range(count):
        ids += [line["id"] for line in command("schedule", "sms", "--in", "1h", "--json", *options).lines]
    return ids


def listed(command: Command, *options: str) -> set[str]:
    return {line["id"] for line in command("jobs", "list", "--json", *options).lines}


def test_all_that_match_are_cancelled_after_a_look_and_a_yes(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = add(command, 3, "--tag", "trial")
    add(command, 1)
    cancel = ("jobs", "cancel", "--app", "sms", "--tag", "trial")
    ended = command(*cancel, "--preview")
    assert (ended.code, "3 jobs would be changed" in ended.err, all(one in ended.out for one in ids)) == (0, True, True)
    ended = command(*cancel)
    assert (ended.code, "nothing was changed: add --yes to cancel 3 jobs without being asked" in ended.err) == (2, True)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: False)
    ended = command(*cancel)
    assert (ended.code, "nothing was changed" in ended.err, listed(command, "--status", "cancelled")) == (
        1,
        True,
        set(),
    )
    monkeypatch.setattr("typer.confirm", lambda *_, **__: True)
    ended = command(*cancel)
    assert (ended.code, "cancelled 3 jobs" in ended.out) == (0, True)
    assert listed(command, "--status", "cancelled") == set(ids)
    assert command(*cancel, "--yes").out == "no jobs match\n"


def test_scripts_say_yes_and_read_a_summary(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_changes, "MOST_JOBS", 2)
    ids = add(command, 3)
    shown = command("jobs", "cancel", "--app", "sms", "--preview", "--json").lines
    assert [(one["count"], one["at_least"], len(one["jobs"])) for one in shown] == [(2, True, 2)]
    assert command("jobs", "cancel", "--app", "sms", "--yes", "--json").lines == [{"changed": 3, "refused": 0}]
    retry = ("jobs", "retry", "--app", "sms", "--status", "cancelled", "--yes")
    assert command(*retry).out == "tried again: 3 jobs\n"
    assert command("jobs", "reschedule", "--app", "sms", "--in", "3h", "--yes").out == "rescheduled 3 jobs\n"
    assert listed(command, "--status", "pending", "--from", "+2h") == set(ids)
    assert command("jobs", "run-now", "--app", "sms", "--yes").out == "runs now: 3 jobs\n"
    assert listed(command, "--status", "pending", "--to", "+1m") == set(ids)


def test_a_job_is_cancelled_by_its_key(command: Command) -> None:
    (job,) = add(command, 1, "--key", "order-17")
    add(command, 1)
    assert command("jobs", "cancel", "--key", "order-17", "--yes").code == 0
    assert listed(command, "--status", "cancelled") == {job}


def test_several_ids_are_changed_and_the_first_refusal_decides_how_it_ends(command: Command) -> None:
    ids = add(command, 2)
    ended = command("jobs", "cancel", ids[0], GONE, ids[1])
    assert (ended.code, GONE in ended.err) == (3, True)
    assert listed(command, "--status", "cancelled") == set(ids)
    ended = command("jobs", "run-now", *ids, "--json")
    assert (ended.code, [line["id"] for line in ended.lines]) == (4, ids)
    assert all("too late to run now" in line["error"] for line in ended.lines)


def test_what_was_done_is_said_when_the_store_goes_away(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_changes, "TOGETHER", 1)
    add(command, 4)
    real, asked = Client.change, list[str]()

    async def change(self: Client, verb: Change, job_id: str, **more: Any) -> JobRecord:
        asked.append(job_id)
        if len(asked) in {3, 5}:
            raise StoreUnavailable("the store is away")
        return await real(self, verb, job_id, **more)

    monkeypatch.setattr(Client, "change", change)
    ended = command("jobs", "cancel", "--app", "sms", "--yes")
    assert (ended.code, "stopped: cancelled 2 jobs; run the command again to go on" in ended.err) == (5, True)
    ended = command("jobs", "cancel", "--app", "sms", "--yes", "--json")
    assert (ended.code, ended.lines) == (5, [{"changed": 1, "refused": 0, "stopped": "the store is away"}])
    assert command("jobs", "cancel", "--app", "sms", "--yes").out == "cancelled 1 job\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["cancel"], "say which jobs: either their ids, or options that choose them"),
        (["cancel", GONE, "--app", "sms"], "--app cannot be combined with ids"),
        (["cancel", GONE, "--preview"], "--preview cannot be combined with ids"),
        (["cancel", "--to", "now", "--yes"], "name at least an app"),
        (["cancel", "--app", "sms", "--status", "failed", "--yes"], "leave the status out"),
        (["cancel", "--app", "nobody", "--yes"], "unknown app 'nobody'"),
        (["retry", "--app", "sms", "--yes"], "status failed, expired or cancelled"),
        (["reschedule", "--app", "sms", "--yes"], "give the time: either --at MOMENT or --in DELAY"),
        (["reschedule", GONE], "give the time: either --at MOMENT or --in DELAY"),
        (["run-now", "--app", "sms", "--from", "soon", "--yes"], "'soon'"),
    ],
)
def test_what_cannot_be_meant_ends_with_a_clear_line(command: Command, arguments: list[str], words: str) -> None:
    ended = command("jobs", *arguments)
    assert (ended.code, words in ended.err) == (2, True), ended.err
