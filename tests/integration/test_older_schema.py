"""A SQLite file that an earlier version has made goes on, with what is in it."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

from infinite_scheduler.model import JobSpec, Status
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


def test_the_fourth_step_locks_tables_in_the_order_of_a_settle_and_that_of_heartbeats_last() -> None:
    altered = re.findall(r"ALTER TABLE (\w+)", "; ".join(MIGRATIONS[3](PostgresDialect())))
    assert altered == ["scheduler_attempts", "scheduler_counters", "scheduler_nodes"]
