"""Promises about requests that make an owner look."""

import pytest

from infinite_scheduler.model import Priority, Shard
from infinite_scheduler.store.abilities import Ability
from infinite_scheduler.store.ownership import named
from infinite_scheduler.testing.store_contract.contract_bench import SHARD, Bench, Promises, keys
from infinite_scheduler.testing.store_contract.scanning import LARGE


class WakingContract(Promises):
    """What an insert before the line leaves, and what answering it does."""

    needs = frozenset({Ability.OWNERSHIP})

    async def test_an_insert_before_the_line_leaves_a_request_that_names_it(self, bench: Bench) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        early = await bench.add(1000, 2000)
        requests = await owner.requests()
        assert {(request.shard, request.change) for request in requests} == {(SHARD, None)}
        assert sorted(key for request in requests for key in request.keys) == sorted(keys(early))

    async def test_an_insert_from_another_process_is_seen_by_the_owner(self, bench: Bench) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        assert not await owner.requests()
        elsewhere = await bench.process()
        await elsewhere.add([bench.spec(1000)])
        assert await owner.ownership.requests([SHARD], poked=False, limit=10), "without a poke, too"

    async def test_an_insert_before_the_line_pokes_the_nodes_of_its_process(self, bench: Bench) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        await bench.add(1000)
        assert owner.pokes == [SHARD]

    async def test_reading_requests_changes_nothing(self, bench: Bench) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        await bench.add(1000)
        assert await owner.requests() == await owner.requests()

    async def test_requests_for_other_shards_are_not_read(self, bench: Bench) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        await bench.add(1000)
        assert not await owner.requests(Shard("mail", 9))

    async def test_a_wake_brings_the_jobs_it_names_and_is_consumed(self, bench: Bench) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        (accepted,) = await bench.add(1000, priority=Priority.HIGH)
        answers = await owner.answer(await owner.requests())
        assert list(answers.woken) == [await bench.job(accepted)]
        assert not answers.lost
        assert not await owner.requests()

    async def test_a_flood_of_requests_is_read_and_answered_in_pages(self, bench: Bench) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        flood = [(await bench.add(1000 + n))[0] for n in range(25)] + list(await bench.add(*range(2000, 2030)))
        woken: list[bytes] = []
        while page := await owner.ownership.requests([SHARD], poked=True, limit=10):
            assert named(page[:-1]) < 10
            woken += keys((await owner.answer(page)).woken)
            if named(page) < 10:
                break
        assert sorted(woken) == sorted(keys(flood)), "a page with fewer was the last one"

    async def test_a_wake_is_consumed_once(self, bench: Bench) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        await bench.add(1000)
        requests = await owner.requests()
        await owner.answer(requests)
        assert not (await owner.answer(requests)).woken

    @pytest.mark.parametrize("fit", [0, 1, 3])
    async def test_of_a_wake_the_earliest_jobs_are_read_that_fit_and_the_others_are_left_to_scan(
        self, bench: Bench, fit: int
    ) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        await owner.advance(bench.now + 30_000, bench.now + 20_000)
        accepted = await bench.add(5000, 1000, 4000, 2000, 3000, payload=LARGE)
        answers = await owner.answer(await owner.requests(), room=fit * len(LARGE) + 1)
        jobs = sorted([await bench.job(a) for a in accepted], key=lambda job: job.due_ms)
        read = max(1, fit)
        assert sorted(answers.woken, key=lambda job: job.due_ms) == jobs[:read]
        assert sorted(answers.left) == [(SHARD, job.position) for job in jobs[read:]]
        assert (await bench.shard()).low_ms == answers.low_ms[SHARD] == jobs[0].due_ms
        assert not await owner.requests(), "it is consumed as a whole"
        assert keys(await owner.scan(jobs[0].due_ms, bench.now + 30_000)) == keys(jobs)

    async def test_a_wake_lowers_low_to_what_it_names(self, bench: Bench) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        await owner.advance(bench.now + 30_000, bench.now + 20_000)
        (accepted,) = await bench.add(1000)
        answers = await owner.answer(await owner.requests())
        assert answers.low_ms[SHARD] == accepted.due_ms
        assert (await bench.shard()).low_ms == accepted.due_ms

    async def test_a_wake_never_raises_low(self, bench: Bench) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        await owner.advance(bench.now + 30_000, bench.now - 7)
        await bench.add(1000)
        await owner.answer(await owner.requests())
        assert (await bench.shard()).low_ms == bench.now - 7

    async def test_a_job_that_is_settled_by_then_is_not_woken(self, bench: Bench) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        (accepted,) = await bench.add(1000)
        await owner.settle(owner.ended(await bench.job(accepted)))
        assert not (await owner.answer(await owner.requests())).woken

    async def test_the_next_owner_finds_the_requests_of_the_last_one(self, bench: Bench) -> None:
        former = await bench.owner("n1", line_in_ms=30_000)
        (accepted,) = await bench.add(1000)
        assert await former.requests()
        successor = await bench.owner("n2")
        answers = await successor.answer(await successor.requests())
        assert keys(answers.woken) == [accepted.key]
