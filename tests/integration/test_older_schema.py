"""A SQLite file that an earlier version has made goes on, with what is in it."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

from infinite_scheduler.model import DAY_MS, JobSpec, Status
from infinite_scheduler.store.inbox import LetterQuery, Move, Source
from infinite_scheduler.store.looking import Query
from infinite_scheduler.store.sql.schema import MIGRATIONS, VERSION
from infinite_scheduler.store.sql.server.postgres_dialect import PostgresDialect
from infinite_scheduler.store.sql.sqlite.database import SqliteDatabase
from infinite_scheduler.store.sql.store import SqlStore
from infinite_scheduler.testing import ManualClock
from tests.older_schema import schema_version


async def test_the_first_schema_is_brought_up_to_date(tmp_path: Path) -> None:
    path, clock = tmp_path / "jobs.db", ManualClock()
    spec = JobSpec(app="mail", scheduled_ms=clock.wall_ms() + 1000, payload=b"{}", idempotency_key="k", digest=b"d")
    with schema_version(1):
        older = SqlStore(SqliteDatabase(path, inline=True), clock)
        await older.open()
        await older.register("mail")
        (before,) = await older.add([spec])
        await older.close()
    for found in (1, VERSION):
        store = SqlStore(SqliteDatabase(path, inline=True), clock)
        await store.open()
        assert store.schema_found == found
        (record,) = (await store.find(Query())).records
        assert (record.job.key, record.status) == (before.key, Status.PENDING)
        await store.close()
    store = SqlStore(SqliteDatabase(path, inline=True), clock)
    await store.open()
    (again,) = await store.inbox().take([spec], [], [Move(source=Source("g", "t", 0), seen=None, next=1)])
    assert (again.key, again.repeated) == (before.key, True)
    assert (await store.inbox().letters(LetterQuery(room=1))).letters == []
    counted = await store.ledger().recount("mail")
    assert (counted.before, counted.counted) == (0, 1), "what waited before is counted once"
    await store.close()
    with closing(sqlite3.connect(path)) as shell:
        assert shell.execute("SELECT version FROM scheduler_schema").fetchall() == [(VERSION,)]


async def test_jobs_that_failed_before_an_upgrade_are_found_with_those_that_fail_after_it(tmp_path: Path) -> None:
    path, clock = tmp_path / "jobs.db", ManualClock()
    now = clock.wall_ms()
    with schema_version(3):
        older = SqlStore(SqliteDatabase(path, inline=True), clock)
        await older.open()
        await older.register("mail")
        specs = [JobSpec(app="mail", scheduled_ms=now + n, payload=b"{}") for n in (1000, 2000, 40 * DAY_MS)]
        early, _, late = await older.add(specs)
        await older.close()
    with closing(sqlite3.connect(path)) as shell:
        shell.execute(
            f"UPDATE mail_scheduled_jobs_20260101 SET status = 'failed', finished_ms = {now} WHERE id = ?", (early.key,)
        )
        shell.execute(f"UPDATE scheduler_shards SET line_ms = {now + 30_000}")
        shell.commit()
    store = SqlStore(SqliteDatabase(path, inline=True), clock)
    await store.open()
    with closing(sqlite3.connect(path)) as shell:
        shell.execute("UPDATE mail_scheduled_jobs_later SET status = 'failed', finished_ms = 1")
        shell.execute("INSERT INTO scheduler_attempts VALUES (?, 1, 'mail', 1, 1, 'n', 'no', 'failed')", (late.key,))
        shell.commit()
    for newest_first in (False, True):
        found = await store.find(Query(status=Status.FAILED, newest_first=newest_first))
        assert [one.job.key for one in found.records] == sorted((early.key, late.key), reverse=newest_first)
    assert not (await store.find(Query(status=Status.EXPIRED))).records
    await store.close()


async def test_jobs_that_were_never_counted_do_not_wait_less_than_none(tmp_path: Path) -> None:
    path, clock = tmp_path / "jobs.db", ManualClock()
    store = SqlStore(SqliteDatabase(path, inline=True), clock)
    await store.open()
    await store.register("mail")
    await store.add([JobSpec(app="mail", scheduled_ms=clock.wall_ms() + DAY_MS, payload=b"{}")])
    today = clock.wall_ms() // DAY_MS
    with closing(sqlite3.connect(path)) as shell:  # as after the end of jobs from before the counter
        shell.execute(f"INSERT INTO scheduler_counters VALUES ('x', 'mail', {today}, 'waiting', -5, NULL)")
        shell.commit()
    assert await store.ledger().waiting() == {"mail": {(today + 1) * DAY_MS: 1}}
    counted = await store.ledger().recount("mail")
    assert (counted.before, counted.counted) == (-4, 1)
    await store.close()


def test_the_fourth_step_locks_tables_in_the_order_of_a_settle_and_that_of_heartbeats_last() -> None:
    altered = re.findall(r"ALTER TABLE (\w+)", "; ".join(MIGRATIONS[3](PostgresDialect())))
    assert altered == ["scheduler_attempts", "scheduler_counters", "scheduler_nodes"]
