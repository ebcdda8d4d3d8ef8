"""Promises about how many jobs are due when, and about what a store is made of."""

from typing import Any

from infinite_scheduler.errors import InvalidRequest, UnknownApp
from infinite_scheduler.model import DAY_MS, MAX_DUE_MS, Change
from infinite_scheduler.store.abilities import Ability
from infinite_scheduler.store.ledger import Forecast, ForecastQuery, TableKind
from infinite_scheduler.testing.store_contract.contract_bench import APP, Bench, Promises, needing, refused

HOUR_MS = 3_600_000
MINUTE_MS = 60_000


async def foreseen(bench: Bench, **fields: Any) -> Forecast:
    """The hours of tomorrow, unless the fields say otherwise."""
    start = tomorrow(bench)
    known = {"start_ms": start, "end_ms": start + DAY_MS, "step_ms": HOUR_MS, "most": 1_000_000}
    return await bench.store.ledger().forecast(ForecastQuery(**{**known, **fields}))


def tomorrow(bench: Bench) -> int:
    """The first moment of tomorrow."""
    return (bench.now // DAY_MS + 1) * DAY_MS


def jobs_of(forecast: Forecast) -> dict[int, int]:
    """How many jobs there are in the steps that have any, by their numbers."""
    return {number: bucket.jobs for number, bucket in enumerate(forecast.buckets) if bucket.jobs}


class ForeseeingContract(Promises):
    """What `forecast` promises."""

    needs = frozenset({Ability.FORECAST})

    async def _at(self, bench: Bench, *offsets_ms: int, **fields: Any) -> list[Any]:
        """Jobs that are due tomorrow, this long after midnight."""
        return await bench.add(*(tomorrow(bench) - bench.now + offset for offset in offsets_ms), **fields)

    async def test_jobs_are_foreseen_by_the_day(self, bench: Bench) -> None:
        await self._at(bench, 0, 5, 2 * DAY_MS, 50 * DAY_MS)
        found = await foreseen(bench, end_ms=tomorrow(bench) + 60 * DAY_MS, step_ms=DAY_MS, most=1)
        assert jobs_of(found) == {0: 2, 2: 1, 50: 1}
        assert len(found.buckets) == 60
        assert not any(bucket.estimated for bucket in found.buckets)

    async def test_jobs_are_foreseen_by_the_hour_and_by_the_minute(self, bench: Bench) -> None:
        await self._at(bench, -1, 0, HOUR_MS - 1, HOUR_MS, 5 * HOUR_MS + 90_000, DAY_MS - 1, DAY_MS)
        assert jobs_of(await foreseen(bench)) == {0: 2, 1: 1, 5: 1, 23: 1}
        start = tomorrow(bench) + 5 * HOUR_MS
        minutes = await foreseen(bench, start_ms=start, end_ms=start + HOUR_MS, step_ms=MINUTE_MS)
        assert jobs_of(minutes) == {1: 1}
        assert minutes.counted_to_ms == start + HOUR_MS
        assert [bucket.start_ms for bucket in minutes.buckets[:2]] == [start, start + MINUTE_MS]

    async def test_jobs_far_ahead_are_foreseen_too(self, bench: Bench) -> None:
        await self._at(bench, 60 * DAY_MS + HOUR_MS)
        start = tomorrow(bench) + 60 * DAY_MS
        assert jobs_of(await foreseen(bench, start_ms=start, end_ms=start + DAY_MS)) == {1: 1}

    @needing(Ability.RESCHEDULE, Ability.CANCEL)
    async def test_moved_jobs_are_foreseen_at_their_present_moment(self, bench: Bench) -> None:
        into, out, within, gone = await self._at(bench, 3 * DAY_MS, 0, HOUR_MS, 2 * HOUR_MS)
        start = tomorrow(bench)
        for job, due_ms in (
            (into, start + 10 * HOUR_MS),
            (into, start + 20 * HOUR_MS),
            (out, start + 3 * DAY_MS),
            (within, start + 7 * HOUR_MS),
            (within, start + 8 * HOUR_MS),
        ):
            await bench.changed(Change.RESCHEDULE, job.key, due_ms=due_ms)
        await bench.changed(Change.CANCEL, gone.key)
        assert jobs_of(await foreseen(bench)) == {8: 1, 20: 1}
        assert jobs_of(await foreseen(bench, start_ms=start + 3 * DAY_MS, end_ms=start + 4 * DAY_MS)) == {0: 1}

    async def test_all_apps_are_foreseen_together_or_one_alone(self, bench: Bench) -> None:
        await bench.store.register("sms", 1)
        await self._at(bench, 0, HOUR_MS)
        await self._at(bench, HOUR_MS, app="sms")
        assert jobs_of(await foreseen(bench)) == {0: 1, 1: 2}
        assert jobs_of(await foreseen(bench, app="sms")) == {1: 1}
        with refused(UnknownApp, "'nobody'"):
            await foreseen(bench, app="nobody")

    async def test_what_was_not_counted_is_estimated_and_marked(self, bench: Bench) -> None:
        await self._at(bench, *(n * HOUR_MS // 10 for n in range(240)))
        found = await foreseen(bench, most=100)
        counted = (found.counted_to_ms - tomorrow(bench)) // HOUR_MS
        assert 5 <= counted <= 10, "at most a hundred rows were looked at"
        assert [bucket.jobs for bucket in found.buckets] == [10] * 24
        assert [bucket.estimated for bucket in found.buckets[:counted]] == [False] * counted
        assert all(bucket.estimated for bucket in found.buckets[counted + 1 :])

    async def test_what_is_left_of_a_day_is_spread_over_all_of_it_that_was_not_counted(self, bench: Bench) -> None:
        await self._at(bench, *(n * HOUR_MS // 10 for n in range(240)))
        start = tomorrow(bench) + 22 * HOUR_MS
        found = await foreseen(bench, start_ms=start, end_ms=start + 2 * HOUR_MS, step_ms=30 * MINUTE_MS, most=8)
        assert start < found.counted_to_ms < start + HOUR_MS
        assert [bucket.jobs for bucket in found.buckets[2:]] == [5, 5]

    async def test_today_is_foreseen_however_many_of_its_jobs_are_settled(self, bench: Bench) -> None:
        owner = await bench.owner()
        settled = [await bench.job(accepted) for accepted in await bench.add(*range(1000, 1300))]
        await owner.settle(*(owner.ended(job) for job in settled))
        bench.clock.advance(5000)
        await owner.advance(bench.now + 30_000, bench.now)
        start = tomorrow(bench) - DAY_MS
        await self._at(bench, -1, -2)
        found = await foreseen(bench, start_ms=start, end_ms=start + DAY_MS, most=40)
        assert found.counted_to_ms == start + DAY_MS
        assert jobs_of(found) == {23: 2}

    @needing(Ability.RESCHEDULE)
    async def test_a_job_that_was_moved_to_before_where_the_count_ends_is_counted(self, bench: Bench) -> None:
        accepted = await self._at(bench, *(n * HOUR_MS // 10 for n in range(240)))
        await bench.changed(Change.RESCHEDULE, accepted[-1].key, due_ms=tomorrow(bench) + 30 * MINUTE_MS)
        first = (await foreseen(bench, most=100)).buckets[0]
        assert (first.jobs, first.estimated) == (11, False)

    async def test_a_second_with_very_many_jobs_of_an_app_is_a_herd(self, bench: Bench) -> None:
        await bench.store.register("sms", 1)
        await self._at(bench, *(HOUR_MS + n for n in range(30)), *(2 * HOUR_MS + n for n in range(10)))
        await self._at(bench, *(2 * HOUR_MS + n for n in range(15)), app="sms")
        found = await foreseen(bench, herd=14)
        start = tomorrow(bench)
        assert [(herd.app, herd.start_ms - start, herd.jobs) for herd in found.herds] == [
            (APP, HOUR_MS, 30),
            ("sms", 2 * HOUR_MS, 15),
        ]
        assert not (await foreseen(bench)).herds
        assert jobs_of(found) == {1: 30, 2: 25}

    async def test_a_range_that_cannot_be_counted_is_refused(self, bench: Bench) -> None:
        for fields in ({"step_ms": 0}, {"step_ms": 1500}, {"step_ms": -1000}, {"start_ms": 1}):
            with refused(InvalidRequest, "use whole seconds"):
                await foreseen(bench, **fields)
        for fields in ({"end_ms": 10**16}, {"end_ms": MAX_DUE_MS + 2, "step_ms": 10**15}):
            with refused(InvalidRequest, "the end must be before the year 10000"):
                await foreseen(bench, **fields)
        with refused(InvalidRequest, "86401 steps", "at most 10000"):
            await foreseen(bench, end_ms=tomorrow(bench) + DAY_MS + 1, step_ms=1000)
        for fields in ({"end_ms": 0}, {"start_ms": -DAY_MS}):
            with refused(InvalidRequest, "the end must be after the start"):
                await foreseen(bench, **fields)


class DescribingContract(Promises):
    """What `tables` promises."""

    needs = frozenset({Ability.TABLES})

    async def test_the_tables_of_all_apps_are_described(self, bench: Bench) -> None:
        await bench.store.register("sms", 1)
        await bench.add(0)
        tables = await bench.store.ledger().tables()
        assert [table.name for table in tables] == sorted(table.name for table in tables)
        assert {(table.app, table.kind) for table in tables} == {
            (APP, TableKind.JOBS),
            (APP, TableKind.LATER),
            (APP, TableKind.MOVED),
            ("sms", TableKind.LATER),
            ("sms", TableKind.MOVED),
            (None, TableKind.SHARED),
        }
        (jobs,) = (table for table in tables if table.kind is TableKind.JOBS)
        assert jobs.starts_ms is not None
        assert jobs.ends_ms is not None
        assert jobs.starts_ms <= bench.now < jobs.ends_ms
        assert all(size is None or size >= 0 for t in tables for size in (t.rows, t.data_bytes, t.index_bytes))
