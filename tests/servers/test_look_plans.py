"""Looks go by keys and indexes, in the order of the list, on every database; none reads or sorts a whole table."""

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from infinite_scheduler.model import DAY_MS, Change, Status
from infinite_scheduler.store import open_store
from infinite_scheduler.store.looking import Query
from infinite_scheduler.store.sql.request_rows import SqlStatements
from infinite_scheduler.store.sql.server.drivers import server_driver
from infinite_scheduler.store.sql.sqlite.dialect import SqliteDialect
from infinite_scheduler.store.sql.statements import DueCount, LookAt, Probe
from infinite_scheduler.testing import ManualClock
from infinite_scheduler.testing.store_contract.contract_bench import APP, Bench
from tests.services.databases import kind_of

JOBS = 3000
LOOKED_AT = ("_scheduled_jobs_", "_moved_jobs", "scheduler_attempts")

Plan = Callable[[Any, str, Sequence[Any]], str]


class Explaining:
    """A cursor that notes the plan of each look before it is taken."""

    def __init__(self, cursor: Any, plan: Plan) -> None:
        self._cursor = cursor
        self._plan = plan
        self.plans: dict[str, str] = {}

    def execute(self, text: str, values: Sequence[Any] = ()) -> None:
        if text.startswith("SELECT") and any(word in text for word in LOOKED_AT):
            self.plans[text] = self._plan(self._cursor, text, values)
        self._cursor.execute(text, values or None) if values else self._cursor.execute(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


def of_postgres(cursor: Any, text: str, values: Sequence[Any]) -> str:
    cursor.execute(f"EXPLAIN {text}", values)
    plan = "\n".join(row[0] for row in cursor.fetchall())
    bad = ["Seq Scan", "Bitmap", "Sort"]
    assert not [word for word in bad if word in plan], f"{text}\n{plan}"
    return plan


def of_mariadb(cursor: Any, text: str, values: Sequence[Any]) -> str:
    cursor.execute(f"EXPLAIN {text}", values)
    rows = cursor.fetchall()
    for row in rows:
        if row[2] is None:
            continue  # it is known beforehand that there is nothing to read
        kind, key, extra = row[3], row[5], row[-1] or ""
        assert kind in {"range", "ref", "const", "eq_ref"}, f"{text}\n{rows}"
        assert key, f"{text}\n{rows}"
        assert "filesort" not in extra or "GROUP BY" in text, f"{text}\n{rows}"
    return str(rows)


def of_sqlite(cursor: Any, text: str, values: Sequence[Any]) -> str:
    plan = "\n".join(row[3] for row in cursor.execute(f"EXPLAIN QUERY PLAN {text}", values))
    lines = [line for line in plan.splitlines() if not line.startswith("USE TEMP B-TREE FOR GROUP BY")]
    assert all("SEARCH" in line or "VIRTUAL TABLE" in line or "SUBQUERY" in line for line in lines), f"{text}\n{plan}"
    return plan


async def filled(url: str) -> int:
    """A store with many jobs, of which some were moved and one has failed. Returns when they are due."""
    clock = ManualClock()
    bench = Bench(lambda clock: open_store(url, clock), lambda clock: open_store(url, clock))
    bench.clock = clock
    bench.store = await bench.process()
    await bench.store.register(APP, 1)
    accepted = await bench.add(*range(1000, 1000 + JOBS), 60 * DAY_MS)
    for one in accepted[:20]:
        await bench.changed(Change.RESCHEDULE, one.key, due_ms=bench.now + 2 * DAY_MS)
    owner = await bench.owner()
    await owner.settle(owner.ended(await bench.job(accepted[50]), Status.FAILED, error="no"))
    await bench.close()
    return bench.now


def look_at_everything(tx: SqlStatements, now_ms: int) -> None:
    for at in LookAt:
        for newest_first in (False, True):
            status = Status.FAILED if at is LookAt.ENDED else Status.PENDING
            for query in (
                Query(status=status, newest_first=newest_first),
                Query(status=status, newest_first=newest_first, tag="x", error="y", job_name="z"),
            ):
                probe = Probe(
                    at=at, app=APP, start=bytes(16), end=b"\xff" * 16, query=query, most=JOBS // 2, limit=JOBS
                )
                tx.look(probe)
    for at in (LookAt.ROWS, LookAt.LATER, LookAt.MOVED):
        tx.count_due(
            DueCount(
                at=at,
                app=APP,
                start_ms=now_ms,
                from_ms=now_ms,
                end_ms=now_ms + DAY_MS,
                unit_ms=1000,
                most=JOBS // 2,
            )
        )


@pytest.mark.servers
async def test_looks_on_a_server_go_by_keys(emptied_url: str) -> None:
    now_ms = await filled(emptied_url)
    driver = server_driver(emptied_url)
    connection = driver.connect()
    try:
        plan = of_postgres if kind_of(emptied_url) == "postgres" else of_mariadb
        cursor = Explaining(connection.cursor(), plan)
        look_at_everything(SqlStatements(cursor, driver.dialect, "p"), now_ms)
        assert len(cursor.plans) >= 10
    finally:
        connection.close()


async def test_looks_on_sqlite_go_by_keys(tmp_path: Path) -> None:
    now_ms = await filled(f"sqlite:///{tmp_path / 'jobs.db'}")
    connection = sqlite3.connect(tmp_path / "jobs.db")
    try:
        cursor = Explaining(connection.cursor(), of_sqlite)
        look_at_everything(SqlStatements(cursor, SqliteDialect(), "p"), now_ms)
        assert len(cursor.plans) >= 10
    finally:
        connection.close()
