"""Shell completion, as a shell asks for it."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from infinite_scheduler import SyncClient
from tests.command import run_here

PROGRAM = "infinite-scheduler"
COMMANDS = {
    "demo",
    "serve",
    "http",
    "schedule",
    "nodes",
    "explain",
    "jobs",
    "apps",
    "migrate",
    "topics",
    "ingest",
    "dlq",
    "tokens",
}
NO_DETECTION = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # then --show-completion takes the shell's name


def run(folder: Path, *arguments: str, **env: str) -> str:
    """The output of a command that must succeed without a word on stderr."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("INFINITE_SCHEDULER_")}
    done = run_here(arguments, folder, clean | env)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def completed(folder: Path, *words: str, **env: str) -> set[str]:
    """What bash would be offered for the last word."""
    typed = " ".join([PROGRAM, *words])
    env |= {"COMP_WORDS": typed, "COMP_CWORD": str(len(words)), "_INFINITE_SCHEDULER_COMPLETE": "complete_bash"}
    return set(run(folder, **env).split())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_the_script_of_a_shell_is_shown(tmp_path: Path, shell: str) -> None:
    script = run(tmp_path, "--show-completion", shell, **NO_DETECTION)
    assert PROGRAM in script
    assert "_INFINITE_SCHEDULER_COMPLETE" in script
    assert f"complete_{shell}" in script


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_that_the_shell_can_read(tmp_path: Path, shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here")
    script = run(tmp_path, "--show-completion", shell, **NO_DETECTION)
    read = subprocess.run([program, "-n"], check=False, input=script, capture_output=True, text=True, timeout=60)
    assert read.returncode == 0, read.stderr


def test_commands_are_listed(tmp_path: Path) -> None:
    assert completed(tmp_path, "") == COMMANDS


def test_a_command_is_completed(tmp_path: Path) -> None:
    assert completed(tmp_path, "sch") == {"schedule"}
    assert completed(tmp_path, "nothing") == set()


def test_subcommands_are_listed(tmp_path: Path) -> None:
    assert {"cancel", "retry"} <= completed(tmp_path, "jobs", "")
    assert {"pause", "resume"} <= completed(tmp_path, "apps", "")


def test_options_are_listed(tmp_path: Path) -> None:
    assert "--priority" in completed(tmp_path, "schedule", "--pri")


def test_values_are_listed(tmp_path: Path) -> None:
    assert completed(tmp_path, "schedule", "--priority", "") == {"high", "normal", "low"}
    assert completed(tmp_path, "jobs", "list", "--status", "") == {"pending", "done", "failed", "expired", "cancelled"}
    assert completed(tmp_path, "topics", "create", "--preset", "") == {"sms-retry", "ingest"}
    assert completed(tmp_path, "dlq", "list", "--state", "re") == {"refused", "replayed"}


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


CONFIG = """
[store]
url = "sqlite:///jobs.db"
[apps.reminders]
function = "nowhere:remind"
[apps.receipts]
function = "nowhere:send"
"""


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A folder with a store that knows the app "payments", and a configuration with two others."""
    (tmp_path / "scheduler.toml").write_text(CONFIG, encoding="utf-8")
    with SyncClient(f"sqlite:///{tmp_path / 'jobs.db'}") as client:
        client.register("payments")
    return tmp_path


@pytest.mark.parametrize(
    "before", [["schedule"], ["apps", "pause"], ["apps", "resume"], ["jobs", "list", "--app"]], ids=" ".join
)
def test_apps_are_listed(filled: Path, before: list[str]) -> None:
    there = files(filled)
    store = before[:2] if before[0] in ("jobs", "apps") else before[:1]
    where = ["--store", "sqlite:///jobs.db"]
    assert completed(filled, *store, *where, *before[len(store) :], "") == {"payments"}
    assert completed(filled, *store, "--config", "scheduler.toml", *before[len(store) :], "re") == {
        "reminders",
        "receipts",
    }
    assert files(filled) == there


def test_apps_are_those_of_the_environment(filled: Path) -> None:
    by_file = {"INFINITE_SCHEDULER_CONFIG": "scheduler.toml"}
    assert completed(filled, "schedule", "", **by_file) == {"payments", "receipts", "reminders"}
    by_url = {"INFINITE_SCHEDULER_STORE__URL": "sqlite:///jobs.db"}
    assert completed(filled, "schedule", "", **by_url) == {"payments"}


def test_apps_of_a_running_node_are_listed(filled: Path) -> None:
    with SyncClient(f"sqlite:///{filled / 'jobs.db'}") as client:
        client.register("late")  # only the log has it
        assert completed(filled, "schedule", "--store", "sqlite:///jobs.db", "") == {"late", "payments"}


@pytest.mark.parametrize(
    "url", ["sqlite:///nowhere.db", "sqlite:///:memory:", "sqlite:///scheduler.toml", "postgresql://h/d", "nonsense"]
)
def test_where_no_apps_can_be_found_none_are_offered_and_nothing_is_made(filled: Path, url: str) -> None:
    there = files(filled)
    assert completed(filled, "schedule", "--store", url, "") == set()
    assert completed(filled, "schedule", "--config", "nowhere.toml", "") == set()
    assert files(filled) == there


@pytest.mark.parametrize(("shell", "between"), [("zsh", '"'), ("fish", "\n")])
def test_other_shells_are_offered_the_same(tmp_path: Path, shell: str, between: str) -> None:
    env = {"_INFINITE_SCHEDULER_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": f"{PROGRAM} "}
    if shell == "fish":
        env["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    offered = run(tmp_path, **env)
    words = {word.split("\t")[0].strip() for word in offered.split(between)}
    assert words >= COMMANDS


def test_a_broken_configuration_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "scheduler.toml").write_text("this is [no toml", encoding="utf-8")
    assert completed(tmp_path, "") == COMMANDS


def in_bash(folder: Path, *words: str) -> set[str]:
    """What the script makes of words as bash has them."""
    bash, program = shutil.which("bash"), Path(sys.executable).with_name(PROGRAM)
    if bash is None or not program.exists():
        pytest.skip("no bash, or the command is not installed beside this Python")
    (folder / "completion.sh").write_text(run(folder, "--show-completion", "bash", **NO_DETECTION))
    ask = (
        f"source completion.sh; COMP_WORDS=({shlex.join([PROGRAM, *words])}); COMP_CWORD={len(words)};"
        f" _infinite_scheduler_completion {program}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run([bash, "-c", ask], check=True, cwd=folder, capture_output=True, text=True, timeout=60)
    return set(done.stdout.split())


def test_bash_completes_with_the_script(tmp_path: Path) -> None:
    assert in_bash(tmp_path, "s") == {"serve", "schedule"}


def test_a_url_that_bash_takes_apart_is_understood(filled: Path) -> None:
    assert in_bash(filled, "schedule", "--store", "sqlite", ":", "///jobs.db", "pay") == {"payments"}
    assert in_bash(filled, "schedule", "--store", "=", "sqlite", ":", "///jobs.db", "") == {"payments"}
