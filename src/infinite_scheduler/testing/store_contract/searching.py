"""Promises about lists of jobs."""

from typing import Any

import msgspec
import pytest

from infinite_scheduler.errors import InvalidRequest, UnknownApp
from infinite_scheduler.model import DAY_MS, Accepted, Change, Job, Status
from infinite_scheduler.store.abilities import Ability
from infinite_scheduler.store.base import Store
from infinite_scheduler.store.looking import Query
from infinite_scheduler.testing.store_contract.contract_bench import Bench, ContractNode, Promises, needing, refused

HOUR_MS = 3_600_000


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

    @needing(Ability.RESCHEDULE)
    async def test_pending_jobs_are_listed_by_the_moment_at_which_they_are_due_now(self, bench: Bench) -> None:
        first, second, third = await bench.add(HOUR_MS, 2 * HOUR_MS, 3 * HOUR_MS)
        await bench.changed(Change.RESCHEDULE, first.key, due_ms=bench.now + 40 * DAY_MS)
        await bench.changed(Change.RESCHEDULE, third.key, due_ms=bench.now + HOUR_MS)
        due = [third.id, second.id, first.id]
        for limit in (1, 2, 10):
            assert await listed(bench.store, Query(status=Status.PENDING, limit=limit)) == due
            assert await listed(bench.store, Query(status=Status.PENDING, limit=limit, newest_first=True)) == due[::-1]
        late = Query(status=Status.PENDING, from_ms=bench.now + 2 * HOUR_MS, to_ms=bench.now + 90 * DAY_MS)
        assert await listed(bench.store, late) == [second.id, first.id]
        assert await listed(bench.store, Query()) == [first.id, second.id, third.id], "by their ids, whatever they are"

    @needing(Ability.RESCHEDULE)
    async def test_a_job_that_was_moved_back_is_listed_once(self, bench: Bench) -> None:
        back, same, other = await bench.add(HOUR_MS, 2 * HOUR_MS, 3 * HOUR_MS)
        for job, due_ms in ((back, back.due_ms + HOUR_MS), (back, back.due_ms), (same, same.due_ms)):
            await bench.changed(Change.RESCHEDULE, job.key, due_ms=due_ms)
        ids = [back.id, same.id, other.id]
        assert await listed(bench.store, Query(status=Status.PENDING)) == ids
        assert await listed(bench.store, Query(status=Status.PENDING, limit=1, newest_first=True)) == ids[::-1]

    async def test_pending_jobs_are_found_at_once_however_many_are_settled(self, bench: Bench) -> None:
        owner = await bench.owner()
        await settled(bench, owner, await bench.add(*range(1000, 1300)))
        bench.clock.advance(5000)
        await owner.advance(bench.now + 30_000, bench.now)
        (waiting,) = await bench.add(60_000)
        assert await first_look(bench.store, Query(status=Status.PENDING)) == [waiting.id]

    async def test_a_job_that_its_owner_has_yet_to_look_at_is_listed(self, bench: Bench) -> None:
        owner = await bench.owner()
        bench.clock.advance(5000)
        await owner.advance(bench.now + 30_000, bench.now)
        bench.clock.step_wall(-3000)
        (early,) = await bench.add(0)
        assert await listed(bench.store, Query(status=Status.PENDING)) == [early.id]

    @pytest.mark.parametrize("status", [Status.FAILED, Status.EXPIRED])
    async def test_few_that_failed_are_found_at_once_among_many_that_took_long(
        self, bench: Bench, status: Status
    ) -> None:
        owner = await bench.owner()
        accepted = await bench.add(*range(1000, 1300))
        bad = accepted[7], accepted[250]
        await settled(bench, owner, bad, status, error="no")
        await settled(bench, owner, [a for a in accepted if a not in bad], started_ms=bench.now - 2000)
        ids = [a.id for a in bad]
        assert await first_look(bench.store, Query(status=status)) == ids
        assert await first_look(bench.store, Query(status=status, newest_first=True)) == ids[::-1]
        assert await listed(bench.store, Query(status=status, limit=1)) == ids

    @needing(Ability.RETRY)
    async def test_a_job_that_failed_twice_is_listed_once_and_one_that_waits_again_is_not(self, bench: Bench) -> None:
        owner = await bench.owner()
        twice, waiting = await bench.add(1000, 2000)
        for _ in range(2):
            await settled(bench, owner, [twice], Status.FAILED, error="no")
            await bench.changed(Change.RETRY, twice.key)
        await settled(bench, owner, [twice, waiting], Status.FAILED, error="no")
        await bench.changed(Change.RETRY, waiting.key)
        assert await listed(bench.store, Query(status=Status.FAILED)) == [twice.id]

    @needing(Ability.RUN_NOW)
    async def test_newest_first_jobs_that_are_done_are_found_at_once_however_many_wait(self, bench: Bench) -> None:
        owner = await bench.owner()
        past = await bench.add(1000, 2000)
        ahead = await bench.add(*range(DAY_MS, DAY_MS + 300))
        early = ahead[150]
        await bench.changed(Change.RUN_NOW, early.key)
        bench.clock.advance(5000)
        await settled(bench, owner, [*past, early])
        done = Query(status=Status.DONE, newest_first=True)
        assert await first_look(bench.store, done) == [past[1].id, past[0].id]
        for limit in (1, 2, 10):
            paged = msgspec.structs.replace(done, limit=limit, most=50)
            assert await listed(bench.store, paged) == [past[1].id, past[0].id, early.id], "the early one comes last"

    async def test_a_look_at_so_many_rows_says_how_far_it_came_and_goes_on_from_there(self, bench: Bench) -> None:
        accepted = await bench.add(*range(1000, 1100))
        (red,) = await bench.add(1060, tags=("red",))
        query, looks = Query(tag="red", most=25), 0
        ids: list[str] = []
        while True:
            found = await bench.store.find(query)
            looks += 1
            ids += [record.id for record in found.records]
            if found.cursor is None:
                break
            assert found.searched_to_ms is not None
            assert accepted[0].due_ms < found.searched_to_ms <= accepted[-1].due_ms + 1
            query = msgspec.structs.replace(query, cursor=found.cursor)
        assert ids == [red.id]
        assert 4 <= looks <= 8
        ended = msgspec.structs.replace(query, cursor=None, to_ms=accepted[-1].due_ms + 9, most=None)
        assert (await bench.store.find(ended)).searched_to_ms == accepted[-1].due_ms + 9

    async def test_a_look_goes_on_over_all_apps(self, bench: Bench) -> None:
        await bench.store.register("sms", 1)
        await bench.store.register("none", 1)
        accepted = [*await bench.add(*range(1000, 1040)), *await bench.add(*range(1000, 1040, 7), app="sms")]
        ids = [a.id for a in sorted(accepted, key=lambda a: a.key)]
        for newest_first in (False, True):
            query = Query(limit=9, most=30, newest_first=newest_first)
            assert await listed(bench.store, query) == (ids[::-1] if newest_first else ids)

    async def test_jobs_are_listed_by_name_group_and_request(self, bench: Bench) -> None:
        await bench.add(1000)
        (named,) = await bench.add(2000, job_name="näme", group="g", request_id="r'1")
        (other,) = await bench.add(3000, job_name="näme", group="h")
        assert await listed(bench.store, Query(job_name="näme")) == [named.id, other.id]
        assert await listed(bench.store, Query(job_name="näme", group="g")) == [named.id]
        assert await listed(bench.store, Query(request_id="r'1")) == [named.id]
        assert not await listed(bench.store, Query(job_name="näm"))

    async def test_jobs_are_listed_by_a_part_of_their_error(self, bench: Bench) -> None:
        owner = await bench.owner()
        bad, worse, _ = await bench.add(1000, 2000, 3000)
        await settled(bench, owner, [bad], Status.FAILED, error="100% wrong_ \\'x'")
        await settled(bench, owner, [worse], Status.FAILED, error="Wrong")
        for part in ("100%", "wrong_", "\\'x"):
            assert await listed(bench.store, Query(error=part)) == [bad.id]
            assert await listed(bench.store, Query(error=part, status=Status.FAILED)) == [bad.id]
        assert not await listed(bench.store, Query(error="w%g"))

    @needing(Ability.IDEMPOTENCY_KEYS)
    async def test_a_job_is_listed_by_its_idempotency_key(self, bench: Bench) -> None:
        await bench.store.register("sms", 1)
        (keyed,) = await bench.add(1000, idempotency_key="k")
        (other,) = await bench.add(2000, idempotency_key="k", app="sms")
        assert await listed(bench.store, Query(idempotency_key="k")) == [keyed.id, other.id]
        assert await listed(bench.store, Query(idempotency_key="k", app="sms", status=Status.PENDING)) == [other.id]
        assert not await listed(bench.store, Query(idempotency_key="k", status=Status.DONE))
        assert not await listed(bench.store, Query(idempotency_key="l"))

    @needing(Ability.IDEMPOTENCY_KEYS)
    async def test_the_jobs_of_an_idempotency_key_are_listed_page_after_page(self, bench: Bench) -> None:
        ids: list[str] = []
        for app, delay in (("a", 3000), ("b", 1000), ("c", 2000)):
            await bench.store.register(app, 1)
            ids += [accepted.id for accepted in await bench.add(delay, idempotency_key="k", app=app)]
        for newest_first in (False, True):
            query = Query(idempotency_key="k", limit=1, newest_first=newest_first)
            pages: list[list[str]] = []
            for _ in ids:
                found = await bench.store.find(query)
                pages.append([record.id for record in found.records])
                query = msgspec.structs.replace(query, cursor=found.cursor)
            assert pages == [[id_] for id_ in sorted(ids, reverse=newest_first)]
            assert query.cursor is None

    async def test_a_page_has_as_many_jobs_as_there_is_room_for_and_at_least_one(self, bench: Bench) -> None:
        accepted = await bench.add(1000, 2000, 3000, 4000, payload=b'"' + b"x" * 98 + b'"')
        for room, most in ((1, 1), (250, 2), (400, 4)):
            query = Query(room=room)
            assert len((await bench.store.find(query)).records) == most
            assert await listed(bench.store, query) == [a.id for a in accepted]

    async def test_a_cursor_of_another_list_is_refused(self, bench: Bench) -> None:
        await bench.store.register("sms", 1)
        accepted = await bench.add(1000, 2000, 3000)
        query = Query(limit=1)
        cursor = (await bench.store.find(query)).cursor
        assert cursor is not None
        others: list[dict[str, Any]] = [
            {"app": "sms"}, {"newest_first": True}, {"status": Status.PENDING}, {"tag": "t"}, {"error": "no"},
            {"job_name": "n"}, {"group": "g"}, {"request_id": "r"}, {"idempotency_key": "k"},
        ]  # fmt: skip
        for fields in others:
            with refused(InvalidRequest, cursor, "is not one of this list", "leave it out"):
                await bench.store.find(Query(cursor=cursor, **fields))
        for made in ("", "x", accepted[0].id, cursor[:-4], cursor[:-4] + "AAAA", "ä" + cursor[1:], "A" * len(cursor)):
            with refused(InvalidRequest, repr(made), "is not one of this list"):
                await bench.store.find(Query(cursor=made))
        moved_on = Query(cursor=cursor, limit=5, from_ms=bench.now + 1, most=7)
        assert len((await bench.store.find(moved_on)).records) == 2, "the range and the size of a page may differ"

    @pytest.mark.parametrize("text", ["\0", "a\udcff"])
    async def test_a_text_that_no_job_can_have_is_refused(self, bench: Bench, text: str) -> None:
        for name in ("tag", "job_name", "group", "request_id", "idempotency_key", "error"):
            with refused(InvalidRequest, name, "no job can have"):
                await bench.store.find(msgspec.structs.replace(Query(), **{name: text}))

    async def test_a_range_that_no_job_can_be_in_is_refused(self, bench: Bench) -> None:
        for name in ("from_ms", "to_ms"):
            for moment in (-1, 10**16):
                with refused(InvalidRequest, name, str(moment), "1970 to 9999"):
                    await bench.store.find(msgspec.structs.replace(Query(), **{name: moment}))


async def settled(bench: Bench, owner: ContractNode, some: Any, status: Status = Status.DONE, **fields: Any) -> None:
    """Let the owner record that these jobs ended so."""
    jobs: list[Job] = [await bench.job(accepted) for accepted in some]
    await owner.settle(*(owner.ended(job, status, **fields) for job in jobs))


async def first_look(store: Store, query: Query) -> list[str]:
    """What one short look at a few rows finds."""
    return [record.id for record in (await store.find(msgspec.structs.replace(query, most=10))).records]


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
