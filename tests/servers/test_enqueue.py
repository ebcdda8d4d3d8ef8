"""Jobs in a transaction of the user's own, on the database server of the store."""

from collections.abc import AsyncIterator

import pytest
import sqlalchemy as sa

from infinite_scheduler import Client, Job, NewJob, Scheduler
from infinite_scheduler.errors import InvalidRequest, KeyConflict
from tests.services.databases import execute, fresh_database, kind_of
from tests.waiting import until_async

FAR = "2100-01-01T00:00:00Z"


class Shop:
    """A node with an app, and business data in the same database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = engine_of(url)
        self.scheduler = Scheduler(url)
        self.fired: list[str] = []

        @self.scheduler.app("reminders", shards=4)
        async def remind(job: Job) -> None:
            self.fired.append(job.id)

    def order(self, connection: sa.Connection, item: str = "tea") -> None:
        connection.execute(sa.text("INSERT INTO orders (item) VALUES (:item)"), {"item": item})

    def items(self) -> list[str]:
        return [row[0] for row in execute(self.url, "SELECT item FROM orders ORDER BY item")]

    async def accepted(self) -> list[str]:
        return [record.id async for record in self.scheduler.find_all("reminders")]

    async def counted(self) -> int:
        return (await self.scheduler.survey()).counts.get("reminders", {}).get("accepted", 0)

    async def fires(self, job_id: str) -> None:
        await until_async(lambda: job_id in self.fired, f"job {job_id} fires")


def engine_of(url: str) -> sa.Engine:
    driver = "mysql+pymysql" if kind_of(url) == "mariadb" else "postgresql+psycopg"
    return sa.create_engine(f"{driver}:{url.partition(':')[2]}")


@pytest.fixture
def url(emptied_url: str) -> str:
    return emptied_url


@pytest.fixture
async def shop(url: str) -> AsyncIterator[Shop]:
    shop = Shop(url)
    execute(shop.url, "CREATE TABLE orders (item VARCHAR(20))")
    async with shop.scheduler:
        yield shop
    shop.engine.dispose()


pytestmark = pytest.mark.servers


async def test_a_job_and_business_data_are_committed_together(shop: Shop) -> None:
    with shop.engine.begin() as connection:
        shop.order(connection)
        (job,) = shop.scheduler.enqueue(connection, "reminders", [NewJob(data={"a": 1}, delay="100ms")])
        assert await shop.accepted() == []
    await shop.fires(job.id)
    assert shop.items() == ["tea"]
    assert await shop.counted() == 1


async def test_rolled_back_there_is_no_job(shop: Shop) -> None:
    with shop.engine.connect() as connection:
        shop.order(connection)
        shop.scheduler.enqueue(connection, "reminders", [NewJob(at=FAR)])
        connection.rollback()
    assert (await shop.accepted(), shop.items(), await shop.counted()) == ([], [], 0)


async def test_a_table_that_is_missing_is_made_without_a_commit_of_the_users_transaction(shop: Shop) -> None:
    with shop.engine.connect() as connection:
        shop.order(connection)
        shop.scheduler.enqueue(connection, "reminders", [NewJob(delay=f"{days}d") for days in (5, 9, 20)])
        assert shop.items() == []
        connection.rollback()
    assert (await shop.accepted(), shop.items()) == ([], [])
    with shop.engine.begin() as connection:
        jobs = shop.scheduler.enqueue(connection, "reminders", [NewJob(delay=f"{days}d") for days in (5, 9, 20)])
    assert await shop.accepted() == [job.id for job in jobs]


async def test_two_transactions_do_not_wait_for_each_other(shop: Shop) -> None:
    with shop.engine.connect() as one, shop.engine.connect() as other:
        for connection in (one, other):
            shop.scheduler.enqueue(connection, "reminders", [NewJob(at=FAR)])
        other.commit()
        one.commit()
    assert len(await shop.accepted()) == await shop.counted() == 2


async def test_a_key_committed_by_somebody_else_since_the_transaction_began_is_a_repeat(shop: Shop) -> None:
    with shop.engine.connect() as connection:
        shop.order(connection)  # on MariaDB a transaction keeps the view of its first read
        connection.execute(sa.text("SELECT COUNT(*) FROM orders")).scalar()
        first = await shop.scheduler.schedule("reminders", {"n": 1}, at=FAR, idempotency_key="k")
        (again,) = shop.scheduler.enqueue(connection, "reminders", [NewJob(data={"n": 1}, at=FAR, idempotency_key="k")])
        assert (again.id, again.repeated) == (first.id, True)
        with pytest.raises(KeyConflict):
            shop.scheduler.enqueue(connection, "reminders", [NewJob(data={"n": 2}, at=FAR, idempotency_key="k")])
        connection.commit()
    assert shop.items() == ["tea"]
    assert await shop.accepted() == [first.id]


async def test_another_database_is_refused(shop: Shop) -> None:
    with fresh_database(kind_of(shop.url)) as elsewhere:
        engine = engine_of(elsewhere)
        with engine.connect() as connection, pytest.raises(InvalidRequest, match="not the store's database"):
            shop.scheduler.enqueue(connection, "reminders", [NewJob(at=FAR)])
        engine.dispose()


async def test_the_database_of_another_store_is_refused(shop: Shop) -> None:
    with fresh_database(kind_of(shop.url)) as elsewhere:
        async with Client(elsewhere) as client:
            await client.register("reminders", 4)
        engine = engine_of(elsewhere)
        with engine.connect() as connection, pytest.raises(InvalidRequest, match="not the store's database"):
            shop.scheduler.enqueue(connection, "reminders", [NewJob(at=FAR)])
        engine.dispose()


async def test_a_connection_that_commits_every_statement_is_refused(shop: Shop) -> None:
    engine = shop.engine.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(InvalidRequest, match="do not use AUTOCOMMIT"):
        shop.scheduler.enqueue(connection, "reminders", [NewJob(at=FAR)])


async def test_bytes_of_the_users_own_stay_bytes(shop: Shop) -> None:
    kind = "BLOB" if kind_of(shop.url) == "mariadb" else "bytea"
    execute(shop.url, f"CREATE TABLE pictures (picture {kind})")
    with shop.engine.begin() as connection:
        shop.scheduler.enqueue(connection, "reminders", [NewJob(at=FAR)])
        connection.execute(sa.text("INSERT INTO pictures VALUES (:p)"), {"p": b"sixteen bytes 16"})
    assert [bytes(row[0]) for row in execute(shop.url, "SELECT picture FROM pictures")] == [b"sixteen bytes 16"]


async def test_a_connection_to_sqlite_is_refused(shop: Shop) -> None:
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection, pytest.raises(InvalidRequest, match="this connection is sqlite"):
        shop.scheduler.enqueue(connection, "reminders", [NewJob(at=FAR)])
    engine.dispose()
