"""Databases as an earlier version has left them."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from infinite_scheduler.store.sql import cluster_rows, prepare, schema
from infinite_scheduler.store.sql.server import table_maker
from infinite_scheduler.store.sql.sqlite import database


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
    ):
        yield
