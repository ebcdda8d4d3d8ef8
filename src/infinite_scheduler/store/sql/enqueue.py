"""Jobs in a transaction of the user's own, together with business data."""

import os
import random
import sqlite3
from collections.abc import Sequence
from typing import cast

from sqlalchemy.engine import Connection

from infinite_scheduler.errors import InvalidRequest, UnknownApp
from infinite_scheduler.model import Accepted, JobSpec
from infinite_scheduler.store.sql import door
from infinite_scheduler.store.sql.batch import Batch
from infinite_scheduler.store.sql.dialect import Cursor
from infinite_scheduler.store.sql.relational import SqlStatements
from infinite_scheduler.store.sql.sqlite_dialect import SqliteDialect

_PROCESS = os.urandom(8).hex()


def enqueue(connection: Connection, specs: Sequence[JobSpec], now_ms: int) -> Sequence[Accepted]:
    """Insert jobs on a SQLAlchemy connection whose transaction the caller commits; owners are always asked to look."""
    if not isinstance(connection, Connection):
        raise InvalidRequest(
            f"enqueue needs a SQLAlchemy Connection, not {type(connection).__name__}: of an ORM session, "
            "pass session.connection()"
        )
    if connection.dialect.name != "sqlite":
        raise InvalidRequest(f"enqueue works on the store's own database, SQLite; this is {connection.dialect.name}")
    if connection.get_isolation_level() == "AUTOCOMMIT":
        raise InvalidRequest(
            "enqueue needs a transaction, and this connection commits every statement: leave AUTOCOMMIT"
        )
    tx = SqlStatements(cast("Cursor", connection.connection.cursor()), SqliteDialect(), _PROCESS)
    tx.start()
    tx.begin()
    try:
        apps = {info.name: info for info in tx.read_apps()}
    except sqlite3.OperationalError as error:
        raise InvalidRequest(f"this is not the store's database ({error}): connect to the file of store.url") from error
    for spec in specs:
        if spec.app not in apps:
            raise UnknownApp(spec.app, apps)

    def any_shard(app: str, *, urgent: bool) -> int:
        del urgent
        return random.randrange(apps[app].shards)  # noqa: S311 - spreads, guards nothing

    batch = Batch.of(specs, now_ms, any_shard)
    inserted = door.enqueue(tx, batch.chunks, now_ms)
    return batch.answers(inserted.repeats)
