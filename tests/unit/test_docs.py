"""The pages are true to the code: links, tests, names, errors, log lines and tables are the ones that exist."""

import asyncio
import re
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest

import infinite_scheduler
from infinite_scheduler import Client, Job, Scheduler, Status, SyncClient, errors, testing
from infinite_scheduler.config import load_settings
from infinite_scheduler.observe.logs import LINES
from infinite_scheduler.testing import Harness
from tests.snippets import ROOT, compiles, pages, program, snippets

DOCS = ROOT / "docs"
PYTHON = (DOCS / "reference" / "python.md").read_text(encoding="utf-8")
STORE = DOCS / "reference" / "store.md"
OPERATE = DOCS / "how-to" / "operate.md"
LINK = re.compile(r"\]\((?!https?:)(?P<path>[^)#]*)(?:#(?P<anchor>[^)]+))?\)")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


every_page = pytest.mark.parametrize("page", pages(), ids=name_of)


@cache
def code_of_tests() -> str:
    folders = (ROOT / "tests", ROOT / "src" / "infinite_scheduler" / "testing")
    return "\n".join(path.read_text(encoding="utf-8") for folder in folders for path in folder.rglob("*.py"))


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@every_page
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in LINK.finditer(page.read_text(encoding="utf-8")):
        target = (page.parent / link["path"]).resolve() if link["path"] else page
        assert target.exists(), link[0]
        assert link["anchor"] is None or link["anchor"] in anchors(target), link[0]


@every_page
def test_every_test_that_is_named_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for path in re.findall(r"`((?:tests|examples|docs|src|bench)/[^`*{}]*)`", text):
        assert (ROOT / path).exists(), path
    for name in re.findall(r"`(test_\w+)`", text):
        assert f"def {name}(" in code_of_tests(), name


@every_page
def test_every_make_target_exists(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@every_page
def test_python_can_be_compiled(page: Path) -> None:
    compiles(program(page), name_of(page))
    for snippet in snippets(page, "python"):
        compiles(snippet.text, f"{name_of(page)}, line {snippet.line}")


@every_page
def test_every_configuration_can_be_loaded(page: Path, tmp_path: Path) -> None:
    for snippet in snippets(page, "toml"):
        path = tmp_path / "scheduler.toml"
        path.write_text(snippet.text, encoding="utf-8")
        load_settings(path, environ={})


@every_page
def test_shell_commands_can_be_read(page: Path) -> None:
    for snippet in snippets(page, "sh"):
        subprocess.run(["bash", "-n"], input=snippet.text, text=True, check=True)


def test_every_public_name_is_in_the_reference() -> None:
    named = set(re.findall(r"\w+", PYTHON))
    assert set(infinite_scheduler.__all__) <= named
    assert set(testing.__all__) <= named


@pytest.mark.parametrize("kind", [Client, Scheduler])
def test_every_public_method_is_in_the_reference(kind: type) -> None:
    methods = {name for name in vars(kind) if not name.startswith("_")}
    assert methods <= set(re.findall(r"`(\w+)[(`]", PYTHON)) | {"open", "close", "settings"}


async def test_every_gauge_is_in_the_reference() -> None:
    async with Harness() as h:
        h.scheduler.app("reminders")(print)
        await h.start()
        gauges = h.scheduler.counters.snapshot()["gauges"]
    assert {"apps_without_node", "apps_held_back", "store_clock_offset_ms"} <= gauges.keys()
    assert all(f"`{name}`" in PYTHON for name in gauges)


def test_what_the_sync_client_lacks_is_said() -> None:
    public = {name for name in vars(Client) if not name.startswith("_")} - {"open", "close"}
    lacking = sorted(public - set(vars(SyncClient)))
    sentence = re.search(r"all of these but ([^.]+)\.", PYTHON)
    assert sorted(re.findall(r"`(\w+)`", sentence[1] if sentence else "")) == lacking


def test_the_error_tree_is_the_one_in_the_code() -> None:
    tree = (errors.__doc__ or "").partition("\n\n")[2].strip()
    assert tree in PYTHON


@pytest.mark.parametrize(
    "page", [DOCS / "concepts" / "life-of-a-job.md", DOCS / "reference" / "python.md"], ids=name_of
)
def test_every_status_word_is_explained(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert all(f"`{status}`" in text for status in Status)


def test_every_log_line_is_explained_with_its_level() -> None:
    rows = dict(
        re.findall(
            r"^\| (?:debug|info|warning|error) \| (.+?) \| (.+) \|$", OPERATE.read_text(encoding="utf-8"), re.MULTILINE
        )
    )
    levels = {10: "debug", 20: "info", 30: "warning", 40: "error"}
    for line in LINES.values():
        assert line.sentence in rows
        assert f"| {levels[line.level]} | {line.sentence} |" in OPERATE.read_text(encoding="utf-8")
    given_up = "A handler failed on a job, and no attempt is left: the job fails."
    assert rows.keys() - {given_up} == {line.sentence for line in LINES.values()}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which something has happened, on the first day of 2026."""
    database = tmp_path_factory.mktemp("store") / "scheduler.db"
    asyncio.run(fill(database))
    return database


async def fill(database: Path) -> None:
    async def remind(job: Job) -> None:
        if job.attempt == 1:
            raise ConnectionError("no route")

    async with Harness(database) as h:
        h.scheduler.app("reminders")(remind)
        await h.start()
        await h.client.schedule("reminders", {"to": "Ada"}, delay="1s", tags=["vip"], idempotency_key="one")
        await h.client.schedule("reminders", {"to": "Grace"}, delay="60d")
        await h.advance("10s")


def columns(database: Path) -> dict[str, list[str]]:
    with closing(sqlite3.connect(database)) as connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {table: [row[1] for row in connection.execute(f"PRAGMA table_xinfo({table})")] for table in tables}


def described() -> Iterator[tuple[str, list[str]]]:
    for section in re.split(r"^## ", STORE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        yield section.partition("\n")[0], re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


def test_the_store_page_names_every_table_and_column_in_order(filled: Path) -> None:
    real = columns(filled)
    wanted = {
        re.sub(r"^reminders_scheduled_jobs_\d{8}$", "{app}_scheduled_jobs_YYYYMMDD", table).replace(
            "reminders_moved", "{app}_moved"
        ): names
        for table, names in real.items()
        if table != "reminders_scheduled_jobs_later"
    }
    assert dict(described()) == wanted
    assert real["reminders_scheduled_jobs_later"] == wanted["{app}_scheduled_jobs_YYYYMMDD"]


@pytest.mark.parametrize("page", [STORE, OPERATE], ids=name_of)
def test_the_queries_for_operators_work(page: Path, filled: Path) -> None:
    queries = [line for snippet in snippets(page, "sql") for line in snippet.text.splitlines()]
    assert queries
    with closing(sqlite3.connect(filled)) as connection:
        for query in queries:
            assert query.startswith("SELECT "), query
            connection.execute(query).fetchall()


def test_a_query_for_operators_shows_what_people_look_for(filled: Path) -> None:
    query = next(line for snippet in snippets(OPERATE, "sql") for line in snippet.text.splitlines())
    with closing(sqlite3.connect(filled)) as connection:
        ((_, status, due, attempt, error),) = connection.execute(query).fetchall()
    assert (status, due[:19], attempt, error) == ("done", "2026-01-01 00:00:02", 2, None)
