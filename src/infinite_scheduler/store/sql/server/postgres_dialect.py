"""The SQL of PostgreSQL."""

# ruff: noqa: S608 - table names come from checked app names, columns from this package

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, Final

from infinite_scheduler.model import APP_NAME, Shard
from infinite_scheduler.store.sql.dialect import (
    SETTLED_VERSION,
    Cursor,
    Dialect,
    Row,
    TableSize,
    settled_version,
    without_version,
)

TYPES: Final = {
    "key": "uuid",
    "bytes": "bytea",
    "name": 'text COLLATE "C"',  # compared byte by byte: a linguistic order costs several times as much
    "text": "text",
    "int": "bigint",
    "bool": "boolean",
}

ARRAYS: Final = {
    "app": "text", "idempotency_key": "text", "id": "uuid", "digest": "bytea", "created_ms": "bigint",
    "position": "uuid", "due_ms": "bigint", "scheduled_ms": "bigint", "status": "text", "attempt": "bigint",
    "shard": "bigint", "priority": "bigint", "job_data": "text", "job_name": "text", "job_group": "text",
    "tags": "text", "request_id": "text", "size": "bigint", "process": "text", "day": "bigint", "what": "text",
    "n": "bigint", "group_id": "text", "topic": "text", "partition_number": "bigint", "next_offset": "bigint",
    "topic_id": "text", "moved_ms": "bigint", "started_ms": "bigint", "finished_ms": "bigint", "node": "text",
    "error": "text", "ended": "text", "at_ms": "bigint",
}  # fmt: skip
"""The types of columns that are sent as whole arrays: one statement for any number of rows."""


IN_ORDER: Final = "; ".join(
    f"SET LOCAL {name} = off" for name in ("enable_sort", "enable_bitmapscan", "enable_seqscan", "jit")
)
"""Rows are read by the index. For a table that grew lately, the planner would read the rest of it and sort that."""

UPDATE: Final = {
    "status": "text", "attempt": "bigint", "due_ms": "bigint", "scheduled_ms": "bigint", "finished_ms": "bigint",
    "error": "text", "id": "uuid", "was": "text", "tried": "bigint", "until": "bigint",
}  # fmt: skip
"""The parts of a compare-and-set in order, with their types."""


class PostgresDialect(Dialect):
    """PostgreSQL from 12."""

    placeholder = "%s"
    types = TYPES
    key = "uuid_send(id)"
    payload = "convert_to(job_data, 'UTF8')"
    clock = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
    streams = False
    copies = True
    tables_in_transactions = False
    table_options = " WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)"
    verdicts_indexes = (("scheduler_verdicts_by_age", "at_ms"),)
    keys_indexes = (("scheduler_idempotency_keys_by_age", "created_ms"),)
    keys_estimate = "SELECT reltuples::bigint FROM pg_class WHERE oid = 'scheduler_idempotency_keys'::regclass"

    @property
    def job_table_options(self) -> str:
        """Room for one update of every row on its own page, so that its index entry stays valid."""
        return (
            " WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_insert_scale_factor = 0.5)"
        )

    def run_many(self, cursor: Cursor, statement: str, rows: Sequence[Row]) -> int:
        """Insert all rows at once if the types of the columns are known; run anything else row by row."""
        head, values, tail = statement.partition(" VALUES (")
        columns = head.partition("(")[2].rstrip(")").split(", ")
        if not values or len(rows) == 1 or not ARRAYS.keys() >= set(columns):
            return super().run_many(cursor, statement, rows)
        cursor.execute(f"{head} SELECT * FROM {_unnest(columns)}{tail.partition(')')[2]}", _columns(columns, rows))
        return cursor.rowcount

    def insert_new(self, cursor: Cursor, table: str, columns: Sequence[str], rows: Sequence[Row]) -> int:
        with cursor.copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN") as copy:  # type: ignore[attr-defined]
            for row in rows:
                copy.write_row(row)
        return len(rows)

    def insert_many(self, cursor: Cursor, table: str, columns: Sequence[str], rows: Sequence[Row]) -> int:
        cursor.execute(
            f"INSERT INTO {table} ({', '.join(columns)}) SELECT * FROM {_unnest(columns)} ON CONFLICT DO NOTHING",
            _columns(columns, rows),
        )
        return cursor.rowcount

    def update_many(self, cursor: Cursor, table: str, rows: Sequence[Row]) -> int:
        """The compared values are joined, not given as constants: the planner would expect constants to match one row.

        An update that names fewer columns computes fewer of the readable ones again.
        """
        changes = "status = new.status, finished_ms = new.finished_ms, error = new.error"
        if not all(map(_stays, rows)):
            changes += (
                ", attempt = new.attempt, due_ms = new.due_ms,"
                " scheduled_ms = COALESCE(new.scheduled_ms, job.scheduled_ms)"
            )
        arrays = ", ".join(f"%s::{kind}[]" for kind in UPDATE.values())
        cursor.execute(
            f"UPDATE {table} AS job SET {changes} FROM unnest({arrays}) AS new ({', '.join(UPDATE)})"
            " WHERE job.id = new.id AND job.status = new.was AND job.attempt = new.tried AND job.due_ms = new.until",
            _arrays(UPDATE.values(), rows),
        )
        return cursor.rowcount

    def delete_many(self, cursor: Cursor, table: str, columns: Sequence[str], rows: Sequence[Row]) -> int:
        same = " AND ".join(f"{table}.{name} = old.{name}" for name in columns)
        cursor.execute(
            f"DELETE FROM {table} USING {_unnest(columns)} AS old ({', '.join(columns)}) WHERE {same}",
            _columns(columns, rows),
        )
        return cursor.rowcount

    def read_page(  # noqa: PLR0917 - as in the base class
        self, cursor: Cursor, table: str, columns: str, condition: str, span: tuple[bytes, bytes], limit: int, most: int
    ) -> tuple[bytes | None, Iterable[Row]]:
        """One statement, in which the key where the search ended is joined with each row of the page, or with none.

        The settings hold for this one message, which is a transaction by itself.
        """
        start, end = (f"'{key.hex()}'::uuid" for key in span)
        cursor.execute(
            f"{IN_ORDER}; WITH look AS MATERIALIZED (SELECT (SELECT id FROM {table} WHERE id >= {start} AND id < {end}"
            f" ORDER BY id LIMIT 1 OFFSET {most:d}) AS bound)"
            " SELECT page.*, uuid_send(bound) FROM look LEFT JOIN LATERAL ("
            f"SELECT {columns} FROM {table} WHERE id >= {start} AND id < COALESCE(bound, {end}) AND {condition}"
            f" ORDER BY id LIMIT {limit:d}) AS page ON TRUE"
        )
        while cursor.nextset():  # type: ignore[attr-defined]
            pass
        first = cursor.fetchone()
        return first[-1], () if first[0] is None else chain((first,), iter(cursor.fetchone, None))

    def readable_id(self, name: str, source: str) -> str:
        """A uuid is readable as it is; the column exists so that the same query works on every database."""
        return f"{name} uuid GENERATED ALWAYS AS ({source}) STORED"

    def readable_time(self, name: str, source: str) -> str:
        return f"{name} timestamptz GENERATED ALWAYS AS (to_timestamp({source} / 1000.0::float8)) STORED"

    def has_tag(self) -> str:
        return "tags::jsonb @> jsonb_build_array(?::text)"

    def contains(self, column: str) -> str:
        return f"strpos({column}, ?) > 0"

    @contextmanager
    def by_index(self, cursor: Cursor) -> Iterator[None]:
        """A transaction of its own, for which the settings hold."""
        cursor.execute(f"BEGIN READ ONLY; {IN_ORDER}")
        try:
            yield
        finally:
            cursor.execute("ROLLBACK")

    @contextmanager
    def snapshot(self, cursor: Cursor) -> Iterator[None]:
        """A transaction of its own, whose first SELECT takes the snapshot."""
        cursor.execute(f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {IN_ORDER}")
        try:
            yield
        finally:
            cursor.execute("ROLLBACK")

    def lock_shards(
        self, cursor: Cursor, shards: Sequence[Shard], columns: str, *, exclusive: bool
    ) -> tuple[Sequence[Row], object]:
        """Advisory locks: row locks in share mode would write to the row.

        Both statements go in one message; the second, which reads, has a snapshot of its own, from after the locks.
        """
        lock = "pg_advisory_xact_lock" if exclusive else "pg_advisory_xact_lock_shared"
        keys = ", ".join(str(lock_key(shard)) for shard in shards)
        cursor.execute(
            f"SELECT {lock}(k) FROM unnest(ARRAY[{keys}]::bigint[]) AS k;"
            f" SELECT {columns}, {SETTLED_VERSION} FROM scheduler_shards WHERE {_any_of(shards)} ORDER BY app, shard"
        )
        cursor.nextset()  # type: ignore[attr-defined]
        return without_version(cursor.fetchall())

    def prune_keys(self, cursor: Cursor, before_ms: int, limit: int) -> int:
        cursor.execute(
            "DELETE FROM scheduler_idempotency_keys WHERE ctid = ANY (ARRAY("
            "SELECT ctid FROM scheduler_idempotency_keys WHERE created_ms < %s LIMIT %s))",
            (before_ms, limit),
        )
        return cursor.rowcount

    def tables(self, cursor: Cursor) -> frozenset[str]:
        cursor.execute(
            "SELECT relname::text FROM pg_catalog.pg_class"
            " WHERE relkind IN ('r', 'p') AND relnamespace = current_schema()::regnamespace"
        )
        return frozenset(row[0] for row in cursor.fetchall())

    def table_sizes(self, cursor: Cursor) -> Sequence[TableSize]:
        """The number of rows is -1 until the server has counted for the first time."""
        cursor.execute(
            "SELECT relname::text, NULLIF(reltuples, -1)::bigint, pg_table_size(oid), pg_indexes_size(oid)"
            " FROM pg_catalog.pg_class WHERE relkind IN ('r', 'p') AND relnamespace = current_schema()::regnamespace"
        )
        return [TableSize(*row) for row in cursor.fetchall()]

    def tables_version(self, cursor: Cursor) -> object:
        return settled_version(cursor)


@lru_cache(maxsize=65536)
def lock_key(shard: Shard) -> int:
    """The number under which a shard is locked. Two shards with the same number would only wait for each other."""
    digest = hashlib.blake2b(f"infinite_scheduler {shard.app} {shard.number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _any_of(shards: Sequence[Shard]) -> str:
    """A condition: one of these shards. An invalid app name matches nothing."""
    groups = ((app, group) for app, group in groupby(shards, attrgetter("app")) if APP_NAME.fullmatch(app))
    some = [f"app = '{app}' AND shard IN ({', '.join(str(s.number) for s in group)})" for app, group in groups]
    return " OR ".join(some) or "FALSE"


def _stays(row: Row) -> bool:
    """Do the attempt and the times of a job stay unchanged?"""
    _, attempt, due_ms, scheduled_ms, _, _, _, _, tried, until = row
    return scheduled_ms is None and attempt == tried and due_ms == until


def _unnest(columns: Iterable[str]) -> str:
    """The rows whose parameters are `_columns`."""
    return f"unnest({', '.join(f'%s::{ARRAYS[name]}[]' for name in columns)})"


def _columns(columns: Iterable[str], rows: Sequence[Row]) -> list[str]:
    return _arrays([ARRAYS[name] for name in columns], rows)


def _arrays(kinds: Iterable[str], rows: Sequence[Row]) -> list[str]:
    """Each column of the rows as the text of an array: the driver would convert every value by itself."""
    return [_array(kind, values) for kind, values in zip(kinds, zip(*rows, strict=True), strict=True)]


def _array(kind: str, values: Sequence[Any]) -> str:
    match kind:
        case "uuid":
            elements: Iterable[str] = map(bytes.hex, values)
        case "bytea":
            elements = [f'"\\\\x{value.hex()}"' for value in values]
        case "bigint":
            elements = map(str, values) if None not in values else ["NULL" if v is None else str(v) for v in values]
        case _:
            elements = map(_quoted, values)
    return f"{{{','.join(elements)}}}"


def _quoted(text: str | None) -> str:
    if text is None:
        return "NULL"
    if "\\" in text or '"' in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
