"""Things that happen at the same time: each of these orders of events once went wrong, on paper or in a model."""

import asyncio
from collections import Counter

import pytest

from infinite_scheduler.clock import sleep
from infinite_scheduler.errors import Unavailable
from infinite_scheduler.model import Accepted, Change, Job, Status
from infinite_scheduler.observe import events
from infinite_scheduler.policy.retry import RetryPolicy
from tests.unit.engine_rig import EngineNode, EngineRig, rig

# Late insert behind the line


@pytest.mark.parametrize("delay", [0, 1, 49, 50, 51, 200, 4999, 29_999])
async def test_a_late_insert_behind_the_line_is_on_time(delay: int) -> None:
    async with rig() as world:
        await world.node().app().start()
        await world.advance(12_345)
        (accepted,) = await world.add(delay)
        await world.advance(delay + 60)
        assert world.delivered() == [accepted.key]
        assert world.deliveries[0].at_ms - accepted.due_ms <= max(0, 51 - delay)


async def test_a_late_insert_in_the_nodes_own_process_waits_for_no_poll() -> None:
    async with rig() as world:
        node = await world.node().app().start()
        await world.advance(12_345)
        client, world.client = world.client, node.store
        (accepted,) = await world.add(0)
        world.client = client
        await world.pump.rest()
        assert world.delivered() == [accepted.key]


async def test_inserts_while_the_line_moves_are_all_found() -> None:
    async with rig(lookahead_ms=2000, fetch_interval_ms=1000) as world:
        await world.node().app().start()
        accepted: list[Accepted] = []
        for i in range(300):
            accepted += await world.add(1990 + i % 20)
            await world.advance(7)
        await world.advance(5000)
        assert Counter(world.delivered()) == Counter(a.key for a in accepted)
        assert max(d.at_ms - d.job.due_ms for d in world.deliveries) == 0


# Request consumed, then crash


async def test_a_wake_that_was_consumed_before_a_crash_is_not_lost() -> None:
    async with rig() as world:
        first = await world.node("n1").app().start()
        await world.advance(10_000)
        (accepted,) = await world.add(2000)
        await world.until(lambda: any(accepted.key in t.held for t in first.owned_shards))
        await first.crash()
        await world.node("n2").app().start()
        await world.advance(3000)
        assert world.delivered() == [accepted.key]


async def test_a_job_from_before_low_that_was_woken_is_found_after_a_crash() -> None:
    async with rig() as world:
        first = await world.node("n1").app().start()
        await world.advance(20_000)
        first.engine.dispatchers["mail"].paused = True
        (accepted,) = await world.add(-5000)
        await world.until(lambda: any(accepted.key in t.held for t in first.owned_shards))
        await world.advance(500)
        await first.crash()
        await world.node("n2").app().start()
        await world.advance(3000)
        assert world.delivered() == [accepted.key]


async def test_a_cancel_that_was_consumed_before_a_crash_holds() -> None:
    async with rig() as world:
        first = await world.node("n1").app().start()
        (accepted,) = await world.add(10_000)
        await world.advance(1000)
        wish = world.change(Change.CANCEL, accepted)
        await world.until(lambda: not any(accepted.key in t.held for t in first.owned_shards))
        await first.crash()
        assert (await world.run(wish)).granted
        await world.node("n2").app().start()
        await world.advance(20_000)
        assert not world.deliveries


async def test_a_cancel_that_nobody_consumed_before_a_crash_is_decided_by_the_next_node() -> None:
    async with rig() as world:
        first = await world.node("n1").app().start()
        (accepted,) = await world.add(10_000)
        await world.advance(1000)
        first.wire.away = True
        wish = world.change(Change.CANCEL, accepted)
        await world.advance(500)
        assert not wish.done()
        await first.crash()
        await world.node("n2").app().start()
        assert (await world.run(wish)).granted
        await world.advance(20_000)
        assert not world.deliveries


# Cancel against due


@pytest.mark.parametrize("offset", range(-5, 6))
async def test_a_cancel_around_the_due_moment_is_granted_or_the_job_fires_never_both(offset: int) -> None:
    async with rig() as world:

        async def slow(job: Job) -> None:
            await sleep(world.clock, 3)

        await world.node().app(function=slow).start()
        accepted = await world.add(*[1000] * 10)
        await world.advance(1000 + offset)
        wishes = [world.change(Change.CANCEL, a) for a in accepted]
        await world.advance(1000)
        for a, wish in zip(accepted, wishes, strict=True):
            granted = (await world.run(wish)).granted
            assert granted != (a.key in world.delivered())
            expected = Status.CANCELLED if granted else Status.DONE
            assert (await world.record(a)).status is expected


async def test_cancels_from_the_nodes_own_process_around_the_due_moment() -> None:
    async with rig() as world:
        node = await world.node().app().start()
        accepted = await world.add(*(1000 + i + i * 7 % 11 - 5 for i in range(100)))
        await world.advance(1000)
        verdicts = {}
        for a in accepted:
            await world.advance(1)
            verdicts[a.key] = await world.run(node.store.change(Change.CANCEL, a.key, app="mail", timeout_ms=15_000))
        await world.advance(1000)
        for a in accepted:
            assert verdicts[a.key].granted != (a.key in world.delivered())
        assert 0 < len(world.deliveries) < 100


@pytest.mark.parametrize("offset", range(-5, 6))
async def test_a_reschedule_around_the_due_moment_moves_the_job_or_is_too_late(offset: int) -> None:
    async with rig() as world:
        await world.node().app().start()
        (accepted,) = await world.add(1000)
        await world.advance(1000 + offset)
        later = accepted.due_ms + 5000
        wish = world.change(Change.RESCHEDULE, accepted, due_ms=later)
        await world.advance(10_000)
        granted = (await wish).granted
        assert [d.at_ms for d in world.deliveries] == [later if granted else accepted.due_ms]


# Two reschedules


@pytest.mark.parametrize(("first", "second"), [(5000, 9000), (9000, 5000), (60_000, 5000), (5000, 60_000), (100, 0)])
async def test_of_two_reschedules_the_last_acknowledged_holds(first: int, second: int) -> None:
    async with rig() as world:
        await world.node().app().start()
        near, far = await world.add(20_000, 120_000)
        await world.advance(100)
        wanted = {}
        for accepted in (near, far):
            for delay in (first, second):
                wanted[accepted.key] = world.now + delay
                assert (await world.run(world.change(Change.RESCHEDULE, accepted, due_ms=world.now + delay))).granted
        await world.advance(130_000)
        times = {d.job.key: d.at_ms for d in world.deliveries}
        assert len(world.deliveries) == 2
        assert all(0 <= times[key] - wanted[key] <= 60 for key in wanted)


async def test_of_two_reschedules_at_once_one_holds_and_the_job_fires_once() -> None:
    async with rig() as world:
        await world.node().app().start()
        (accepted,) = await world.add(20_000)
        await world.advance(100)
        moments = [world.now + 3000, world.now + 7000]
        wishes = [world.change(Change.RESCHEDULE, accepted, due_ms=ms) for ms in moments]
        await world.advance(30_000)
        assert [(await wish).granted for wish in wishes] == [True, True]
        assert len(world.deliveries) == 1
        assert world.deliveries[0].at_ms in moments


async def test_a_job_moved_away_and_back_fires_once_at_its_first_moment() -> None:
    async with rig() as world:
        await world.node().app().start()
        (accepted,) = await world.add(20_000)
        await world.advance(100)
        for delay in (60_000, 5000, 90_000):
            await world.run(world.change(Change.RESCHEDULE, accepted, due_ms=world.now + delay))
        await world.run(world.change(Change.RESCHEDULE, accepted, due_ms=accepted.due_ms))
        await world.advance(100_000)
        assert [d.at_ms for d in world.deliveries] == [accepted.due_ms]


async def test_run_now_fires_at_once_and_only_once() -> None:
    async with rig() as world:
        await world.node().app().start()
        near, far = await world.add(20_000, 3_600_000)
        await world.advance(1000)
        for accepted in (near, far):
            assert (await world.run(world.change(Change.RUN_NOW, accepted))).granted
        await world.advance(30_000)
        assert Counter(world.delivered()) == {near.key: 1, far.key: 1}
        assert all(d.at_ms < near.due_ms for d in world.deliveries)


async def test_a_retry_by_hand_of_a_failed_job_fires_as_its_next_attempt() -> None:
    async with rig() as world:

        async def fail_once(job: Job) -> None:
            if job.attempt < 7:
                raise ValueError

        await world.node().app(function=fail_once).start()
        (accepted,) = await world.add(1000)
        await world.advance(60_000)
        assert (await world.record(accepted)).status is Status.FAILED
        assert (await world.run(world.change(Change.RETRY, accepted))).granted
        await world.advance(1000)
        assert world.deliveries[-1].job.attempt == 7
        assert (await world.record(accepted)).status is Status.DONE


async def test_a_cancel_while_the_owner_is_silent_is_unavailable_and_the_job_fires() -> None:
    async with rig() as world:
        node = await world.node().app().start()
        (accepted,) = await world.add(25_000)
        await world.advance(1000)
        node.wire.away = True
        wish = world.change(Change.CANCEL, accepted)
        await world.advance(15_100)
        with pytest.raises(Unavailable):
            await world.run(wish)
        node.wire.away = False
        await world.advance(20_000)
        assert world.delivered() == [accepted.key]
        assert (await world.record(accepted)).status is Status.DONE


# Takeover during settle


async def test_a_takeover_during_a_settle_leaves_the_job_to_the_new_owner() -> None:
    async with rig() as world:
        first = await world.node("n1").app().start()
        (accepted,) = await world.add(1000)
        await world.advance(999)
        first.wire.away = True
        await world.advance(100)
        assert [(d.node, d.job.attempt) for d in world.deliveries] == [("n1", 1)]
        second = world.node("n2").app()
        await second.start()
        await world.advance(11_000)
        assert [(d.node, d.job.attempt) for d in world.deliveries] == [("n1", 1), ("n2", 1)], "the same delivery again"
        first.wire.away = False
        await world.advance(10_000)
        record = await world.record(accepted)
        assert (record.status, record.attempts) == (Status.DONE, ())
        assert len(world.deliveries) == 2
        assert sum(e.dropped for e in first.told_of(events.ShardsLost)) >= 1


async def test_a_settle_whose_answer_is_lost_hands_nothing_over_twice() -> None:
    async with rig() as world:

        async def flaky(job: Job) -> None:
            if job.attempt == 1:
                raise ValueError

        node = await world.node().app(function=flaky).start()
        accepted = await world.add(*[1000] * 20)
        await world.advance(1000)
        node.wire.loses_answers = True
        await world.advance(2500)
        node.wire.loses_answers = False
        await world.advance(10_000)
        assert await world.statuses(accepted) == {Status.DONE: 20}
        assert Counter((d.job.key, d.job.attempt) for d in world.deliveries) == {
            (a.key, n): 1 for a in accepted for n in (1, 2)
        }


async def test_an_insert_whose_answer_is_lost_makes_one_job() -> None:
    async with rig() as world:
        node = await world.node().app().start()
        node.wire.loses_answers = True
        client, world.client = world.client, node.store
        adding = asyncio.ensure_future(world.add(5000, 6000))
        await world.advance(60)
        node.wire.loses_answers = False
        accepted = await world.run(adding)
        world.client = client
        await world.advance(30_000)
        assert Counter(world.delivered()) == Counter(a.key for a in accepted)
        assert len(world.deliveries) == 2


# The store is away for 20 s


async def away(world: EngineRig, node: EngineNode, ms: int, *, answers_only: bool) -> None:
    setattr(node.wire, "loses_answers" if answers_only else "away", True)
    await world.advance(ms)
    node.wire.loses_answers = node.wire.away = False


@pytest.mark.parametrize("answers_only", [False, True], ids=["nothing gets through", "answers are lost"])
async def test_nothing_is_lost_or_doubled_while_the_store_is_away_for_20_s(answers_only: bool) -> None:
    async with rig() as world:

        async def slow(job: Job) -> None:
            await sleep(world.clock, 500)

        node = await world.node().app(function=slow).start()
        accepted = await world.spread(range(500, 60_000, 250))
        await world.advance(5000)
        before = len(world.deliveries)
        await away(world, node, 20_000, answers_only=answers_only)
        during = len(world.deliveries) - before
        assert during <= 45, "it fires for as long as its lease at most"
        await world.advance(60_000)
        assert set(world.times().values()) == {1}
        assert await world.statuses(accepted) == {Status.DONE: len(accepted)}
        assert [type(e) for e in node.told if isinstance(e, events.StoreAway | events.StoreBack)] == [
            events.StoreAway,
            events.StoreBack,
        ]
        assert len(node.told_of(events.LeaseLapsed)) == 1


async def test_outcomes_are_kept_while_the_store_is_away() -> None:
    async with rig() as world:
        node = await world.node().app().start()
        accepted = await world.add(*[1000] * 50)
        await world.advance(999)
        node.wire.away = True
        await world.advance(8000)
        assert len(world.deliveries) == 50
        assert await world.statuses(accepted) == {Status.PENDING: 50}
        node.wire.away = False
        await world.advance(2000)
        assert await world.statuses(accepted) == {Status.DONE: 50}
        assert len(world.deliveries) == 50


async def test_memory_stays_bounded_while_the_store_is_away() -> None:
    budget = 200_000
    async with rig(budget_bytes=budget) as world:
        node = await world.node().app().start()
        await world.spread(range(500, 20_000, 10))
        await world.advance(400)
        node.wire.away = True
        for _ in range(30):
            await world.advance(1000)
            assert node.engine.bytes_held <= budget
        node.wire.away = False
        await world.advance(30_000)
        assert set(world.times().values()) == {1}
        assert await world.pending() == 0


async def test_a_store_that_comes_and_goes_loses_and_doubles_nothing() -> None:
    async with rig() as world:

        async def flaky(job: Job) -> None:
            await sleep(world.clock, 40)
            if job.attempt == 1 and job.due_ms % 3 == 0:
                raise ValueError

        node = await world.node().app(function=flaky).start()
        accepted: list[Accepted] = []
        for i in range(60):
            accepted += await world.add(*(37 * n % 3000 for n in range(5)))
            node.wire.away = i % 3 == 1
            node.wire.loses_answers = i % 5 == 2
            await world.advance(170)
        node.wire.away = node.wire.loses_answers = False
        await world.advance(20_000)
        assert await world.statuses(accepted) == {Status.DONE: 300}
        assert max(Counter((d.job.key, d.job.attempt) for d in world.deliveries).values()) == 1


async def test_a_retry_behind_the_line_can_be_cancelled_without_its_owner() -> None:
    async with rig() as world:

        async def fail(job: Job) -> None:
            raise LookupError("no")

        retry = RetryPolicy(delays=["2m"], jitter=0)
        await world.node().app(function=fail, retry=retry).start()
        (accepted,) = await world.add(1000)
        await world.advance(3000)
        assert (await world.run(world.change(Change.CANCEL, accepted))).granted
        await world.advance(180_000)
        assert world.delivered() == [accepted.key], "the row has decided, and no wheel holds it"


async def test_a_job_that_waits_for_its_turn_and_is_rescheduled_waits_for_its_new_moment() -> None:
    async with rig(shards=1) as world:
        go_on = asyncio.Event()

        async def hold(job: Job) -> None:
            await go_on.wait()

        await world.node().app(function=hold, concurrency=1).start()
        first, second, *_ = await world.add(1000, 1100, *[1200] * 40)
        await world.advance(3000)
        assert world.delivered() == [first.key]
        moved_ms = world.now + 20_000
        assert (await world.run(world.change(Change.RESCHEDULE, second, due_ms=moved_ms))).granted
        go_on.set()
        await world.advance(40_000)
        assert [d.at_ms for d in world.deliveries if d.job.key == second.key] == [moved_ms]
