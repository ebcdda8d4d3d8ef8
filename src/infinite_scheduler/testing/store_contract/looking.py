"""Promises about what people see, and about maintenance."""

from infinite_scheduler.errors import UnknownApp
from infinite_scheduler.model import DAY_MS, Accepted, Change, JobId, Status
from infinite_scheduler.store.abilities import Ability
from infinite_scheduler.store.base import Store
from infinite_scheduler.store.looking import Query
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


class SearchingContract(Promises):
    """What `find` promises."""

    needs = frozenset({Ability.SEARCH})

    async def test_jobs_are_listed_in_the_order_of_their_ids(self, bench: Bench) -> None:
        accepted = await bench.add(5000, 1000, 3 * DAY_MS, 40 * DAY_MS, 2000)
        ids = sorted(a.id for a in accepted)
        assert await listed(bench.store, Query()) == ids
        assert await listed(bench.store, Query(newest_first=True)) == ids[::-1]

    async def test_a_listing_goes_on_where_the_last_page_ended(self, bench: Bench) -> None:
        accepted = await bench.add(*range(0, 10_000, 1000), *(day * DAY_MS for day in range(1, 5)))
        ids = sorted(a.id for a in accepted)
        for limit in (1, 3, 14, 50):
            assert await listed(bench.store, Query(limit=limit)) == ids
            assert await listed(bench.store, Query(limit=limit, newest_first=True)) == ids[::-1]

    async def test_the_last_page_has_no_cursor(self, bench: Bench) -> None:
        await bench.add(1000, 2000)
        assert (await bench.store.find(Query(limit=1))).cursor is not None
        assert (await bench.store.find(Query(limit=2))).cursor is None

    async def test_all_apps_are_listed_together_or_one_alone(self, bench: Bench) -> None:
        await bench.store.register("sms", 1)
        mail = await bench.add(1000, 3000)
        sms = await bench.add(2000, 4000, app="sms")
        assert await listed(bench.store, Query(limit=3)) == sorted(a.id for a in [*mail, *sms])
        assert await listed(bench.store, Query(app="sms")) == [a.id for a in sms]
        with refused(UnknownApp, "'nobody'"):
            await bench.store.find(Query(app="nobody"))

    @needing(Ability.CANCEL)
    async def test_jobs_are_listed_by_status(self, bench: Bench) -> None:
        pending, done, failed, cancelled = await bench.add(1000, 2000, 3000, 4000)
        owner = await bench.owner()
        await owner.settle(
            owner.ended(await bench.job(done)), owner.ended(await bench.job(failed), Status.FAILED, error="no")
        )
        await bench.changed(Change.CANCEL, cancelled.key)
        for status, a in zip(
            (Status.PENDING, Status.DONE, Status.FAILED, Status.CANCELLED),
            (pending, done, failed, cancelled),
            strict=True,
        ):
            assert await listed(bench.store, Query(status=status)) == [a.id]
        assert not await listed(bench.store, Query(status=Status.EXPIRED))

    async def test_jobs_are_listed_by_the_moment_in_their_ids(self, bench: Bench) -> None:
        accepted = await bench.add(1000, 2000, 3000, 2 * DAY_MS)
        span = Query(from_ms=bench.now + 2000, to_ms=bench.now + 2 * DAY_MS)
        assert await listed(bench.store, span) == [a.id for a in accepted[1:3]]
        assert await listed(bench.store, Query(from_ms=bench.now + 3000)) == [a.id for a in accepted[2:]]
        assert await listed(bench.store, Query(to_ms=bench.now + 2000)) == [accepted[0].id]

    async def test_jobs_are_listed_by_tag(self, bench: Bench) -> None:
        await bench.add(1000)
        (red,) = await bench.add(2000, tags=("red", "round"))
        (redder,) = await bench.add(3000, tags=("redder",))
        assert await listed(bench.store, Query(tag="red")) == [red.id]
        assert await listed(bench.store, Query(tag="redder")) == [redder.id]
        assert not await listed(bench.store, Query(tag="blue"))

    async def test_filters_hold_on_every_page(self, bench: Bench) -> None:
        accepted: list[Accepted] = []
        for i in range(30):
            accepted += await bench.add(1000 + i, tags=("odd",) if i % 2 else ("even",))
        odd = [a.id for a in accepted[1::2]]
        assert await listed(bench.store, Query(tag="odd", limit=4)) == odd
        assert await listed(bench.store, Query(tag="odd", limit=4, newest_first=True)) == odd[::-1]


async def listed(store: Store, query: Query) -> list[str]:
    """All jobs that a query lists, page after page."""
    ids: list[str] = []
    fields = {name: getattr(query, name) for name in query.__struct_fields__}
    while True:
        found = await store.find(Query(**fields))
        ids += [record.id for record in found.records]
        if found.cursor is None:
            return ids
        fields["cursor"] = found.cursor
