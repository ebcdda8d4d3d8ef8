"""Tables for an hour each keep the same promises as tables for a day; an app keeps what it was made with."""

import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from infinite_scheduler import Scheduler
from infinite_scheduler.clock import Clock
from infinite_scheduler.model import DAY_MS, JobId
from infinite_scheduler.observe.events import Event, SettingKept
from infinite_scheduler.store import open_store
from infinite_scheduler.store.base import Store
from infinite_scheduler.store.sql.limits import SqlLimits
from infinite_scheduler.store.sql.sqlite.database import SqliteDatabase
from infinite_scheduler.store.sql.statements import Database
from infinite_scheduler.store.sql.store import SqlStore
from infinite_scheduler.store.sql.tables import DAILY, HOURLY, SPANS, Span, span_of
from infinite_scheduler.testing import ManualClock, StoreContract
from infinite_scheduler.testing.store_contract import Bench
from infinite_scheduler.testing.store_contract.accepting import AcceptingContract
from infinite_scheduler.testing.store_contract.looking import LookingContract
from infinite_scheduler.testing.store_contract.scanning import ScanningContract
from infinite_scheduler.views.explain import explain
from tests.contract.test_statements import StatementsContract
from tests.services.databases import execute
from tests.services.server import Kind

HOUR_MS = 3_600_000
HOURLY_LIMITS = SqlLimits(tables="hourly")


@pytest.mark.parametrize("span", SPANS.values(), ids=SPANS.keys())
def test_a_table_is_named_after_its_period_and_found_by_its_name(span: Span) -> None:
    rng = random.Random(1)
    for _ in range(300):
        ms = rng.randrange(4_000_000_000_000)
        period = span.period_at(ms)
        assert span.starts_ms(period) <= ms < span.ends_ms(period)
        key = bytes(JobId.make(ms, 3, 1))
        assert span.period(key) == period
        assert span.keys(period)[0] <= key < span.keys(period)[1]
        table = span.table_of("mail", key)
        assert table == span.table("mail", period)
        assert span.parse(table.removeprefix("mail_scheduled_jobs_")) == period
        assert span.table_of("mail", bytes(JobId.make(ms, 3, 1, later=True))) == "mail_scheduled_jobs_later"


def test_a_table_of_another_span_is_none_of_these() -> None:
    assert (DAILY.parse("20260101"), HOURLY.parse("2026010123")) == (20454, 20454 * 24 + 23)
    for text in ("2026010123", "202601", "later", "2026-1-1", "20261301", " 20260101", "20260101 "):
        assert DAILY.parse(text) is None
    for text in ("20260101", "2026010124", "202601011"):
        assert HOURLY.parse(text) is None


class TestHourlyStatementsOnSqlite(StatementsContract):
    span = "hourly"

    @pytest.fixture
    async def database(self, tmp_path: Path) -> AsyncIterator[Database]:
        database = SqliteDatabase(tmp_path / "jobs.db", inline=True)
        await database.open()
        yield database
        await database.close()


class TestHourlySqlite(StoreContract):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "jobs.db"

    def make_store(self, clock: Clock) -> Store:
        return SqlStore(SqliteDatabase(self.path, inline=True), clock, HOURLY_LIMITS)


class HourlyServer(AcceptingContract, ScanningContract, LookingContract):
    """What tables have a part in."""

    url: str

    def make_store(self, clock: Clock) -> Store:
        return open_store(self.url, clock, {"tables": "hourly"})

    async def test_a_job_lies_in_the_table_of_its_hour(self, bench: Bench) -> None:
        accepted = await bench.add(5 * HOUR_MS)
        table = HOURLY.table_of("mail", accepted[0].key)
        assert len(table) == len("mail_scheduled_jobs_YYYYMMDDHH")
        assert execute(self.url, f"SELECT COUNT(*) FROM {table}") == [(1,)]

    async def test_maintenance_makes_and_drops_hours(self, bench: Bench) -> None:
        accepted = await bench.add(1000)
        owner = await bench.owner()
        made = (await owner.ownership.maintain()).made
        assert len(made) == 48
        await owner.settle(owner.ended(await bench.job(accepted[0])))
        bench.clock.advance(10 * DAY_MS)
        await owner.advance(bench.now)
        dropped = (await owner.ownership.maintain()).dropped
        assert set(dropped) == {*made, HOURLY.table_of("mail", accepted[0].key)}


@pytest.mark.servers
class TestHourlyMaria(HourlyServer):
    @pytest.fixture(autouse=True)
    def place(self, kept_database: Callable[[Kind], str]) -> None:
        self.url = kept_database("mariadb")


@pytest.mark.servers
class TestHourlyPostgres(HourlyServer):
    @pytest.fixture(autouse=True)
    def place(self, kept_database: Callable[[Kind], str]) -> None:
        self.url = kept_database("postgres")


async def test_an_app_keeps_the_tables_it_was_made_with_and_the_log_says_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    for configured, expected in (("hourly", []), ("daily", ["hourly"]), (None, [])):
        events: list[Event] = []
        settings: dict[str, Any] = {} if configured is None else {"store.tables": configured}
        scheduler = Scheduler(url, settings=settings, observers=[events.append])
        scheduler.app("mail")(print)
        async with scheduler:
            job = await scheduler.schedule("mail", at="2100-01-01T15:30:00Z")
            soon = await scheduler.schedule("mail", delay="1h")
            survey = await scheduler.survey()
            tables = [explain(await scheduler.get(a.id), survey, now_ms=0, lease_ms=1000).table for a in (soon, job)]
        assert tables == [HOURLY.table_of("mail", soon.key), "mail_scheduled_jobs_later"]
        assert [event.kept for event in events if isinstance(event, SettingKept)] == expected


async def test_a_span_of_a_later_version_is_refused(tmp_path: Path) -> None:
    store = SqlStore(SqliteDatabase(tmp_path / "jobs.db", inline=True), ManualClock())
    await store.open()
    await store.register("mail")
    await store.close()
    with pytest.raises(Exception, match="weekly tables, which this version does not know"):
        span_of("weekly")
