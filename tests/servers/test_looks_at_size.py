"""Looks cost the same at any size: thousands of jobs in `make test`, ten million in `make soak`."""

import os
import time
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from infinite_scheduler.model import DAY_MS, JobSpec, Status, start_of
from infinite_scheduler.store import open_store
from infinite_scheduler.store.ledger import ForecastQuery
from infinite_scheduler.store.looking import Query
from infinite_scheduler.store.ownership import Scan
from infinite_scheduler.store.sql.store import SqlStore
from infinite_scheduler.testing import ManualClock
from infinite_scheduler.testing.store_contract.contract_bench import APP, Bench
from infinite_scheduler.testing.store_contract.searching import listed

T = TypeVar("T")

SOAK = bool(os.environ.get("INFINITE_SCHEDULER_SOAK"))
JOBS = 10_000_000 if SOAK else 10_000
DAYS = 8
BATCH = 5_000
MOST = 50_000 if SOAK else 2_000
"""Rows that a look may go through: a small part of all."""

PATIENCE_S = 0.1 if SOAK else 1.0
"""In `make test` other tests run beside this one, and a look at fewer rows shows as much."""


@pytest.fixture(params=["sqlite", "mariadb", "postgres"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    """Half of the jobs are settled, three of those have failed, and the other half waits."""
    kind = request.param
    url = f"sqlite:///{tmp_path / 'jobs.db'}" if kind == "sqlite" else request.getfixturevalue(f"{kind}_url")
    bench = Bench(lambda clock: open_store(url, clock), lambda clock: open_store(url, clock))
    bench.clock = ManualClock()
    bench.store = await bench.process()
    await bench.store.register(APP, 1)
    start_ms = bench.now
    for first in range(0, JOBS, BATCH):
        dues = (start_ms + n * DAYS * DAY_MS // JOBS for n in range(first, first + BATCH))
        await bench.store.add([JobSpec(app=APP, scheduled_ms=due_ms, payload=b'{"n":1}') for due_ms in dues])
    bench.clock.advance(DAYS * DAY_MS // 2)
    await settle_past(bench)
    yield bench
    await bench.close()


async def settle_past(bench: Bench) -> None:
    """Settle all that is due by now."""
    owner = await bench.owner()
    scan = Scan(app=APP, shards=frozenset({0}), start=bytes(16), end=start_of(bench.now), limit=BATCH, room=64 << 20)
    bad = 3
    while True:
        page = await owner.ownership.scan(scan)
        jobs = [owner.ended(job, Status.FAILED if i < bad else Status.DONE) for i, job in enumerate(page.jobs)]
        await owner.settle(*(msgspec.structs.replace(s, error="no") if s.status is Status.FAILED else s for s in jobs))
        bad = 0
        if page.next is None:
            break
        scan = msgspec.structs.replace(scan, start=page.next)
    await owner.advance(bench.now + 30_000, bench.now)


async def soon(looking: Awaitable[T]) -> T:
    began = time.perf_counter()
    found = await looking
    assert time.perf_counter() - began < PATIENCE_S
    return found


@pytest.mark.servers
async def test_looks_cost_the_same_at_any_size(bench: Bench) -> None:
    store, ledger = bench.store, bench.store.ledger()
    assert isinstance(store, SqlStore)

    async def first(**wanted: Any) -> Any:
        return await soon(store.find(Query(app=APP, limit=100, most=MOST, **wanted)))

    for newest_first in (False, True):
        assert len((await first(status=Status.FAILED, newest_first=newest_first)).records) == 3
        assert len((await first(status=Status.PENDING, newest_first=newest_first)).records) == 100
        assert len((await first(status=Status.DONE, newest_first=newest_first)).records) == 100
        assert len((await first(newest_first=newest_first)).records) == 100
        nobody = await first(tag="nobody", newest_first=newest_first)
        assert not nobody.records
        assert nobody.cursor is not None
        assert not (await first(tag="nobody", newest_first=newest_first, cursor=nobody.cursor)).records
    pending = await first(status=Status.PENDING)
    assert pending.records[0].job.due_ms >= bench.now, "it begins where something waits"
    deep = await first(status=Status.PENDING, from_ms=bench.now + 3 * DAY_MS)
    assert len((await first(status=Status.PENDING, cursor=deep.cursor)).records) == 100
    assert sum((await soon(ledger.waiting()))[APP].values()) == JOBS // 2
    day = ForecastQuery(
        start_ms=bench.now, end_ms=bench.now + DAY_MS, step_ms=DAY_MS // 24, app=APP, most=MOST, herd=5_000
    )
    found = await soon(ledger.forecast(day))
    assert abs(sum(bucket.jobs for bucket in found.buckets) - JOBS // DAYS) <= 24, "counted, or well estimated"
    assert await soon(ledger.tables())
    assert (await ledger.recount(APP)).counted == JOBS // 2
    if not SOAK:
        ids = await listed(store, Query(app=APP, status=Status.DONE, limit=1000, most=MOST))
        assert len(ids) == JOBS // 2 - 3
