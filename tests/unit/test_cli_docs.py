"""The page on the command line names every command, option, exit code and reason, and no other."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from infinite_scheduler.cli import run
from infinite_scheduler.cli.commands import app
from infinite_scheduler.views.explain import Reason

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]}
SHARED = SECTIONS["What all commands share"]
OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")


def commands_of(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
        return
    for name, inner in below.items():
        yield from commands_of(inner, f"{path} {name}")


ROOT: Any = typer.main.get_command(app)
COMMANDS = dict(commands_of(ROOT, run.PROGRAM))


def options_of(command: Any) -> set[str]:
    return {name for param in command.params for name in param.opts if name.startswith("-")}


def rows_of(section: str) -> list[str]:
    return [line for line in section.splitlines() if line.startswith("| `")]


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_has_a_section_with_its_options(path: str) -> None:
    section, shared = "\n".join(rows_of(SECTIONS[path])), "\n".join(rows_of(SHARED))
    described = set(OPTION.findall(section)) | set(OPTION.findall(shared))
    assert options_of(COMMANDS[path]) <= described


@pytest.mark.parametrize("path", COMMANDS)
def test_a_section_names_no_option_that_its_command_lacks(path: str) -> None:
    first_cells = " ".join(row.split("|")[1] for row in rows_of(SECTIONS[path]))
    assert set(OPTION.findall(first_cells)) <= options_of(COMMANDS[path])


def test_the_page_names_no_unknown_command() -> None:
    assert {name for name in SECTIONS if name.startswith(run.PROGRAM)} == set(COMMANDS)


def test_the_options_before_any_command_are_in_the_page() -> None:
    assert all(f"`{name}`" in SHARED for name in options_of(ROOT))


def test_every_command_but_the_demo_takes_the_shared_options() -> None:
    lacking = [path for path, command in COMMANDS.items() if not {"--config", "--store"} <= options_of(command)]
    assert lacking == ["infinite-scheduler demo"]
    assert all({"--json", "--debug"} <= options_of(command) for command in COMMANDS.values())


def test_every_exit_code_is_in_the_page() -> None:
    codes = {run.OK, run.FAILURE, run.BAD_INPUT, run.NOT_FOUND, run.TOO_LATE, run.NO_STORE, run.INTERRUPTED}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", SHARED, re.MULTILINE)} == codes


def test_every_kind_of_error_stands_beside_its_exit_code() -> None:
    cells = re.findall(r"^\| (\d+) \| ([^|]*)\|", SHARED, re.MULTILINE)
    told = {kind: int(code) for code, kinds in cells for kind in re.findall(r"`(\w+)`", kinds)}
    assert told == run.EXIT_CODES


def test_every_reason_is_in_the_page() -> None:
    section = SECTIONS["infinite-scheduler explain"]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == set(Reason)


def test_every_command_and_option_explains_itself() -> None:
    silent = [
        f"{path} {param.name}"
        for path, command in COMMANDS.items()
        for param in command.params
        if not getattr(param, "help", None)
    ]
    assert silent == []
    assert all(command.help for command in COMMANDS.values())
