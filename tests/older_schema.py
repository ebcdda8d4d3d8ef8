"""Databases as an earlier version has left them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from infinite_scheduler.store.sql import cluster_rows, prepare, schema
from infinite_scheduler.store.sql.request_rows import COUNTER, WAITING, SqlStatements
from infinite_scheduler.store.sql.server import table_maker
from infinite_scheduler.store.sql.sqlite import database


def _add_to_older_counters(tx: Any, rows: Sequence[Any]) -> None:
    """As before version 4: without a time, and what waits was not counted."""
    known = [row[: len(COUNTER)] for row in rows if row[3] != WAITING]
    tx._run_many(tx._dialect.upsert("scheduler_counters", COUNTER, COUNTER[:4], add=("n",)), known)


@contextmanager
def schema_version(version: int) -> Iterator[None]:
    """Whatever is opened here knows the schema up to this version only; no node runs meanwhile."""
    steps = schema.MIGRATIONS[:version]
    with (
        mock.patch.object(schema, "MIGRATIONS", steps),
        mock.patch.object(schema, "VERSION", version),
        mock.patch.object(database, "VERSION", version),
        mock.patch.object(table_maker, "VERSION", version),
        mock.patch.object(prepare, "VERSION", version),
        mock.patch.object(cluster_rows.ClusterRows, "read_nodes", return_value=()),  # it knows newer columns
        mock.patch.object(SqlStatements, "_add_to_counters", _add_to_older_counters),
    ):
        yield
