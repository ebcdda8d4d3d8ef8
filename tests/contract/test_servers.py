"""The same promises on database servers: of the statements, and of the store above them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing

import pytest

from infinite_scheduler.clock import Clock
from infinite_scheduler.errors import StoreBroken
from infinite_scheduler.store import open_store
from infinite_scheduler.store.base import Store
from infinite_scheduler.store.cluster_state import NodeInfo
from infinite_scheduler.store.sql.server.database import ServerDatabase
from infinite_scheduler.store.sql.server.drivers import server_driver
from infinite_scheduler.store.sql.server.table_maker import CHANGED
from infinite_scheduler.store.sql.statements import Database, Session, Statements
from tests.contract.sql_contract import SqlStoreContract
from tests.contract.test_statements import NOW, SMS, StatementsContract, add, keys_of, new_row
from tests.services.databases import connect, fresh_database, kill_others, kind_of

pytestmark = pytest.mark.servers

TABLES = "SELECT table_name FROM information_schema.tables WHERE table_schema = {schema}"


@pytest.fixture(scope="module")
def mariadb_for_all() -> Iterator[str]:
    """One database for all tests of a worker: making its tables takes MariaDB longer than most tests."""
    with fresh_database("mariadb") as url:
        yield url


@pytest.fixture(scope="module")
def postgres_for_all() -> Iterator[str]:
    with fresh_database("postgres") as url:
        yield url


def emptied(url: str) -> str:
    """The database without any app, as after its first migration."""
    with closing(connect(url)) as connection, closing(connection.cursor()) as cursor:
        kill_others(cursor, url)
        cursor.execute(TABLES.format(schema="DATABASE()" if kind_of(url) == "mariadb" else "current_schema()"))
        tables = [row[0] for row in cursor.fetchall()]
        others = [name for name in tables if not name.startswith("scheduler_")]
        if others:
            cursor.execute(f"DROP TABLE {', '.join(others)}")
        for name in tables:
            if name.startswith("scheduler_") and name != "scheduler_schema":
                cursor.execute(f"DELETE FROM {name}")
        if tables:
            cursor.execute(CHANGED)
    return url


class ServerStatements(StatementsContract):
    """What the line protocol relies on, of a server."""

    @pytest.fixture
    async def database(self, url: str) -> AsyncIterator[Database]:
        database = ServerDatabase(server_driver(url))
        await database.open()
        yield database
        await database.close()

    async def test_each_statement_of_a_transaction_sees_what_is_committed_by_then(
        self, database: Database, session: Session
    ) -> None:
        row, looked, go_on = new_row(), threading.Event(), threading.Event()
        await add(session, [new_row()])  # so that there is a table

        def body(tx: Statements) -> list[bytes]:
            assert not tx.read_jobs(SMS, [row.key])
            looked.set()
            assert go_on.wait(20)
            return keys_of(tx.read_jobs(SMS, [row.key]))

        reading = asyncio.create_task(database.session("lane-1").write(body))
        await asyncio.to_thread(looked.wait, 20)
        await add(session, [row])
        go_on.set()
        assert await reading == [row.key]

    async def test_a_value_that_does_not_fit_is_refused_and_never_cut(self, session: Session) -> None:
        node = NodeInfo(nonce="n1" * 200, node_id="host", apps=frozenset(), started_ms=NOW)
        try:
            await session.write(lambda tx: tx.write_node(node))
        except StoreBroken:
            return
        assert list(await session.read(lambda tx: tx.read_nodes())) == [node]


class TestMariaStatements(ServerStatements):
    @pytest.fixture
    def url(self, mariadb_for_all: str) -> str:
        return emptied(mariadb_for_all)


class TestPostgresStatements(ServerStatements):
    @pytest.fixture
    def url(self, postgres_for_all: str) -> str:
        return emptied(postgres_for_all)


class ServerStore(SqlStoreContract):
    """The port, over a server."""

    url: str

    def make_store(self, clock: Clock) -> Store:
        return open_store(self.url, clock)


class TestMariaStore(ServerStore):
    @pytest.fixture(autouse=True)
    def place(self, mariadb_for_all: str) -> None:
        self.url = emptied(mariadb_for_all)


class TestPostgresStore(ServerStore):
    @pytest.fixture(autouse=True)
    def place(self, postgres_for_all: str) -> None:
        self.url = emptied(postgres_for_all)
