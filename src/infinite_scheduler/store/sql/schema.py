"""The tables as they are created, and the numbered steps that bring an older database up to date."""

# ruff: noqa: S608 - table names come from checked app names, columns from this package

import os
from collections.abc import Callable, Iterator, Sequence

from infinite_scheduler.errors import StoreMismatch
from infinite_scheduler.model import DAY_MS
from infinite_scheduler.store.sql.dialect import Cursor, Dialect
from infinite_scheduler.store.sql.tables import moved_table

SCHEMA_TABLE = "scheduler_schema"
"""One row: the schema version, a number that grows with every table created or dropped, and the store's name."""

SHARED_PREFIX = "scheduler_"
"""How the names of the tables begin that all apps share."""

Columns = Sequence[tuple[str, str]]

# In storage order: columns used by filters come first; job_data last, since a large value is stored out of line.
JOB_COLUMNS: Columns = (
    ("status", "name NOT NULL"),
    ("due_ms", "int NOT NULL"),
    ("scheduled_ms", "int NOT NULL"),
    ("attempt", "int NOT NULL"),
    ("priority", "int NOT NULL"),
    ("shard", "int NOT NULL"),
    ("job_name", "text"),
    ("job_group", "text"),
    ("tags", "text"),
    ("request_id", "text"),
    ("idempotency_key", "text"),
    ("created_ms", "int NOT NULL"),
    ("finished_ms", "int"),
    ("error", "text"),
    ("id", "key NOT NULL"),
    ("job_data", "text NOT NULL"),
)

SHARED: dict[str, tuple[Columns, str]] = {
    "scheduler_apps": (
        (
            ("name", "name NOT NULL"),
            ("shards", "int NOT NULL"),
            ("span", "name NOT NULL"),
            ("paused", "bool NOT NULL"),
            ("created_ms", "int NOT NULL"),
        ),
        "name",
    ),
    "scheduler_nodes": (
        (
            ("nonce", "name NOT NULL"),
            ("node_id", "text NOT NULL"),
            ("apps", "text NOT NULL"),
            ("started_ms", "int NOT NULL"),
            ("draining", "bool NOT NULL"),
            ("drain_asked", "bool"),
            ("clock_off", "bool NOT NULL"),
            ("clock_offset_ms", "int"),
            ("beat", "int NOT NULL"),
            ("beat_ms", "int NOT NULL"),
        ),
        "nonce",
    ),
    "scheduler_shards": (
        (
            ("app", "name NOT NULL"),
            ("shard", "int NOT NULL"),
            ("owner_nonce", "name NOT NULL"),
            ("epoch", "int NOT NULL"),
            ("line_ms", "int NOT NULL"),
            ("low_ms", "int NOT NULL"),
        ),
        "app, shard",
    ),
    "scheduler_requests": (
        (
            ("id", "key NOT NULL"),
            ("app", "name NOT NULL"),
            ("shard", "int NOT NULL"),
            ("wish", "name"),
            ("job_ids", "bytes NOT NULL"),
            ("due_ms", "int"),
        ),
        "id",
    ),
    "scheduler_verdicts": (
        (("request", "key NOT NULL"), ("granted", "bool NOT NULL"), ("at_ms", "int NOT NULL")),
        "request",
    ),
    "scheduler_attempts": (
        (
            ("id", "key NOT NULL"),
            ("attempt", "int NOT NULL"),
            ("app", "name NOT NULL"),
            ("started_ms", "int NOT NULL"),
            ("finished_ms", "int"),
            ("node", "text NOT NULL"),
            ("error", "text"),
        ),
        "id, attempt",
    ),
    "scheduler_marks": (
        (("app", "name NOT NULL"), ("shard", "int NOT NULL"), ("id", "key NOT NULL"), ("size", "int NOT NULL")),
        "app, shard, id",
    ),
    "scheduler_counters": (
        (
            ("process", "name NOT NULL"),
            ("app", "name NOT NULL"),
            ("day", "int NOT NULL"),
            ("what", "name NOT NULL"),
            ("n", "int NOT NULL"),
        ),
        "process, app, day, what",
    ),
}

KEYS_TABLE = "scheduler_idempotency_keys"
KEY_COLUMNS: Columns = (
    ("app", "name NOT NULL"),
    ("idempotency_key", "name NOT NULL"),
    ("id", "key NOT NULL"),
    ("digest", "bytes NOT NULL"),
    ("created_ms", "int NOT NULL"),
)


OFFSETS_TABLE = "scheduler_ingest_offsets"
OFFSET_COLUMNS: Columns = (
    ("group_id", "name NOT NULL"),
    ("topic", "name NOT NULL"),
    ("partition_number", "int NOT NULL"),
    ("next_offset", "int NOT NULL"),
    ("topic_id", "name"),
    ("moved_ms", "int NOT NULL"),
)

LETTERS_TABLE = "scheduler_dead_letters"
LETTER_COLUMNS: Columns = (
    ("group_id", "name NOT NULL"),
    ("topic", "name NOT NULL"),
    ("partition_number", "int NOT NULL"),
    ("message_offset", "int NOT NULL"),
    ("state", "name NOT NULL"),
    ("error", "text NOT NULL"),
    ("note", "text"),
    ("dlq_topic", "text"),
    ("message_bytes", "int NOT NULL"),
    ("cut_bytes", "int NOT NULL"),
    ("failed_ms", "int NOT NULL"),
    ("id", "key NOT NULL"),
    ("message_key", "bytes"),
    ("headers", "text NOT NULL"),
    ("message_value", "bytes"),
)

AUDIT_TABLE = "scheduler_audit"
AUDIT_COLUMNS: Columns = (
    ("at_ms", "int NOT NULL"),
    ("who", "name NOT NULL"),
    ("address", "name NOT NULL"),
    ("verb", "name NOT NULL"),
    ("target", "name NOT NULL"),
    ("jobs", "int NOT NULL"),
    ("result", "text NOT NULL"),
    ("id", "key NOT NULL"),
)

TOKENS_TABLE = "scheduler_tokens"
TOKEN_COLUMNS: Columns = (
    ("name", "name NOT NULL"),
    ("role", "name NOT NULL"),
    ("digest", "bytes NOT NULL"),
    ("created_ms", "int NOT NULL"),
    ("revoked_ms", "int"),
)

UPGRADES_TABLE = "scheduler_upgrades"
UPGRADE_COLUMNS: Columns = (("version", "int NOT NULL"), ("before_ms", "int"))


Index = tuple[str, str]
"""The name of an index and its columns."""

REQUESTS_INDEX: Index = ("scheduler_requests_by_shard", "app, shard")
LETTERS_INDEXES: Sequence[Index] = (
    ("scheduler_dead_letters_by_state", "state, id"),
    ("scheduler_dead_letters_by_topic", "topic, state, id"),
)
"""Unsent letters are looked for all the time, and all letters are counted."""

ENDED_INDEX: Index = ("scheduler_attempts_by_end", "app, ended, id")
"""Failed and expired jobs are few among many: this is how they are found."""

ENDS_VERSION = 4
"""Since this version an attempt says that its job ended with it.

Before the line all jobs may have ended without that, and a node of the version before may go on for a while.
"""

AUDIT_INDEXES: Sequence[Index] = (("scheduler_audit_by_target", "target, id"),)
"""What was done to one job is shown with the job."""


def create_table(  # noqa: PLR0917 - a table has this many parts
    dialect: Dialect,
    table: str,
    columns: Columns,
    key: str,
    readable: Sequence[str] = (),
    indexes: Sequence[Index] = (),
    options: str | None = None,
) -> str:
    """The statement that creates a table if it does not exist."""
    lines = [*readable, *(f"{name} {_typed(dialect, kind)}" for name, kind in columns), f"PRIMARY KEY ({key})"]
    if dialect.indexes_in_tables:
        lines += [f"INDEX {name} ({over})" for name, over in indexes]
    body = ",\n  ".join(lines)
    return f"CREATE TABLE IF NOT EXISTS {table} (\n  {body}\n){dialect.table_options if options is None else options}"


def create_job_table(dialect: Dialect, table: str) -> str:
    """The statement that creates a table for jobs: first what people read, then what is stored."""
    readable = (
        dialect.readable_id("job_id", "id"),
        dialect.readable_time("scheduled_time", "scheduled_ms"),
        dialect.readable_time("due_time", "due_ms"),
        dialect.readable_time("created_at", "created_ms"),
        dialect.readable_time("finished_at", "finished_ms"),
    )
    return create_table(dialect, table, JOB_COLUMNS, "id", readable, options=dialect.job_table_options)


def create_moved_table(dialect: Dialect, app: str) -> str:
    """The statement that creates the table of an app's moved jobs."""
    return create_table(
        dialect, moved_table(app), (("position", "key NOT NULL"), ("id", "key NOT NULL")), "position, id"
    )


def _typed(dialect: Dialect, kind: str) -> str:
    word, _, rest = kind.partition(" ")
    return f"{dialect.types[word]} {rest}".rstrip()


def _first(dialect: Dialect) -> Iterator[str]:
    indexes = {
        "scheduler_requests": [REQUESTS_INDEX],
        "scheduler_verdicts": dialect.verdicts_indexes,
        KEYS_TABLE: dialect.keys_indexes,
    }
    for table, (columns, key) in SHARED.items():
        yield create_table(dialect, table, columns, key, indexes=indexes.get(table, ()))
    options = dialect.keys_table_options
    yield create_table(
        dialect, KEYS_TABLE, KEY_COLUMNS, "app, idempotency_key", indexes=indexes[KEYS_TABLE], options=options
    )
    if not dialect.indexes_in_tables:
        for table, some in indexes.items():
            yield from _create_indexes(table, some)


def _second(dialect: Dialect) -> Iterator[str]:
    """What is read from topics: how far, and what could not become a job."""
    moved = (dialect.readable_time("moved_at", "moved_ms"),)
    yield create_table(dialect, OFFSETS_TABLE, OFFSET_COLUMNS, "group_id, topic, partition_number", moved)
    readable = (dialect.readable_id("letter_id", "id"), dialect.readable_time("failed_at", "failed_ms"))
    yield create_table(
        dialect, LETTERS_TABLE, LETTER_COLUMNS, "id", readable, LETTERS_INDEXES, dialect.large_table_options
    )
    if not dialect.indexes_in_tables:
        yield from _create_indexes(LETTERS_TABLE, LETTERS_INDEXES)


def _third(dialect: Dialect) -> Iterator[str]:
    """Which apps a node holds back."""
    yield from dialect.add_column("scheduler_nodes", "held_back", "text")


def _fourth(dialect: Dialect) -> Iterator[str]:
    """Which jobs have failed, who did what, who may come in, and what nodes say of themselves.

    A server may lock each table until the end: in the order of a settle, and last the one that heartbeats write.
    """
    yield from dialect.add_column("scheduler_attempts", "ended", "name")
    yield from dialect.add_index("scheduler_attempts", *ENDED_INDEX)
    yield from dialect.add_column("scheduler_counters", "at_ms", "int")
    yield create_table(dialect, UPGRADES_TABLE, UPGRADE_COLUMNS, "version")
    yield f"DELETE FROM {UPGRADES_TABLE}"
    yield (
        f"INSERT INTO {UPGRADES_TABLE} (version, before_ms)"
        f" SELECT {ENDS_VERSION}, MAX(line_ms) + {DAY_MS} FROM scheduler_shards"
    )
    readable = (dialect.readable_id("record_id", "id"), dialect.readable_time("recorded_at", "at_ms"))
    yield create_table(dialect, AUDIT_TABLE, AUDIT_COLUMNS, "id", readable, AUDIT_INDEXES, dialect.large_table_options)
    if not dialect.indexes_in_tables:
        yield from _create_indexes(AUDIT_TABLE, AUDIT_INDEXES)
    yield create_table(dialect, TOKENS_TABLE, TOKEN_COLUMNS, "name")
    yield from dialect.add_column("scheduler_nodes", "vitals", "text")


def _create_indexes(table: str, indexes: Sequence[Index]) -> Iterator[str]:
    for name, over in indexes:
        yield f"CREATE INDEX IF NOT EXISTS {name} ON {table} {over if '(' in over else f'({over})'}"


MIGRATIONS: Sequence[Callable[[Dialect], Iterator[str]]] = (_first, _second, _third, _fourth)
"""Step n brings a database from version n to n + 1. A step that was released never changes."""

VERSION = len(MIGRATIONS)


def version_of(cursor: Cursor, dialect: Dialect) -> int:
    """The schema's version; 0 for a database without one. Raises StoreMismatch for a newer one."""
    if SCHEMA_TABLE not in dialect.tables(cursor):
        return 0
    cursor.execute(f"SELECT version FROM {SCHEMA_TABLE}")
    row = cursor.fetchone()
    version = int(row[0]) if row else 0
    if version > VERSION:
        raise StoreMismatch(
            f"the database has schema version {version}, but this infinite_scheduler knows versions up to {VERSION}: "
            "a newer release has used it; upgrade the infinite-scheduler package here too"
        )
    return version


def migrate(cursor: Cursor, dialect: Dialect) -> None:
    """Bring the schema up to date, in a transaction that keeps others from doing the same."""
    version = version_of(cursor, dialect)
    if version == VERSION:
        return
    for step in MIGRATIONS[version:]:
        for statement in step(dialect):
            cursor.execute(statement)
    if version == 0:
        columns = (("version", "int NOT NULL"), ("tables", "int NOT NULL"), ("store_id", "name NOT NULL"))
        cursor.execute(create_table(dialect, SCHEMA_TABLE, columns, "version"))
        cursor.execute(f"DELETE FROM {SCHEMA_TABLE}")
        cursor.execute(
            dialect.text(f"INSERT INTO {SCHEMA_TABLE} (version, tables, store_id) VALUES (?, ?, ?)"),
            (VERSION, 2, os.urandom(8).hex()),
        )
    else:
        cursor.execute(f"UPDATE {SCHEMA_TABLE} SET version = {VERSION}")
