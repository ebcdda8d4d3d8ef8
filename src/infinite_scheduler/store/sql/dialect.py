"""What differs between SQL databases, and nothing else."""

# ruff: noqa: S608 - table names come from checked app names, columns from this package

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol

from infinite_scheduler.model import Shard

Row = Sequence[Any]


COMPARE_AND_SET: Final = (
    "UPDATE {table} SET status = ?, attempt = ?, due_ms = ?, scheduled_ms = COALESCE(?, scheduled_ms),"
    " finished_ms = ?, error = ? WHERE id = ? AND status = ? AND attempt = ? AND due_ms = ?"
)
"""The new values of a job (the first six), set if the row is as remembered (the other four)."""


COUNTED: Final = 100_000
"""Idempotency keys are counted exactly up to this many, in some 10 ms; there may be hundreds of millions."""


class TableSize(NamedTuple):
    """What the database's catalogue says of a table; None: nothing."""

    name: str
    rows: int | None = None
    data_bytes: int | None = None
    index_bytes: int | None = None
    created_ms: int | None = None


class Blob(bytes):
    """Bytes for a column of kind `bytes`: if keys have a type of their own, drivers must tell the two apart."""


class Cursor(Protocol):
    """The part of a DB-API cursor that the statements use."""

    @property
    def rowcount(self) -> int: ...

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> object: ...

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> object: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def close(self) -> object: ...


class Dialect(ABC):
    """How one database writes what the statements need.

    Statements are written with `?`; `text` converts them to the driver's style. The defaults are what SQLite and
    PostgreSQL share.
    """

    placeholder: str = "?"
    reserved: str = ""
    """A prefix that table names must not have, if there is one."""

    types: Mapping[str, str]
    """The column types for `key`, `bytes`, `name`, `text`, `int` and `bool`."""

    table_options: str = ""
    """What follows the columns of a CREATE TABLE; rows should be stored in the order of the primary key."""

    keys_table_options: str = ""
    """Table options for idempotency keys, which `prune_keys` deletes by age."""

    large_table_options: str = ""
    """Table options for a table whose rows may be large."""

    keys_indexes: Sequence[tuple[str, str]] = ()
    """Indexes (name, columns) that `prune_keys` needs."""

    verdicts_indexes: Sequence[tuple[str, str]] = ()
    """Indexes by which old decisions are found, on databases where reading all of them costs more."""

    @property
    def job_table_options(self) -> str:
        """Table options for tables of jobs: every row is inserted once and updated once."""
        return self.table_options

    clock: str | None = None
    """An expression for the server's current time in whole ms since the epoch, never rounded up."""

    key: str = "id"
    """The fastest expression that reads `id` as bytes."""

    payload: str
    """An expression that reads `job_data` as bytes."""

    payload_size: str = "OCTET_LENGTH(job_data)"
    """An expression for the number of bytes in `job_data`."""

    streams: bool = True
    """Does the driver return rows one by one? Otherwise it keeps the whole result in memory before the first."""

    copies: bool = False
    """Is `insert_new`, which may refuse a repeat, much faster than `insert_many`?"""

    by_key: str = ""
    """Makes the database use the primary key, even if it would rather read a small table from end to end."""

    def using(self, index: str) -> str:
        """Makes the database use this index."""
        del index
        return ""

    newest: str = ""
    """Makes a SELECT see all that is committed, in a transaction of the user's own that has an older snapshot."""

    tables_in_transactions: bool = True
    """May a transaction that writes jobs create the tables it needs? Otherwise they are created outside it."""

    ranges_at_once: int = 300
    """Ranges of different tables that one statement looks at."""

    counted_at_once: int | None = 100_000
    """Rows that one statement counts, of a table with any number of them; None: all."""

    whole: str = "/"
    """Divides whole numbers without a rest."""

    indexes_in_tables: bool = False
    """Are indexes part of the statement that creates their table?"""

    def text(self, statement: str) -> str:
        """The statement in the driver's style."""
        return statement if self.placeholder == "?" else _restyled(statement, self.placeholder)

    def add_column(self, table: str, column: str, kind: str) -> Iterator[str]:
        """Add a column; if that is not part of a transaction, nothing must happen if the column is there."""
        yield f"ALTER TABLE {table} ADD COLUMN {column} {self.types[kind]}"

    def add_index(self, table: str, name: str, columns: str) -> Iterator[str]:
        """Add an index over columns, the second of which is empty in most rows."""
        some = columns.split(", ")[1]
        yield f"CREATE INDEX IF NOT EXISTS {name} ON {table} ({columns}) WHERE {some} IS NOT NULL"

    def insert(self, table: str, columns: Sequence[str], *, ignore: bool = False) -> str:
        """Insert one row, or nothing if `ignore` and its key exists."""
        tail = " ON CONFLICT DO NOTHING" if ignore else ""
        return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({placeholders(len(columns))}){tail}"

    def upsert(self, table: str, columns: Sequence[str], key: Sequence[str], *, add: Collection[str] = ()) -> str:
        """Insert or replace one row; the columns in `add` are added to the existing values."""
        changes = ", ".join(
            f"{name} = {table}.{name} + excluded.{name}" if name in add else f"{name} = excluded.{name}"
            for name in columns
            if name not in key
        )
        return f"{self.insert(table, columns)} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changes}"

    def insert_new(self, cursor: Cursor, table: str, columns: Sequence[str], rows: Sequence[Row]) -> int:
        """Insert many rows with new keys in the driver's fastest way, which may refuse a repeat. Returns how many."""
        return self.insert_many(cursor, table, columns, rows)

    def insert_many(self, cursor: Cursor, table: str, columns: Sequence[str], rows: Sequence[Row]) -> int:
        """Insert or ignore many rows in the driver's fastest way. Returns how many were inserted."""
        cursor.executemany(self.text(self.insert(table, columns, ignore=True)), rows)
        return cursor.rowcount

    def update_many(self, cursor: Cursor, table: str, rows: Sequence[Row]) -> int:
        """Compare and set many jobs, as in COMPARE_AND_SET, in the driver's fastest way. Returns how many changed."""
        cursor.executemany(self.text(COMPARE_AND_SET.format(table=table)), rows)
        return cursor.rowcount

    def read_page(  # noqa: PLR0917 - a page has this many parameters
        self, cursor: Cursor, table: str, columns: str, condition: str, span: tuple[bytes, bytes], limit: int, most: int
    ) -> tuple[bytes | None, Iterable[Row]]:
        """Up to `limit` rows that meet a condition, in the order of their keys, among the first `most` of a range.

        They are preceded by the key at which the search ended, None at the end of the range. Its snapshot is not
        younger than that of the rows: concurrent inserts and deletes must not move it past rows that were not checked.
        There may be one more column after the requested ones.
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
        """A column with the printed form of the key `source`, computed by the database."""

    @abstractmethod
    def readable_time(self, name: str, source: str) -> str:
        """A column with the milliseconds in `source` as a time in UTC, computed by the database."""

    @abstractmethod
    def has_tag(self) -> str:
        """A condition: the JSON list in `tags` contains the parameter."""

    @abstractmethod
    def contains(self, column: str) -> str:
        """A condition: the text in a column contains the parameter, exactly as it is written."""

    def by_index(self, cursor: Cursor) -> AbstractContextManager[object]:
        """Within it, SELECTs with an order read rows by the index, if they are not part of a transaction."""
        del cursor
        return nullcontext()

    def snapshot(self, cursor: Cursor) -> AbstractContextManager[object]:
        """Within it, all SELECTs see the database at one moment, if they are not part of a transaction.

        That is so on SQLite without more, whose transactions that read have one snapshot.
        """
        del cursor
        return nullcontext()

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
        """Lock these shards, given in order, until the end of the transaction; then read their columns.

        Also returns `tables_version`, if it comes for free, or None.

        Rules: shards_are_locked_in_order, line_is_read_under_lock.
        """

    @abstractmethod
    def prune_keys(self, cursor: Cursor, before_ms: int, limit: int) -> int:
        """Delete up to `limit` idempotency keys that were claimed before this moment. Returns how many were deleted."""

    keys_estimate: str
    """A statement that estimates how many idempotency keys there are, without counting them."""

    def count_keys(self, cursor: Cursor) -> int:
        """How many idempotency keys there are: counted up to a limit, estimated beyond it."""
        cursor.execute(
            f"SELECT COUNT(*) FROM (SELECT 1 FROM scheduler_idempotency_keys LIMIT {COUNTED + 1}) AS counted"
        )
        counted = int(cursor.fetchone()[0])
        if counted <= COUNTED:
            return counted
        cursor.execute(self.keys_estimate)
        return max(counted, int(cursor.fetchone()[0] or 0))

    def value_room(self, cursor: Cursor) -> int | None:
        """The most bytes that a statement can put into a row, besides some text; None: practically unlimited."""
        del cursor
        return None

    @abstractmethod
    def tables(self, cursor: Cursor) -> frozenset[str]:
        """The names of all tables."""

    @abstractmethod
    def table_sizes(self, cursor: Cursor) -> Sequence[TableSize]:
        """All tables, with what the catalogue says of them."""

    @abstractmethod
    def tables_version(self, cursor: Cursor) -> object:
        """A cheap value that changes whenever a table is created or dropped; None if the database has no such thing."""


@lru_cache(maxsize=4096)
def _restyled(statement: str, placeholder: str) -> str:
    return statement.replace("?", placeholder)


@lru_cache(maxsize=1024)
def placeholders(count: int) -> str:
    """This many placeholders, separated by commas."""
    return ", ".join("?" * count)


SETTLED_VERSION: Final = "(SELECT CASE WHEN tables % 2 = 0 THEN tables END FROM scheduler_schema)"
"""The value of `settled_version` as a column of another statement."""


def settled_version(cursor: Cursor) -> int | None:
    """A number that grows with every table created or dropped; None while tables change, or if that was cut short."""
    cursor.execute("SELECT tables FROM scheduler_schema")
    row = cursor.fetchone()
    return None if row is None or row[0] % 2 else int(row[0])


def without_version(rows: Sequence[Row]) -> tuple[Sequence[Row], object]:
    """Split rows whose last column is SETTLED_VERSION into the rows and that version."""
    return [row[:-1] for row in rows], rows[0][-1] if rows else None


def read_shards(dialect: Dialect, cursor: Cursor, shards: Sequence[Shard], columns: str, tail: str = "") -> list[Row]:
    """Read columns of these shards by their key, in order: one statement per app."""
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
