"""What differs between SQL databases, and nothing else."""

# ruff: noqa: S608 - table names come from checked app names, columns from this package

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, Protocol

from infinite_scheduler.model import Shard

Row = Sequence[Any]


COMPARE_AND_SET: Final = (
    "UPDATE {table} SET status = ?, attempt = ?, due_ms = ?, scheduled_ms = COALESCE(?, scheduled_ms),"
    " finished_ms = ?, error = ? WHERE id = ? AND status = ? AND attempt = ? AND due_ms = ?"
)
"""What a job becomes (the first six), if it is as remembered (the other four)."""


COUNTED: Final = 100_000
"""Idempotency keys that are counted one by one, in some 10 ms; there may be hundreds of millions."""


class Blob(bytes):
    """Bytes for a column of kind `bytes`: where keys have a type of their own, drivers must tell the two apart."""


class Cursor(Protocol):
    """As much of a DB-API cursor as the statements use."""

    @property
    def rowcount(self) -> int: ...

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> object: ...

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> object: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def close(self) -> object: ...


class Dialect(ABC):
    """The words one database has for what the statements need.

    Statements are written with `?`; `text` turns them into the driver's style. The defaults are what SQLite and
    PostgreSQL share.
    """

    placeholder: str = "?"
    reserved: str = ""
    """How table names must not begin, if there is such a rule."""

    types: Mapping[str, str]
    """The column types behind `key`, `bytes`, `name`, `text`, `int` and `bool`."""

    table_options: str = ""
    """What stands behind the columns of a table; rows should lie in the order of the primary key."""

    keys_table_options: str = ""
    """The same for idempotency keys, which `prune_keys` deletes by age."""

    large_table_options: str = ""
    """The same for a table whose rows may be large."""

    keys_indexes: Sequence[tuple[str, str]] = ()
    """Indexes (name, columns) that `prune_keys` needs."""

    verdicts_indexes: Sequence[tuple[str, str]] = ()
    """Indexes by which old verdicts are found, where reading all of them costs more."""

    @property
    def job_table_options(self) -> str:
        """The same for tables of jobs: every row is inserted once and updated once."""
        return self.table_options

    clock: str | None = None
    """An expression for the server's time at this very moment in whole ms since the epoch, never rounded up."""

    key: str = "id"
    """An expression that reads `id` as bytes, the quickest one."""

    payload: str
    """An expression that reads `job_data` as bytes."""

    payload_size: str = "OCTET_LENGTH(job_data)"
    """An expression for the number of bytes in `job_data`."""

    streams: bool = True
    """Does the driver hand rows over one by one? Otherwise it keeps the whole answer in memory before the first."""

    copies: bool = False
    """Is `insert_new`, which may refuse a repeat, much quicker than `insert_many`?"""

    by_key: str = ""
    """What tells the database to go by the primary key, should it think of reading a small table from end to end."""

    newest: str = ""
    """What makes a SELECT see all that is committed, in a transaction of the user's own that keeps an older view."""

    tables_in_transactions: bool = True
    """May a transaction that writes jobs make the tables it needs? Otherwise they are made beside it."""

    indexes_in_tables: bool = False
    """Are indexes part of the statement that makes their table?"""

    def text(self, statement: str) -> str:
        """The statement in the driver's style."""
        return statement if self.placeholder == "?" else _restyled(statement, self.placeholder)

    def insert(self, table: str, columns: Sequence[str], *, ignore: bool = False) -> str:
        """One row, or nothing if `ignore` and its key is there already."""
        tail = " ON CONFLICT DO NOTHING" if ignore else ""
        return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places(len(columns))}){tail}"

    def upsert(self, table: str, columns: Sequence[str], key: Sequence[str], *, add: Collection[str] = ()) -> str:
        """One row, inserted or replaced; the columns in `add` are added to what is there."""
        changes = ", ".join(
            f"{name} = {table}.{name} + excluded.{name}" if name in add else f"{name} = excluded.{name}"
            for name in columns
            if name not in key
        )
        return f"{self.insert(table, columns)} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changes}"

    def insert_new(self, cursor: Cursor, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        """Insert many rows whose keys were made just now, by the driver's quickest way, which may refuse a repeat."""
        self.insert_many(cursor, table, columns, rows)

    def insert_many(self, cursor: Cursor, table: str, columns: Sequence[str], rows: Sequence[Row]) -> int:
        """Insert or ignore many rows by the driver's quickest way. Returns how many went in."""
        cursor.executemany(self.text(self.insert(table, columns, ignore=True)), rows)
        return cursor.rowcount

    def update_many(self, cursor: Cursor, table: str, rows: Sequence[Row]) -> int:
        """Compare and set many jobs, as in COMPARE_AND_SET, by the driver's quickest way. Returns how many changed."""
        cursor.executemany(self.text(COMPARE_AND_SET.format(table=table)), rows)
        return cursor.rowcount

    def read_page(  # noqa: PLR0917 - a page has so many sides
        self, cursor: Cursor, table: str, columns: str, condition: str, span: tuple[bytes, bytes], limit: int, most: int
    ) -> tuple[bytes | None, Iterable[Row]]:
        """Up to `limit` rows that meet a condition, in the order of their keys, among the first `most` of a range.

        Before them the key at which the look ended, None if that is the end of the range. Its snapshot is not younger
        than that of the rows: what is inserted or deleted meanwhile must not move it past rows that were not looked at.
        Behind the columns there may be another one.
        """
        cursor.execute(
            self.text(f"SELECT id FROM {table} WHERE id >= ? AND id < ? ORDER BY id LIMIT 1 OFFSET {most}"), span
        )
        found = cursor.fetchone()
        bound: bytes | None = found and found[0]
        cursor.execute(
            self.text(f"SELECT {columns} FROM {table} WHERE id >= ? AND id < ? AND {condition} ORDER BY id LIMIT ?"),
            (span[0], bound or span[1], limit),
        )
        return bound, iter(cursor.fetchone, None)

    @abstractmethod
    def readable_id(self, name: str, source: str) -> str:
        """A column that shows the key `source` as people see it, computed by the database."""

    @abstractmethod
    def readable_time(self, name: str, source: str) -> str:
        """A column that shows the milliseconds in `source` as a time in UTC, computed by the database."""

    @abstractmethod
    def has_tag(self) -> str:
        """A condition: the JSON list in `tags` holds the parameter."""

    def run_many(self, cursor: Cursor, statement: str, rows: Sequence[Row]) -> int:
        """Run a statement for each row. Returns how many rows of the table it changed."""
        cursor.executemany(self.text(statement), rows)
        return cursor.rowcount

    def delete_many(self, cursor: Cursor, table: str, columns: Sequence[str], rows: Sequence[Row]) -> int:
        """Delete the rows with these values in these columns. Returns how many there were."""
        condition = " AND ".join(f"{name} = ?" for name in columns)
        return self.run_many(cursor, f"DELETE FROM {table} WHERE {condition}", rows)

    @abstractmethod
    def lock_shards(
        self, cursor: Cursor, shards: Sequence[Shard], columns: str, *, exclusive: bool
    ) -> tuple[Sequence[Row], object]:
        """Lock these shards, which come in order, to the end of the transaction; then read their columns.

        Beside them `tables_version`, where that can be had by the way, or None.

        Rules: shards_are_locked_in_order, line_is_read_under_lock.
        """

    @abstractmethod
    def prune_keys(self, cursor: Cursor, before_ms: int, limit: int) -> int:
        """Delete up to so many idempotency keys that were claimed before this moment. Returns how many were deleted."""

    keys_estimate: str
    """A statement that tells about how many idempotency keys there are, without counting them."""

    def count_keys(self, cursor: Cursor) -> int:
        """How many idempotency keys there are: counted up to a bound, beyond it estimated."""
        cursor.execute(
            f"SELECT COUNT(*) FROM (SELECT 1 FROM scheduler_idempotency_keys LIMIT {COUNTED + 1}) AS counted"
        )
        counted = int(cursor.fetchone()[0])
        if counted <= COUNTED:
            return counted
        cursor.execute(self.keys_estimate)
        return max(counted, int(cursor.fetchone()[0] or 0))

    def value_room(self, cursor: Cursor) -> int | None:
        """The largest bytes that a statement can bring into a row, beside some text; None: larger than anybody has."""
        del cursor
        return None

    @abstractmethod
    def tables(self, cursor: Cursor) -> frozenset[str]:
        """The names of all tables."""

    @abstractmethod
    def tables_version(self, cursor: Cursor) -> object:
        """Something cheap that changes whenever a table comes or goes, or None where there is no such thing."""


@lru_cache(maxsize=4096)
def _restyled(statement: str, placeholder: str) -> str:
    return statement.replace("?", placeholder)


@lru_cache(maxsize=1024)
def places(count: int) -> str:
    """So many placeholders in a row."""
    return ", ".join("?" * count)


SETTLED_VERSION: Final = "(SELECT CASE WHEN tables % 2 = 0 THEN tables END FROM scheduler_schema)"
"""The same as a column of another statement."""


def settled_version(cursor: Cursor) -> int | None:
    """The number that grows with every table made or dropped; None while, or after, a maker is at work."""
    cursor.execute("SELECT tables FROM scheduler_schema")
    row = cursor.fetchone()
    return None if row is None or row[0] % 2 else int(row[0])


def without_version(rows: Sequence[Row]) -> tuple[Sequence[Row], object]:
    """Rows whose last column is SETTLED_VERSION, and that."""
    return [row[:-1] for row in rows], rows[0][-1] if rows else None


def read_shards(dialect: Dialect, cursor: Cursor, shards: Sequence[Shard], columns: str, tail: str = "") -> list[Row]:
    """Read columns of these shards by their key: one statement an app, in order."""
    found: list[Row] = []
    for app, group in groupby(shards, attrgetter("app")):
        numbers = [shard.number for shard in group]
        statement = (
            f"SELECT {columns} FROM scheduler_shards{dialect.by_key}"
            f" WHERE app = ? AND shard IN ({', '.join(map(str, numbers))}) ORDER BY app, shard{tail}"
        )
        cursor.execute(dialect.text(statement), (app,))
        found += cursor.fetchall()
    return found
