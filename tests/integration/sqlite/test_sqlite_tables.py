"""SQLite's addresses, and the tables that it makes."""

import itertools
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from infinite_scheduler.clock import SystemClock
from infinite_scheduler.errors import ConfigError, InvalidRequest
from infinite_scheduler.model import DAY_MS
from infinite_scheduler.store import open_store
from infinite_scheduler.store.sql.schema import create_job_table
from infinite_scheduler.store.sql.sqlite.database import path_of
from infinite_scheduler.store.sql.sqlite.dialect import SqliteDialect
from infinite_scheduler.store.sql.statements import NewRow, Session, Statements
from infinite_scheduler.store.sql.tables import SqlApp, moved_table
from tests.contract.test_statements import NOW, SMS, add, keys_of, new_row, scan_all_rows, scan_of, settle
from tests.integration.sqlite.sqlite_file import opened
from tests.waiting import until


class TestUrl:
    @pytest.mark.parametrize(
        ("url", "wanted"),
        [
            ("sqlite:///jobs.db", "jobs.db"),
            ("sqlite:///data/jobs.db", "data/jobs.db"),
            ("sqlite:////var/jobs.db", "/var/jobs.db"),
            ("sqlite:///:memory:", ":memory:"),
        ],
    )
    def test_a_url_names_a_file(self, url: str, wanted: str) -> None:
        assert path_of(url) == wanted

    @pytest.mark.parametrize(
        "url", ["sqlite://", "sqlite:///", "sqlite:jobs.db", "sqlite://jobs.db", "mysql:///jobs.db"]
    )
    def test_a_url_without_a_file_is_refused_with_an_example(self, url: str) -> None:
        with pytest.raises(ConfigError, match=r"sqlite:///jobs\.db"):
            path_of(url)

    def test_unknown_options_are_refused_by_name(self) -> None:
        with pytest.raises(ConfigError, match="timeout"):
            path_of("sqlite:///jobs.db?timeout=5")


class TestTables:
    async def test_an_operator_reads_jobs_without_knowing_how_they_are_stored(
        self, session: Session, path: Path
    ) -> None:
        row = new_row(NOW + 123, scheduled_ms=NOW - 1)
        await add(session, [row])
        await settle(session, [row.key])
        with sqlite3.connect(path) as shell:
            shell.row_factory = sqlite3.Row
            seen = shell.execute(
                "SELECT * FROM sms_retry_scheduled_jobs_20261116 ORDER BY scheduled_time DESC LIMIT 10"
            ).fetchall()
        shell.close()
        (read,) = seen
        record = (await session.read(lambda tx: tx.read_jobs(SMS, [row.key])))[0]
        assert read["job_id"] == record.id
        assert read["scheduled_time"] == "2026-11-15 23:59:59.999"
        assert read["due_time"] == "2026-11-16 00:00:00.123"
        assert (read["created_at"], read["finished_at"]) == ("2026-11-16 00:00:00.000", "2026-11-16 00:00:00.005")
        assert (read["status"], read["job_data"], read["attempt"]) == ("done", '{"to":"+49"}', 1)

    async def test_jobs_at_random_times_share_the_pages_that_are_written(self, session: Session, path: Path) -> None:
        def some(count: int) -> list[NewRow]:
            return [new_row(NOW + random.randrange(DAY_MS), payload=b'"%s"' % (b"x" * 200)) for _ in range(count)]

        await add(session, some(20_000))
        log = path.with_name(f"{path.name}-wal")
        with closing(sqlite3.connect(path)) as shell:
            until(lambda: shell.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0))
        await add(session, some(1_000))
        assert 0 < log.stat().st_size < 500 * 4096  # stored in the order of their times, they would need a page each

    async def test_a_table_of_an_earlier_version_goes_on_being_used(self, session: Session, path: Path) -> None:
        with closing(sqlite3.connect(path)) as shell:
            table = create_job_table(SqliteDialect(), "sms_retry_scheduled_jobs_20261116")
            shell.execute(f"{table} WITHOUT ROWID")
        rows = [new_row(NOW + n) for n in range(300)]
        keys = await add(session, rows)
        await settle(session, keys[:100])
        assert [job.key for job in await scan_all_rows(session, scan_of())] == keys[100:]

    async def test_readable_columns_take_no_space_and_no_index(self, session: Session, path: Path) -> None:
        await add(session, [new_row()])
        shell = sqlite3.connect(path)
        hidden = {
            row[1] for row in shell.execute("PRAGMA table_xinfo(sms_retry_scheduled_jobs_20261116)") if row[6] == 2
        }
        indexes = shell.execute("PRAGMA index_list(sms_retry_scheduled_jobs_20261116)").fetchall()
        shell.close()
        assert hidden == {"job_id", "scheduled_time", "due_time", "created_at", "finished_at"}
        assert [row[3] for row in indexes] == ["pk"]

    async def test_a_table_made_or_dropped_by_another_process_is_noticed(self, session: Session, path: Path) -> None:
        assert not await session.read(lambda tx: tx.read_jobs(SMS, [new_row().key]))
        other = await opened(path)
        (key,) = await add(other.session("door"), [new_row()])
        assert keys_of(await session.read(lambda tx: tx.read_jobs(SMS, [key]))) == [key]
        shell = sqlite3.connect(path)
        shell.execute("DROP TABLE sms_retry_scheduled_jobs_20261116")
        shell.close()
        assert not await session.read(lambda tx: tx.read_jobs(SMS, [key]))
        (key,) = await add(session, [new_row()])
        assert keys_of(await other.session("lane-0").read(lambda tx: tx.read_jobs(SMS, [key]))) == [key]
        await other.close()

    async def test_a_table_whose_making_was_undone_hides_no_other(self, session: Session, path: Path) -> None:
        def undone(tx: Statements) -> None:
            tx.insert_jobs(SMS, [row])
            assert tx.read_jobs(SMS, [row.key])
            raise LookupError

        row = new_row()
        with pytest.raises(LookupError):
            await session.write(undone)
        other = await opened(path)
        (key,) = await add(other.session("door"), [new_row(NOW + DAY_MS)])
        await other.close()
        assert [job.key for job in await scan_all_rows(session, scan_of())] == [key]

    async def test_tables_of_others_are_left_alone(self, session: Session, path: Path) -> None:
        shell = sqlite3.connect(path)
        for name in ("20269999", "2026111", "backup"):
            shell.execute(f"CREATE TABLE sms_retry_scheduled_jobs_{name} (id INTEGER)")
        shell.close()
        keys = await add(session, [new_row()])
        assert [job.key for job in await scan_all_rows(session, scan_of())] == keys

    async def test_an_app_whose_tables_sqlite_would_refuse_is_refused_clearly(self, session: Session) -> None:
        info = SqlApp(name="sqlite", shards=1, paused=False, created_ms=NOW)
        with pytest.raises(InvalidRequest, match="sqlite_"):
            await session.write(lambda tx: tx.insert_app(info, NOW))


class NotingCursor:
    """A cursor that notes the texts of statements."""

    def __init__(self, cursor: Any, texts: set[str]) -> None:
        self._cursor = cursor
        self._texts = texts

    def execute(self, text: str, values: Any = ()) -> None:
        self._texts.add(text)
        self._cursor.execute(text, values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


async def test_looks_at_many_apps_leave_few_and_short_statements_in_the_cache(session: Session) -> None:
    apps = [f"app{number}" for number in range(8)]
    infos = [SqlApp(name=app, shards=1, paused=False, created_ms=NOW) for app in apps]
    await session.write(lambda tx: tx.insert_apps(infos, NOW))
    texts: set[str] = set()

    def look(tx: Any, some: tuple[str, ...]) -> set[str]:
        cursor, tx._cursor = tx._cursor, NotingCursor(tx._cursor, texts)
        try:
            return set(tx.apps_without_jobs([scan_of(NOW, NOW + 9, app=app) for app in some]))
        finally:
            tx._cursor = cursor

    for some in itertools.combinations(apps, 5):
        assert await session.read(lambda tx, some=some: look(tx, some)) == set(some)  # type: ignore[misc]
    asked = [text for text in texts if "LIMIT 1" in text]
    assert len(asked) == 2 * len(apps)
    assert max(map(len, asked)) < 200


async def test_an_app_whose_table_is_missing_has_it_when_it_is_registered_again(path: Path) -> None:
    store = open_store(f"sqlite:///{path}", SystemClock())
    await store.open()
    try:
        await store.register_all({SMS: 1})
        with closing(sqlite3.connect(path)) as shell:
            shell.execute(f"DROP TABLE {moved_table(SMS)}")
            await store.register_all({SMS: 1})
            assert shell.execute(f"SELECT COUNT(*) FROM {moved_table(SMS)}").fetchone() == (0,)
    finally:
        await store.close()
