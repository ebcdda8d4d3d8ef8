"""Promises about accepting jobs."""

from infinite_scheduler.errors import KeyConflict, StoreMismatch, UnknownApp
from infinite_scheduler.model import DAY_MS, JobSpec, Priority, Status
from infinite_scheduler.store.abilities import Ability
from infinite_scheduler.store.accepting import Holder
from infinite_scheduler.testing.store_contract.contract_bench import APP, Bench, Promises, refused


class AcceptingContract(Promises):
    """What `register` and `add` promise of every store."""

    async def test_a_job_is_durable_when_add_returns(self, bench: Bench) -> None:
        (accepted,) = await bench.add(60_000)
        elsewhere = await bench.process()
        record = await elsewhere.get(accepted.key)
        assert record is not None
        assert record.status is Status.PENDING
        await bench.close()
        after_a_restart = await bench.process()
        assert await after_a_restart.get(accepted.key) == record

    async def test_what_was_accepted_comes_back_as_it_was(self, bench: Bench) -> None:
        spec = bench.spec(
            60_000,
            payload='{"to":"Åsa","n":[1,2.5,null,true,"\\u0000"]}'.encode(),
            priority=Priority.LOW,
            request_id="r-1",
            job_name="a name",
            group="a group",
            tags=("red", 'with "quotes"', "ünïcödé"),
            idempotency_key="k-1" if Ability.IDEMPOTENCY_KEYS in bench.abilities else None,
        )
        (accepted,) = await bench.store.add([spec])
        record = await bench.record(accepted)
        job = record.job
        assert (job.app, job.due_ms, job.scheduled_ms, job.created_ms) == (
            APP,
            spec.scheduled_ms,
            spec.scheduled_ms,
            bench.now,
        )
        assert (job.payload, job.priority, job.attempt) == (spec.payload, Priority.LOW, 1)
        assert (job.request_id, job.job_name, job.group, job.tags) == ("r-1", "a name", "a group", spec.tags)
        assert record.idempotency_key == spec.idempotency_key
        assert not record.attempts

    async def test_a_past_moment_is_kept_under_now_and_shown_as_asked(self, bench: Bench) -> None:
        (accepted,) = await bench.add(-90_000)
        job = await bench.job(accepted)
        assert (accepted.due_ms, job.due_ms) == (bench.now, bench.now)
        assert job.scheduled_ms == bench.now - 90_000

    async def test_a_job_years_ahead_is_kept_too(self, bench: Bench) -> None:
        far = await bench.add(36 * DAY_MS, 3000 * DAY_MS)
        assert [(await bench.job(a)).due_ms for a in far] == [a.due_ms for a in far]
        owner = await bench.owner()
        found = await owner.scan(bench.now, bench.now + 4000 * DAY_MS)
        assert [job.key for job in found] == [a.key for a in far]

    async def test_an_unknown_app_is_refused_naming_the_known_ones(self, bench: Bench) -> None:
        await bench.store.register("sms")
        with refused(UnknownApp, "'nobody'", "mail", "sms"):
            await bench.add(1000, app="nobody")

    async def test_an_app_that_another_process_registered_is_known(self, bench: Bench) -> None:
        elsewhere = await bench.process()
        await elsewhere.register("sms", 3)
        assert await bench.add(1000, app="sms")

    async def test_apps_that_are_registered_together_have_their_shards_and_take_jobs(self, bench: Bench) -> None:
        known = await bench.store.register("known", 3)
        wanted: dict[str, int | None] = {f"app{number}": 1 + number % 3 for number in range(30)}
        found = await bench.store.register_all({**wanted, "known": None})
        assert [(info.name, info.shards) for info in found] == [*wanted.items(), ("known", 3)]
        assert found[-1] == known
        elsewhere = await bench.process()
        assert await elsewhere.register_all(wanted) == found[:-1]
        assert await bench.add(1000, app="app29")

    async def test_an_app_keeps_its_number_of_shards(self, bench: Bench) -> None:
        first = await bench.store.register("wide", 4)
        with refused(StoreMismatch, "'wide'", "4", "8"):
            await bench.store.register("wide", 8)
        elsewhere = await bench.process()
        assert await elsewhere.register("wide") == first
        assert await elsewhere.register("wide", 4) == first

    async def test_closing_twice_is_like_closing_once(self, bench: Bench) -> None:
        await bench.store.close()
        await bench.store.close()


def keyed(bench: Bench, key: str = "k", digest: bytes = b"same", in_ms: int = 60_000) -> JobSpec:
    """A job with an idempotency key."""
    return bench.spec(in_ms, idempotency_key=key, digest=digest)


class BatchingContract(Promises):
    """What `add` promises of several jobs in one call."""

    needs = frozenset({Ability.WHOLE_BATCHES})

    async def test_the_answers_come_in_the_order_of_the_jobs(self, bench: Bench) -> None:
        delays = [5000, 1000, 3000, 1000, 9000]
        accepted = await bench.add(*delays)
        assert [a.due_ms - bench.now for a in accepted] == delays
        assert len({a.key for a in accepted}) == len(delays)

    async def test_a_large_batch_is_accepted_in_one_call(self, bench: Bench) -> None:
        accepted = await bench.add(*range(2500))
        owner = await bench.owner()
        assert [job.key for job in await owner.scan()] == sorted(a.key for a in accepted)

    async def test_of_a_batch_all_or_none_is_accepted(self, bench: Bench) -> None:
        with refused(UnknownApp):
            await bench.store.add([bench.spec(3000), bench.spec(3000, app="nobody")])
        assert await bench.accepted() == 0


class DeduplicatingContract(Promises):
    """What `add` and `holders` promise of idempotency keys."""

    needs = frozenset({Ability.IDEMPOTENCY_KEYS})

    async def test_a_key_at_another_process_answers_with_the_first_job(self, bench: Bench) -> None:
        (first,) = await bench.store.add([keyed(bench)])
        elsewhere = await bench.process()
        (again,) = await elsewhere.add([keyed(bench)])
        assert (again.key, again.repeated) == (first.key, True)

    async def test_a_key_answers_with_the_first_job_when_that_is_settled(self, bench: Bench) -> None:
        (first,) = await bench.store.add([keyed(bench)])
        owner = await bench.owner()
        await owner.settle(owner.ended(await bench.job(first)))
        (again,) = await bench.store.add([keyed(bench)])
        assert (again.key, again.repeated) == (first.key, True)

    async def test_a_key_with_another_content_is_refused(self, bench: Bench) -> None:
        (first,) = await bench.store.add([keyed(bench)])
        with refused(KeyConflict, "'k'", first.id):
            await bench.store.add([keyed(bench, digest=b"other")])
        assert await bench.accepted() == 1

    async def test_a_look_finds_whom_keys_belong_to_and_takes_none(self, bench: Bench) -> None:
        (first,) = await bench.store.add([keyed(bench)])
        elsewhere = await bench.process()
        await elsewhere.register("sms", 1)
        for _ in range(2):
            assert await elsewhere.holders(APP, ["k", "free"]) == {"k": Holder(first.key, b"same")}
        assert await elsewhere.holders("sms", ["k"]) == {}
        (later,) = await bench.store.add([keyed(bench, "free")])
        assert not later.repeated

    async def test_a_key_is_kept_for_a_day(self, bench: Bench) -> None:
        (first,) = await bench.store.add([keyed(bench)])
        node = await bench.node()
        bench.clock.advance(DAY_MS - 1000)
        await node.ownership.maintain()
        (again,) = await bench.store.add([keyed(bench)])
        assert again.key == first.key

    async def test_a_key_can_be_used_again_after_a_day_and_maintenance(self, bench: Bench) -> None:
        (first,) = await bench.store.add([keyed(bench)])
        node = await bench.node()
        bench.clock.advance(DAY_MS + 1000)
        await node.ownership.maintain()
        (new,) = await bench.store.add([keyed(bench)])
        assert (new.repeated, new.key == first.key) == (False, False)


class DeduplicatingBatchesContract(Promises):
    """What `add` and `holders` promise of idempotency keys in one call with others."""

    needs = frozenset({Ability.IDEMPOTENCY_KEYS, Ability.WHOLE_BATCHES})

    async def test_of_a_batch_with_a_conflict_nothing_is_accepted(self, bench: Bench) -> None:
        await bench.add(1000, idempotency_key="taken", digest=b"one")
        with refused(KeyConflict):
            await bench.store.add(
                [bench.spec(2000), bench.spec(1000, idempotency_key="taken", digest=b"two"), bench.spec(3000)]
            )
        with refused(KeyConflict, "'in one batch'"):
            await bench.store.add([keyed(bench, "in one batch"), keyed(bench, "in one batch", b"other")])
        assert await bench.accepted() == 1

    async def test_a_key_twice_in_one_batch_makes_one_job(self, bench: Bench) -> None:
        first, other, again = await bench.store.add([keyed(bench), keyed(bench, "other"), keyed(bench)])
        assert (again.key, again.repeated, first.repeated) == (first.key, True, False)
        assert other.key != first.key
        assert await bench.accepted() == 2

    async def test_a_key_in_a_later_call_answers_with_the_first_job(self, bench: Bench) -> None:
        (first,) = await bench.store.add([keyed(bench)])
        new, again = await bench.store.add([keyed(bench, "new"), keyed(bench)])
        assert (again.key, again.due_ms, again.repeated) == (first.key, first.due_ms, True)
        assert not new.repeated
        assert await bench.accepted() == 2

    async def test_a_look_at_many_keys_finds_them_all(self, bench: Bench) -> None:
        specs = [keyed(bench, str(number)) for number in range(2500)]
        accepted = await bench.store.add(specs)
        found = await bench.store.holders(APP, [str(number) for number in range(5000)])
        assert found == {spec.idempotency_key: Holder(a.key, b"same") for spec, a in zip(specs, accepted, strict=True)}

    async def test_keys_of_different_apps_do_not_meet(self, bench: Bench) -> None:
        await bench.store.register("sms", 1)
        here, there = await bench.store.add(
            [
                keyed(bench),
                bench.spec(60_000, app="sms", idempotency_key="k", digest=b"other"),
            ]
        )
        assert (here.repeated, there.repeated) == (False, False)
