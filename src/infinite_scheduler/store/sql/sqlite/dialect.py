"""The SQL of SQLite."""

# ruff: noqa: S608 - table names come from checked app names, columns from this package

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Final

from infinite_scheduler.model import Shard
from infinite_scheduler.store.sql.dialect import Cursor, Dialect, Row, TableSize, placeholders, read_shards
from infinite_scheduler.store.sql.tables import JOBS_INFIX

BLOCK: Final = 100
"""Rows per INSERT or UPDATE. The driver releases the interpreter's lock once per statement: beside a busy event loop,
one statement per row would wait for that lock a thousand times per batch."""


class SqliteDialect(Dialect):
    """SQLite from 3.35."""

    types = {"key": "BLOB", "bytes": "BLOB", "name": "TEXT", "text": "TEXT", "int": "INTEGER", "bool": "INTEGER"}  # noqa: RUF012
    reserved = "sqlite_"
    table_options = " WITHOUT ROWID"
    job_table_options = ""  # rows in the order of their arrival, found by an index: many more share a written page
    most_selects = 400  # that one statement can join by UNION ALL
    counted_at_once = None  # no one waits for a word of it, and rows are not in the order of their keys
    payload = "CAST(job_data AS BLOB)"
    payload_size = "length(CAST(job_data AS BLOB))"
    ranges_at_once = 1  # there is no round trip to save, and a text for many would be compiled anew for each choice
    keys_estimate = "SELECT MAX(rowid) - MIN(rowid) + 1 FROM scheduler_idempotency_keys"  # the oldest are deleted first

    def insert_many(self, cursor: Cursor, table: str, columns: Sequence[str], rows: Sequence[Row]) -> int:
        whole = len(rows) - len(rows) % BLOCK
        count = 0
        for start in range(0, whole, BLOCK):
            cursor.execute(
                _insert(table, tuple(columns), BLOCK), list(chain.from_iterable(rows[start : start + BLOCK]))
            )
            count += cursor.rowcount
        if whole < len(rows):
            cursor.executemany(_insert(table, tuple(columns), 1), rows[whole:])
            count += cursor.rowcount
        return count

    def update_many(self, cursor: Cursor, table: str, rows: Sequence[Row]) -> int:
        whole = len(rows) - len(rows) % BLOCK
        count = 0
        for start in range(0, whole, BLOCK):
            cursor.execute(_update(table, BLOCK), list(chain.from_iterable(rows[start : start + BLOCK])))
            count += cursor.rowcount
        return count + super().update_many(cursor, table, rows[whole:]) if whole < len(rows) else count

    def readable_id(self, name: str, source: str) -> str:
        parts = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))
        text = " || '-' || ".join(f"substr(hex({source}), {start}, {length})" for start, length in parts)
        return f"{name} TEXT GENERATED ALWAYS AS (lower({text})) VIRTUAL"

    def readable_time(self, name: str, source: str) -> str:
        return (
            f"{name} TEXT GENERATED ALWAYS AS (strftime('%Y-%m-%d %H:%M:%f', {source} / 1000.0, 'unixepoch')) VIRTUAL"
        )

    def has_tag(self) -> str:
        return "EXISTS (SELECT 1 FROM json_each(tags) WHERE value = ?)"

    def contains(self, column: str) -> str:
        return f"instr({column}, ?) > 0"

    def lock_shards(
        self, cursor: Cursor, shards: Sequence[Shard], columns: str, *, exclusive: bool
    ) -> tuple[Sequence[Row], object]:
        """Read the columns: every writing transaction holds SQLite's single lock from its beginning."""
        del exclusive
        return read_shards(self, cursor, shards, columns), None

    def prune_keys(self, cursor: Cursor, before_ms: int, limit: int) -> int:
        """Delete the oldest: they have the smallest rowid, so no index by time is needed."""
        cursor.execute(
            "DELETE FROM scheduler_idempotency_keys WHERE created_ms < ?"
            " AND rowid IN (SELECT rowid FROM scheduler_idempotency_keys ORDER BY rowid LIMIT ?)",
            (before_ms, limit),
        )
        return cursor.rowcount

    def tables(self, cursor: Cursor) -> frozenset[str]:
        cursor.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        return frozenset(row[0] for row in cursor.fetchall())

    def table_sizes(self, cursor: Cursor) -> Sequence[TableSize]:
        """Tables of jobs number their rows and lose the oldest first, so the numbers tell how many there are."""
        names = sorted(self.tables(cursor))
        numbered = [name for name in names if JOBS_INFIX in name and name.isidentifier()]
        rows: dict[str, int] = {}
        for start in range(0, len(numbered), self.most_selects):
            some = numbered[start : start + self.most_selects]
            cursor.execute(" UNION ALL ".join(map(_count, some)))
            rows.update((name, count or 0) for name, count in cursor.fetchall())
        return [TableSize(name, rows.get(name)) for name in names]

    def tables_version(self, cursor: Cursor) -> object:
        cursor.execute("PRAGMA schema_version")
        return cursor.fetchone()[0]


def _count(table: str) -> str:
    """Each end by itself: both at once would read all that is between them."""
    return f"SELECT '{table}', (SELECT MAX(rowid) FROM {table}) - (SELECT MIN(rowid) FROM {table}) + 1"


@lru_cache(maxsize=512)
def _insert(table: str, columns: tuple[str, ...], rows: int) -> str:
    values = ", ".join([f"({placeholders(len(columns))})"] * rows)
    return f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES {values}"


@lru_cache(maxsize=512)
def _update(table: str, rows: int) -> str:
    """The compare-and-set of this many jobs as one statement; the columns of VALUES are numbered."""
    values = ", ".join([f"({placeholders(10)})"] * rows)
    return (
        f"UPDATE {table} SET status = new.column1, attempt = new.column2, due_ms = new.column3,"
        f" scheduled_ms = COALESCE(new.column4, {table}.scheduled_ms), finished_ms = new.column5, error = new.column6"
        f" FROM (VALUES {values}) AS new WHERE {table}.id = new.column7 AND {table}.status = new.column8"
        f" AND {table}.attempt = new.column9 AND {table}.due_ms = new.column10"
    )
