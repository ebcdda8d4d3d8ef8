"""Shell completion, as a shell asks for it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = "infinite-scheduler"
COMMANDS = {"demo", "serve", "schedule", "nodes", "explain", "jobs", "apps"}
NO_DETECTION = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # then --show-completion takes the shell's name


def run(folder: Path, *arguments: str, **env: str) -> str:
    """The output of a command that must succeed without a word on stderr."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("INFINITE_SCHEDULER_")}
    done = subprocess.run(
        [sys.executable, "-m", "infinite_scheduler", *arguments],
        check=False,
        cwd=folder,
        env=clean | env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def completed(folder: Path, *words: str) -> set[str]:
    """What bash would be offered for the last word."""
    typed = " ".join([PROGRAM, *words])
    env = {"COMP_WORDS": typed, "COMP_CWORD": str(len(words)), "_INFINITE_SCHEDULER_COMPLETE": "complete_bash"}
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


def test_bash_completes_with_the_script(tmp_path: Path) -> None:
    bash, program = shutil.which("bash"), Path(sys.executable).with_name(PROGRAM)
    if bash is None or not program.exists():
        pytest.skip("no bash, or the command is not installed beside this Python")
    (tmp_path / "completion.sh").write_text(run(tmp_path, "--show-completion", "bash", **NO_DETECTION))
    ask = (
        f"source completion.sh; COMP_WORDS=({PROGRAM} s); COMP_CWORD=1;"
        f" _infinite_scheduler_completion {program}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run([bash, "-c", ask], check=True, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert set(done.stdout.split()) == {"serve", "schedule"}
