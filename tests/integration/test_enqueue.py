"""Jobs in a transaction of the user's own, on the store's file, beside a running node."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from infinite_scheduler import Job, NewJob, Scheduler
from infinite_scheduler.client import Client
from infinite_scheduler.errors import InvalidRequest, InvalidTime, KeyConflict, UnknownApp, UnknownJob
from infinite_scheduler.model import JobRecord, Status
from tests.waiting import now_ms, until_async

BOUND_S = 20
FAR = "2100-01-01T00:00:00Z"

orders = sa.Table("orders", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("item", sa.String))


class Shop:
    """A node with an app, and business data in the same file."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'shop.db'}"
        self.engine = sa.create_engine(self.url)
        self.scheduler = Scheduler(self.url)
        self.fired: list[tuple[str, int]] = []

        @self.scheduler.app("reminders", shards=4)
        async def remind(job: Job) -> None:
            self.fired.append((job.id, now_ms()))

    def order(self, connection: sa.Connection, item: str = "tea") -> None:
        connection.execute(sa.insert(orders).values(item=item))

    def items(self) -> list[str]:
        with self.engine.connect() as connection:
            return list(connection.scalars(sa.select(orders.c.item).order_by(orders.c.id)))

    async def jobs(self) -> list[JobRecord]:
        return [record async for record in self.scheduler.find_all("reminders")]

    async def fires(self, job_id: str) -> int:
        """When it was handed over."""
        found = await until_async(lambda: [at for id_, at in self.fired if id_ == job_id], f"job {job_id} fires")
        return int(found[0])

    async def line_ahead(self, ms: int) -> int:
        """Wait until the node has moved the lines of all its shards so far ahead of now; the nearest of them."""

        async def nearest() -> int | None:
            shards = (await self.scheduler.survey()).view.shards
            line_ms = min(shard.line_ms for shard in shards)
            return line_ms if line_ms > now_ms() + ms and not any(shard.released for shard in shards) else None

        return int(await until_async(nearest, f"the lines are {ms} ms ahead"))


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(tmp_path)
    async with shop.scheduler:
        orders.metadata.create_all(shop.engine)
        yield shop
    shop.engine.dispose()


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[sa.Engine]:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'elsewhere.db'}")
    yield engine
    engine.dispose()


async def reached(moment_ms: int) -> None:
    """Let the wall clock go on to this moment."""
    await asyncio.sleep(max(0, moment_ms + 1 - now_ms()) / 1000)
    assert now_ms() >= moment_ms


async def test_job_and_business_row_commit_together(shop: Shop) -> None:
    with shop.engine.begin() as connection:
        shop.order(connection)
        (job,) = shop.scheduler.enqueue(connection, "reminders", [NewJob(data={"item": "tea"}, at=FAR, tags=["t"])])
        with pytest.raises(UnknownJob):
            await shop.scheduler.get(job.id)
    assert shop.items() == ["tea"]
    record = await shop.scheduler.get(job.id)
    assert (record.status, record.job.data, record.job.tags) == (Status.PENDING, {"item": "tea"}, ("t",))
    assert (await shop.scheduler.survey()).counts["reminders"]["accepted"] == 1


@pytest.mark.parametrize("delay", ["0s", "1h"])
async def test_job_and_business_row_roll_back_together(shop: Shop, delay: str) -> None:
    with contextlib.suppress(ZeroDivisionError), shop.engine.begin() as connection:
        shop.order(connection)
        shop.scheduler.enqueue(connection, "reminders", [NewJob(delay=delay)])
        raise ZeroDivisionError
    with shop.engine.begin() as connection:
        (after,) = shop.scheduler.enqueue(connection, "reminders", [NewJob(delay="0s")])
    await shop.fires(after.id)  # so the node has looked since
    assert shop.items() == []
    assert [id_ for id_, _ in shop.fired] == [after.id]
    assert [record.id for record in await shop.jobs()] == [after.id]


async def test_a_connection_on_which_nothing_else_was_done_commits(shop: Shop) -> None:
    with shop.engine.connect() as connection:
        (job,) = shop.scheduler.enqueue(connection, "reminders", [NewJob(at=FAR)])
        connection.commit()
    assert [record.id for record in await shop.jobs()] == [job.id]


async def test_a_connection_on_which_nothing_else_was_done_rolls_back(shop: Shop) -> None:
    with shop.engine.connect() as connection:
        shop.scheduler.enqueue(connection, "reminders", [NewJob(at=FAR)])
        connection.rollback()
        shop.order(connection)
        connection.commit()
    assert shop.items() == ["tea"]
    assert await shop.jobs() == []


async def test_a_connection_that_begins_by_an_event_commits(shop: Shop) -> None:
    """SQLAlchemy's recipe for real transactions: the driver begins none, an event does."""
    engine = sa.create_engine(shop.url)

    @sa.event.listens_for(engine, "connect")
    def connect(connection: Any, record: object) -> None:
        connection.isolation_level = None

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")  # a plain one may meet a write of the node between read and write

    with engine.connect() as connection:
        shop.scheduler.enqueue(connection, "reminders", [NewJob(at=FAR)])
        connection.rollback()
        (job,) = shop.scheduler.enqueue(connection, "reminders", [NewJob(at=FAR)])
        connection.commit()
    engine.dispose()
    assert [record.id for record in await shop.jobs()] == [job.id]


async def test_a_savepoint_takes_its_jobs_back(shop: Shop) -> None:
    with shop.engine.begin() as connection:
        shop.order(connection)
        (kept,) = shop.scheduler.enqueue(connection, "reminders", [NewJob(at=FAR)])
        with connection.begin_nested() as inner:
            shop.scheduler.enqueue(connection, "reminders", [NewJob(at=FAR)])
            inner.rollback()
    assert [record.id for record in await shop.jobs()] == [kept.id]


async def test_jobs_fire_after_the_commit(shop: Shop) -> None:
    with shop.engine.begin() as connection:
        jobs = shop.scheduler.enqueue(connection, "reminders", [NewJob(data=i, delay="50ms") for i in range(20)])
    for job in jobs:
        assert await shop.fires(job.id) >= job.due_ms
        assert (await shop.scheduler.wait(job.id, timeout=BOUND_S)).status is Status.DONE
    assert len(shop.fired) == 20


async def test_a_job_of_a_transaction_held_open_past_its_moment_fires_soon_after_the_commit(shop: Shop) -> None:
    """The line has passed it: no scan meets it any more, so the node must have been asked to look."""
    line_ms = await shop.line_ahead(2000)
    with shop.engine.begin() as connection:
        shop.order(connection)
        (job,) = shop.scheduler.enqueue(connection, "reminders", [NewJob(delay="200ms")])
        assert job.due_ms < line_ms
        await reached(job.due_ms + 1000)
        assert not shop.fired
        committing = now_ms()
    committed = now_ms()
    fired = await shop.fires(job.id)
    assert fired >= committing
    assert fired - committed < 5000  # a busy machine is slow, but this is no poll for lost jobs
    assert (await shop.scheduler.wait(job.id, timeout=BOUND_S)).status is Status.DONE
    assert len(shop.fired) == 1


async def test_a_transaction_that_began_long_before_the_line_moved(shop: Shop) -> None:
    """A moment that was asked for before the line went past it is kept under now, and fires."""
    with shop.engine.connect() as connection:
        connection.execute(sa.text("SELECT 1"))
        asked = now_ms()
        await reached(asked + 300)
        shop.order(connection)
        (job,) = shop.scheduler.enqueue(connection, "reminders", [NewJob(at=asked)])
        assert job.due_ms >= asked + 300
        connection.commit()
    assert await shop.fires(job.id) >= job.due_ms
    assert (await shop.scheduler.get(job.id)).job.scheduled_ms == asked


async def test_an_orm_session_lends_its_connection(shop: Shop) -> None:
    with Session(shop.engine) as session:
        session.execute(sa.insert(orders).values(item="tea"))
        (job,) = shop.scheduler.enqueue(session.connection(), "reminders", [NewJob(at=FAR)])
        session.commit()
    assert shop.items() == ["tea"]
    assert (await shop.scheduler.get(job.id)).status is Status.PENDING


async def test_an_orm_session_itself_is_refused_with_a_hint(shop: Shop) -> None:
    with Session(shop.engine) as session, pytest.raises(InvalidRequest, match=r"Session.*session\.connection\(\)"):
        shop.scheduler.enqueue(cast("sa.Connection", session), "reminders", [NewJob(at=FAR)])


@pytest.mark.parametrize("what", [None, "sqlite:///shop.db", 7])
async def test_what_is_no_connection_is_refused(shop: Shop, what: Any) -> None:
    with pytest.raises(InvalidRequest, match="needs a SQLAlchemy Connection"):
        shop.scheduler.enqueue(what, "reminders", [NewJob(at=FAR)])


async def test_an_engine_is_refused(shop: Shop) -> None:
    with pytest.raises(InvalidRequest, match="not Engine"):
        shop.scheduler.enqueue(cast("sa.Connection", shop.engine), "reminders", [NewJob(at=FAR)])


async def test_an_unknown_app_is_refused_with_the_known_ones(shop: Shop) -> None:
    await shop.scheduler.register("mail")
    with shop.engine.begin() as connection:
        shop.order(connection)
        with pytest.raises(UnknownApp, match="unknown app 'sms'; known apps: mail, reminders"):
            shop.scheduler.enqueue(connection, "sms", [NewJob(at=FAR)])
    assert shop.items() == ["tea"]  # the caller's transaction is the caller's to end
    assert await shop.jobs() == []


async def test_autocommit_is_refused(shop: Shop) -> None:
    with shop.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:  # noqa: SIM117
        with pytest.raises(InvalidRequest, match="AUTOCOMMIT"):
            shop.scheduler.enqueue(connection, "reminders", [NewJob(at=FAR)])
    assert await shop.jobs() == []


async def test_an_autocommit_engine_is_refused(shop: Shop) -> None:
    engine = sa.create_engine(shop.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(InvalidRequest, match="AUTOCOMMIT"):
        shop.scheduler.enqueue(connection, "reminders", [NewJob(at=FAR)])
    engine.dispose()


async def test_a_file_without_a_store_is_refused(shop: Shop, elsewhere: sa.Engine) -> None:
    with elsewhere.begin() as connection, pytest.raises(InvalidRequest, match=r"not the store's database.*store\.url"):
        shop.scheduler.enqueue(connection, "reminders", [NewJob(at=FAR)])


async def test_a_database_in_memory_is_refused(shop: Shop) -> None:
    engine = sa.create_engine("sqlite://")
    with engine.begin() as connection, pytest.raises(InvalidRequest, match="not the store's database"):
        shop.scheduler.enqueue(connection, "reminders", [NewJob(at=FAR)])
    engine.dispose()


async def test_another_kind_of_database_is_refused(
    shop: Shop, elsewhere: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with elsewhere.connect() as connection:
        monkeypatch.setattr(connection.dialect, "name", "postgresql")
        with pytest.raises(InvalidRequest, match="SQLite; this is postgresql"):
            shop.scheduler.enqueue(connection, "reminders", [NewJob(at=FAR)])


async def test_the_file_of_another_store_is_refused(shop: Shop, elsewhere: sa.Engine) -> None:
    """It knows an app of the same name, but no node of this store would ever look there."""
    async with Client(str(elsewhere.url)) as other:
        await other.register("reminders")
    with elsewhere.begin() as connection, pytest.raises(InvalidRequest, match="not the store's database"):
        shop.scheduler.enqueue(connection, "reminders", [NewJob(at=FAR)])


async def test_a_bad_job_is_refused_before_anything_is_written(shop: Shop) -> None:
    with shop.engine.begin() as connection:
        with pytest.raises(InvalidTime):
            shop.scheduler.enqueue(connection, "reminders", [NewJob(at=FAR), NewJob()])
        with pytest.raises(InvalidRequest, match="is not a NewJob"):
            shop.scheduler.enqueue(connection, "reminders", [NewJob(at=FAR), cast("NewJob", {"at": FAR})])
    assert await shop.jobs() == []


async def test_more_jobs_than_one_call_may_bring_are_refused(shop: Shop) -> None:
    async with Client(shop.url, settings={"limits.batch": 3}) as client:
        with shop.engine.begin() as connection:
            with pytest.raises(
                InvalidRequest, match=r"4 jobs in one call are too many; at most 3 are allowed \(limits.batch\)"
            ):
                client.enqueue(connection, "reminders", [NewJob(at=FAR)] * 4)
            client.enqueue(connection, "reminders", [NewJob(at=FAR)] * 3)
    assert len(await shop.jobs()) == 3


async def test_no_jobs_are_no_jobs(shop: Shop) -> None:
    with shop.engine.begin() as connection:
        assert list(shop.scheduler.enqueue(connection, "reminders", [])) == []


async def test_a_repeated_key_answers_with_the_first_job(shop: Shop) -> None:
    same = NewJob(data=1, at=FAR, idempotency_key="k")
    with shop.engine.begin() as connection:
        first, twin = shop.scheduler.enqueue(connection, "reminders", [same, same])
        (again,) = shop.scheduler.enqueue(connection, "reminders", [same])
    with shop.engine.begin() as connection:
        other, later = shop.scheduler.enqueue(connection, "reminders", [NewJob(data=2, at=FAR), same])
    scheduled = await shop.scheduler.schedule("reminders", 1, at=FAR, idempotency_key="k")
    assert [a.id for a in (twin, again, later, scheduled)] == [first.id] * 4
    assert [a.repeated for a in (first, twin, again, later, scheduled)] == [False, True, True, True, True]
    assert {record.id for record in await shop.jobs()} == {first.id, other.id}
    assert (await shop.scheduler.survey()).counts["reminders"]["accepted"] == 2


async def test_a_key_that_was_rolled_back_is_free(shop: Shop) -> None:
    same = NewJob(data=1, at=FAR, idempotency_key="k")
    with shop.engine.connect() as connection:
        shop.scheduler.enqueue(connection, "reminders", [same])
        connection.rollback()
        (job,) = shop.scheduler.enqueue(connection, "reminders", [same])
        connection.commit()
    assert not job.repeated
    assert [record.id for record in await shop.jobs()] == [job.id]


async def test_a_key_with_another_content_is_refused(shop: Shop) -> None:
    first = await shop.scheduler.schedule("reminders", 1, at=FAR, idempotency_key="k")
    with shop.engine.begin() as connection, pytest.raises(KeyConflict, match=first.id):
        shop.scheduler.enqueue(connection, "reminders", [NewJob(data=2, at=FAR, idempotency_key="k")])
    assert [record.id for record in await shop.jobs()] == [first.id]


async def test_a_refused_call_leaves_no_key_behind(shop: Shop) -> None:
    """Who catches the error and commits must not have taken the keys of jobs that do not exist."""
    await shop.scheduler.schedule("reminders", 1, at=FAR, idempotency_key="taken")
    fresh = NewJob(data="fresh", at=FAR, idempotency_key="fresh")
    with shop.engine.begin() as connection:
        shop.order(connection)
        with pytest.raises(KeyConflict):
            shop.scheduler.enqueue(connection, "reminders", [fresh, NewJob(data=2, at=FAR, idempotency_key="taken")])
    assert shop.items() == ["tea"]
    job = await shop.scheduler.schedule("reminders", "fresh", at=FAR, idempotency_key="fresh")
    assert not job.repeated
    assert (await shop.scheduler.get(job.id)).job.data == "fresh"
