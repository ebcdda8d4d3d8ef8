"""Whether topics are read, asked before any node has run: there is no store yet, and asking makes none."""

import json
from pathlib import Path

import pytest

from infinite_scheduler.cli.run import run
from tests.services.databases import execute

CONFIG = """
[store]
url = "{url}"
[kafka]
bootstrap_servers = "127.0.0.1:1"
[[ingest]]
topic = "jobs"
[apps.sms]
handler = "kafka"
topic = "out"
"""
WORDS = "no node has made the store yet: {}, and no topic is read; start a node (infinite-scheduler serve"


def status(folder: Path, url: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What `ingest status` says is wrong, to people and to scripts."""
    file = folder / "scheduler.toml"
    file.write_text(CONFIG.format(url=url))
    command = ["ingest", "status", "--config", str(file)]
    assert run(command) == 5
    shown = capsys.readouterr()
    assert run([*command, "--json"]) == 5
    told = capsys.readouterr()
    assert (shown.out, told.out) == ("", "")
    found = json.loads(told.err)
    assert (found["code"], shown.err) == (5, f"error: {found['error']}\n")
    return str(found["error"])


def test_no_file_is_made_by_asking(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = tmp_path / "jobs.db"
    assert WORDS.format(f"there is no database {database}") in status(tmp_path, f"sqlite:///{database}", capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["scheduler.toml"]


@pytest.mark.parametrize("kind", ["mariadb", "postgres"])
@pytest.mark.servers
def test_no_table_is_made_by_asking(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(f"{kind}_url")
    place, _, database = url.rpartition("/")
    host = place.rpartition("@")[2]
    scheme = "postgresql" if kind == "postgres" else kind
    lack = f"{scheme}://admin@{host}/{database} has no table scheduler_schema"
    assert WORDS.format(lack) in status(tmp_path, url, capsys)
    schema = "public" if kind == "postgres" else database
    assert execute(url, f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{schema}'") == []


def test_a_store_that_is_there_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "scheduler.toml"
    file.write_text(CONFIG.format(url=f"sqlite:///{tmp_path / 'jobs.db'}"))
    assert run(["migrate", "--create", "--days", "0", "--config", str(file)]) == 0
    assert run(["ingest", "status", "--config", str(file)]) == 1
    assert "Not ready: " in capsys.readouterr().out
