"""PostgreSQL goes by the keys of jobs, even where all it knows of a table is from before its rows came."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from infinite_scheduler.model import JobId, JobSpec
from infinite_scheduler.store.sql.job_rows import INSERTED, _inserted
from infinite_scheduler.store.sql.schema import create_job_table
from infinite_scheduler.store.sql.server.driver import Driver
from infinite_scheduler.store.sql.server.drivers import server_driver
from infinite_scheduler.store.sql.server.lock_wait import LockWait
from infinite_scheduler.store.sql.statements import NewRow
from infinite_scheduler.store.sql.tables import SqlApp

APP, TABLE, NOW = SqlApp(name="sms", shards=16, paused=False, created_ms=0), "sms_scheduled_jobs_20261116", 10**12
BY_CHANCE = ("Seq Scan", "Bitmap", "Sort", "Hash Join", "Merge Join")


class Spy:
    """A cursor that explains its last statement and runs what stands before it."""

    rowcount = 0

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor
        self.plan = ""

    def execute(self, text: str, values: Sequence[Any] | None = None) -> None:
        *before, last = text.split("; ")
        for statement in before:
            self._cursor.execute(statement)
        self._cursor.execute(f"EXPLAIN {last}", values)
        self.plan = "\n".join(row[0] for row in self._cursor.fetchall())

    def nextset(self) -> None:
        """There is one answer."""

    def fetchone(self) -> Sequence[Any]:
        return (None, None)


@pytest.fixture
def driver(postgres_url: str) -> Driver:
    return server_driver(postgres_url)


@pytest.fixture
def spy(driver: Driver) -> Iterator[Spy]:
    connection = driver.connect()
    cursor = connection.cursor()
    cursor.execute(create_job_table(driver.dialect, TABLE))
    cursor.execute(f"ALTER TABLE {TABLE} SET (autovacuum_enabled = off)")
    driver.dialect.insert_new(cursor, TABLE, INSERTED, [_inserted(row) for row in rows()])
    driver.begin(cursor, LockWait(driver.waits.lock_s))
    yield Spy(cursor)
    connection.close()


def rows(count: int = 5000) -> list[NewRow]:
    specs = [JobSpec(app=APP.name, scheduled_ms=NOW + n, payload=b"{}") for n in range(count)]
    return [NewRow(bytes(JobId.make(spec.scheduled_ms, 0, 1)), spec, NOW) for spec in specs]


def test_a_page_is_read_in_the_order_of_the_index(driver: Driver, spy: Spy) -> None:
    span = rows()[100].key, b"\xff" * 16
    driver.dialect.read_page(spy, TABLE, "id, due_ms", "status = 'pending'", span, 1000, 2000)  # type: ignore[arg-type]
    assert spy.plan.count("Index") >= 2
    assert not [word for word in BY_CHANCE if word in spy.plan], spy.plan


@pytest.mark.parametrize("status", ["done", "pending"])
def test_jobs_are_settled_by_their_keys(driver: Driver, spy: Spy, status: str) -> None:
    moved = int(status == "pending")
    updates = [(status, 1 + moved, NOW + moved, None, None, None, row.key, "pending", 1, NOW) for row in rows(1000)]
    driver.dialect.update_many(spy, TABLE, updates)  # type: ignore[arg-type]
    assert "Index Scan" in spy.plan
    assert not [word for word in BY_CHANCE if word in spy.plan], spy.plan
