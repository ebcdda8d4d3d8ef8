"""A month in the life of a node: tables are made ahead, old ones go, nothing that waits goes with them."""

import os
import random
from collections import Counter
from collections.abc import Callable, Set
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from infinite_scheduler import Job, NewJob, Retry
from infinite_scheduler.model import DAY_MS, JobId, Outcome, Status, datetime_of
from infinite_scheduler.observe.events import Event, Maintained, Swept, TaskFailed
from infinite_scheduler.store.sql.limits import SqlLimits
from infinite_scheduler.store.sql.sqlite.database import SqliteDatabase
from infinite_scheduler.store.sql.statements import Database
from infinite_scheduler.store.sql.store import SqlStore
from infinite_scheduler.store.sql.tables import SPANS, later_table
from infinite_scheduler.testing import Harness
from infinite_scheduler.testing.harness import QUIET, HarnessNode
from infinite_scheduler.testing.manual_clock import START_MS
from tests.servers.inline import InlineServer

HOUR_MS = DAY_MS // 24
STEP_MS = 8 * HOUR_MS
DAYS = 31
APP = "letters"
SOAK = bool(os.environ.get("INFINITE_SCHEDULER_SOAK"))


class MonthRig:
    """What outlives the node: the database, what was asked of it, and what was handed over."""

    def __init__(self, make_database: Callable[[], Database], limits: SqlLimits) -> None:
        self.make_database = make_database
        self.limits = limits
        self.rng = random.Random(20260101)
        self.due_ms: dict[str, int] = {}
        self.last_attempt: dict[str, int] = {}
        self.deliveries: Counter[tuple[str, int]] = Counter()
        self.handed_over_ms: dict[str, int] = {}  # the last time
        self.events: list[Event] = []

    def node(self, start_ms: int) -> "Life":
        return Life(self, start_ms)

    def take(self, job: Job, now_ms: int) -> Outcome | None:
        """Some letters come back a few times, after hours or days."""
        self.deliveries[job.id, job.attempt] += 1
        self.handed_over_ms[job.id] = now_ms
        wait_h: list[int] = job.data
        return Retry(after=timedelta(hours=wait_h[job.attempt - 1])) if job.attempt <= len(wait_h) else None


class Life(Harness):
    """The node between two restarts."""

    def __init__(self, rig: MonthRig, start_ms: int) -> None:
        super().__init__(start_ms=start_ms)
        store = SqlStore(rig.make_database(), self.clock, rig.limits)
        self._node = HarnessNode(self, QUIET, store, [rig.events.append])
        self.rig = rig
        self.scheduler.app(APP, shards=4)(self.take)

    async def take(self, job: Job) -> Outcome | None:
        return self.rig.take(job, self.clock.wall_ms())

    async def write_letters(self) -> None:
        """A few for the next hours, a few for the next days, some for far ahead."""
        rng, now_ms = self.rig.rng, self.clock.wall_ms()
        hours = [*rng.choices(range(9), k=6), *rng.choices(range(200), k=3), *rng.choices(range(1000), k=2)]
        waits = [rng.choices([1, 5, 30, 300], [8, 8, 8, 1], k=rng.choice([0, 0, 0, 1, 2])) for _ in hours]
        dues = [now_ms + hour * HOUR_MS + rng.randrange(HOUR_MS) for hour in hours]
        jobs = [NewJob(data=wait, at=datetime_of(due_ms)) for due_ms, wait in zip(dues, waits, strict=True)]
        for accepted, due_ms, wait in zip(await self.client.schedule_many(APP, jobs), dues, waits, strict=True):
            self.rig.due_ms[accepted.id] = due_ms
            self.rig.last_attempt[accepted.id] = len(wait) + 1

    async def pass_time(self) -> None:
        """Some hours at once, as for a machine that was asleep; then what has become due is done."""
        self.clock.advance(STEP_MS)
        await self.advance("3s")


async def live(rig: MonthRig, days: int = DAYS) -> None:
    """Let the days pass, with a restart on some of them, and judge them."""
    steps = days * DAY_MS // STEP_MS
    restarts = sorted(rig.rng.sample(range(1, steps), 6))
    now_ms = START_MS
    for first, last in pairwise([0, *restarts, steps]):
        async with rig.node(now_ms) as life:
            await life.start()
            for _ in range(first, last):
                await life.write_letters()
                await life.pass_time()
            now_ms = life.clock.wall_ms()
            if last == steps:
                await judge(rig, life)
        now_ms += HOUR_MS


async def judge(rig: MonthRig, life: Life) -> None:
    assert not [event for event in rig.events if isinstance(event, Swept | TaskFailed)]
    assert max(rig.deliveries.values()) == 1, "a delivery was repeated"
    delivered = Counter(job for job, _ in rig.deliveries)
    due = {job for job, due_ms in rig.due_ms.items() if due_ms <= life.clock.wall_ms() - 60_000}
    assert set(delivered) >= due, "a job was lost"
    finished = {job for job in delivered if delivered[job] == rig.last_attempt[job]}
    waiting = rig.due_ms.keys() - finished
    kept = {record.id: record.status async for record in life.client.find_all(APP)}
    assert waiting <= kept.keys(), "a job that waits is gone"
    assert all((kept[job] is Status.PENDING) == (job in waiting) for job in kept)
    assert min(len(waiting), len(finished), len(finished - kept.keys())) > 40, "the month was too quiet"
    judge_tables(rig, waiting, life.clock.wall_ms())


def judge_tables(rig: MonthRig, waiting: Set[str], now_ms: int) -> None:
    """Every table goes when all in it ended longer than the retention ago, and no other one."""
    span = SPANS[rig.limits.tables or "daily"]
    jobs: dict[str, list[str]] = {}
    for job in rig.due_ms:
        key = JobId.parse(job)
        jobs.setdefault(span.table_of(APP, key), []).append(job)
    upkeep = [event for event in rig.events if isinstance(event, Maintained)]
    dropped = {name for event in upkeep for name in event.dropped}
    assert any(event.made for event in upkeep), "no table was made ahead"
    assert not {name for name in dropped if not waiting.isdisjoint(jobs.get(name, ()))}
    old_ms = now_ms - rig.limits.retention_ms - 2 * STEP_MS
    for name, some in jobs.items():
        ended = waiting.isdisjoint(some) and all(rig.handed_over_ms[job] < old_ms for job in some)
        if ended and name != later_table(APP):
            assert name in dropped, "an old table stays"
    assert len(dropped) > 3


@pytest.mark.servers
@pytest.mark.endurance
@pytest.mark.parametrize("place", ["mariadb_url", "postgres_url"])
async def test_ten_days_on_a_server(place: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(place)
    rig = MonthRig(lambda: InlineServer(url), SqlLimits() if SOAK else SqlLimits(retention_ms=2 * DAY_MS))
    await live(rig, days=21 if SOAK else 10)


@pytest.mark.servers
@pytest.mark.parametrize("place", ["mariadb_url", "postgres_url"])
async def test_some_days_on_a_server_with_a_table_for_every_hour(place: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(place)
    rig = MonthRig(lambda: InlineServer(url), SqlLimits(tables="hourly", retention_ms=DAY_MS))
    await live(rig, days=4)


async def test_a_month_on_sqlite(tmp_path: Path) -> None:
    rig = MonthRig(lambda: SqliteDatabase(tmp_path / "jobs.db", inline=True), SqlLimits())
    await live(rig)


async def test_ten_days_with_a_table_for_every_hour(tmp_path: Path) -> None:
    limits = SqlLimits(tables="hourly", retention_ms=DAY_MS)
    rig = MonthRig(lambda: SqliteDatabase(tmp_path / "jobs.db", inline=True), limits)
    await live(rig, days=10)
