"""Promises about how many jobs wait."""

from infinite_scheduler.errors import UnknownApp
from infinite_scheduler.model import DAY_MS, Change, Status
from infinite_scheduler.store.abilities import Ability
from infinite_scheduler.testing.store_contract.contract_bench import APP, Bench, Promises, needing, refused


async def waiting(bench: Bench, app: str = APP) -> dict[int, int]:
    """How many jobs wait: days from now → jobs."""
    today = bench.now // DAY_MS
    return {ms // DAY_MS - today: n for ms, n in (await bench.store.ledger().waiting(app)).get(app, {}).items()}


class CountingContract(Promises):
    """What `waiting` and `recount` promise."""

    needs = frozenset({Ability.WAITING})

    async def test_accepted_jobs_wait_for_the_day_on_which_they_are_due(self, bench: Bench) -> None:
        assert await bench.store.ledger().waiting() == {}
        await bench.add(0, 0, 3 * DAY_MS, 100 * DAY_MS)
        await bench.store.register("sms", 1)
        await bench.add(DAY_MS, app="sms")
        assert await waiting(bench) == {0: 2, 3: 1, 100: 1}
        assert (await bench.store.ledger().waiting()).keys() == {APP, "sms"}
        assert (await bench.store.ledger().waiting("sms")).keys() == {"sms"}
        assert await (await bench.process()).ledger().waiting() == await bench.store.ledger().waiting()

    @needing(Ability.IDEMPOTENCY_KEYS)
    async def test_a_job_that_was_accepted_before_waits_once(self, bench: Bench) -> None:
        for _ in range(2):
            await bench.add(0, idempotency_key="k")
        assert await waiting(bench) == {0: 1}

    async def test_a_job_that_ended_does_not_wait(self, bench: Bench) -> None:
        accepted = await bench.add(0, 0, 0, 0, DAY_MS)
        owner = await bench.owner()
        ends = (Status.DONE, Status.FAILED, Status.EXPIRED)
        jobs = [await bench.job(a) for a in accepted[:3]]
        await owner.settle(*(owner.ended(job, end, error="no") for job, end in zip(jobs, ends, strict=True)))
        assert await waiting(bench) == {0: 1, 1: 1}
        await owner.settle(owner.ended(jobs[0]))
        assert await waiting(bench) == {0: 1, 1: 1}, "what ended before does not end again"

    async def test_a_job_that_is_tried_again_waits_for_its_new_day(self, bench: Bench) -> None:
        (accepted, _) = await bench.add(0, 0)
        owner = await bench.owner()
        again = owner.ended(await bench.job(accepted), Status.PENDING, due_ms=bench.now + 2 * DAY_MS, error="busy")
        await owner.settle(again)
        assert await waiting(bench) == {0: 1, 2: 1}

    @needing(Ability.CANCEL, Ability.RESCHEDULE, Ability.RUN_NOW)
    async def test_a_job_that_is_changed_waits_for_its_new_day_or_not_at_all(self, bench: Bench) -> None:
        moved, early, gone, _ = await bench.add(*[DAY_MS] * 4)
        await bench.changed(Change.RESCHEDULE, moved.key, due_ms=bench.now + 5 * DAY_MS)
        await bench.changed(Change.RUN_NOW, early.key)
        for _ in range(2):
            await bench.changed(Change.CANCEL, gone.key)
        assert await waiting(bench) == {0: 1, 1: 1, 5: 1}

    @needing(Ability.RESCHEDULE, Ability.CANCEL)
    async def test_a_change_that_the_owner_decides_counts_too(self, bench: Bench) -> None:
        moved, gone = await bench.add(1000, 2000)
        owner = await bench.owner(line_in_ms=30_000)
        moving = bench.change(Change.RESCHEDULE, moved, due_ms=bench.now + 4 * DAY_MS)
        await owner.answer(await owner.asked(Change.RESCHEDULE))
        await bench.decided(moving)
        going = bench.change(Change.CANCEL, gone)
        await owner.answer(await owner.asked(Change.CANCEL))
        await bench.decided(going)
        assert await waiting(bench) == {4: 1}

    @needing(Ability.RETRY)
    async def test_a_job_that_is_revived_waits_again(self, bench: Bench) -> None:
        (accepted,) = await bench.add(0)
        owner = await bench.owner()
        await owner.settle(owner.ended(await bench.job(accepted), Status.FAILED, error="no"))
        assert await waiting(bench) == {}
        bench.clock.advance(DAY_MS)
        await bench.changed(Change.RETRY, accepted.key)
        assert await waiting(bench) == {0: 1}

    async def test_maintenance_changes_nothing_however_old_the_jobs_are(self, bench: Bench) -> None:
        accepted = await bench.add(0, 0, DAY_MS, 60 * DAY_MS)
        node = await bench.owner()
        await node.settle(node.ended(await bench.job(accepted[0])))
        before = await bench.store.ledger().waiting()
        for _ in range(3):
            bench.clock.advance(20 * DAY_MS)
            for _ in range(2):
                await node.ownership.maintain()
            assert await bench.store.ledger().waiting() == before
        assert sum(before[APP].values()) == 3

    async def test_counting_anew_finds_what_was_counted(self, bench: Bench) -> None:
        await bench.add(0, 0, 40 * DAY_MS)
        again = await bench.store.ledger().recount(APP)
        assert (again.app, again.before, again.counted) == (APP, 3, 3)
        assert await waiting(bench) == {0: 2, 40: 1}
        with refused(UnknownApp, "'nobody'"):
            await bench.store.ledger().recount("nobody")
