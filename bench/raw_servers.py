"""How many jobs per second does a server take from the plain driver?

    python -m bench.raw_servers [--store mariadb|postgres] [--rows 100000] [--runs 5] [--keys]

The same rows into the same tables and indexes as the store's own, including keys, in transactions of 5,000: by COPY on
PostgreSQL, by INSERT of many rows on MariaDB. Due times are random over a day. The rows are prepared.
"""

import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from bench.raw_sqlite import APP, INSERT, START, TABLE, batches, jobs
from bench.setting import fresh_store, options_of, report
from infinite_scheduler.store.sql.job_rows import INSERTED, _inserted
from infinite_scheduler.store.sql.request_rows import KEY
from infinite_scheduler.store.sql.schema import KEYS_TABLE, create_job_table
from infinite_scheduler.store.sql.server.drivers import server_driver
from infinite_scheduler.store.sql.server.table_maker import TableMaker
from infinite_scheduler.store.sql.statements import NewRow
from tests.services.databases import connect

Rows = Sequence[tuple[Any, ...]]


def raw(store: str, rows: Sequence[NewRow], *, keys: bool) -> float:
    """Rows per second."""
    insert, key = (_copied, bytes.hex) if store == "postgres" else (_inserted_together, bytes)
    chunks = [
        (
            sorted((key(row.key), *_inserted(row)[1:]) for row in batch),
            sorted((APP, row.spec.idempotency_key, key(row.key), row.spec.digest, START) for row in batch if keys),
        )
        for batch in batches(rows, INSERT)
    ]
    with fresh_store(store) as url:
        driver = server_driver(url)
        TableMaker(driver, allowed=True).migrate()
        with closing(connect(url)) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(create_job_table(driver.dialect, TABLE))
            began = time.perf_counter()
            for job_rows, key_rows in chunks:
                cursor.execute("BEGIN")
                if keys:
                    insert(cursor, KEYS_TABLE, KEY, key_rows)
                insert(cursor, TABLE, INSERTED, job_rows)
                cursor.execute("COMMIT")
            return len(rows) / (time.perf_counter() - began)


def _copied(cursor: Any, table: str, columns: Sequence[str], rows: Rows) -> None:
    with cursor.copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)


def _inserted_together(cursor: Any, table: str, columns: Sequence[str], rows: Rows) -> None:
    values = ", ".join(["%s"] * len(columns))
    cursor.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values})", rows)


def main() -> None:
    parser = options_of(__doc__, rows=100_000, runs=5)
    parser.add_argument("--keys", action="store_true")
    options = parser.parse_args()
    runs = [
        round(raw(options.store, jobs(options.rows, keys=options.keys), keys=options.keys)) for _ in range(options.runs)
    ]
    report("raw insert", options.store, keys=options.keys, jobs_per_s=round(statistics.median(runs)), runs=runs)


if __name__ == "__main__":
    main()
