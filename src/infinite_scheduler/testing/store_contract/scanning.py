"""Promises about reading pending jobs ahead."""

from collections.abc import Sequence
from typing import Final

from infinite_scheduler.model import DAY_MS, Accepted, Change, Job, Priority, Shard, Status, start_of
from infinite_scheduler.store.abilities import Ability
from infinite_scheduler.store.ownership import Scan
from infinite_scheduler.testing.store_contract.contract_bench import APP, Bench, ContractNode, Promises, keys, needing

LARGE: Final = b'"' + "ä".encode() * 5000 + b'"'
"""A payload with more bytes than characters."""


class ScanningContract(Promises):
    """What `scan` finds: each pending job of its range once, in order, where it is due."""

    needs = frozenset({Ability.OWNERSHIP})

    async def test_a_scan_reads_jobs_in_the_order_of_their_moments(self, bench: Bench) -> None:
        accepted = await bench.add(5000, 1000, 9000, 3000)
        owner = await bench.owner()
        jobs = await owner.scan()
        assert keys(jobs) == sorted(keys(accepted))
        assert jobs == [await bench.job(a) for a in sorted(accepted, key=lambda a: a.key)]

    async def test_a_scan_reads_its_range_with_the_start_and_without_the_end(self, bench: Bench) -> None:
        _, second, third, _ = await bench.add(1000, 2000, 2999, 3000)
        owner = await bench.owner()
        found = await owner.scan(bench.now + 2000, bench.now + 3000)
        assert keys(found) == [second.key, third.key]

    async def test_a_range_over_several_days_is_read_as_one(self, bench: Bench) -> None:
        accepted = await bench.add(*(day * DAY_MS for day in (3, 0, 40, 1, 2, 36)))
        owner = await bench.owner()
        assert keys(await owner.scan(limit=2)) == sorted(keys(accepted))

    async def test_pages_follow_each_other_and_bring_each_job_once(self, bench: Bench) -> None:
        accepted = await bench.add(*[1000] * 25, *range(2000, 2030))
        owner = await bench.owner()
        pages = await owner.pages(limit=10)
        assert [job.key for page in pages for job in page] == sorted(keys(accepted))
        assert len(pages) > 1

    async def test_a_scan_reads_its_app_only(self, bench: Bench) -> None:
        await bench.store.register("sms", 1)
        (mine,) = await bench.add(1000)
        (other,) = await bench.add(1000, app="sms")
        owner = await bench.owner()
        assert keys(await owner.scan()) == [mine.key]
        assert keys(await owner.scan(app="sms")) == [other.key]

    @needing(Ability.RESCHEDULE)
    async def test_an_app_with_a_job_in_a_range_is_not_among_those_without(self, bench: Bench) -> None:
        for app in ("sms", "push", "post", "unused"):
            await bench.store.register(app, 1)
        await bench.add(1000)
        (accepted,) = await bench.add(9000, app="sms")
        await bench.add(1999, app="push")
        await bench.add(60 * DAY_MS, app="post")
        owner = await bench.owner()
        assert await self._without_jobs(owner, bench.now + 1000, bench.now + 2000) <= {"sms", "post", "unused"}
        await bench.store.change(Change.RESCHEDULE, accepted.key, due_ms=bench.now + 1500, timeout_ms=1000)
        assert await self._without_jobs(owner, bench.now + 1000, bench.now + 2000) <= {"post", "unused"}
        assert await self._without_jobs(owner, bench.now, bench.now + 99 * DAY_MS) <= {"unused"}

    async def _without_jobs(self, owner: ContractNode, start_ms: int, end_ms: int) -> set[str]:
        apps = (APP, "sms", "push", "post", "unused")
        limits = {"start": start_of(start_ms), "end": start_of(end_ms), "limit": 10, "room": 1000}
        scans = [Scan(app=app, shards=frozenset({0}), **limits) for app in apps]  # type: ignore[arg-type]
        return set(await owner.ownership.apps_without_jobs(scans))

    async def test_a_range_of_settled_jobs_is_passed_in_pages(self, bench: Bench) -> None:
        await bench.add(*range(1000, 1500))
        (last,) = await bench.add(9000)
        owner = await bench.owner()
        await self._finish(owner, await owner.scan(None, bench.now + 9000))
        pages = await owner.pages(limit=5)
        assert [job.key for page in pages for job in page] == [last.key]

    async def _finish(self, owner: ContractNode, jobs: list[Job]) -> None:
        await owner.settle(*(owner.ended(job) for job in jobs))

    async def test_a_page_ends_when_its_payloads_fill_the_room(self, bench: Bench) -> None:
        await room_is_kept(bench, await bench.add(*range(1000, 1012), payload=LARGE))


class ScanningMovedContract(Promises):
    """What `scan` finds of jobs that were moved: each once, where it is due now."""

    needs = frozenset({Ability.OWNERSHIP, Ability.RESCHEDULE})

    async def test_pages_of_rows_and_moved_jobs_bring_each_once(self, bench: Bench) -> None:
        accepted = await bench.add(*range(1000, 1040))
        for a in accepted[::3]:
            await move(bench, a, 1000 + (a.due_ms * 7) % 60)
        owner = await bench.owner()
        for limit in (1, 2, 7, 100):
            jobs = await owner.scan(limit=limit)
            assert sorted(keys(jobs)) == sorted(keys(accepted))
            assert jobs == sorted(jobs, key=lambda job: job.position)

    async def test_many_jobs_moved_to_one_moment_are_all_read(self, bench: Bench) -> None:
        accepted = await bench.add(*range(1000, 1030))
        for a in accepted:
            await move(bench, a, 5000)
        owner = await bench.owner()
        assert sorted(keys(await owner.scan(limit=4))) == sorted(keys(accepted))

    async def test_a_page_of_moved_jobs_ends_when_its_payloads_fill_the_room(self, bench: Bench) -> None:
        accepted = await bench.add(*range(1000, 1012), payload=LARGE)
        for a in accepted:
            await move(bench, a, 100_000 - a.due_ms % 1000)
        await room_is_kept(bench, accepted)

    async def test_a_scan_of_one_priority_reads_no_other(self, bench: Bench) -> None:
        by_priority = {p: (await bench.add(1000, 2000, priority=p)) for p in Priority}
        moved = by_priority[Priority.HIGH][0]
        await move(bench, moved, 1500)
        owner = await bench.owner()
        for priority, accepted in by_priority.items():
            found = await owner.scan(priority=priority)
            assert sorted(keys(found)) == sorted(keys(accepted))

    async def test_a_scan_reads_its_shards_only(self, bench: Bench) -> None:
        await bench.store.register("wide", 4)
        accepted = [(await bench.add(1000 + i, app="wide"))[0] for i in range(12)]
        for a in accepted[::3]:
            await move(bench, a, 5000)
        node = await bench.node(apps=("wide",))
        await node.take(*(Shard("wide", n) for n in range(4)))
        found: list[Job] = []
        for shards in ({0}, {1, 3}, {2}):
            some = await node.scan(app="wide", shards=frozenset(shards))
            assert {job.shard for job in some} <= shards
            found += some
        assert sorted(keys(found)) == sorted(keys(accepted))

    async def test_a_moved_job_is_read_at_its_new_moment_only(self, bench: Bench) -> None:
        (accepted,) = await bench.add(1000)
        await move(bench, accepted, 5000)
        owner = await bench.owner()
        assert not await owner.scan(bench.now, bench.now + 5000)
        (job,) = await owner.scan(bench.now + 5000)
        assert (job.key, job.due_ms) == (accepted.key, bench.now + 5000)

    async def test_a_job_moved_twice_is_read_once(self, bench: Bench) -> None:
        (accepted,) = await bench.add(1000)
        await move(bench, accepted, 5000)
        await move(bench, accepted, 9000)
        owner = await bench.owner()
        (job,) = await owner.scan()
        assert job.due_ms == bench.now + 9000

    async def test_a_job_moved_away_and_back_is_read_once(self, bench: Bench) -> None:
        (accepted,) = await bench.add(1000)
        for delay in (5000, 1000, 5000, 1000):
            await move(bench, accepted, delay)
        owner = await bench.owner()
        (job,) = await owner.scan()
        assert job.due_ms == accepted.due_ms

    async def test_a_job_moved_to_another_day_is_read_there(self, bench: Bench) -> None:
        (accepted,) = await bench.add(1000)
        await move(bench, accepted, 50 * DAY_MS)
        owner = await bench.owner()
        assert not await owner.scan(None, bench.now + 49 * DAY_MS)
        assert keys(await owner.scan(bench.now + 50 * DAY_MS, bench.now + 51 * DAY_MS)) == [accepted.key]

    @needing(Ability.CANCEL)
    async def test_what_is_settled_is_never_read_again(self, bench: Bench) -> None:
        accepted = await bench.add(1000, 2000, 3000, 4000, 5000)
        for a in accepted[1:3]:
            await move(bench, a, 6000)
        owner = await bench.owner()
        done, failed, expired, cancelled, left = [await bench.job(a) for a in accepted]
        await owner.settle(
            owner.ended(done),
            owner.ended(failed, Status.FAILED, error="no"),
            owner.ended(expired, Status.EXPIRED, error="late"),
        )
        await bench.changed(Change.CANCEL, cancelled.key)
        assert keys(await owner.scan()) == [left.key]


async def move(bench: Bench, accepted: Accepted, in_ms: int) -> None:
    """Move a job to so many ms from now."""
    decision = await bench.changed(Change.RESCHEDULE, accepted.key, due_ms=bench.now + in_ms)
    assert decision.granted


async def room_is_kept(bench: Bench, accepted: Sequence[Accepted]) -> None:
    """Pages bring each of these large jobs once, and no more than one beyond the room."""
    owner = await bench.owner()
    for room in (1, len(LARGE), 3 * len(LARGE)):
        pages = await owner.pages(room=room)
        assert sorted(job.key for page in pages for job in page) == sorted(keys(accepted))
        assert max(map(len, pages)) <= room // len(LARGE) + 1
