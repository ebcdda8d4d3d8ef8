"""Counting anew what waits: exact while others insert, and a bounded number of rows per statement."""

import asyncio

import pytest

from infinite_scheduler import Client
from infinite_scheduler.model import DAY_MS
from infinite_scheduler.store.sql.request_rows import SqlStatements
from infinite_scheduler.store.sql.server.mariadb_dialect import MariaDialect
from infinite_scheduler.store.sql.server.postgres_dialect import PostgresDialect
from tests.waiting import now_ms

APP = "sms"
STORES = [
    "sqlite",
    pytest.param("mariadb", marks=pytest.mark.servers),
    pytest.param("postgres", marks=pytest.mark.servers),
]


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('tmp_path') / 'jobs.db'}"
    return str(request.getfixturevalue(f"{request.param}_url"))


async def test_counting_anew_is_exact_while_others_insert(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for dialect in (MariaDialect, PostgresDialect):
        monkeypatch.setattr(dialect, "counted_at_once", 2)
    days = [now_ms() + days * DAY_MS for days in (1, 1, 1, 1, 1, 2, 40)]
    async with Client(url) as client:
        await client.register(APP, 2)
        for at_ms in days:
            await client.schedule(APP, 1, at=at_ms)
        loop, count, inserted = asyncio.get_running_loop(), SqlStatements.count_pending, 0

        def amid_inserts(self: SqlStatements, table: str, found: dict[int, int]) -> None:
            nonlocal inserted
            asyncio.run_coroutine_threadsafe(client.schedule(APP, 2, at=days[0]), loop).result(30)
            inserted += 1
            count(self, table, found)

        monkeypatch.setattr(SqlStatements, "count_pending", amid_inserts)
        again = await client.ledger.recount(APP)
        assert inserted > 1
        assert again.counted == again.before
        assert sum((await client.ledger.waiting())[APP].values()) == len(days) + inserted
