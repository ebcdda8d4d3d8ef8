"""PostgreSQL's words."""

# ruff: noqa: S608 - table names come from checked app names, columns from this package

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

from infinite_scheduler.model import Shard
from infinite_scheduler.store.sql.dialect import Cursor, Dialect, Row, read_shards, settled_version

TYPES: Final = {"key": "uuid", "bytes": "bytea", "name": "text", "text": "text", "int": "bigint", "bool": "boolean"}

ARRAYS: Final = {
    "app": "text", "idempotency_key": "text", "id": "uuid", "digest": "bytea", "created_ms": "bigint",
    "position": "uuid", "due_ms": "bigint", "scheduled_ms": "bigint", "status": "text", "attempt": "bigint",
    "shard": "bigint", "priority": "bigint", "job_data": "text", "job_name": "text", "job_group": "text",
    "tags": "text", "request_id": "text", "size": "bigint", "process": "text", "day": "bigint", "what": "text",
    "n": "bigint",
}  # fmt: skip
"""The types of columns of which whole arrays are sent: one statement for any number of rows."""


class PostgresDialect(Dialect):
    """PostgreSQL from 12."""

    placeholder = "%s"
    types = TYPES
    payload = "convert_to(job_data, 'UTF8')"
    clock = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
    tables_in_transactions = False
    table_options = " WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)"
    verdicts_indexes = (("scheduler_verdicts_by_age", "at_ms"),)
    keys_indexes = (("scheduler_idempotency_keys_by_age", "created_ms"),)

    @property
    def job_table_options(self) -> str:
        """Room for the one update of each row on the page that it is on already."""
        return (
            " WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_insert_scale_factor = 0.5)"
        )

    def insert_new(self, cursor: Cursor, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        with cursor.copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN") as copy:  # type: ignore[attr-defined]
            for row in rows:
                copy.write_row(row)

    def insert_many(self, cursor: Cursor, table: str, columns: Sequence[str], rows: Sequence[Row]) -> int:
        arrays = ", ".join(f"%s::{ARRAYS[name]}[]" for name in columns)
        cursor.execute(
            f"INSERT INTO {table} ({', '.join(columns)}) SELECT * FROM unnest({arrays}) ON CONFLICT DO NOTHING",
            [_array(name)(values) for name, values in zip(columns, zip(*rows, strict=True), strict=True)],
        )
        return cursor.rowcount

    def update_many(self, cursor: Cursor, table: str, rows: Sequence[Row]) -> int:
        names = ("status", "attempt", "due_ms", "scheduled_ms", "finished_ms", "error", "id", "was", "tried", "until")
        kinds = ("text", "bigint", "bigint", "bigint", "bigint", "text", "uuid", "text", "bigint", "bigint")
        arrays = ", ".join(f"%s::{kind}[]" for kind in kinds)
        cursor.execute(
            f"UPDATE {table} AS job SET status = new.status, attempt = new.attempt, due_ms = new.due_ms,"
            " scheduled_ms = COALESCE(new.scheduled_ms, job.scheduled_ms), finished_ms = new.finished_ms,"
            f" error = new.error FROM unnest({arrays}) AS new ({', '.join(names)})"
            " WHERE job.id = new.id AND job.status = new.was AND job.attempt = new.tried AND job.due_ms = new.until",
            [_array(name)(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)],
        )
        return cursor.rowcount

    def delete_many(self, cursor: Cursor, table: str, columns: Sequence[str], rows: Sequence[Row]) -> int:
        arrays = ", ".join(f"%s::{ARRAYS[name]}[]" for name in columns)
        same = " AND ".join(f"{table}.{name} = old.{name}" for name in columns)
        cursor.execute(
            f"DELETE FROM {table} USING unnest({arrays}) AS old ({', '.join(columns)}) WHERE {same}",
            [_array(name)(values) for name, values in zip(columns, zip(*rows, strict=True), strict=True)],
        )
        return cursor.rowcount

    def readable_id(self, name: str, source: str) -> str:
        """A uuid is readable as it is; the column is there so that the same question works everywhere."""
        return f"{name} uuid GENERATED ALWAYS AS ({source}) STORED"

    def readable_time(self, name: str, source: str) -> str:
        return f"{name} timestamptz GENERATED ALWAYS AS (to_timestamp({source} / 1000.0)) STORED"

    def has_tag(self) -> str:
        return "tags::jsonb @> jsonb_build_array(?::text)"

    def lock_shards(self, cursor: Cursor, shards: Sequence[Shard], columns: str, *, exclusive: bool) -> list[Row]:
        """Advisory locks: row locks in share mode would write to the row. They are read in a statement after it."""
        lock = "pg_advisory_xact_lock" if exclusive else "pg_advisory_xact_lock_shared"
        cursor.execute(f"SELECT {lock}(k) FROM unnest(%s::bigint[]) AS k", ([lock_key(shard) for shard in shards],))
        return read_shards(self, cursor, shards, columns)

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

    def tables_version(self, cursor: Cursor) -> object:
        return settled_version(cursor)


@lru_cache(maxsize=65536)
def lock_key(shard: Shard) -> int:
    """The number under which a shard is locked. Two with the same number would only wait for each other."""
    digest = hashlib.blake2b(f"infinite_scheduler {shard.app} {shard.number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _array(column: str) -> Callable[[Sequence[Any]], object]:
    """How the values of a column become one parameter."""
    match column:
        case "id" | "position":
            return _uuids
        case "digest":
            return _blobs
        case _:
            return list


def _uuids(keys: Sequence[bytes]) -> str:
    return "{" + ",".join([key.hex() for key in keys]) + "}"


def _blobs(values: Sequence[bytes]) -> str:
    return "{" + ",".join([f'"\\\\x{value.hex()}"' for value in values]) + "}"
