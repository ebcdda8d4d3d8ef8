"""Commands before any node has run: there is no store yet, and asking makes none."""

import json
from collections.abc import Sequence
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
WORDS = "the store does not exist yet: {}; check --store and --config. A node creates it when it starts"

JOB = "01890a5d-ac96-8b3b-8001-0123456789ab"

COMMANDS = [
    ("ingest", "status"),
    ("ingest", "offsets"),
    ("ingest", "offsets", "--reset", "jobs=earliest", "--group", "g", "--yes"),
    ("dlq", "list"),
    ("dlq", "replay", "1"),
    ("jobs", "list"),
    ("jobs", "show", JOB),
    ("jobs", "cancel", JOB),
    ("jobs", "run-now", JOB),
    ("explain", JOB),
    ("nodes",),
    ("nodes", "drain", "node-1"),
    ("apps", "list"),
    ("apps", "pause", "other"),
    ("schedule", "other", "--in", "5m"),
]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "scheduler.toml"


def refused(config: Path, url: str, command: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command says is wrong, to people and to scripts."""
    config.write_text(CONFIG.format(url=url))
    arguments = [*command, "--config", str(config)]
    assert run(arguments) == 5
    shown = capsys.readouterr()
    assert run([*arguments, "--json"]) == 5
    told = capsys.readouterr()
    assert (shown.out, told.out) == ("", "")
    found = json.loads(told.err)
    assert (found["code"], shown.err) == (5, f"error: {found['error']}\n")
    return str(found["error"])


def test_no_file_is_made_by_asking(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = config.parent / "jobs.db"
    for command in COMMANDS:
        said = refused(config, f"sqlite:///{database}", command, capsys)
        assert said.startswith(WORDS.format(f"there is no database {database}")), command
    assert [path.name for path in config.parent.iterdir()] == [config.name]


@pytest.mark.parametrize("kind", ["mariadb", "postgres"])
@pytest.mark.servers
def test_no_table_is_made_by_asking(
    kind: str, config: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(f"{kind}_url")
    place, _, database = url.rpartition("/")
    host = place.rpartition("@")[2]
    scheme = "postgresql" if kind == "postgres" else kind
    lack = f"{scheme}://admin@{host}/{database} has no table scheduler_schema"
    schema = "public" if kind == "postgres" else database
    tables = f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{schema}'"
    for command in COMMANDS:
        assert refused(config, url, command, capsys).startswith(WORDS.format(lack)), command
    bad = config.parent / "bad.ndjson"
    bad.write_text('{"at": "soon"}\n')
    assert run(["schedule", "sms", "--from", str(bad), "--config", str(config)]) == 2
    assert execute(url, tables) == []
    assert run(["schedule", "sms", "--in", "5m", "--data", "{}", "--config", str(config)]) == 0
    assert ("scheduler_schema",) in execute(url, tables), "who adds to an app that is configured makes the store"


def test_a_store_that_is_there_is_asked(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(CONFIG.format(url=f"sqlite:///{config.parent / 'jobs.db'}"))
    assert run(["migrate", "--create", "--days", "0", "--config", str(config)]) == 0
    assert run(["ingest", "status", "--config", str(config)]) == 1
    assert "Not ready: " in capsys.readouterr().out
