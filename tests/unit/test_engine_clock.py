"""Nodes whose store has a clock of its own: never early by either, and who is far off owns nothing."""

import asyncio

from infinite_scheduler.clock import sleep
from infinite_scheduler.model import Job, Status
from infinite_scheduler.observe import events
from tests.unit.engine_rig import EngineNode, EngineRig, rig


def ahead(world: EngineRig, ms: int, node: EngineNode) -> EngineNode:
    """The store's clock is so far ahead of the clock of this node's machine."""
    node.wire.store_ms = lambda: world.now + ms
    return node


async def test_a_job_waits_for_the_stores_clock() -> None:
    async with rig() as world:
        await ahead(world, -300, world.node()).app().start()
        accepted = await world.spread(range(1000, 3000, 100))
        await world.advance(10_000)
        assert await world.statuses(accepted) == {Status.DONE: 20}
        late = [d.at_ms - d.job.due_ms for d in world.deliveries]
        assert min(late) >= 300
        assert max(late) <= 303, "later than the uncertainty explains"


async def test_a_job_that_is_due_by_the_stores_clock_waits_for_the_machines() -> None:
    async with rig() as world:
        await ahead(world, 300, world.node()).app().start()
        await world.spread(range(1000, 3000, 100))
        await world.advance(10_000)
        assert {d.at_ms - d.job.due_ms for d in world.deliveries} == {0}


async def test_a_store_whose_clock_is_set_back_holds_jobs_back() -> None:
    async with rig() as world:
        node = await ahead(world, 0, world.node()).app().start()
        (accepted,) = await world.add(5000)
        await world.advance(1000)
        ahead(world, -2000, node)
        await world.advance(5500)
        assert world.delivered() == []
        await world.advance(1000)
        assert world.delivered() == [accepted.key]


async def test_a_suspect_too_waits_for_the_stores_clock() -> None:
    async with rig(shards=1) as world:
        first = await ahead(world, 0, world.node("n1")).app(function=never).start()
        await world.add(100)
        await world.advance(1000)
        await first.crash()
        second = ahead(world, -3000, world.node("n2")).app()
        await second.start()
        await world.advance(1500)
        assert [d.node for d in world.deliveries] == ["n1"]
        await world.advance(2500)
        assert [d.node for d in world.deliveries] == ["n1", "n2"]


async def test_a_suspect_that_is_fired_alone_waits_for_the_stores_clock() -> None:
    async with rig(shards=1) as world:
        await world.add(100)
        for n in range(3):
            node = await ahead(world, 0, world.node(f"n{n}")).app(function=never).start()
            await world.advance(500)
            await node.crash()
        last = await ahead(world, -4000, world.node("last")).app().start()
        await world.advance(2000)
        assert [d.node for d in world.deliveries] == ["n0", "n1", "n2"]
        await world.advance(3000)
        assert [d.node for d in world.deliveries] == ["n0", "n1", "n2", "last"]
        assert [e.batch for e in last.told_of(events.SuspectsFound)] == [1]


async def test_a_job_that_waits_for_a_free_place_is_held_back_when_the_stores_clock_is_set_back() -> None:
    async with rig(shards=1) as world:

        async def hold(job: Job) -> None:
            del job
            await sleep(world.clock, 3000)

        node = await ahead(world, 0, world.node()).app(function=hold, concurrency=1).start()
        (first,) = await world.add(0)
        (second,) = await world.add(1000)
        await world.advance(2000)
        ahead(world, -4000, node)
        await world.advance(2500)
        assert world.delivered() == [first.key]
        await world.advance(1000)
        assert world.delivered() == [first.key, second.key]


async def never(job: Job) -> None:
    del job
    await asyncio.Event().wait()


async def test_a_node_whose_clock_is_off_takes_nothing_and_says_so() -> None:
    async with rig() as world:
        node = await ahead(world, -7000, world.node()).app().start()
        await world.advance(10_000)
        assert node.engine.shards_owned == 0
        (told,) = node.told_of(events.ClockOff)
        assert told.offset_ms in (-7000, -6999)
        assert node.engine.clock_offset_ms() in (-7000, -6999)
        (row,) = (await world.client.survey()).view.nodes
        assert row.clock_off
        assert row.draining
        assert row.clock_offset_ms in (-7000, -6999)


async def test_a_node_whose_clock_goes_wrong_gives_up_what_it_has_and_goes_on_when_it_is_right() -> None:
    async with rig(shards=4) as world:
        first = await ahead(world, 0, world.node("n1")).app().start()
        second = await ahead(world, 0, world.node("n2")).app().start()
        accepted = await world.spread(range(0, 60_000, 200))
        await world.advance(10_000)
        assert (first.engine.shards_owned, second.engine.shards_owned) == (2, 2)
        ahead(world, 6000, first)
        await world.advance(5000)
        assert (first.engine.shards_owned, second.engine.shards_owned) == (0, 4)
        ahead(world, 0, first)
        await world.advance(15_000)
        assert (first.engine.shards_owned, second.engine.shards_owned) == (2, 2)
        assert len(first.told_of(events.ClockOff)) == len(first.told_of(events.ClockBack)) == 1
        await world.advance(40_000)
        assert await world.statuses(accepted) == {Status.DONE: 300}
        assert set(world.times().values()) == {1}


async def test_what_is_in_flight_when_a_clock_goes_wrong_is_settled_and_then_released() -> None:
    async with rig(shards=1) as world:
        gate = asyncio.Event()

        async def hold(job: Job) -> None:
            del job
            await gate.wait()

        node = await ahead(world, 0, world.node()).app(function=hold).start()
        accepted = await world.add(0)
        await world.advance(1000)
        ahead(world, 6000, node)
        await world.advance(60_000)
        assert node.engine.shards_owned == 1
        assert not node.told_of(events.DrainCalledOff), "it must not fire by that clock"
        gate.set()
        await world.advance(1000)
        assert node.engine.shards_owned == 0
        assert await world.statuses(accepted) == {Status.DONE: 1}


async def test_the_limit_can_be_set() -> None:
    async with rig(clock_limit_ms=500) as world:
        node = await ahead(world, -600, world.node()).app().start()
        assert node.engine.shards_owned == 0
        lenient = await ahead(world, -600, world.node("n2", clock_limit_ms=1000)).app().start()
        assert lenient.engine.shards_owned == 4


async def test_a_node_whose_clock_is_off_does_no_maintenance() -> None:
    async with rig() as world:
        nodes = [await ahead(world, 0, world.node(f"n{n}")).app().start() for n in range(2)]
        await world.advance(5000)
        assert [node.engine.membership.leads for node in nodes] == [True, False]
        ahead(world, 3_600_000, nodes[0])
        await world.advance(5000)
        assert [node.engine.membership.leads for node in nodes] == [False, True]
        ahead(world, 0, nodes[0])
        await world.advance(5000)
        assert [node.engine.membership.leads for node in nodes] == [True, False]
