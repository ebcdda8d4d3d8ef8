"""The README runs as it stands: its Python, its configuration and its commands."""

import re
from pathlib import Path

from infinite_scheduler.config import load_settings
from tests.snippets import ROOT, Reader, commands, program, run_program, snippets, write_files

PAGE = ROOT / "README.md"


def test_the_python_example_runs_and_ends_by_itself(tmp_path: Path) -> None:
    output = run_program(program(PAGE), tmp_path)
    assert output.startswith("Tea is ready")
    assert output.endswith("done\n")


def test_the_python_example_is_about_ten_lines() -> None:
    (example,) = [snippet for snippet in snippets(PAGE, "python") if snippet.title is None]
    assert len([line for line in example.text.splitlines() if line.strip()]) <= 12


def test_the_configuration_can_be_loaded(tmp_path: Path) -> None:
    write_files(PAGE, tmp_path)
    assert set(load_settings(tmp_path / "scheduler.toml", environ={}).apps) == {"reminders"}


def test_the_commands_do_what_the_page_says(tmp_path: Path) -> None:
    write_files(PAGE, tmp_path)
    reader = Reader(tmp_path)
    reader.type(list(commands(PAGE)))
    output = reader.output.read_text(encoding="utf-8")
    assert "Reminding Ada" in output
    assert "It is not due yet" in output
    assert re.search(r"^status +done", output, re.MULTILINE)
