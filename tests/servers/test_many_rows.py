"""Many rows go to a server in few statements: row by row, a server that is behind would fall behind ever more."""

from collections.abc import Sequence
from typing import Any

import pytest

from infinite_scheduler import Client
from infinite_scheduler.model import Attempt, Job, JobId, Owner, Shard
from infinite_scheduler.store import server_driver
from infinite_scheduler.store.base import Running, ShardInfo
from infinite_scheduler.store.sql import owner
from infinite_scheduler.store.sql.relational import SqlStatements

pytestmark = pytest.mark.servers

ME = Owner("me", 1)
SHARD = Shard("sms", 0)


class Counting:
    """A cursor that counts statements."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor
        self.statements = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        self.statements += 1
        return self._cursor.execute(*args, **kwargs)

    def executemany(self, text: str, rows: Sequence[Any]) -> Any:
        self.statements += len(rows)
        return self._cursor.executemany(text, rows)


class Mine(SqlStatements):
    """The shard belongs to the one who asks."""

    def lock_shards(self, shards: Any, *, exclusive: bool) -> Any:
        return {SHARD: ShardInfo(shard=SHARD, owner=ME, line_ms=0, low_ms=0)}


def job(number: int) -> Job:
    key = JobId.make(5, SHARD.number, 1, entropy=number.to_bytes(8, "big"))
    return Job(key=bytes(key), app=SHARD.app, due_ms=5, scheduled_ms=5, payload=b"{}", created_ms=5)


async def test_deliveries_that_run_for_long_are_shown_by_few_statements(url: str) -> None:
    async with Client(url):
        pass  # makes the tables
    driver = server_driver(url)
    connection = driver.connect()
    cursor: Any = Counting(connection.cursor())
    tx = Mine(cursor, driver.dialect, "test")
    running = [Running(job=job(number), started_ms=7) for number in range(200)]
    owner.settle(tx, {SHARD: ME}, "n1", [], running, exclusive=False)
    assert cursor.statements <= 3
    assert tx.read_attempts("sms", running[9].job.key) == [Attempt(attempt=1, started_ms=7, node="n1")]
    connection.close()
