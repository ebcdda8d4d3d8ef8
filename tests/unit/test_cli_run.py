"""How commands end: exit codes, error lines, and what they load."""

import json
import subprocess
import sys

import pytest

from infinite_scheduler import errors
from infinite_scheduler.cli import commands, job_filters
from infinite_scheduler.cli.run import EXIT_CODES, run

KINDS = [
    (errors.InvalidRequest, "invalid", 2),
    (errors.InvalidTime, "invalid", 2),
    (errors.InvalidPayload, "invalid", 2),
    (errors.UnknownApp, "unknown_app", 2),
    (errors.KeyConflict, "key_conflict", 2),
    (errors.IdRefused, "invalid", 2),
    (errors.HandlerError, "misconfigured", 2),
    (errors.ConfigError, "misconfigured", 2),
    (errors.StoreMismatch, "misconfigured", 2),
    (errors.NotSupported, "not_supported", 2),
    (errors.UnknownJob, "not_found", 3),
    (errors.UnknownNode, "not_found", 3),
    (errors.UnknownLetter, "not_found", 3),
    (errors.TooLate, "too_late", 4),
    (errors.PositionsMoved, "too_late", 4),
    (errors.PayloadTooLarge, "too_large", 2),
    (errors.IntakeFull, "overloaded", 5),
    (errors.Unavailable, "unavailable", 5),
    (errors.StoreUnavailable, "unavailable", 5),
    (errors.StoreBusy, "unavailable", 5),
    (errors.BrokerUnavailable, "unavailable", 5),
    (errors.DestinationAway, "unavailable", 5),
    (errors.StoreBroken, "broken", 5),
    (errors.SendError, "failed", 1),
    (errors.HandlerTimeout, "failed", 1),
    (errors.WorkerDied, "failed", 1),
    (errors.ShardLost, "failed", 1),
    (errors.SchedulerError, "failed", 1),
]


@pytest.mark.parametrize(("error", "kind", "code"), KINDS)
def test_every_error_has_its_kind_and_that_its_exit_code(
    error: type[errors.SchedulerError], kind: str, code: int
) -> None:
    assert error.kind == kind
    assert EXIT_CODES[error.kind] == code


def test_no_error_of_the_tree_is_without_a_decided_kind() -> None:
    def below(kind: type[errors.SchedulerError]) -> set[type[errors.SchedulerError]]:
        return {kind}.union(*(below(inner) for inner in kind.__subclasses__()))

    ours = {kind for kind in below(errors.SchedulerError) if kind.__module__.startswith("infinite_scheduler.")}
    assert ours == {error for error, _, _ in KINDS}


def test_every_kind_of_error_occurs_and_has_an_exit_code() -> None:
    assert {kind for _, kind, _ in KINDS} == set(errors.ErrorKind) == set(EXIT_CODES)


def test_an_error_ends_a_command_with_the_code_of_its_kind(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise errors.TooLate("it is done")

    monkeypatch.setattr("infinite_scheduler.cli.store_session.ask", refuse)
    assert run(["nodes"]) == 4
    assert capsys.readouterr().err == "error: it is done\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["frob"], "frob"),
        (["jobs", "list", "--nope"], "--nope"),
        (["jobs", "list", "--limit", "0"], "--limit"),
        (["jobs", "show"], "JOB"),
        (["schedule"], "APP"),
        (["schedule", "reminders", "--data", "1"], "--at"),
        (["schedule", "reminders", "--at", "now", "--in", "5m"], "--at"),
        (["schedule", "reminders", "--in", "5m", "--skip-bad"], "--skip-bad"),
        (["schedule", "reminders", "--from", "-", "--data", "1", "--tag", "x"], "leave out data, tags"),
    ],
)
def test_wrong_arguments_are_one_line_and_end_with_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("INFINITE_SCHEDULER_CONFIG", raising=False)
    assert run(arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: ")
    assert words in told.err
    assert told.err.count("\n") == 1
    assert run([*arguments, "--json"]) == 2
    answer = json.loads(capsys.readouterr().err)
    assert answer["code"] == 2
    assert words in answer["error"]


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["jobs"], ["apps"], ["--help"], ["-h"], ["jobs", "list", "-h"]):
        assert run(arguments) == 0
        assert "Usage: infinite-scheduler" in capsys.readouterr().out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("infinite-scheduler ")


def test_an_error_that_nobody_expected_is_one_line_with_a_hint(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*_: object) -> int:
        raise RuntimeError("boom")

    monkeypatch.setattr("infinite_scheduler.cli.store_session.ask", explode)
    assert run(["nodes"]) == 1
    told = capsys.readouterr().err
    assert told == "error: unexpected RuntimeError: boom; run the command again with --debug to see where\n"
    assert run(["nodes", "--debug"]) == 1
    told = capsys.readouterr().err
    assert "Traceback" in told
    assert told.endswith("error: unexpected RuntimeError: boom\n")


def test_ctrl_c_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("infinite_scheduler.cli.store_session.ask", interrupt)
    assert run(["nodes"]) == 130


def test_words_are_completed() -> None:
    assert job_filters._statuses() == ["pending", "done", "failed", "expired", "cancelled"]
    assert commands._priorities() == ["high", "normal", "low"]


def test_help_loads_nothing_heavy() -> None:
    check = (
        "import sys; from infinite_scheduler.cli.run import run; run(['--help']); "
        "print(sorted({'pydantic', 'sqlalchemy', 'sqlite3', 'asyncio', 'structlog', 'msgspec'} & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout
    assert told.splitlines()[-1] == "[]"
