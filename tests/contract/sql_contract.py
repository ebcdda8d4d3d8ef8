"""What every SQL store promises: the promises of a store, and what its own statements save."""

import asyncio
import threading
from typing import ClassVar

import pytest

from infinite_scheduler.model import DAY_MS, JobId
from infinite_scheduler.store.looking import Query
from infinite_scheduler.store.sql.statements import Statements
from infinite_scheduler.testing import StoreContract
from infinite_scheduler.testing.store_contract import Bench
from infinite_scheduler.testing.store_contract.contract_bench import TIMEOUT_S, keys
from infinite_scheduler.testing.store_contract.scanning import LARGE, move


class SqlStoreContract(StoreContract):
    """The contract, on a database of any kind."""

    # Ids

    async def test_ids_sort_by_due_and_name_their_shard(self, bench: Bench) -> None:
        await bench.store.register("wide", 4)
        accepted = [(await bench.add(delay, app="wide"))[0] for delay in (7000, 3000, 9000, 1000, 5000, 2000)]
        by_id = sorted(accepted, key=lambda a: a.key)
        assert [a.due_ms for a in by_id] == sorted(a.due_ms for a in accepted)
        assert {JobId(a.key).shard for a in accepted} <= {0, 1, 2, 3}
        assert all(JobId(a.key).due_ms == a.due_ms for a in accepted)
        assert [(await bench.job(a)).shard for a in accepted] == [JobId(a.key).shard for a in accepted]

    async def test_a_job_says_in_which_table_it_is(self, bench: Bench) -> None:
        near, far = await bench.add(0, 40 * DAY_MS)
        assert (await bench.record(near)).kept_in == "mail_scheduled_jobs_20260101"
        assert (await bench.record(far)).kept_in == "mail_scheduled_jobs_later"

    # Requests

    async def test_an_insert_after_the_line_leaves_no_request(self, bench: Bench) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        await bench.add(30_000, 60_000)
        assert not await owner.requests()

    async def test_a_batch_leaves_a_request_for_its_early_jobs_only(self, bench: Bench) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        early, _ = await bench.add(29_999, 30_000)
        (request,) = await owner.requests()
        assert request.keys == (early.key,)

    async def test_an_insert_after_the_line_pokes_nobody(self, bench: Bench) -> None:
        owner = await bench.owner(line_in_ms=30_000)
        await bench.add(60_000)
        assert not owner.pokes

    # Looks

    threaded: ClassVar[bool] = True
    """Does each connection have a thread of its own?"""

    async def test_a_long_look_holds_up_no_short_one(self, bench: Bench) -> None:
        if not self.threaded:
            pytest.skip("all happens in the thread of the caller")
        (accepted,) = await bench.add(1000)
        begun, goes_on = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def look(_: Statements) -> bool:
            loop.call_soon_threadsafe(begun.set)
            return goes_on.wait(TIMEOUT_S)

        store = bench.store
        looking = asyncio.create_task(store._looks.read(look))  # type: ignore[attr-defined]
        listing = asyncio.create_task(store.find(Query()))
        try:
            async with asyncio.timeout(TIMEOUT_S / 2):
                await begun.wait()
                assert await store.get(accepted.key) is not None
                assert (await store.survey()).view.apps
                assert await store.ledger().waiting()
                assert not await store.ledger().tokens()
                await bench.add(2000)
            assert not looking.done()
            assert not listing.done(), "lists wait for each other"
        finally:
            goes_on.set()
        assert await looking
        assert len((await listing).records) == 2

    # Pages

    async def test_a_page_has_as_many_rows_as_asked_for_and_as_many_entries_at_most(self, bench: Bench) -> None:
        await bench.add(*[1000] * 25, *range(2000, 2030))
        owner = await bench.owner()
        pages = await owner.pages(limit=10)
        assert all(len(page) <= 20 for page in pages), "at most ten rows and ten entries"
        assert len(pages) >= 6

    @pytest.mark.parametrize("ahead", [(), (1, 3, 5)], ids=["days", "days and far ahead"])
    async def test_the_days_of_a_page_and_jobs_from_far_ahead_share_its_room(
        self, bench: Bench, ahead: tuple[int, ...]
    ) -> None:
        far = await bench.add(*(40 * DAY_MS + ms for ms in ahead), payload=LARGE)
        bench.clock.advance(39 * DAY_MS)
        near = await bench.add(*(day * DAY_MS + ms for day in (1, 2) for ms in (0, 2, 4)), payload=LARGE)
        owner = await bench.owner()
        for fit in (1, 3, 5):
            pages = await owner.pages(room=fit * len(LARGE))
            assert [job.key for page in pages for job in page] == sorted(keys([*far, *near]))
            assert max(map(len, pages)) == fit

    async def test_rows_and_entries_in_little_room_bring_each_job_once(self, bench: Bench) -> None:
        accepted = await bench.add(*range(1000, 1020), *[40 * DAY_MS] * 3, payload=LARGE)
        for a in accepted[::2]:
            await move(bench, a, 1000 + (a.due_ms * 7) % 40)
        owner = await bench.owner()
        for room in (1, 2 * len(LARGE)):
            pages = await owner.pages(room=room)
            jobs = [job for page in pages for job in page]
            assert sorted(keys(jobs)) == sorted(keys(accepted))
            assert jobs == sorted(jobs, key=lambda job: job.position)
            assert max(map(len, pages)) <= 2 * (room // len(LARGE) + 1), "room for rows, and as much for entries"
