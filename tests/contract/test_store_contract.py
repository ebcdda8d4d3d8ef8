"""Every store keeps the promises of the port."""

from pathlib import Path

import pytest

from infinite_scheduler.clock import Clock
from infinite_scheduler.store.base import Store
from infinite_scheduler.store.sql.sqlite.database import SqliteDatabase
from infinite_scheduler.store.sql.store import SqlStore
from infinite_scheduler.testing.store_contract import Bench
from tests.contract.sql_contract import SqlStoreContract


class SqliteContract(SqlStoreContract):
    """SQLite in a file, with what only a database of tables promises."""

    inline: bool

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "jobs.db"

    def make_store(self, clock: Clock) -> Store:
        return SqlStore(SqliteDatabase(self.path, inline=self.inline), clock)

    async def test_maintenance_makes_tables_ahead(self, bench: Bench) -> None:
        node = await bench.node()
        assert not (await node.ownership.maintain()).made
        await bench.add(1000)
        made = (await node.ownership.maintain()).made
        assert any(name.startswith("mail_scheduled_jobs_2026") for name in made)
        assert not (await node.ownership.maintain()).made


class TestSqliteInline(SqliteContract):
    inline = True
    threaded = False


class TestSqliteThreaded(SqliteContract):
    inline = False
