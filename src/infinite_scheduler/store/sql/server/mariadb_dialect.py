"""The SQL of MariaDB and MySQL, limited to what both know."""

# ruff: noqa: S608 - table names come from checked app names, columns from this package

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from typing import Any, Final, TypeVar

from infinite_scheduler.errors import StoreBroken
from infinite_scheduler.model import Shard
from infinite_scheduler.store.sql.dialect import (
    COMPARE_AND_SET,
    SETTLED_VERSION,
    Cursor,
    Dialect,
    Row,
    TableSize,
    placeholders,
    read_shards,
    settled_version,
    without_version,
)
from infinite_scheduler.store.sql.server.literals import key_text, row_texts
from infinite_scheduler.store.sql.server.mariadb_connection import Bounded

T = TypeVar("T")

TYPES: Final = {
    "key": "BINARY(16)",
    "bytes": "LONGBLOB",
    "name": "VARCHAR(255)",
    "text": "LONGTEXT",
    "int": "BIGINT",
    "bool": "BOOLEAN",
}

BLOCK: Final = 500
"""Rows per statement."""

PACKET: Final = 1 << 20
"""Bytes per statement, if it has more than one row: servers refuse packets beyond max_allowed_packet.

That is 16 MiB by default. A payload of 1 MiB in which every character is escaped needs a little over 2 MiB.
"""

BESIDE: Final = 128 << 10
"""Bytes of a packet that are reserved for the values beside a large one."""

BY_KEY: Final = " FORCE INDEX (PRIMARY)"
"""A table that looks small, as new ones do and all after a restart, would be read and locked from end to end."""

DUPLICATE: Final = 1062
"""The warning for an ignored row whose key already exists."""


class MariaDialect(Dialect):
    """MariaDB from 10.5, MySQL from 8."""

    placeholder = "%s"
    types = TYPES
    payload = "CAST(job_data AS BINARY)"
    newest = " LOCK IN SHARE MODE"
    by_key = BY_KEY
    clock = "FLOOR(UNIX_TIMESTAMP(SYSDATE(6)) * 1000)"  # the session's time zone is UTC: no hour occurs twice
    streams = False
    tables_in_transactions = False
    indexes_in_tables = True
    verdicts_indexes = (("scheduler_verdicts_by_age", "at_ms"),)
    keys_indexes = (("scheduler_idempotency_keys_by_age", "created_ms"),)
    whole = "DIV"
    keys_estimate = (
        "SELECT table_rows FROM information_schema.tables"
        " WHERE table_schema = DATABASE() AND table_name = 'scheduler_idempotency_keys'"
    )

    def __init__(self, collation: str, *, is_mariadb: bool = True) -> None:
        self.table_options = f" ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {collation} ROW_FORMAT = DYNAMIC"
        self.keys_table_options = self.large_table_options = self.table_options
        self._is_mariadb = is_mariadb

    def add_column(self, table: str, column: str, kind: str) -> Iterator[str]:
        if self._is_mariadb:
            yield f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {column} {self.types[kind]}"
            return
        there = f"columns WHERE table_schema = DATABASE() AND table_name = '{table}' AND column_name = '{column}'"
        yield from _unless(there, f"ALTER TABLE {table} ADD COLUMN {column} {self.types[kind]}")

    def add_index(self, table: str, name: str, columns: str) -> Iterator[str]:
        if self._is_mariadb:
            yield f"CREATE INDEX IF NOT EXISTS {name} ON {table} ({columns})"
            return
        there = f"statistics WHERE table_schema = DATABASE() AND table_name = '{table}' AND index_name = '{name}'"
        yield from _unless(there, f"CREATE INDEX {name} ON {table} ({columns})")

    def insert(self, table: str, columns: Sequence[str], *, ignore: bool = False) -> str:
        word = "INSERT IGNORE" if ignore else "INSERT"
        return f"{word} INTO {table} ({', '.join(columns)}) VALUES ({placeholders(len(columns))})"

    def upsert(self, table: str, columns: Sequence[str], key: Sequence[str], *, add: Collection[str] = ()) -> str:
        changes = ", ".join(
            f"{name} = {table}.{name} + VALUES({name})" if name in add else f"{name} = VALUES({name})"
            for name in columns
            if name not in key
        )
        return f"{self.insert(table, columns)} ON DUPLICATE KEY UPDATE {changes}"

    def run_many(self, cursor: Cursor, statement: str, rows: Sequence[Row]) -> int:
        """Insert many rows per statement; run anything else row by row."""
        head, values, tail = statement.partition(" VALUES (")
        if not values:
            return super().run_many(cursor, statement, rows)
        rest = tail.partition(")")[2]
        return sum(_written(cursor, (f"{head} VALUES {','.join(block)}{rest}" for block in _blocks(cursor, rows))))

    def insert_new(self, cursor: Cursor, table: str, columns: Sequence[str], rows: Sequence[Row]) -> int:
        return self.run_many(cursor, self.insert(table, columns), rows)

    def insert_many(self, cursor: Cursor, table: str, columns: Sequence[str], rows: Sequence[Row]) -> int:
        """Insert or ignore rows; if IGNORE hides anything but a repeated key, the row would be wrong: an error."""
        sizes: deque[int] = deque()

        def statements() -> Iterator[str]:
            for block in _blocks(cursor, rows):
                sizes.append(len(block))
                yield f"INSERT IGNORE INTO {table} ({', '.join(columns)}) VALUES {','.join(block)}"

        count = 0
        for some in _written(cursor, statements()):
            if some < sizes.popleft():
                _check_warnings(cursor)
            count += some
        return count

    def update_many(self, cursor: Cursor, table: str, rows: Sequence[Row]) -> int:
        ends: dict[Row, list[Row]] = {}  # (status, attempt, status before) → jobs that ended so
        others = []
        for row in rows:
            if _just_ends(row):
                ends.setdefault((row[0], row[1], row[7]), []).append(row)
            else:
                others.append(row)
        statements = (
            _end(table, end, group[start : start + BLOCK])
            for end, group in ends.items()
            for start in range(0, len(group), BLOCK)
        )
        return sum(_written(cursor, statements)) + sum(
            _execute(cursor, _update(table, len(block)), chain.from_iterable(block))
            for block in in_blocks(others, _weight)
        )

    def delete_many(self, cursor: Cursor, table: str, columns: Sequence[str], rows: Sequence[Row]) -> int:
        names = tuple(columns)
        return sum(
            _execute(cursor, _delete(table, names, len(block)), chain.from_iterable(block))
            for block in in_blocks(rows, _weight)
        )

    def readable_id(self, name: str, source: str) -> str:
        parts = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))
        text = ", '-', ".join(f"SUBSTR(HEX({source}), {start}, {length})" for start, length in parts)
        return f"{name} CHAR(36) CHARACTER SET ascii GENERATED ALWAYS AS (LOWER(CONCAT({text}))) VIRTUAL"

    def readable_time(self, name: str, source: str) -> str:
        return (
            f"{name} DATETIME(3) GENERATED ALWAYS AS"
            f" (TIMESTAMP'1970-01-01 00:00:00' + INTERVAL {source} * 1000 MICROSECOND) VIRTUAL"
        )

    def has_tag(self) -> str:
        return "JSON_CONTAINS(tags, JSON_QUOTE(?))"

    def using(self, index: str) -> str:
        return f" FORCE INDEX ({index})"

    def contains(self, column: str) -> str:
        return f"LOCATE(?, {column}) > 0"

    @contextmanager
    def snapshot(self, cursor: Cursor) -> Iterator[None]:
        """A transaction of its own; a table that was changed since its beginning cannot be read in it."""
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        try:
            yield
        finally:
            cursor.execute("ROLLBACK")

    def lock_shards(
        self, cursor: Cursor, shards: Sequence[Shard], columns: str, *, exclusive: bool
    ) -> tuple[Sequence[Row], object]:
        """Row locks by the primary key, in order; a locking read sees what is committed by then."""
        lock = " FOR UPDATE" if exclusive else " LOCK IN SHARE MODE"
        version = SETTLED_VERSION.replace("%", "%%")
        return without_version(read_shards(self, cursor, shards, f"{columns}, {version}", lock))

    def prune_keys(self, cursor: Cursor, before_ms: int, limit: int) -> int:
        return _execute(
            cursor,
            "DELETE FROM scheduler_idempotency_keys WHERE created_ms < ? ORDER BY created_ms LIMIT ?",
            (before_ms, limit),
        )

    def value_room(self, cursor: Cursor) -> int:
        """As much as fits into a packet, beside texts and other values; three bytes are sent as four characters."""
        cursor.execute("SELECT @@max_allowed_packet")
        return max(0, (int(cursor.fetchone()[0]) - BESIDE) * 3 // 4)

    def tables(self, cursor: Cursor) -> frozenset[str]:
        cursor.execute(
            "SELECT table_name FROM information_schema.tables"
            " WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE'"
        )
        return frozenset(row[0] for row in cursor.fetchall())

    def table_sizes(self, cursor: Cursor) -> Sequence[TableSize]:
        cursor.execute(
            "SELECT table_name, table_rows, data_length, index_length, UNIX_TIMESTAMP(create_time) * 1000"
            " FROM information_schema.tables WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE'"
        )
        return [
            TableSize(name, *(None if value is None else int(value) for value in values))
            for name, *values in cursor.fetchall()
        ]

    def tables_version(self, cursor: Cursor) -> object:
        return settled_version(cursor)


def _unless(there: str, change: str) -> Iterator[str]:
    """Change a table unless a row of the catalogue is there: MySQL has no IF NOT EXISTS for columns and indexes."""
    yield f"SET @change = IF((SELECT COUNT(*) FROM information_schema.{there}) = 0, '{change}', 'DO 0')"
    yield "PREPARE change_table FROM @change"
    yield "EXECUTE change_table"
    yield "DEALLOCATE PREPARE change_table"


def in_blocks(rows: Iterable[T], weigh: Callable[[T], int]) -> Iterator[Sequence[T]]:
    """The rows, as many at a time as a statement may have; lazily, so that none after a full block is asked for yet."""
    block: list[T] = []
    size = 0
    for row in rows:
        weight = weigh(row)
        if block and size + weight > PACKET:
            yield block
            block, size = [], 0
        block.append(row)
        size += weight
        if len(block) == BLOCK:
            yield block
            block, size = [], 0
    if block:
        yield block


def _weight(row: Row) -> int:
    return sum(_bytes(value) for value in row if isinstance(value, str | bytes))


def _bytes(value: str | bytes) -> int:
    """The maximum encoded length of a value, without escapes; cheaper than encoding it."""
    return len(value) if isinstance(value, bytes) or value.isascii() else 4 * len(value)


def _blocks(cursor: Cursor, rows: Sequence[Row]) -> Iterator[Sequence[str]]:
    """The rows as text, as many at a time as a statement may have; each is written only when asked for."""
    some = (row_texts(cursor, rows[start : start + BLOCK]) for start in range(0, len(rows), BLOCK))
    return in_blocks(chain.from_iterable(some), _bytes)


def _written(cursor: Cursor, statements: Iterable[str]) -> Iterator[int]:
    """Run statements that contain their values. Yields how many rows each matched."""
    if isinstance(cursor, Bounded):
        yield from cursor.execute_each(statements)
        return
    for statement in statements:  # on a connection of the user's
        cursor.execute(statement)
        yield cursor.rowcount


def _execute(cursor: Cursor, statement: str, values: Iterable[Any]) -> int:
    cursor.execute(statement.replace("?", "%s"), list(values))
    return cursor.rowcount


def _check_warnings(cursor: Cursor) -> None:
    cursor.execute("SHOW WARNINGS")
    for _, code, message in cursor.fetchall():
        if code != DUPLICATE:
            raise StoreBroken(f"the database would have changed a value that it was given ({message})")


def _just_ends(row: Row) -> bool:
    """Does a job that never moved end without an error, and nothing else change? Most do."""
    _, attempt, due_ms, scheduled_ms, finished_ms, error, key, _, tried, until = row
    return (
        attempt == tried
        and due_ms == until == int.from_bytes(key[:6], "big")
        and scheduled_ms is None is error
        and finished_ms is not None
    )


def _end(table: str, end: Row, rows: Sequence[Row]) -> str:
    """The compare-and-set of jobs that just end. Many end in the same millisecond; their due moment is in their key."""
    status, attempt, was = end
    moments: dict[int, list[str]] = {}
    for row in rows:
        moments.setdefault(row[4], []).append(key_text(row[6]))
    first, *others = moments
    cases = " ".join(f"WHEN id IN ({','.join(moments[ms])}) THEN {ms:d}" for ms in others)
    finished = f"CASE {cases} ELSE {first:d} END" if others else f"{first:d}"
    return (
        f"UPDATE {table}{BY_KEY} SET status = '{status}', finished_ms = {finished}, error = NULL"
        f" WHERE id IN ({','.join(chain.from_iterable(moments.values()))}) AND status = '{was}'"
        f" AND attempt = {attempt:d} AND due_ms = CAST(CONV(HEX(LEFT(id, 6)), 16, 10) AS UNSIGNED)"
    )


def _named(names: Sequence[str], rows: int) -> str:
    """A table of this many rows of values, named `new`. Other tables are joined to it by key, row by row."""
    first = "SELECT " + ", ".join(f"? AS {name}" for name in names)
    return f"({first}{f' UNION ALL SELECT {placeholders(len(names))}' * (rows - 1)}) AS new"


@lru_cache(maxsize=512)
def _update(table: str, rows: int) -> str:
    """The compare-and-set of this many jobs as one statement."""
    if rows == 1:
        return COMPARE_AND_SET.format(table=table)
    names = ("status", "attempt", "due_ms", "scheduled_ms", "finished_ms", "error", "id", "was", "tried", "until")
    return (
        f"UPDATE {_named(names, rows)} STRAIGHT_JOIN {table} AS job{BY_KEY} ON job.id = new.id"
        " SET job.status = new.status, job.attempt = new.attempt, job.due_ms = new.due_ms,"
        " job.scheduled_ms = COALESCE(new.scheduled_ms, job.scheduled_ms), job.finished_ms = new.finished_ms,"
        " job.error = new.error"
        " WHERE job.status = new.was AND job.attempt = new.tried AND job.due_ms = new.until"
    )


@lru_cache(maxsize=512)
def _delete(table: str, names: tuple[str, ...], rows: int) -> str:
    """Delete this many rows by their whole key, and perhaps more columns, in one statement."""
    if rows == 1:
        return f"DELETE FROM {table} WHERE {' AND '.join(f'{name} = ?' for name in names)}"
    same = " AND ".join(f"old.{name} = new.{name}" for name in names)
    return f"DELETE old FROM {_named(names, rows)} STRAIGHT_JOIN {table} AS old{BY_KEY} ON {same}"
