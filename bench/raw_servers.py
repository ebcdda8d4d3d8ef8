"""How many jobs per second does a server take from the plain driver?

    python -m bench.raw_servers [--store mariadb|postgres] [--rows 100000] [--runs 5] [--keys]

The same rows into the same tables and indexes as the store's own, including keys, in transactions of 5,000: by COPY on
PostgreSQL, by INSERT of a thousand rows on MariaDB. Due times are random over a day. The rows are prepared as text,
so that nothing but the server and its protocol is measured.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from bench.raw_sqlite import APP, INSERT, START, TABLE, batches, jobs
from bench.setting import fresh_store, options_of, report
from infinite_scheduler.store.sql.job_rows import INSERTED, _inserted
from infinite_scheduler.store.sql.request_rows import KEY
from infinite_scheduler.store.sql.schema import KEYS_TABLE, create_job_table
from infinite_scheduler.store.sql.server.drivers import server_driver
from infinite_scheduler.store.sql.server.literals import row_texts
from infinite_scheduler.store.sql.server.table_maker import TableMaker
from infinite_scheduler.store.sql.statements import NewRow
from tests.services.databases import connect

Rows = Sequence[tuple[Any, ...]]


def raw(store: str, rows: Sequence[NewRow], *, keys: bool) -> float:
    """Rows per second."""
    with fresh_store(store) as url:
        driver = server_driver(url)
        TableMaker(driver, allowed=True).migrate()
        with closing(connect(url)) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(create_job_table(driver.dialect, TABLE))
            write: Any = _copy if store == "postgres" else _insert
            prepare: Any = _copied if store == "postgres" else _inserts
            transactions = [prepare(cursor, batch, keys=keys) for batch in batches(rows, INSERT)]
            began = time.perf_counter()
            for statements in transactions:
                cursor.execute("BEGIN")
                for statement in statements:
                    write(cursor, statement)
                cursor.execute("COMMIT")
            return len(rows) / (time.perf_counter() - began)


def _tables(rows: Sequence[NewRow], *, keys: bool) -> Iterator[tuple[str, Sequence[str], Rows]]:
    """What one transaction writes: the table, its columns and its rows in the order of their keys."""
    if keys:
        yield KEYS_TABLE, KEY, sorted((APP, row.spec.idempotency_key, row.key, row.spec.digest, START) for row in rows)
    yield TABLE, INSERTED, sorted(map(_inserted, rows))


def _copied(cursor: Any, rows: Sequence[NewRow], *, keys: bool) -> list[tuple[str, bytes]]:
    """COPY statements of PostgreSQL, and their data as text."""
    del cursor
    return [
        (
            f"COPY {table} ({', '.join(columns)}) FROM STDIN",
            "".join("\t".join(map(_copy_text, columns, row)) + "\n" for row in table_rows).encode(),
        )
        for table, columns, table_rows in _tables(rows, keys=keys)
    ]


def _copy_text(column: str, value: object) -> str:
    if value is None:
        return r"\N"
    if isinstance(value, bytes):
        return (r"\\x" if column == "digest" else "") + value.hex()
    return str(value).replace("\\", "\\\\")


def _copy(cursor: Any, statement: tuple[str, bytes]) -> None:
    with cursor.copy(statement[0]) as copy:
        copy.write(statement[1])


def _inserts(cursor: Any, rows: Sequence[NewRow], *, keys: bool) -> list[str]:
    """INSERT statements of MariaDB, a thousand rows each."""
    return [
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES {','.join(row_texts(cursor, some))}"
        for table, columns, table_rows in _tables(rows, keys=keys)
        for some in batches(table_rows, 1000)
    ]


def _insert(cursor: Any, statement: str) -> None:
    cursor.execute(statement)


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
