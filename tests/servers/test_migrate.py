"""`infinite-scheduler migrate`, and nodes that may make no tables."""

import asyncio
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pymysql
import pytest

from infinite_scheduler import Client, Job, NewJob, Scheduler
from infinite_scheduler.cli.run import run
from infinite_scheduler.errors import StoreMismatch
from infinite_scheduler.model import DAY_MS, JobId
from infinite_scheduler.observe.events import Event, TaskFailed
from infinite_scheduler.store.sql.schema import MIGRATIONS, VERSION, version_of
from infinite_scheduler.store.sql.schema import migrate as migrate_schema
from infinite_scheduler.store.sql.server.database import ServerDatabase
from infinite_scheduler.store.sql.server.drivers import server_driver
from infinite_scheduler.store.sql.server.mariadb import EXACT
from infinite_scheduler.store.sql.server.mariadb_dialect import MariaDialect
from tests.older_schema import schema_version
from tests.periods import DAY_S, HOUR_S, await_a_whole
from tests.servers.proxy import proxied
from tests.servers.test_enqueue import engine_of
from tests.services.catalogue import admin_url
from tests.services.databases import WORDS, connect, execute, kind_of, limited_user
from tests.waiting import until_async

pytestmark = pytest.mark.servers
HOUR_MS = 3_600_000


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text("def remind(job): ...\n", encoding="utf-8")
    path = tmp_path / "scheduler.toml"
    path.write_text('[apps.reminders]\nfunction = "tasks:remind"\nshards = 2\n', encoding="utf-8")
    return path


def tables_of(url: str) -> set[str]:
    connection = server_driver(url).connect()
    try:
        return set(server_driver(url).dialect.tables(connection.cursor()))
    finally:
        connection.close()


def migrate(capsys: pytest.CaptureFixture[str], config: Path | None, url: str, *options: str) -> tuple[int, str, str]:
    place = ["--config", str(config)] if config else []
    code = run(["migrate", *place, "--store", url, *options])
    said = capsys.readouterr()
    return code, said.out, said.err


# The command runs an event loop of its own, so these tests have none.


def test_it_makes_schema_apps_and_tables_and_says_so(
    url: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await_a_whole(DAY_S)
    code, out, _ = migrate(capsys, config, url, "--days", "3")
    today = datetime.now(UTC)
    assert code == 0
    assert out.splitlines()[:2] == [f"brought the schema to version {VERSION}", "added the app reminders"]
    assert f"created 4 tables, reminders_scheduled_jobs_{today:%Y%m%d} to " in out
    assert {"scheduler_schema", "reminders_moved_jobs", f"reminders_scheduled_jobs_{today:%Y%m%d}"} <= tables_of(url)
    code, out, _ = migrate(capsys, config, url, "--days", "3")
    assert (code, out.startswith("nothing to do: ")) == (0, True)
    password = urlsplit(url).password
    assert password
    assert password not in out


def test_it_brings_an_older_schema_up_to_date(url: str, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await_a_whole(DAY_S)
    with schema_version(1):
        assert "brought the schema to version 1" in migrate(capsys, config, url, "--days", "1")[1]
    code, out, _ = migrate(capsys, config, url, "--days", "1", "--json")
    told = json.loads(out)
    assert (code, told["schema_before"], told["schema"], told["tables_made"]) == (0, 1, VERSION, [])
    assert {"scheduler_ingest_offsets", "scheduler_dead_letters"} <= tables_of(url)


@pytest.mark.parametrize("is_mariadb", [True, False], ids=["as MariaDB", "as MySQL"])
def test_a_migration_that_was_cut_off_before_its_end_is_done_again(mariadb_url: str, is_mariadb: bool) -> None:
    """These servers commit each statement that changes tables; MariaDB understands all that MySQL is told."""
    dialect = MariaDialect(EXACT["MariaDB"], is_mariadb=is_mariadb)
    with closing(server_driver(mariadb_url).connect()) as connection:
        cursor = connection.cursor()
        for step in MIGRATIONS:
            for statement in step(dialect):
                cursor.execute(statement)
        assert version_of(cursor, dialect) == 0
        migrate_schema(cursor, dialect)
        assert version_of(cursor, dialect) == VERSION
        cursor.execute("SELECT held_back, vitals FROM scheduler_nodes")


def test_it_prepares_forty_days_and_tells_scripts(url: str, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await_a_whole(DAY_S)
    code, out, _ = migrate(capsys, config, url, "--json")
    told = json.loads(out)
    assert code == 0
    assert (told["schema_before"], told["schema"], told["apps_made"]) == (0, VERSION, ["reminders"])
    assert len(told["tables_made"]) == 41
    assert json.loads(migrate(capsys, None, url, "--json")[1])["tables_made"] == []


def test_hours_are_prepared_a_few_at_a_time(
    url: str, config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await_a_whole(HOUR_S)
    monkeypatch.setenv("INFINITE_SCHEDULER_STORE__TABLES", "hourly")
    code, out, _ = migrate(capsys, config, url, "--days", "2", "--json")
    assert (code, len(json.loads(out)["tables_made"])) == (0, 49)
    monkeypatch.setenv("INFINITE_SCHEDULER_STORE__TABLES", "daily")
    code, out, err = migrate(capsys, config, url, "--days", "2")
    assert (code, "nothing to do" in out) == (0, True)
    assert "app reminders keeps its hourly tables" in err


@pytest.fixture(params=["mariadb", "postgres"])
def missing(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a database that is not there."""
    name = f"test_{secrets.token_hex(6)}"
    admin = admin_url(request.param)
    yield urlsplit(admin)._replace(path=f"/{name}").geturl()
    execute(admin, WORDS[kind_of(admin)].drop.format(name=f"IF EXISTS {name}"))


def test_it_makes_the_database_itself_only_when_asked(
    missing: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await_a_whole(DAY_S)
    code, _, err = migrate(capsys, config, missing, "--days", "0")
    assert code == 2
    assert "infinite-scheduler migrate --create" in err
    code, out, _ = migrate(capsys, config, missing, "--days", "0", "--create")
    assert code == 0
    assert out.startswith("created the database ")
    code, out, _ = migrate(capsys, config, missing, "--days", "0", "--create")
    assert (code, out.startswith("nothing to do: ")) == (0, True)


@pytest.mark.parametrize("missing", ["mariadb"], indirect=True)
def test_no_connection_that_makes_the_database_waits_for_ever(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    connect = pymysql.connections.Connection.__init__

    def noted(connection: Any, **arguments: Any) -> None:
        made.append((arguments.get("read_timeout"), arguments.get("write_timeout")))
        connect(connection, **arguments)

    monkeypatch.setattr(pymysql.connections.Connection, "__init__", noted)
    assert server_driver(missing).create_database()
    assert len(made) == 2
    assert all(read and write for read, write in made)


def test_making_the_database_is_as_patient_as_the_settings_say(
    missing: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(config.read_text() + '\n[store]\nlock_wait = "1s"\nsilence = "1500ms"\n', encoding="utf-8")
    with proxied(missing) as (proxy, address):
        proxy.hush_at(b"CREATE DATABASE")
        began = time.monotonic()
        code, _, err = migrate(capsys, config, address, "--days", "0", "--create")
        assert (code, "does not answer" in err) == (5, True)
        assert time.monotonic() - began < 15, "it was as patient as without settings"


@pytest.mark.parametrize("missing", ["postgres"], indirect=True)
def test_making_the_database_waits_for_locks_as_the_settings_say(
    missing: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(config.read_text() + '\n[store]\nlock_wait = "1s"\n', encoding="utf-8")
    with closing(connect(admin_url("postgres"))) as stranger, closing(stranger.cursor()) as cursor:
        cursor.execute("BEGIN")
        cursor.execute("COMMENT ON DATABASE template0 IS 'a lock on what every database is made from'")
        code, _, err = migrate(capsys, config, missing, "--days", "0", "--create")
        cursor.execute("ROLLBACK")
    assert (code, "waited 1 s for locks of other transactions" in err) == (5, True)


def test_a_wrong_password_is_not_taken_for_a_missing_database(
    missing: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = urlsplit(missing)
    wrong = parts._replace(netloc=f"{parts.username}:wrong@{parts.hostname}:{parts.port}").geturl()
    code, _, err = migrate(capsys, config, wrong, "--create")
    assert code in {2, 5}
    assert "wrong@" not in err


def test_it_makes_tables_though_nodes_may_not(url: str, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(config.read_text() + "\n[store]\nddl = false\n", encoding="utf-8")
    code, out, _ = migrate(capsys, config, url, "--days", "1")
    assert code == 0
    assert "created 2 tables" in out


def test_it_needs_a_sqlite_file_or_leave_to_make_it(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = f"sqlite:///{tmp_path / 'jobs.db'}"
    assert migrate(capsys, config, place)[0] == 5
    assert not (tmp_path / "jobs.db").exists()
    code, out, _ = migrate(capsys, config, place, "--create", "--days", "1")
    assert code == 0
    assert out.splitlines()[:2] == [f"created the database {place}", f"brought the schema to version {VERSION}"]


# Nodes without the right to make tables


def prepare(url: str, config: Path, days: int) -> None:
    assert run(["migrate", "--config", str(config), "--store", url, "--days", str(days)]) == 0


def limited(url: str, events: list[Event]) -> tuple[Scheduler, list[str]]:
    fired: list[str] = []
    scheduler = Scheduler(url, settings={"store.ddl": False}, observers=[events.append])

    @scheduler.app("reminders")
    async def remind(job: Job) -> None:
        fired.append(job.id)

    return scheduler, fired


async def until_fired(fired: list[str], ids: set[str]) -> None:
    await until_async(lambda: set(fired) >= ids, "everything is handed over")
    assert sorted(fired) == sorted(ids)


async def test_a_node_without_the_right_to_make_tables_works_on_what_was_prepared(url: str, config: Path) -> None:
    await asyncio.to_thread(prepare, url, config, 1)
    before = tables_of(url)
    events: list[Event] = []
    with limited_user(url) as few_rights:
        scheduler, fired = limited(few_rights, events)
        async with scheduler:
            now = [job.id for job in await scheduler.schedule_many("reminders", [NewJob(delay="0s")] * 50)]
            soon = await scheduler.schedule("reminders", delay="1s")
            tomorrow = await scheduler.schedule("reminders", delay="23h")
            unprepared = await scheduler.schedule("reminders", delay="5d")
            engine = engine_of(few_rights)
            with engine.begin() as connection:
                (enqueued,) = scheduler.enqueue(connection, "reminders", [NewJob(delay="6d")])
            engine.dispose()
            assert [JobId(job.key).later for job in (soon, tomorrow, unprepared, enqueued)] == [
                False,
                False,
                True,
                True,
            ]
            await scheduler.run_now(unprepared.id)
            await until_fired(fired, {*now, soon.id, unprepared.id})
            assert (await scheduler.get(enqueued.id)).status == "pending"
    assert tables_of(url) == before
    assert not [event for event in events if isinstance(event, TaskFailed)]


async def test_what_was_prepared_later_is_noticed(url: str, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infinite_scheduler.store.sql.existing_tables.AGAIN_MS", 0)
    await asyncio.to_thread(prepare, url, config, 1)
    with limited_user(url) as few_rights:
        async with Client(few_rights, settings={"store.ddl": False}) as client:
            assert JobId((await client.schedule("reminders", delay="5d")).key).later
            await asyncio.to_thread(prepare, url, config, 6)
            assert not JobId((await client.schedule("reminders", delay="5d")).key).later


async def test_without_preparation_the_command_is_named(url: str, config: Path) -> None:
    unmade = Client(url, settings={"store.ddl": False})
    with pytest.raises(StoreMismatch, match="infinite-scheduler migrate"):
        await unmade.open()
    await asyncio.to_thread(prepare, url, config, 1)
    async with Client(url, settings={"store.ddl": False}) as client:
        with pytest.raises(StoreMismatch, match=r"no table letters_.*infinite-scheduler migrate"):
            await client.register("letters")


async def test_without_the_right_to_drop_retention_deletes_rows(url: str, config: Path) -> None:
    await_a_whole(DAY_S)
    await asyncio.to_thread(prepare, url, config, 1)
    today = datetime.now(UTC)
    table = f"reminders_scheduled_jobs_{today:%Y%m%d}"
    async with Client(url) as client:
        ids = [(await client.schedule("reminders", delay="0s")).id for _ in range(5)]
    week_ms = 7 * DAY_MS
    now_ms = int(today.timestamp() * 1000) + week_ms + 2 * DAY_MS
    execute(url, f"UPDATE {table} SET status = 'done', finished_ms = due_ms")
    execute(url, f"UPDATE {table} SET status = 'pending', finished_ms = NULL WHERE job_id = '{ids[0]}'")
    execute(url, f"UPDATE scheduler_shards SET low_ms = {now_ms}, line_ms = {now_ms}")
    with limited_user(url) as few_rights:
        database = ServerDatabase(server_driver(few_rights), ddl=False)
        await database.open()
        for hours, left in ((0, 1), (2, 0)):
            done = await database.maintain(now_ms=now_ms + hours * HOUR_MS, retention_ms=week_ms, idempotency_ms=DAY_MS)
            assert (done.made, done.dropped) == ((), ())
            assert execute(url, f"SELECT COUNT(*) FROM {table}") == [(left,)]
            execute(url, f"UPDATE {table} SET status = 'done', finished_ms = due_ms")
        await database.close()
    assert table in tables_of(url)
