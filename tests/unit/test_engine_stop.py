"""A node that stops: what is in flight ends, is settled, and the shards are free for others."""

import asyncio
import threading

import pytest

from infinite_scheduler.clock import sleep
from infinite_scheduler.model import Job, Status
from infinite_scheduler.observe import events
from tests.unit.engine_rig import EngineRig, rig


async def released(world: EngineRig) -> bool:
    return all(info.released for info in (await world.client.survey()).view.shards)


async def test_a_stop_waits_for_what_is_in_flight_settles_it_and_releases() -> None:
    async with rig() as world:

        async def slow(job: Job) -> None:
            await sleep(world.clock, 4000)

        node = await world.node().app(function=slow).start()
        accepted = await world.add(*[1000] * 10)
        await world.advance(2000)
        before = world.now
        assert await node.stop()
        assert 2900 <= world.now - before <= 3200
        assert await world.statuses(accepted) == {Status.DONE: 10}
        assert await released(world)
        assert not (await world.client.survey()).view.nodes


async def test_a_node_that_stops_hands_nothing_more_over() -> None:
    async with rig() as world:

        async def slow(job: Job) -> None:
            await sleep(world.clock, 4000)

        node = await world.node().app(function=slow, concurrency=2).start()
        accepted = await world.add(*range(1000, 5000, 100))
        await world.advance(1500)
        assert len(world.deliveries) == 2
        assert await node.stop()
        assert len(world.deliveries) == 2
        assert (await world.statuses(accepted)) == {Status.DONE: 2, Status.PENDING: 38}
        await world.node("n2").app().start()
        await world.advance(10_000)
        assert await world.statuses(accepted) == {Status.DONE: 40}
        assert set(world.times().values()) == {1}


async def test_an_idle_node_stops_at_once() -> None:
    async with rig() as world:
        node = await world.node().app().start()
        before = world.now
        assert await node.stop()
        assert world.now - before <= 50


@pytest.mark.parametrize("rounds", range(30))
async def test_a_stop_during_the_start_is_clean_too(rounds: int) -> None:
    async with rig() as world:
        await world.add(0, 0, 0)
        node = world.node().app()
        await node.store.open()
        await node.store.register("mail", world.shards)
        starting = asyncio.ensure_future(node.start())
        while not hasattr(node, "engine"):  # noqa: ASYNC110
            await asyncio.sleep(0)
        for _ in range(rounds):
            await asyncio.sleep(0)
        before = world.now
        clean = await world.run(node.engine.stop())
        node.alive = False
        await starting
        assert clean
        assert world.now - before <= 100
        assert await released(world)


async def test_async_handlers_are_interrupted_at_the_time_out_and_settled_as_a_retry() -> None:
    async with rig(stop_timeout_ms=5000) as world:

        async def hang(job: Job) -> None:
            if job.attempt == 1:
                await asyncio.Event().wait()

        node = await world.node().app(function=hang).start()
        accepted = await world.add(1000, 1000, 1000)
        await world.advance(2000)
        before = world.now
        assert await node.stop()
        assert 5000 <= world.now - before <= 5500
        assert await released(world)
        for a in accepted:
            record = await world.record(a)
            assert (record.status, record.job.attempt) == (Status.PENDING, 2)
            assert "interrupted" in (record.attempts[0].error or "")
        await world.node("n2").app().start()
        await world.advance(2000)
        assert await world.statuses(accepted) == {Status.DONE: 3}
        assert [d.job.attempt for d in world.deliveries] == [1, 1, 1, 2, 2, 2]


async def test_sync_handlers_that_run_on_make_the_stop_unclean_and_keep_their_shards() -> None:
    async with rig(stop_timeout_ms=5000, patience_s=0.05) as world:
        begun, gate = threading.Event(), threading.Event()

        def block(job: Job) -> None:
            begun.set()
            gate.wait()

        node = await world.node().app(function=block).start()
        (stuck,) = await world.add(1000)
        await world.advance(2000)
        assert await asyncio.to_thread(begun.wait, 20)
        assert not await node.stop()
        (told,) = node.told_of(events.StillRunning)
        assert list(told.job_ids) == [stuck.id]
        assert (await world.record(stuck)).status is Status.PENDING
        shards = (await world.client.survey()).view.shards
        kept = [info.shard.number for info in shards if not info.released]
        assert kept == [stuck.key[6] << 4 & 0xFF | stuck.key[7] >> 4]
        gate.set()


async def test_what_a_sync_handler_returns_after_the_stop_is_settled_by_nobody() -> None:
    async with rig(stop_timeout_ms=1000, patience_s=0.05) as world:
        begun, gate = threading.Event(), threading.Event()

        def block(job: Job) -> None:
            begun.set()
            gate.wait()

        node = await world.node().app(function=block).start()
        (stuck,) = await world.add(1000)
        await world.advance(2000)
        assert await asyncio.to_thread(begun.wait, 20)
        assert not await node.stop()
        gate.set()
        await world.advance(1000)
        record = await world.record(stuck)
        assert (record.status, record.job.attempt) == (Status.PENDING, 1)
        world.dead.add(node.nonce)
        await world.node("n2").app().start()
        await world.advance(5000)
        assert (await world.record(stuck)).status is Status.DONE
        assert [d.job.attempt for d in world.deliveries] == [1, 1], "as after a crash: the same delivery again"


async def test_a_stop_while_the_store_is_away_says_that_it_was_not_clean() -> None:
    async with rig(stop_timeout_ms=3000) as world:
        node = await world.node().app().start()
        node.wire.away = True
        assert not await node.stop()
        assert not await released(world)


async def test_a_stop_settles_what_ended_while_the_store_was_away_for_a_moment() -> None:
    async with rig() as world:
        node = await world.node().app().start()
        accepted = await world.add(*[1000] * 20)
        await world.advance(999)
        node.wire.away = True
        await world.advance(500)
        assert len(world.deliveries) == 20
        world.clock.call_later(3000, lambda: setattr(node.wire, "away", False))
        assert await node.stop()
        assert await world.statuses(accepted) == {Status.DONE: 20}


async def test_no_task_is_left_after_a_stop() -> None:
    before = {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
    async with rig() as world:
        node = await world.node().app().start()
        await world.add(1000)
        await world.advance(3000)
        await node.stop()
        after = {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
        assert after == before
