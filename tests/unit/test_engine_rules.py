"""Rules of the line protocol that a node keeps: each test brings about the one order of events its rule is for."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest

from infinite_scheduler.clock import sleep
from infinite_scheduler.engine.lane import LaneSettings
from infinite_scheduler.engine.quarantine import MANY
from infinite_scheduler.model import Accepted, Change, Job, JobId, JobSpec, Owner, Priority, Shard, Status, position
from infinite_scheduler.observe import events
from infinite_scheduler.store.cluster_state import NodeInfo, View
from infinite_scheduler.store.ownership import Claim, Request, Step
from infinite_scheduler.store.sql.protocol import anybody, owner
from infinite_scheduler.store.sql.statements import NewRow, Statements, Update
from tests.simulation.rules import without
from tests.unit.engine_rig import APP, EngineNode, EngineRig, rig

LANE_CALLS = ("take", "release", "reload", "advance", "scan", "requests", "answer", "settle", "mark")
"""What a node asks of the store in the lane of its shards."""


def before(node: EngineNode, name: str, act: Callable[..., Awaitable[Any]]) -> None:
    """Let something happen just before the node's next call of this name."""
    ownership: Any = node.engine._ownership
    call = getattr(ownership, name)

    async def once(*args: Any, **kwargs: Any) -> Any:
        setattr(ownership, name, call)
        await act(*args)
        return await call(*args, **kwargs)

    setattr(ownership, name, once)


async def write(world: EngineRig, body: Callable[[Statements], Any]) -> Any:
    """A transaction of somebody else."""
    return await world.database.session("door").write(body)


def new_row(due_ms: int, shard: int = 0) -> NewRow:
    spec = JobSpec(app=APP, scheduled_ms=due_ms, payload=b"{}")
    return NewRow(bytes(JobId.make(due_ms, shard, Priority.NORMAL)), spec, due_ms)


def shard_of(accepted: Accepted) -> Shard:
    return Shard(APP, JobId(accepted.key).shard)


def wish(world: EngineRig, accepted: Accepted) -> anybody.ChangeRequest:
    return anybody.ChangeRequest(
        id=os.urandom(16), change=Change.CANCEL, app=APP, key=accepted.key, due_ms=None, now_ms=world.now
    )


# Rule 2: one step at a time


async def test_a_command_begins_only_after_the_effect_of_the_step_under_way() -> None:
    async with rig() as world:
        node = await world.node().app().start()
        (held,) = await world.add(5000)
        await world.advance(100)
        ownership: Any = node.engine._ownership
        answer, mark = ownership.answer, ownership.mark
        answered, go_on = asyncio.Event(), asyncio.Event()
        knew: list[bool] = []

        async def slow_answer(*args: Any) -> Any:
            answers = await answer(*args)
            answered.set()
            await go_on.wait()
            return answers

        async def watched_mark(*args: Any) -> Any:
            knew.append(any(woken.key in t.held for t in node.owned_shards))
            return await mark(*args)

        ownership.answer, ownership.mark = slow_answer, watched_mark
        (woken,) = await world.add(4000)
        await world.until(answered.is_set)
        (job,) = [t.held[held.key] for t in node.owned_shards if held.key in t.held]
        command = asyncio.ensure_future(node.lane.mark([job], MANY))
        await world.pump.rest()
        assert knew == [], "the store has answered, but memory does not know it yet"
        go_on.set()
        await world.run(command)
        assert knew == [True]


async def test_two_steps_of_one_lane_never_overlap() -> None:
    async with rig(lookahead_ms=2000, fetch_interval_ms=1000) as world:

        async def flaky(job: Job) -> None:
            await sleep(world.clock, 20)
            if job.attempt == 1:
                raise ValueError

        node = await world.node().app(function=flaky).start()
        ownership: Any = node.engine._ownership
        under_way: list[str] = []
        overlaps: list[tuple[str, ...]] = []
        seen: set[str] = set()

        def watch(name: str) -> None:
            call = getattr(ownership, name)

            async def watched(*args: Any, **kwargs: Any) -> Any:
                seen.add(name)
                under_way.append(name)
                if len(under_way) > 1:
                    overlaps.append(tuple(under_way))
                try:
                    await sleep(world.clock, 1)
                    return await call(*args, **kwargs)
                finally:
                    under_way.remove(name)

            setattr(ownership, name, watched)

        for name in LANE_CALLS:
            watch(name)
        accepted = await world.spread(range(0, 6000, 50))
        for i, a in enumerate(accepted[::10]):
            cancel = world.change(Change.CANCEL, a)
            node.lane.take([])
            node.wire.loses_answers = i % 4 == 1
            await world.advance(300)
            node.wire.loses_answers = False
            await world.run(asyncio.gather(cancel, return_exceptions=True))
        node.lane.drain(list(node.lane.owners()))
        await world.until(lambda: node.told_of(events.ShardsReleased))
        await world.advance(20_000)
        assert await world.pending() == 0
        assert overlaps == []
        assert seen >= {"take", "release", "reload", "advance", "scan", "requests", "answer", "settle"}


# Rule 4: move the line, commit, then scan from the line that memory knew


async def test_a_row_that_commits_just_before_the_line_passes_it_is_found_without_a_wake() -> None:
    async with rig() as world:
        node = await world.node().app().start()
        await world.advance(100)
        inserted: list[NewRow] = []

        async def insert(steps: list[Step]) -> None:
            for step in steps:
                (known,) = [t.line_ms for t in node.owned_shards if t.shard == step.shard]
                rows = [new_row(due_ms, step.shard.number) for due_ms in (known, step.line_ms - 1)]
                chunks = {step.shard: rows}

                def body(tx: Statements, chunks: anybody.Chunks = chunks) -> None:
                    assert not anybody.insert(tx, chunks, world.now).woken, "from the line on the store is responsible"

                await write(world, body)
                inserted.extend(rows)

        before(node, "advance", insert)
        await world.until(lambda: inserted)
        await world.advance(40_000)
        assert sorted(world.delivered()) == sorted(row.key for row in inserted)
        assert all(d.at_ms == d.job.due_ms for d in world.deliveries)


async def test_the_range_that_the_line_passed_is_scanned_from_the_line_that_memory_knew() -> None:
    async with rig() as world:
        node = await world.node().app().start()
        await world.advance(100)
        rows = {t.shard: new_row(t.line_ms + 5, t.shard.number) for t in node.owned_shards}

        def a_former_self_moves_the_line(tx: Statements) -> None:
            assert not anybody.insert(tx, {shard: [row] for shard, row in rows.items()}, world.now).woken
            infos = tx.lock_shards(list(rows), exclusive=True).values()
            tx.write_shards([msgspec.structs.replace(info, line_ms=info.line_ms + 1000) for info in infos])

        await write(world, a_former_self_moves_the_line)
        await world.advance(40_000)
        assert sorted(world.delivered()) == sorted(row.key for row in rows.values())
        assert all(d.at_ms == d.job.due_ms for d in world.deliveries)


# Rule 5: row.due is the only truth


async def test_a_stale_entry_before_the_line_leaves_the_job_to_the_store() -> None:
    async with rig() as world:
        await world.node().app().start()
        (accepted,) = await world.add(60_000)
        stale = position(accepted.key, world.now + 40_000)
        await write(world, lambda tx: tx.insert_entries(APP, [(stale, accepted.key)]))
        await world.advance(26_000)  # the line has passed the entry, and not the job
        assert (await world.run(world.change(Change.CANCEL, accepted))).granted
        await world.advance(60_000)
        assert world.delivered() == []


# Rule 6: exactly the requests that were read are consumed


async def test_a_job_whose_wake_comes_between_read_and_answer_fires() -> None:
    async with rig() as world:
        node = await world.node().app().start()
        await world.advance(100)
        (first,) = await world.add(2000)
        row = new_row(world.now + 3000, shard_of(first).number)

        async def enqueue(*_: object) -> None:
            await write(world, lambda tx: anybody.enqueue(tx, {shard_of(first): [row]}, world.now))

        before(node, "answer", enqueue)
        await world.advance(4000)
        assert world.delivered() == [first.key, row.key]


# Rule 7: a decision whose request was taken back


async def test_a_job_whose_cancel_was_taken_back_before_its_decision_goes_back_onto_the_wheel_and_fires() -> None:
    async with rig() as world:
        node = await world.node().app().start()
        (accepted,) = await world.add(5000)
        await world.advance(100)
        asked = wish(world, accepted)
        given_up: list[Any] = []

        async def give_up(*_: object) -> None:
            assert not any(accepted.key in t.held for t in node.owned_shards), "off the wheel before it is decided"
            given_up.append(await write(world, lambda tx: anybody.give_up(tx, [asked])))

        await write(world, lambda tx: anybody.ask(tx, [asked], exclusive=False))
        before(node, "answer", give_up)
        await world.advance(5000)
        assert given_up == [{asked.id: None}]
        assert [(d.job.key, d.at_ms) for d in world.deliveries] == [(accepted.key, accepted.due_ms)]
        await world.advance(100)
        assert (await world.record(accepted)).status is Status.DONE


# Rule 9: after a takeover, requests first


async def test_after_a_takeover_every_request_is_answered_before_anything_fires() -> None:
    async with rig(lane=LaneSettings(request_poll_ms=700, answer_at_most=1)) as world:
        first = await world.node("n1").app().start()
        second = await world.node("n2").app().start()
        await world.until(lambda: len(second.owned_shards) == 2)
        await world.advance(5000)
        accepted = [a for a in await world.spread([1500] * 16) if shard_of(a) in first.lane.owners()]
        assert len(accepted) >= 6
        others = await world.pending() - len(accepted)
        await world.until(lambda: sum(a.key in t.held for t in first.owned_shards for a in accepted) == len(accepted))
        await first.crash(proven=False)
        wishes = [world.change(Change.CANCEL, a) for a in accepted]
        await world.until(lambda: len(second.owned_shards) == 4)
        await world.advance(3000)
        assert [(await world.run(w)).granted for w in wishes] == [True] * len(wishes)
        assert not {a.key for a in accepted} & set(world.delivered())
        assert len(world.deliveries) == others


# Rule 6: a flood of requests


async def test_a_flood_of_requests_is_answered_in_pages_and_keeps_no_other_shard_waiting() -> None:
    most = 4
    async with rig(lane=LaneSettings(request_poll_ms=700, answer_at_most=most)) as world:
        node = await world.node().app().start()
        await world.advance(100)
        ownership: Any = node.engine._ownership
        ask, pages = ownership.requests, list[Sequence[Request]]()

        async def watched(*args: Any, **options: Any) -> Sequence[Request]:
            pages.append(await ask(*args, **options))
            return pages[-1]

        ownership.requests = watched
        accepted = await world.spread([20_000] * 8)
        await world.advance(1000)
        flooded = min(accepted, key=shard_of)
        quiet = max(accepted, key=shard_of)  # an index has its requests behind those of the flood
        assert shard_of(flooded) != shard_of(quiet)
        wakes = [anybody.wake(shard_of(flooded), [flooded.key]) for _ in range(39)]
        pages.clear()
        await write(world, lambda tx: tx.insert_requests(wakes))
        wish = world.change(Change.CANCEL, quiet)
        assert (await world.run(wish)).granted
        await world.advance(5000)
        assert sum(map(len, pages)) == len(wakes) + 1
        assert {len(page) for page in pages} <= {0, 1, 3, most}
        asked = next(i for i, page in enumerate(pages) if any(request.change for request in page))
        assert asked <= 1, "the cancel is read after one page of the flood"


# Rule 10: a settle that changed no row


async def test_a_settle_that_changed_no_row_loads_the_shard_again_and_the_job_fires_as_it_stands() -> None:
    async with rig() as world:

        async def slow(job: Job) -> None:
            await sleep(world.clock, 500)

        node = await world.node().app(function=slow).start()
        (accepted,) = await world.add(1000)
        await world.advance(1200)
        changed = Update(
            key=accepted.key,
            was_status=Status.PENDING,
            was_attempt=1,
            was_due_ms=accepted.due_ms,
            status=Status.PENDING,
            attempt=2,
            due_ms=accepted.due_ms,
        )
        assert not await write(world, lambda tx: tx.update_jobs(APP, [changed]))
        await world.advance(2000)
        assert [(d.job.key, d.job.attempt) for d in world.deliveries] == [(accepted.key, 1), (accepted.key, 2)]
        assert (await world.record(accepted)).status is Status.DONE
        (reloaded,) = node.told_of(events.Reloaded)
        assert list(reloaded.shards) == [shard_of(accepted)]


# Rule 11: entries are inserted or ignored


async def test_a_job_that_comes_back_to_the_same_moment_twice_fires_once_at_it() -> None:
    async with rig() as world:
        node = await world.node().app().start()
        (accepted,) = await world.add(20_000)
        await world.advance(100)
        for _ in range(3):
            wanted = world.change(Change.RESCHEDULE, accepted, due_ms=accepted.due_ms)
            assert (await world.run(wanted)).granted
        node.lane.doubt(list(node.lane.owners()), "so that it is found by a scan")
        await world.advance(30_000)
        assert [(d.job.key, d.at_ms) for d in world.deliveries] == [(accepted.key, accepted.due_ms)]


# Lease: renewed first, then checked, then fired


async def test_after_a_lapse_nothing_fires_before_ownership_was_checked_after_the_renewal() -> None:
    async with rig() as world:
        node = await world.node().app().start()
        accepted = await world.spread([12_000] * 8)
        await world.advance(500)
        node.wire.away = True
        await world.advance(14_000)
        assert world.delivered() == []
        assert node.told_of(events.LeaseLapsed)
        ownership: Any = node.engine._ownership
        beat, reload = ownership.beat, ownership.reload
        order: list[str] = []

        async def watched_beat(**kwargs: Any) -> View:
            view: View = await beat(**kwargs)
            order.append("renewed" if kwargs["renew"] else "looked")
            assert not world.deliveries or "checked" in order
            return view

        async def watched_reload(*args: Any) -> Any:
            assert not world.deliveries
            grants = await reload(*args)
            assert not world.deliveries
            order.append("checked")
            return grants

        ownership.beat, ownership.reload = watched_beat, watched_reload
        node.wire.away = False
        await world.until(lambda: len(world.deliveries) == len(accepted))
        assert order.index("renewed") < order.index("checked")


async def test_a_node_that_lapsed_hands_over_nothing_of_a_shard_that_was_taken_while_it_renewed() -> None:
    async with rig() as world:
        node = await world.node().app().start()
        accepted = await world.spread([12_000] * 8)
        await world.advance(500)
        node.wire.away = True
        await world.advance(14_000)
        assert node.told_of(events.LeaseLapsed)
        other = NodeInfo(nonce="other", node_id="other", apps=frozenset({APP}), started_ms=world.now)
        ownership: Any = node.engine._ownership
        beat = ownership.beat
        granted: list[Shard] = []

        def take(tx: Statements) -> None:
            tx.write_node(other)
            (beats,) = [n.beat for n in tx.read_nodes() if n.nonce == node.nonce]
            claims = [Claim(shard=s, seen=o, beat=beats) for s, o in node.lane.owners().items()]
            granted.extend(grant.shard for grant in owner.take(tx, "other", claims))

        async def slow_beat(*, renew: bool, **said: Any) -> View:
            """A renewal that reads the shards, and then commits after the takeover: nothing locks it out."""
            if not renew or node.wire.away or granted:
                return await beat(renew=renew, **said)  # type: ignore[no-any-return]
            looked: View = await beat(renew=False, **said)
            await write(world, take)
            renewed: View = await beat(renew=True, **said)
            return msgspec.structs.replace(renewed, shards=looked.shards)

        ownership.beat = slow_beat
        node.wire.away = False
        await world.until(lambda: granted)
        assert len(granted) == 4
        await world.advance(3000)
        assert world.delivered() == []
        assert await world.statuses(accepted) == {Status.PENDING: 8}
        assert all(o == Owner("other", 2) for o in await owners_of(world))


async def test_after_a_stall_longer_than_the_lease_what_was_about_to_be_handed_over_waits_for_the_check() -> None:
    async with rig() as world:
        order: list[str] = []

        async def stalls(job: Job) -> None:
            order.append("handed over")
            if len(order) == 1:
                world.clock.advance(12_000)  # as a handler does that keeps the event loop busy

        node = await world.node().app(function=stalls).start()
        ownership: Any = node.engine._ownership
        reload = ownership.reload

        async def watched_reload(*args: Any) -> Any:
            grants = await reload(*args)
            order.append("checked")
            return grants

        ownership.reload = watched_reload
        await world.add(1000, 1000)
        await world.advance(20_000)
        assert order == ["handed over", "checked", "handed over"]


async def owners_of(world: EngineRig) -> list[Owner]:
    return [info.owner for info in (await world.client.survey()).view.shards]


# Every rule is needed


NEEDED: dict[str, Callable[[], Awaitable[None]]] = {
    "settle_in_lane": test_two_steps_of_one_lane_never_overlap,
    "answer_in_lane": test_two_steps_of_one_lane_never_overlap,
    "scan_starts_at_remembered_line": test_the_range_that_the_line_passed_is_scanned_from_the_line_that_memory_knew,
    "line_moves_before_scan": test_a_row_that_commits_just_before_the_line_passes_it_is_found_without_a_wake,
    "stale_entry_is_skipped": test_a_stale_entry_before_the_line_leaves_the_job_to_the_store,
    "only_read_requests_are_deleted": test_a_job_whose_wake_comes_between_read_and_answer_fires,
    "off_wheel_before_decision": (
        test_a_job_whose_cancel_was_taken_back_before_its_decision_goes_back_onto_the_wheel_and_fires
    ),
    "undecided_job_returns_to_wheel": (
        test_a_job_whose_cancel_was_taken_back_before_its_decision_goes_back_onto_the_wheel_and_fires
    ),
    "takeover_answers_requests_first": test_after_a_takeover_every_request_is_answered_before_anything_fires,
    "missed_settle_reloads": test_a_settle_that_changed_no_row_loads_the_shard_again_and_the_job_fires_as_it_stands,
    "lapse_stops_firing": test_after_a_lapse_nothing_fires_before_ownership_was_checked_after_the_renewal,
    "lapse_stops_firing.last_look": (
        test_after_a_stall_longer_than_the_lease_what_was_about_to_be_handed_over_waits_for_the_check
    ),
    "lapsed_node_renews_then_checks": (
        test_a_node_that_lapsed_hands_over_nothing_of_a_shard_that_was_taken_while_it_renewed
    ),
}
"""Rules that a node keeps, as tests/simulation/rules.py takes them out, and the test that fails without each."""


@pytest.mark.parametrize("name", NEEDED)
async def test_without_the_rule_its_test_fails(name: str) -> None:
    with without(name), pytest.raises(AssertionError):
        await NEEDED[name]()
