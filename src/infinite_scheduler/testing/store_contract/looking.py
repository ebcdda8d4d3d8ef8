"""Promises about what people see, and about maintenance."""

from infinite_scheduler.errors import InvalidRequest
from infinite_scheduler.model import DAY_MS, Change, JobId, Status
from infinite_scheduler.store.abilities import Ability
from infinite_scheduler.testing.store_contract.contract_bench import (
    APP,
    SHARD,
    Bench,
    Promises,
    counts,
    needing,
    refused,
)


class LookingContract(Promises):
    """What `get`, `survey` and `maintain` promise of every store."""

    async def test_an_unknown_job_is_none(self, bench: Bench) -> None:
        key = JobId.make(bench.now + 1000, 0, 1)
        assert await bench.store.get(key) is None
        assert await bench.store.get(key, app=APP) is None

    async def test_a_job_is_found_with_and_without_its_app(self, bench: Bench) -> None:
        await bench.store.register("sms", 1)
        (accepted,) = await bench.add(1000, app="sms")
        record = await bench.store.get(accepted.key)
        assert record is not None
        assert (record.id, record.job.app) == (accepted.id, "sms")
        assert await bench.store.get(accepted.key, app="sms") == record
        assert await bench.store.get(accepted.key, app=APP) is None

    async def test_a_name_that_no_app_can_have_is_refused(self, bench: Bench) -> None:
        (accepted,) = await bench.add(60_000)
        for name in ("No Name", "no\0name"):
            with refused(InvalidRequest):
                await bench.store.get(accepted.key, app=name)
            with refused(InvalidRequest):
                await bench.store.change(Change.CANCEL, accepted.key, app=name, timeout_ms=1000)

    # Surveying

    async def test_a_survey_shows_apps_nodes_and_shards(self, bench: Bench) -> None:
        owner = await bench.owner()
        await bench.store.register("sms", 2)
        survey = await bench.store.survey()
        assert [(app.name, app.shards, app.paused) for app in survey.view.apps] == [(APP, 1, False), ("sms", 2, False)]
        assert [node.nonce for node in survey.view.nodes] == [owner.info.nonce]
        assert {info.shard: info.owner for info in survey.view.shards}[SHARD] == owner.owners[SHARD]

    @needing(Ability.CANCEL, Ability.IDEMPOTENCY_KEYS)
    async def test_counts_of_all_processes_add_up(self, bench: Bench) -> None:
        elsewhere = await bench.process()
        await bench.add(1000, 2000)
        (third,) = await elsewhere.add([bench.spec(3000)])
        await elsewhere.change(Change.CANCEL, third.key, timeout_ms=15_000)
        await bench.add(1000, idempotency_key="k")
        await bench.add(1000, idempotency_key="k")
        assert counts((await bench.store.survey()).counts) == {"accepted": 4, "cancelled": 1}

    # Maintaining

    @needing(Ability.RESCHEDULE)
    async def test_maintenance_never_touches_what_waits(self, bench: Bench) -> None:
        accepted = await bench.add(1000, DAY_MS, 20 * DAY_MS, 100 * DAY_MS)
        await bench.changed(Change.RESCHEDULE, accepted[0].key, due_ms=bench.now + 60 * DAY_MS)
        node = await bench.node()
        bench.clock.advance(50 * DAY_MS)
        for _ in range(5):
            await node.ownership.maintain()
        assert [(await bench.record(a)).status for a in accepted] == [Status.PENDING] * 4
        assert len(await node.scan()) == 4

    async def test_maintenance_keeps_settled_jobs_for_the_retention_and_no_longer(self, bench: Bench) -> None:
        (accepted,) = await bench.add(1000)
        owner = await bench.owner()
        await owner.settle(owner.ended(await bench.job(accepted), Status.FAILED, error="no"))
        bench.clock.advance(6 * DAY_MS)
        await owner.ownership.maintain()
        assert await bench.store.get(accepted.key) is not None
        bench.clock.advance(5 * DAY_MS)
        await owner.advance(bench.now + 30_000, bench.now)
        for _ in range(5):
            await owner.ownership.maintain()
        assert await bench.store.get(accepted.key) is None

    async def test_maintenance_keeps_the_counts(self, bench: Bench) -> None:
        await bench.add(1000, 2000)
        node = await bench.node()
        for _ in range(3):
            await node.ownership.maintain()
        assert counts((await bench.store.survey()).counts) == {"accepted": 2}
