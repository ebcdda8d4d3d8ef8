"""Promises about recording how deliveries ended."""

import pytest

from infinite_scheduler.model import Attempt, Change, Job, Status
from infinite_scheduler.store.abilities import Ability
from infinite_scheduler.store.ownership import Running
from infinite_scheduler.testing.store_contract.contract_bench import (
    SHARD,
    Bench,
    ContractNode,
    Promises,
    counts,
    keys,
    needing,
)


class SettlingContract(Promises):
    """What `settle` promises."""

    needs = frozenset({Ability.OWNERSHIP})

    async def _handed_over(self, bench: Bench, *in_ms: int) -> tuple[ContractNode, list[Job]]:
        await bench.add(*in_ms)
        owner = await bench.owner(line_in_ms=30_000)
        return owner, await owner.scan()

    async def test_a_done_job_is_done_for_everybody(self, bench: Bench) -> None:
        owner, (job,) = await self._handed_over(bench, 0)
        bench.clock.advance(40)
        settled = await owner.settle(owner.ended(job))
        assert not settled.lost | settled.missed
        record = await (await bench.process()).get(job.key)
        assert record is not None
        assert (record.status, record.finished_ms, record.error) == (Status.DONE, bench.now, None)
        assert record.job == job

    @pytest.mark.parametrize("status", [Status.FAILED, Status.EXPIRED])
    async def test_a_job_that_ended_without_success_says_why(self, bench: Bench, status: Status) -> None:
        owner, (job,) = await self._handed_over(bench, 0)
        started = bench.now
        bench.clock.advance(40)
        await owner.settle(owner.ended(job, status, started_ms=started, error="no route to Rome"))
        record = await bench.store.get(job.key)
        assert record is not None
        assert (record.status, record.finished_ms, record.error) == (status, bench.now, "no route to Rome")
        assert record.attempts == (
            Attempt(attempt=1, started_ms=started, finished_ms=bench.now, node="n1", error="no route to Rome"),
        )

    async def test_a_retry_raises_the_attempt_and_moves_the_job(self, bench: Bench) -> None:
        owner, (job,) = await self._handed_over(bench, 0)
        again_ms = bench.now + 5000
        settled = await owner.settle(owner.ended(job, Status.PENDING, due_ms=again_ms, error="busy"))
        assert not settled.lost | settled.missed
        record = await bench.store.get(job.key)
        assert record is not None
        assert (record.status, record.job.attempt, record.job.due_ms) == (Status.PENDING, 2, again_ms)
        assert (record.job.scheduled_ms, record.finished_ms) == (job.scheduled_ms, None)
        assert [(a.attempt, a.error) for a in record.attempts] == [(1, "busy")]

    async def test_a_retry_leaves_an_entry_by_which_the_job_is_found(self, bench: Bench) -> None:
        owner, (job,) = await self._handed_over(bench, 0)
        await owner.settle(owner.ended(job, Status.PENDING, due_ms=bench.now + 5000, error="busy"))
        assert not await owner.scan(None, bench.now + 5000)
        (again,) = await owner.scan(bench.now + 5000)
        assert (again.key, again.due_ms, again.attempt) == (job.key, bench.now + 5000, 2)

    async def test_a_job_may_be_tried_again_at_the_same_moment(self, bench: Bench) -> None:
        owner, (job,) = await self._handed_over(bench, 0)
        for attempt in (2, 3, 4):
            await owner.settle(owner.ended(job, Status.PENDING, due_ms=job.due_ms, error="busy"))
            (job,) = await owner.scan()
            assert job.attempt == attempt

    async def test_every_failed_attempt_is_kept(self, bench: Bench) -> None:
        owner, (job,) = await self._handed_over(bench, 0)
        for attempt in (1, 2):
            due_ms = bench.now + 1000 * attempt
            await owner.settle(owner.ended(job, Status.PENDING, due_ms=due_ms, error=f"error {attempt}"))
            bench.clock.advance(1000 * attempt)
            (job,) = await owner.scan()
        await owner.settle(owner.ended(job, Status.FAILED, error="error 3"))
        record = await bench.store.get(job.key)
        assert record is not None
        assert [(a.attempt, a.error) for a in record.attempts] == [(1, "error 1"), (2, "error 2"), (3, "error 3")]

    async def test_a_retry_before_low_lowers_low(self, bench: Bench) -> None:
        owner, (job,) = await self._handed_over(bench, 0)
        await owner.advance(bench.now + 30_000, bench.now + 20_000)
        settled = await owner.settle(owner.ended(job, Status.PENDING, due_ms=bench.now + 5000, error="busy"))
        assert dict(settled.low_ms) == {SHARD: bench.now + 5000}
        assert (await bench.shard()).low_ms == bench.now + 5000

    @pytest.mark.parametrize("moments", [(5000, 8000), (8000, 5000)], ids=["earliest first", "earliest last"])
    async def test_of_several_retries_before_low_the_earliest_says_where_low_is(
        self, bench: Bench, moments: tuple[int, int]
    ) -> None:
        owner, jobs = await self._handed_over(bench, 0, 0)
        await owner.advance(bench.now + 30_000, bench.now + 20_000)
        settled = await owner.settle(
            *(
                owner.ended(job, Status.PENDING, due_ms=bench.now + ms, error="busy")
                for job, ms in zip(jobs, moments, strict=True)
            )
        )
        assert dict(settled.low_ms) == {SHARD: bench.now + 5000}
        assert (await bench.shard()).low_ms == bench.now + 5000

    async def test_a_retry_after_low_leaves_low_alone(self, bench: Bench) -> None:
        owner, (job,) = await self._handed_over(bench, 0)
        before = (await bench.shard()).low_ms
        settled = await owner.settle(owner.ended(job, Status.PENDING, due_ms=bench.now + 5000, error="busy"))
        assert not settled.low_ms
        assert (await bench.shard()).low_ms == before

    async def test_an_outcome_of_another_attempt_changes_nothing_and_is_told(self, bench: Bench) -> None:
        owner, (job,) = await self._handed_over(bench, 0)
        again = owner.ended(job, Status.PENDING, due_ms=bench.now + 5000, error="busy")
        await owner.settle(again)
        before = await bench.store.get(job.key)
        settled = await owner.settle(owner.ended(job))
        assert settled.missed == {SHARD}
        assert await bench.store.get(job.key) == before

    async def test_an_outcome_of_a_settled_job_changes_nothing_and_is_told(self, bench: Bench) -> None:
        owner, (job,) = await self._handed_over(bench, 0)
        await owner.settle(owner.ended(job))
        settled = await owner.settle(owner.ended(job, Status.FAILED, error="no"))
        assert settled.missed == {SHARD}
        record = await bench.store.get(job.key)
        assert record is not None
        assert (record.status, record.attempts) == (Status.DONE, ())

    async def test_many_outcomes_are_recorded_in_one_call(self, bench: Bench) -> None:
        owner, jobs = await self._handed_over(bench, *range(1500))
        await owner.settle(*(owner.ended(job) for job in jobs[:1000]))
        assert keys(await owner.scan()) == keys(jobs[1000:])

    async def test_a_delivery_that_runs_for_long_is_shown(self, bench: Bench) -> None:
        owner, (job,) = await self._handed_over(bench, 0)
        started = bench.now
        bench.clock.advance(3000)
        await owner.settle(running=[Running(job=job, started_ms=started)])
        record = await bench.store.get(job.key)
        assert record is not None
        assert record.status is Status.PENDING
        assert record.attempts == (Attempt(attempt=1, started_ms=started, node="n1"),)
        await owner.settle(owner.ended(job, Status.FAILED, started_ms=started, error="no"))
        record = await bench.store.get(job.key)
        assert record is not None
        assert [(a.finished_ms, a.error) for a in record.attempts] == [(bench.now, "no")]

    async def test_a_node_that_lost_a_shard_shows_no_deliveries_there(self, bench: Bench) -> None:
        owner, (job,) = await self._handed_over(bench, 0)
        await (await bench.node("n2")).take(SHARD)
        settled = await owner.settle(running=[Running(job=job, started_ms=bench.now)])
        assert settled.lost == {SHARD}
        record = await bench.store.get(job.key)
        assert record is not None
        assert not record.attempts, "the new owner may hand the same attempt over, and shows it itself"

    async def test_a_delivery_that_came_back_is_shown_no_more(self, bench: Bench) -> None:
        owner, jobs = await self._handed_over(bench, *range(300))
        await owner.settle(running=[Running(job=job, started_ms=bench.now) for job in jobs])
        await owner.settle(came_back=jobs[1:])
        assert [len(await self._attempts(bench, job)) for job in jobs[::60]] == [1, 0, 0, 0, 0]
        await owner.settle(running=[Running(job=jobs[1], started_ms=bench.now)], came_back=[jobs[1]])
        assert await self._attempts(bench, jobs[1]), "it came back, and runs again"

    async def test_the_failures_before_a_delivery_that_came_back_are_still_shown(self, bench: Bench) -> None:
        owner, (job,) = await self._handed_over(bench, 0)
        await owner.settle(owner.ended(job, Status.PENDING, due_ms=bench.now, error="busy"))
        (again,) = await owner.scan()
        await owner.settle(running=[Running(job=again, started_ms=bench.now)])
        await owner.settle(came_back=[again])
        assert [attempt.error for attempt in await self._attempts(bench, job)] == ["busy"]

    async def test_a_node_that_lost_a_shard_takes_no_delivery_there_from_view(self, bench: Bench) -> None:
        former, (job,) = await self._handed_over(bench, 0)
        owner = await bench.owner("n2")
        await owner.settle(running=[Running(job=job, started_ms=bench.now)])
        assert (await former.settle(came_back=[job])).lost == {SHARD}
        assert [attempt.node for attempt in await self._attempts(bench, job)] == ["n2"]

    async def test_a_delivery_that_was_shown_is_shown_as_ended_however_short_the_clock_says_it_was(
        self, bench: Bench
    ) -> None:
        owner, (job,) = await self._handed_over(bench, 0)
        await owner.settle(running=[Running(job=job, started_ms=bench.now)])
        await owner.settle(owner.ended(job, shown=True))
        assert [attempt.finished_ms for attempt in await self._attempts(bench, job)] == [bench.now]

    async def test_what_a_former_owner_has_shown_ends_with_the_delivery_of_the_next(self, bench: Bench) -> None:
        former, (one, two, three) = await self._handed_over(bench, 0, 0, 0)
        await former.settle(running=[Running(job=job, started_ms=bench.now) for job in (one, two, three)])
        owner = await bench.owner("n2")
        failed = owner.ended(two, Status.FAILED, error="no", marked=True)
        await owner.settle(owner.ended(one, marked=True), failed)
        assert not await self._attempts(bench, one)
        assert [attempt.error for attempt in await self._attempts(bench, two)] == ["no"]
        assert await self._attempts(bench, three)

    @needing(Ability.CANCEL)
    async def test_what_a_former_owner_has_shown_ends_with_a_change_that_the_next_one_decides(
        self, bench: Bench
    ) -> None:
        cancelled, _ = await bench.add(0, 0)
        former = await bench.owner(line_in_ms=30_000)
        jobs = await former.scan()
        await former.settle(running=[Running(job=job, started_ms=bench.now) for job in jobs])
        owner = await bench.owner("n2")
        asking = bench.change(Change.CANCEL, cancelled)
        await owner.answer(await owner.asked(Change.CANCEL))
        assert (await bench.decided(asking)).granted
        assert [job.key for job in jobs if not await self._attempts(bench, job)] == [cancelled.key]

    @needing(Ability.CANCEL)
    async def test_what_a_former_owner_has_shown_ends_with_a_change_at_a_released_shard(self, bench: Bench) -> None:
        former, jobs = await self._handed_over(bench, 0, 0)
        await former.settle(running=[Running(job=job, started_ms=bench.now) for job in jobs])
        await (await bench.owner("n2")).release()
        assert (await bench.changed(Change.CANCEL, jobs[0].key)).granted
        assert [len(await self._attempts(bench, job)) for job in jobs] == [0, 1]

    async def _attempts(self, bench: Bench, job: Job) -> tuple[Attempt, ...]:
        record = await bench.store.get(job.key)
        assert record is not None
        return record.attempts

    async def test_many_deliveries_that_run_for_long_are_shown_in_one_call(self, bench: Bench) -> None:
        owner, jobs = await self._handed_over(bench, *range(300))
        began = {job.key: bench.now + i for i, job in enumerate(jobs)}
        await owner.settle(running=[Running(job=job, started_ms=began[job.key]) for job in jobs])
        for job in jobs[::60]:
            record = await bench.store.get(job.key)
            assert record is not None
            assert record.attempts == (Attempt(attempt=1, started_ms=began[job.key], node="n1"),)
        bench.clock.advance(3000)
        why = 'it said "no\\" and {}'
        await owner.settle(*(owner.ended(job, Status.FAILED, started_ms=began[job.key], error=why) for job in jobs))
        for job in jobs[::60]:
            record = await bench.store.get(job.key)
            assert record is not None
            assert [(a.finished_ms, a.error) for a in record.attempts] == [(bench.now, why)]

    async def test_outcomes_are_counted(self, bench: Bench) -> None:
        owner, (one, two, three, four) = await self._handed_over(bench, 0, 0, 0, 0)
        await owner.settle(
            owner.ended(one),
            owner.ended(two, Status.FAILED, error="no"),
            owner.ended(three, Status.EXPIRED, error="late"),
            owner.ended(four, Status.PENDING, due_ms=bench.now + 1, error="busy"),
        )
        found = counts((await bench.store.survey()).counts)
        assert found == {"accepted": 4, "done": 1, "failed": 1, "expired": 1, "retried": 1}
