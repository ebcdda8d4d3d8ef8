"""Changes of all jobs that match a filter, on a SQLite file: each job is met once, and what was done is said."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from infinite_scheduler import Client, Job, Scheduler, SyncClient
from infinite_scheduler.bulk_change import job_changes
from infinite_scheduler.bulk_change.job_changes import AHEAD_MS, BulkChange, BulkResult
from infinite_scheduler.client import NewJob
from infinite_scheduler.errors import (
    InvalidRequest,
    SchedulerError,
    StoreBroken,
    StoreUnavailable,
    TooLate,
    Unavailable,
    UnknownApp,
)
from infinite_scheduler.model import Change, JobRecord, Status
from infinite_scheduler.testing import ManualClock
from tests.waiting import until_async

HOUR_MS = 3_600_000


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def client(url: str, clock: ManualClock) -> AsyncIterator[Client]:
    async with Client(url, clock=clock) as client:
        await client.register("sms", 2)
        await client.register("mail", 2)
        yield client


async def add(client: Client, count: int, *, first: int = 1, app: str = "sms", **fields: Any) -> list[str]:
    """Jobs in each of the next minutes."""
    jobs = [NewJob(data=number, delay=f"{first + number}m", **fields) for number in range(count)]
    return [one.id for one in await client.schedule_many(app, jobs)]


async def everything(client: Client, **filters: Any) -> list[JobRecord]:
    return [record async for record in client.find_all(**filters)]


async def ids_of(client: Client, **filters: Any) -> set[str]:
    return {record.id for record in await everything(client, **filters)}


async def steps(bulk: BulkChange, limit: int) -> list[BulkResult]:
    found = [await bulk.step(limit=limit)]
    while found[-1].cursor is not None:
        assert len(found) < 100, "it does not end"
        found.append(await bulk.step(found[-1].cursor, limit))
    return found


def counts(found: Sequence[BulkResult]) -> tuple[int, int]:
    return sum(one.changed for one in found), sum(len(one.refused) for one in found)


async def test_all_that_match_are_cancelled_and_no_others(client: Client) -> None:
    chosen = await add(client, 25, tags=["trial"])
    await add(client, 10)
    await add(client, 5, app="mail", tags=["trial"])
    found = await client.bulk_change("cancel", app="sms", tag="trial").preview()
    assert (found.count, found.at_least, [job.id for job in found.jobs]) == (25, False, chosen[:10])
    assert counts(await steps(client.bulk_change("cancel", app="sms", tag="trial"), 4)) == (25, 0)
    assert await ids_of(client, status="cancelled") == set(chosen)
    assert (await client.bulk_change("cancel", app="sms", tag="trial").run()).changed == 0


async def test_a_preview_that_has_not_seen_all_says_at_least(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_changes, "MOST_JOBS", 12)
    await add(client, 13)
    found = await client.bulk_change(Change.CANCEL, app="sms").preview()
    assert (found.count, found.at_least, len(found.jobs)) == (12, True, 10)
    assert len(await ids_of(client, status="pending")) == 13


async def test_each_job_is_rescheduled_once_although_it_moves_in_the_list(client: Client, clock: ManualClock) -> None:
    for delay in ("2h", "30s", "5m"):  # behind all, in front of all, in the middle
        ids = await add(client, 20)
        moment = clock.wall_ms() + {"2h": 2 * HOUR_MS, "30s": 30_000, "5m": 300_000}[delay]
        bulk = client.bulk_change("reschedule", app="sms", delay=delay)
        first = await bulk.step(limit=3)
        clock.advance(1000)  # the moment is that of the first step
        rest = [await client.bulk_change("reschedule", app="sms", delay=delay).step(first.cursor, 3)]
        while rest[-1].cursor is not None:
            rest.append(await bulk.step(rest[-1].cursor, 3))
        there = delay == "5m"  # one of them was there before
        assert counts([first, *rest]) == (20 - there, 0)
        found = await everything(client, app="sms", status="pending")
        assert {(one.id, one.job.due_ms) for one in found} == {(job_id, moment) for job_id in ids}
        await client.bulk_change("cancel", app="sms").run()


@pytest.mark.parametrize("change", ["run_now", "reschedule"])
async def test_jobs_that_are_due_now_are_met_once_while_time_goes_on(
    client: Client, clock: ManualClock, change: str
) -> None:
    late = await add(client, 7)
    clock.advance(HOUR_MS)
    ids = {*late, *await add(client, 7, first=5)}
    bulk = client.bulk_change(change, app="sms", **({"at": "now"} if change == "reschedule" else {}))
    found = [await bulk.step(limit=2)]
    while found[-1].cursor is not None:
        assert len(found) < 50, "the same jobs are met again and again"
        clock.advance(60_000)
        found.append(await bulk.step(found[-1].cursor, 2))
    later = {record.id for record in await everything(client, app="sms") if record.job.due_ms > clock.wall_ms()}
    assert (later, await ids_of(client, app="sms")) == (set(), ids)
    changed, refused = counts(found)
    assert refused == 0
    assert len(late) <= changed <= len(ids)  # those that have become due meanwhile need no change


async def test_jobs_accepted_after_the_first_step_are_left_alone(client: Client, clock: ManualClock) -> None:
    before = await add(client, 6)
    bulk = client.bulk_change("cancel", app="sms")
    first = await bulk.step(limit=2)
    clock.advance(AHEAD_MS + 1)
    later = await add(client, 6)
    assert (await bulk.run(first.cursor)).changed == 4
    assert await ids_of(client, status="cancelled") == set(before)
    assert await ids_of(client, status="pending") == set(later)


async def test_a_range_means_the_moments_of_the_first_step(client: Client, clock: ManualClock) -> None:
    ids = await add(client, 10, first=0)
    bulk = client.bulk_change("cancel", app="sms", start="+2m", end="+6m")
    first = await bulk.step(limit=1)
    clock.advance(120_000)
    assert (await bulk.run(first.cursor)).changed == 3
    assert await ids_of(client, status="cancelled") == set(ids[2:6])


async def test_a_key_chooses_its_job(client: Client) -> None:
    await add(client, 3)
    job = await client.schedule("sms", 1, delay="1h", idempotency_key="order-17")
    assert (await client.bulk_change("cancel", idempotency_key="order-17").run()).changed == 1
    assert await ids_of(client, status="cancelled") == {job.id}


async def test_settled_jobs_are_retried_by_their_status(client: Client) -> None:
    ids = await add(client, 5, tags=["x"])
    await client.bulk_change("cancel", app="sms", tag="x").run()
    assert counts(await steps(client.bulk_change("retry", app="sms", status="cancelled"), 2)) == (5, 0)
    assert await ids_of(client, status=Status.PENDING) == set(ids)


async def test_a_retried_job_that_ends_again_is_not_retried_twice(
    client: Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_changes, "TOGETHER", 1)
    ids = await add(client, 4)
    await client.bulk_change("cancel", app="sms").run()
    real, is_away = client.change, True

    async def change(verb: Change, job_id: str, **more: Any) -> JobRecord:
        if is_away and job_id == ids[2]:
            raise StoreUnavailable("the store is away")
        return await real(verb, job_id, **more)

    monkeypatch.setattr(client, "change", change)
    first = await client.bulk_change("retry", app="sms", status="cancelled").step()
    assert (first.changed, first.stopped is None) == (2, False)
    is_away = False
    clock.advance(AHEAD_MS + 1)
    await client.cancel(ids[0])
    rest = await client.bulk_change("retry", app="sms", status="cancelled").run(first.cursor)
    assert (rest.changed, await ids_of(client, status="cancelled")) == (2, {ids[0]})


@pytest.mark.parametrize(
    ("change", "filters", "words"),
    [
        ("cancel", {}, "name at least an app"),
        ("cancel", {"status": "pending", "end": "+1h"}, "name at least an app"),
        ("cancel", {"app": "sms", "status": "done"}, "leave the status out"),
        ("retry", {"app": "sms"}, "failed, expired or cancelled"),
        ("retry", {"app": "sms", "status": "done"}, "failed, expired or cancelled"),
        ("retry", {"app": "sms", "status": "lost"}, "unknown status 'lost'"),
        ("delete", {"app": "sms"}, "unknown change 'delete'; use one of cancel"),
        ("reschedule", {"app": "sms"}, "either a time"),
        ("cancel", {"app": "sms", "delay": "1h"}, "a time is only for reschedule"),
    ],
)
async def test_what_cannot_be_meant_is_refused(
    client: Client, change: str, filters: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        client.bulk_change(change, **filters)


async def test_an_unknown_app_and_a_foreign_cursor_are_refused(client: Client) -> None:
    await add(client, 3)
    with pytest.raises(UnknownApp):
        await client.bulk_change("cancel", app="nobody").preview()
    cursor = (await client.bulk_change("cancel", app="sms").step(limit=1)).cursor
    assert cursor is not None
    others = (
        client.bulk_change("run_now", app="sms"),
        client.bulk_change("cancel", app="mail"),
        client.bulk_change("cancel", app="sms", end="+1h"),
    )
    for bulk in others:
        with pytest.raises(InvalidRequest, match="is not one of this change"):
            await bulk.step(cursor)
    for made in ("", "x", "é", cursor[:-4], cursor[4:]):
        with pytest.raises(InvalidRequest, match="is not one of this change"):
            await client.bulk_change("cancel", app="sms").step(made)
    assert len(await ids_of(client, status="cancelled")) == 1


async def test_what_was_done_is_said_when_the_store_goes_away(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_changes, "TOGETHER", 1)
    monkeypatch.setattr(job_changes, "MOST_JOBS", 5)
    ids = await add(client, 12)
    asked: list[str] = []
    real = client.change

    async def change(verb: Change, job_id: str, **more: Any) -> JobRecord:
        asked.append(job_id)
        if len(asked) in {8, 14}:
            raise StoreUnavailable("the store is away")
        if job_id == ids[11]:
            raise TooLate("it is handed over")
        return await real(verb, job_id, **more)

    monkeypatch.setattr(client, "change", change)
    done = await client.bulk_change("cancel", app="sms").run()
    assert (done.changed, list(done.refused), str(done.stopped)) == (7, [], "the store is away")
    assert (asked, await ids_of(client, status="cancelled")) == (ids[:8], set(ids[:7]))
    done = await client.bulk_change("cancel", app="sms").run(done.cursor)
    assert (done.changed, [one.id for one in done.refused], done.cursor, done.stopped) == (4, [ids[11]], None, None)
    assert await ids_of(client, status="cancelled") == set(ids[:11])


async def test_a_store_that_is_away_from_the_start_is_an_error(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await add(client, 3)

    async def change(*_: object, **__: object) -> JobRecord:
        raise StoreUnavailable("the store is away")

    monkeypatch.setattr(client, "change", change)
    with pytest.raises(StoreUnavailable):
        await client.bulk_change("cancel", app="sms").run()


@pytest.mark.parametrize("error", [StoreBroken("no space left"), Unavailable("the owner does not answer")])
async def test_jobs_about_which_nothing_was_decided_are_met_again(
    client: Client, monkeypatch: pytest.MonkeyPatch, error: SchedulerError
) -> None:
    monkeypatch.setattr(job_changes, "TOGETHER", 1)
    ids = await add(client, 6)
    real, full = client.change, True

    async def change(verb: Change, job_id: str, **more: Any) -> JobRecord:
        if full and job_id == ids[4]:
            raise error
        return await real(verb, job_id, **more)

    monkeypatch.setattr(client, "change", change)
    done = await client.bulk_change("cancel", app="sms").run()
    assert (list(done.refused), done.stopped, done.cursor is None) == ([], error, False)
    assert done.changed == len(await ids_of(client, status="cancelled")) >= 4
    with pytest.raises(type(error)):
        await client.bulk_change("cancel", app="sms").run()
    full = False
    last = await client.bulk_change("cancel", app="sms").run(done.cursor)
    assert (done.changed + last.changed, last.stopped, last.cursor) == (6, None, None)


async def test_a_range_may_begin_with_the_epoch(client: Client) -> None:
    await add(client, 3)
    assert (await client.bulk_change("cancel", app="sms", start="1970-01-01").run()).changed == 3


async def test_the_app_of_a_job_that_was_found_is_not_looked_for(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add(client, 3, tags=["x"])
    await add(client, 2, app="mail", tags=["x"])

    async def locate(key: bytes) -> str:
        raise AssertionError(f"every app is searched for {key.hex()}")

    monkeypatch.setattr(client._store, "_locate", locate)
    assert (await client.bulk_change("cancel", tag="x").run()).changed == 5


async def test_nothing_that_is_cancelled_beside_a_node_is_handed_over(url: str) -> None:
    scheduler, handed = Scheduler(url), list[str]()

    @scheduler.app("sms", shards=4)
    def take(job: Job) -> None:
        handed.append(job.id)

    async with scheduler, Client(url) as client:
        jobs = [NewJob(data=n, delay=f"{100 + 2 * n}ms") for n in range(300)]
        ids = {one.id for one in await client.schedule_many("sms", jobs)}
        bulk = client.bulk_change("cancel", app="sms")
        changed, refused = counts(await steps(bulk, 20))
        await until_async(lambda: len(handed) + changed >= len(ids))
        await asyncio.sleep(0.3)  # what was cancelled would be handed over in this time
        cancelled = await ids_of(client, status="cancelled")
    assert len(cancelled) == changed
    assert set(handed) | cancelled == ids
    assert not set(handed) & cancelled
    assert len(handed) == len(set(handed)) >= refused


def test_programs_without_an_event_loop_do_the_same(url: str) -> None:
    with SyncClient(url) as client:
        client.register("sms", 1)
        for _ in range(3):
            client.schedule("sms", 1, delay="1h", tags=["x"])
        assert client.preview_change("cancel", app="sms", tag="x").count == 3
        assert client.change_jobs("cancel", app="sms", tag="x").changed == 3
        assert client.change_jobs("retry", app="sms", status="cancelled").changed == 3
