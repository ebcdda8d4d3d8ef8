"""How fast can SQLite take jobs, return and settle them with the plain driver, and how close do sessions come?

    python bench/raw_sqlite.py [--rows 100000] [--runs 5] [--folder FOLDER]

Both sides write the same rows into the same tables with the same durability (WAL, synchronous=FULL), in transactions
of the same size; due times are random over a day. The plain driver gets prepared rows, the session makes them from
jobs. Prints one JSON line: rows per second or microseconds per row, each the median of the runs, and session ÷ raw.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from infinite_scheduler.model import DAY_MS, Job, JobId, JobSpec, Status, start_of
from infinite_scheduler.store.ownership import Scan
from infinite_scheduler.store.sql.dialect import COMPARE_AND_SET
from infinite_scheduler.store.sql.job_rows import INSERTED, _inserted, _set
from infinite_scheduler.store.sql.request_rows import KEY
from infinite_scheduler.store.sql.schema import KEYS_TABLE, create_job_table, migrate
from infinite_scheduler.store.sql.sqlite.database import SqliteDatabase
from infinite_scheduler.store.sql.sqlite.dialect import SqliteDialect
from infinite_scheduler.store.sql.statements import NewRow, Session, Update
from infinite_scheduler.store.sql.tables import DAILY, SqlApp

APP = "bench"
DAY = 20_772  # 2026-11-15
START = DAY * DAY_MS
TABLE = DAILY.table(APP, DAY)
PAYLOAD = json.dumps({"to": "+4915112345678", "text": "x" * 150}).encode()
INSERT, SETTLE, PAGE = 5000, 1000, 1000  # rows per transaction


def jobs(count: int, *, keys: bool) -> list[NewRow]:
    """New jobs at random times of one day, in chunks of 1,000 per shard."""
    rows = []
    for n in range(count):
        due_ms = START + random.randrange(DAY_MS)
        key = os.urandom(16).hex() if keys else None
        spec = JobSpec(app=APP, scheduled_ms=due_ms, payload=PAYLOAD, idempotency_key=key, digest=os.urandom(16))
        rows.append(NewRow(bytes(JobId.make(due_ms, n // 1000 % 16, 1)), spec, START))
    return rows


def settled(job: Job) -> Update:
    return Update(
        key=job.key,
        was_status=Status.PENDING,
        was_attempt=1,
        was_due_ms=job.due_ms,
        status=Status.DONE,
        attempt=1,
        due_ms=job.due_ms,
        finished_ms=START,
    )


def batches(rows: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


@contextmanager
def timed(figures: dict[str, float], name: str, count: int) -> Iterator[None]:
    began, worked = time.perf_counter(), time.process_time()
    yield
    figures[name] = count / (time.perf_counter() - began)
    figures[f"{name}_cpu"] = count / (time.process_time() - worked)


def raw(path: Path, rows: Sequence[NewRow], *, keys: bool) -> dict[str, float]:
    """The plain driver: executemany over sorted, prepared rows."""
    connection = sqlite3.connect(path, isolation_level=None)
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "cache_size = -32768", "wal_autocheckpoint = 16000"):
        connection.execute(f"PRAGMA {pragma}")
    dialect = SqliteDialect()
    cursor = connection.cursor()
    migrate(cursor, dialect)
    cursor.execute(create_job_table(dialect, TABLE))
    figures: dict[str, float] = {}
    chunks = [
        (
            [_inserted(row) for row in sorted(batch, key=lambda row: row.key)],
            sorted((APP, row.spec.idempotency_key, row.key, row.spec.digest, START) for row in batch if keys),
        )
        for batch in batches(rows, INSERT)
    ]
    insert_job, insert_key = dialect.insert(TABLE, INSERTED, ignore=True), dialect.insert(KEYS_TABLE, KEY, ignore=True)
    with timed(figures, "insert", len(rows)):
        for job_rows, key_rows in chunks:
            cursor.execute("BEGIN IMMEDIATE")
            cursor.executemany(insert_key, key_rows)
            cursor.executemany(insert_job, job_rows)
            cursor.execute("COMMIT")
    found: list[Any] = []
    columns = (
        "id, due_ms, scheduled_ms, CAST(job_data AS BLOB), created_ms, attempt, request_id, job_name, job_group, tags"
    )
    page = f"SELECT {columns} FROM {TABLE} WHERE id > ? AND status = 'pending' ORDER BY id LIMIT {PAGE}"
    with timed(figures, "scan", len(rows)):
        while rest := cursor.execute(page, (found[-1][0] if found else b"",)).fetchall():
            found += rest
    updates = [
        [_set(settled(Job(key=r[0], app=APP, due_ms=r[1], scheduled_ms=0, payload=b"", created_ms=0))) for r in batch]
        for batch in batches(found, SETTLE)
    ]
    with timed(figures, "settle", len(rows)):
        for update in updates:
            cursor.execute("BEGIN IMMEDIATE")
            cursor.executemany(COMPARE_AND_SET.format(table=TABLE), update)
            cursor.execute("COMMIT")
    connection.close()
    return figures


async def ours(path: Path, rows: Sequence[NewRow], *, keys: bool) -> dict[str, float]:
    """The figures of `Session` and `Statements`, for the same rows."""
    database = SqliteDatabase(path)
    await database.open()
    session = database.session("lane-0")
    await session.write(lambda tx: tx.insert_app(SqlApp(name=APP, shards=16, paused=False, created_ms=START), START))
    figures: dict[str, float] = {}
    with timed(figures, "insert", len(rows)):
        for batch in batches(rows, INSERT):
            await session.write(inserting(batch, keys=keys))
    with timed(figures, "scan", len(rows)):
        found = await scanned(session)
    with timed(figures, "settle", len(rows)):
        for page in batches(found, SETTLE):
            updates = [settled(job) for job in page]
            missed = await session.write(lambda tx, updates=updates: tx.update_jobs(APP, updates))  # type: ignore[misc]
            assert not missed
    await database.close()
    return figures


def inserting(rows: Sequence[NewRow], *, keys: bool) -> Callable[[Any], None]:
    def body(tx: Any) -> None:
        if keys:
            assert not tx.claim_keys(APP, rows)
        tx.insert_jobs(APP, rows)

    return body


async def scanned(session: Session) -> list[Job]:
    found: list[Job] = []
    start: bytes | None = start_of(START)
    while start is not None:
        scan = Scan(
            app=APP, shards=frozenset(range(16)), start=start, end=start_of(START + DAY_MS), limit=PAGE, room=8 << 20
        )
        page, start = await session.read(lambda tx, scan=scan: tx.scan_rows(scan))  # type: ignore[misc]
        found += page
    return found


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, list[float]] = {}
    for _ in range(arguments.runs):
        for keys in (False, True):
            rows = jobs(arguments.rows, keys=keys)
            for side, run in (("raw", raw), ("session", ours)):
                with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
                    result = run(Path(folder) / "jobs.db", rows, keys=keys)
                    values = await result if isinstance(result, Awaitable) else result
                for name, value in values.items():
                    figures.setdefault(f"{side}_{name}{'_with_keys' if keys else ''}", []).append(value)
    return {name: statistics.median(values) for name, values in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", help="where the database is created; by default the system's temporary folder")
    arguments = parser.parse_args()
    figures = asyncio.run(measure(arguments))
    wall = {name: value for name, value in figures.items() if "_cpu" not in name}
    report: dict[str, Any] = {
        "question": "raw_sqlite",
        "rows": arguments.rows,
        "runs": arguments.runs,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "insert_per_s": {name: round(value) for name, value in wall.items() if "insert" in name},
        "us_per_row": {name: round(1e6 / value, 2) for name, value in wall.items() if "insert" not in name},
        "cpu_us_per_row": {name: round(1e6 / value, 2) for name, value in figures.items() if "_cpu" in name},
        "insert_ratio": round(wall["session_insert"] / wall["raw_insert"], 2),
        "insert_ratio_with_keys": round(wall["session_insert_with_keys"] / wall["raw_insert_with_keys"], 2),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
