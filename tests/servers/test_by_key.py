"""Statements about some rows go by their keys, however few rows the server thinks there are: nobody else is in the way.

A server that takes a table for small, as it does with a new one and after a restart, would rather read it from end to
end, once for every row that is named; and wait there for all that other transactions have locked.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from infinite_scheduler.store.sql.schema import KEY_COLUMNS, KEYS_TABLE, create_job_table, create_table
from infinite_scheduler.store.sql.server.driver import Driver
from infinite_scheduler.store.sql.server.drivers import server_driver
from infinite_scheduler.store.sql.upkeep_rows import UpkeepRows
from tests.services.databases import kind_of

SHORT_WAIT = {"mariadb": "SET SESSION innodb_lock_wait_timeout = 1", "postgres": "SET lock_timeout = '1s'"}
LOCKED, *FREE = (bytes([number]) * 16 for number in range(40))
JOBS = ("id", "status", "due_ms", "scheduled_ms", "attempt", "priority", "shard", "created_ms", "job_data")


class Two:
    """Two transactions on the same tables, of which the first has locked a row that the second does not name."""

    def __init__(self, driver: Driver, kind: Any) -> None:
        self.dialect = driver.dialect
        self._first, self._second = driver.connect(), driver.connect()
        self.first, self.second = self._first.cursor(), self._second.cursor()
        self.second.execute(SHORT_WAIT[kind])
        self.first.execute(create_job_table(self.dialect, "jobs"))
        self.first.execute(create_table(self.dialect, KEYS_TABLE, KEY_COLUMNS, "app, idempotency_key"))

    def add(self, *keys: bytes) -> None:
        rows = [(key, "pending", 5, 5, 1, 1, 0, 5, "null") for key in keys]
        self.dialect.insert_new(self.first, "jobs", JOBS, rows)

    @contextmanager
    def locked(self, lock: str, values: tuple[object, ...]) -> Iterator[None]:
        self.first.execute("BEGIN")
        self.first.execute(lock, values)
        self.second.execute("BEGIN")
        yield
        self.second.execute("ROLLBACK")
        self.first.execute("ROLLBACK")

    def close(self) -> None:
        self._first.close()
        self._second.close()


@pytest.fixture
def two(url: str) -> Iterator[Two]:
    with closing(Two(server_driver(url), kind_of(url))) as two:
        yield two


pytestmark = pytest.mark.servers


def test_jobs_are_settled_while_another_transaction_settles_others(two: Two) -> None:
    two.add(LOCKED, *FREE[:2])
    with two.locked("UPDATE jobs SET error = '' WHERE id = %s", (LOCKED,)):
        new = [("done", 1, 5, None, 6, None, key, "pending", 1, 5) for key in FREE[:2]]
        assert two.dialect.update_many(two.second, "jobs", new) == 2


def test_rows_are_deleted_while_another_transaction_deletes_others(two: Two) -> None:
    two.add(LOCKED, *FREE)
    with two.locked("DELETE FROM jobs WHERE id = %s", (LOCKED,)):
        old = [(key, 0) for key in FREE]
        assert two.dialect.delete_many(two.second, "jobs", ("id", "shard"), old) == len(FREE)
        assert two.dialect.delete_many(two.second, "jobs", ("id", "shard"), old[:1]) == 0


def test_idempotency_keys_are_looked_up_while_another_transaction_adds_others(two: Two) -> None:
    key = "INSERT INTO scheduler_idempotency_keys VALUES ('app', %s, %s, '', 5)"
    known = {f"known {number}" for number in range(20)}
    for name in known:
        two.first.execute(key, (name, LOCKED))
    with two.locked(key, ("not yet", LOCKED)):
        rows = UpkeepRows(two.second, two.dialect, "process")
        assert rows.read_keys("app", [*known, "unknown"]).keys() == known
