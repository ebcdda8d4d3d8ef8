"""The snippets of the docs run as they stand: those of a page one after the other, in a folder of their own."""

import subprocess
import sys
from pathlib import Path

import pytest

from infinite_scheduler.handlers.import_function import load_function
from tests.snippets import ROOT, Reader, commands, pages, program, run_program, snippets, write_files

DOCS = [page for page in pages() if page.parent != ROOT]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


WITH_PYTHON = [page for page in DOCS if program(page)]
QUICKSTART = ROOT / "docs" / "quickstart.md"
TESTING = ROOT / "docs" / "how-to" / "testing.md"
OPERATE = ROOT / "docs" / "how-to" / "operate.md"
CONFIGURED = [page for page in pages() if any(snippet.title == "tasks.py" for snippet in snippets(page))]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=named)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    write_files(page, tmp_path)
    run_program(program(page), tmp_path)


def test_the_commands_for_operators_end_as_the_page_says(tmp_path: Path) -> None:
    write_files(OPERATE, tmp_path)
    Reader(tmp_path).type(list(commands(OPERATE)))


def test_the_quickstart_works_and_after_its_kill_all_jobs_are_done(tmp_path: Path) -> None:
    write_files(QUICKSTART, tmp_path)
    reader = Reader(tmp_path)
    reader.type(list(commands(QUICKSTART)))
    output = reader.output.read_text(encoding="utf-8")
    assert "delivered 5, early 0, lost 0" in output
    assert "now it is done" in output
    assert [who for who in ("Ada", "1", "2", "3", "4", "5", "6") if f"end {who}" not in output] == [], output
    assert "begin Grace" not in output
    assert " dead " in output


def test_the_contracts_run_as_the_page_on_tests_shows(tmp_path: Path) -> None:
    write_files(TESTING, tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    options = ["-q", "-p", "no:cacheprovider", "-k", "TestMailHandler or done"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout
    assert {"test_my_store.py", "test_my_handler.py"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("page", CONFIGURED, ids=named)
def test_the_handlers_that_a_page_configures_can_be_imported(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "tasks", raising=False)
    write_files(page, tmp_path)
    functions = [
        line.partition('"')[2].rstrip('"\n')
        for snippet in snippets(page, "toml")
        for line in snippet.text.splitlines()
        if line.startswith("function")
    ]
    assert all(callable(load_function(function, [tmp_path])) for function in functions)
    monkeypatch.delitem(sys.modules, "tasks", raising=False)
