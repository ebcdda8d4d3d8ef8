"""Promises about the marks of suspects."""

from infinite_scheduler.model import Change, Status
from infinite_scheduler.store.abilities import Ability
from infinite_scheduler.testing.store_contract.contract_bench import (
    ALONE,
    FEW,
    LIFTED,
    MANY,
    SHARD,
    Bench,
    Promises,
    needing,
)


class MarkingContract(Promises):
    """What `mark` promises, and what becomes of marks at a release, a reload and a settle."""

    needs = frozenset({Ability.OWNERSHIP, Ability.MARKS})

    async def test_a_node_that_lost_a_shard_marks_nothing_there(self, bench: Bench) -> None:
        await bench.add(0)
        former = await bench.owner("n1")
        jobs = await former.scan()
        await bench.owner("n2")
        assert await former.mark(jobs, 1000) == {SHARD}
        third = await bench.node("n3")
        (grant,) = await third.take(SHARD)
        assert not grant.suspects

    async def test_marked_jobs_come_back_as_suspects_with_the_grant(self, bench: Bench) -> None:
        await bench.add(0, 0, 0)
        owner = await bench.owner("n1")
        one, two, three = await owner.scan()
        assert not await owner.mark([one, two, three], MANY)
        assert not await owner.mark([two], FEW)
        taker = await bench.node("n2")
        (grant,) = await taker.take(SHARD)
        assert dict(grant.suspects) == {one.key: MANY, two.key: FEW, three.key: MANY}

    async def test_reload_lifts_the_mark_of_a_job_that_was_to_be_alone_and_is_not_handed_over(
        self, bench: Bench
    ) -> None:
        await bench.add(0, 0, 0)
        owner = await bench.owner("n1")
        held, handed_over, other = await owner.scan()
        await owner.mark([other], MANY)
        for job in (held, handed_over):
            await owner.mark([job], ALONE)
        (grant,) = await owner.ownership.reload(owner.owners, {handed_over.key}, LIFTED)
        assert dict(grant.suspects) == {held.key: FEW, handed_over.key: ALONE, other.key: MANY}

    async def test_a_release_lifts_the_mark_of_a_job_that_was_to_be_alone(self, bench: Bench) -> None:
        await bench.add(0, 0)
        owner = await bench.owner("n1")
        alone, other = await owner.scan()
        await owner.mark([other], MANY)
        await owner.mark([alone], ALONE)
        await owner.release()
        next_owner = await bench.node("n2")
        (grant,) = await next_owner.take(SHARD)
        assert dict(grant.suspects) == {alone.key: FEW, other.key: MANY}, "no process died, so no job is blamed"

    async def test_the_mark_of_a_job_that_outlived_a_watch_stays_until_it_is_settled(self, bench: Bench) -> None:
        await bench.add(0, 0)
        owner = await bench.owner("n1")
        one, two = await owner.scan()
        for job, size in ((one, ALONE - 1), (two, ALONE - 9)):
            await owner.mark([job], ALONE)
            await owner.mark([job], size)
        (grant,) = await owner.ownership.reload(owner.owners, (), LIFTED)
        assert dict(grant.suspects) == {one.key: ALONE - 1, two.key: ALONE - 9}
        await owner.settle(owner.ended(one, marked=True))
        await owner.release()
        next_owner = await bench.node("n2")
        (grant,) = await next_owner.take(SHARD)
        assert dict(grant.suspects) == {two.key: ALONE - 9}

    async def test_settling_a_marked_job_deletes_its_mark(self, bench: Bench) -> None:
        await bench.add(0, 0, 0)
        owner = await bench.owner("n1")
        one, two, three = await owner.scan()
        await owner.mark([one, two, three], FEW)
        again = owner.ended(two, Status.PENDING, due_ms=bench.now + 5, error="again", marked=True)
        await owner.settle(owner.ended(one, marked=True), again)
        taker = await bench.node("n2")
        (grant,) = await taker.take(SHARD)
        assert dict(grant.suspects) == {three.key: FEW}

    @needing(Ability.CANCEL)
    async def test_a_cancel_at_a_released_shard_deletes_the_mark(self, bench: Bench) -> None:
        cancelled, other = await bench.add(0, 0)
        owner = await bench.owner("n1")
        await owner.mark(await owner.scan(), MANY)
        await owner.release()
        assert (await bench.changed(Change.CANCEL, cancelled.key)).granted
        next_owner = await bench.node("n2")
        (grant,) = await next_owner.take(SHARD)
        assert dict(grant.suspects) == {other.key: MANY}

    @needing(Ability.CANCEL)
    async def test_a_cancel_after_the_line_deletes_the_mark(self, bench: Bench) -> None:
        owner = await bench.owner("n1", line_in_ms=30_000)
        cancelled, other = await bench.add(60_000, 60_000)
        await owner.mark([await bench.job(cancelled), await bench.job(other)], MANY)
        assert (await bench.changed(Change.CANCEL, cancelled.key)).granted
        taker = await bench.node("n2")
        (grant,) = await taker.take(SHARD)
        assert dict(grant.suspects) == {other.key: MANY}

    @needing(Ability.CANCEL)
    async def test_a_cancel_by_the_owner_deletes_the_mark(self, bench: Bench) -> None:
        owner = await bench.owner("n1", line_in_ms=30_000)
        cancelled, other = await bench.add(10_000, 10_000)
        await owner.mark(await owner.scan(), MANY)
        asking = bench.change(Change.CANCEL, cancelled)
        await owner.answer(await owner.asked(Change.CANCEL))
        assert (await bench.decided(asking)).granted
        taker = await bench.node("n2")
        (grant,) = await taker.take(SHARD)
        assert dict(grant.suspects) == {other.key: MANY}

    @needing(Ability.RESCHEDULE)
    async def test_a_job_that_is_moved_at_a_released_shard_keeps_its_mark(self, bench: Bench) -> None:
        (moved,) = await bench.add(0)
        owner = await bench.owner("n1")
        await owner.mark(await owner.scan(), MANY)
        await owner.release()
        assert (await bench.changed(Change.RESCHEDULE, moved.key, due_ms=bench.now + 1000)).granted
        next_owner = await bench.node("n2")
        (grant,) = await next_owner.take(SHARD)
        assert dict(grant.suspects) == {moved.key: MANY}, "it may still be the one that ends its process"

    @needing(Ability.RETRY)
    async def test_a_retry_by_hand_deletes_the_mark_of_the_former_attempt(self, bench: Bench) -> None:
        (failed,) = await bench.add(0)
        owner = await bench.owner("n1")
        (job,) = await owner.scan()
        await owner.mark([job], MANY)
        await owner.settle(owner.ended(job, Status.FAILED, error="broken"))
        assert (await bench.changed(Change.RETRY, failed.key)).granted
        taker = await bench.node("n2")
        (grant,) = await taker.take(SHARD)
        assert not grant.suspects
