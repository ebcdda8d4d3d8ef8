"""Memory is bounded in bytes whatever way jobs come in, and within it no priority starves."""

import asyncio
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from infinite_scheduler.clock import sleep
from infinite_scheduler.engine.window import ROOM
from infinite_scheduler.model import JOB_BYTES, Change, Job, Priority, Status
from infinite_scheduler.store.ownership import Page, Scan
from tests.unit.engine_rig import EngineNode, EngineRig, rig

MIB = 1 << 20
LARGE = b'"' + b"x" * (MIB - 2) + b'"'

SERVED_MS = 10
"""What a handler takes that hands over one job after the other."""


def busy(world: EngineRig) -> EngineNode:
    """A node that hands over a hundred jobs a second."""

    async def slow(job: Job) -> None:
        del job
        await sleep(world.clock, SERVED_MS)

    return world.node().app(function=slow, concurrency=1)


def noted(node: EngineNode) -> list[Scan]:
    """The pages that the node reads from now on."""
    scans: list[Scan] = []
    read = node.lane._ownership.scan

    async def note(scan: Scan) -> Page:
        scans.append(scan)
        return await read(scan)

    node.lane._ownership.scan = note  # type: ignore[method-assign]
    return scans


def share_of(world: EngineRig, priority: Priority, since: int = 0) -> float:
    """Which part of what was handed over had this priority."""
    count = Counter(d.job.priority for d in world.deliveries[since:])
    return count[priority] / count.total()


# No priority starves


@pytest.mark.parametrize("scanned", [False, True], ids=["woken", "scanned"])
async def test_high_ones_that_come_faster_than_they_are_served_let_one_in_nine_of_the_low_ones_through(
    scanned: bool,
) -> None:
    budget = 200 * (JOB_BYTES + 2)
    async with rig(budget_bytes=budget) as world:
        await world.add(*[0] * 400, priority=Priority.LOW)
        await world.add(*range(3000 if scanned else 0), priority=Priority.HIGH)
        await world.advance(10_000)
        node = await busy(world).start()
        for _ in range(120):
            await world.add(*range(0, 0 if scanned else 100, 5), priority=Priority.HIGH)
            await world.advance(100)
            assert node.engine.bytes_held <= budget
        assert len(world.deliveries) >= 1150
        assert 1 / 10 < share_of(world, Priority.LOW, since=300) < 1 / 8
        assert max(world.times().values()) == 1


async def test_normal_and_low_ones_both_have_their_share_when_high_ones_never_end() -> None:
    async with rig(budget_bytes=200 * (JOB_BYTES + 2)) as world:
        for priority in (Priority.LOW, Priority.NORMAL):
            await world.add(*[0] * 500, priority=priority)
        await busy(world).start()
        for _ in range(120):
            await world.add(*range(0, 100, 5), priority=Priority.HIGH)
            await world.advance(100)
        assert 1 / 12 < share_of(world, Priority.LOW, since=300) < 1 / 8
        assert 1 / 12 < share_of(world, Priority.NORMAL, since=300) < 1 / 8


async def test_what_was_passed_over_is_done_in_the_end() -> None:
    async with rig(budget_bytes=200 * (JOB_BYTES + 2)) as world:
        accepted = [a for p in (Priority.LOW, Priority.NORMAL) for a in await world.add(*[0] * 300, priority=p)]
        await busy(world).start()
        for _ in range(50):
            accepted += await world.add(*range(0, 100, 5), priority=Priority.HIGH)
            await world.advance(100)
        await world.advance(30_000)
        assert await world.statuses(accepted) == {Status.DONE: 1600}
        assert set(world.times().values()) == {1}


async def test_a_low_one_that_is_not_due_yet_takes_the_place_of_no_high_one() -> None:
    async with rig(budget_bytes=100 * (JOB_BYTES + 2)) as world:
        node = await world.node().app().start()
        node.engine.dispatchers["mail"].paused = True
        high = {a.key for a in await world.add(*[0] * 100, priority=Priority.HIGH)}
        await world.advance(100)
        scans = noted(node)
        await world.add(20_000, priority=Priority.LOW)
        await world.advance(100)
        assert {key for owned in node.owned_shards for key in owned.held} == high
        assert not scans, "not even for a moment: it would be read again"
        (overdue,) = await world.add(0, priority=Priority.LOW)
        await world.advance(100)
        held = {key for owned in node.owned_shards for key in owned.held}
        assert overdue.key in held
        assert len(held & high) == 99


# Bytes, not jobs


@contextmanager
def measured(most: int) -> Iterator[None]:
    """Whatever is done here takes no more bytes at a time than this."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] <= most
    finally:
        tracemalloc.stop()


def let_go(world: EngineRig) -> None:
    """Keep nothing of what was handed over, or the test would be what fills the memory."""
    light = [msgspec.structs.replace(d.job, payload=b"") for d in world.deliveries]
    world.deliveries[:] = [d._replace(job=job) for d, job in zip(world.deliveries, light, strict=True)]


async def test_jobs_that_a_wake_names_are_read_as_far_as_there_is_room_and_none_is_lost() -> None:
    budget = ROOM + 4 * MIB
    async with rig(budget_bytes=budget) as world:
        node = await world.node().app().start()
        await world.advance(1000)
        accepted = await world.add(*range(2000, 2048), payload=LARGE)
        with measured(budget + ROOM + 4 * MIB):
            await world.advance(1000)
            assert budget / 2 < node.engine.bytes_held <= budget
            while world.now < accepted[-1].due_ms + 500:
                await world.advance(5)
                let_go(world)
        assert world.times() == {a.key: 1 for a in accepted}
        assert max(d.at_ms - d.job.due_ms for d in world.deliveries) <= 100


async def test_jobs_that_were_moved_are_read_as_far_as_there_is_room_and_none_is_lost() -> None:
    budget = 4 * MIB
    async with rig(budget_bytes=budget) as world:
        accepted = await world.add(*range(90_000, 90_048), payload=LARGE)
        for n, a in enumerate(accepted):
            assert (
                await world.client.change(Change.RESCHEDULE, a.key, due_ms=world.now + 5000 + n, timeout_ms=15_000)
            ).granted
        with measured(budget + 2 * budget + 2 * MIB):
            node = await world.node().app().start()
            await world.advance(1000)
            assert budget / 2 < node.engine.bytes_held <= budget
            for _ in range(1000):
                await world.advance(5)
                let_go(world)
        assert world.times() == {a.key: 1 for a in accepted}


async def test_a_page_is_read_for_the_room_there_is() -> None:
    budget = 3 * MIB
    async with rig(budget_bytes=budget) as world:
        await world.add(*range(10_000, 10_012), payload=LARGE)
        node = await world.node().app().start()
        scans = noted(node)
        await world.advance(20_000)
        assert len(world.deliveries) == 12
        assert scans
        assert max(scan.room for scan in scans) <= budget


async def test_large_jobs_are_read_ahead_before_memory_is_empty() -> None:
    async with rig(budget_bytes=32 * MIB) as world:
        await world.add(*range(10_000, 40_000, 1000), payload=LARGE)
        node = await world.node().app().start()
        await world.advance(9000)
        assert node.engine.bytes_held > 15 * MIB, "more than one page is held"


# What is not held any more


def queued(node: EngineNode) -> int:
    """How many jobs of the app wait in the queues of the node, suspects among them."""
    waiting = [level.waiting["mail"] for level in node.engine._quarantine._levels.values()]
    return sum(map(len, [node.engine.dispatchers["mail"]._ready, *waiting]))


def held(node: EngineNode) -> int:
    return sum(len(owned.held) for owned in node.owned_shards)


async def load_again(world: EngineRig, node: EngineNode, *, times: int) -> None:
    """Let all shards be loaded again, so often."""
    for _ in range(times):
        node.lane.doubt(list(node.lane.owned_shards.by_shard), "a write to the store was not answered")
        assert queued(node) == 0
        await world.advance(1000)


async def test_a_paused_app_that_is_loaded_again_and_again_keeps_each_job_once() -> None:
    async with rig() as world:
        node = await world.node().app().start()
        await world.client.pause("mail", paused=True)
        await world.advance(5000)
        accepted = await world.spread([0] * 300)
        await world.advance(1000)
        await load_again(world, node, times=8)
        assert queued(node) == held(node) == 300
        await world.client.pause("mail", paused=False)
        await world.advance(5000)
        assert world.times() == {a.key: 1 for a in accepted}


async def test_jobs_behind_handlers_that_take_long_are_kept_once_however_often_they_are_loaded() -> None:
    async with rig() as world:
        done = asyncio.Event()

        async def slow(job: Job) -> None:
            del job
            await done.wait()

        node = await world.node().app(function=slow, concurrency=2).start()
        accepted = await world.spread([0] * 300)
        await world.advance(1000)
        await load_again(world, node, times=8)
        assert queued(node) == held(node) == 298
        done.set()
        await world.advance(5000)
        assert world.times() == {a.key: 1 for a in accepted}


async def test_suspects_of_a_paused_app_are_kept_once_however_often_they_are_loaded() -> None:
    async with rig() as world:
        first = await world.node().app().start()
        await world.client.pause("mail", paused=True)
        await world.advance(5000)
        accepted = await world.spread([0] * 300)
        await first.crash()
        node = await world.node("n2").app().start()
        await world.advance(1000)
        assert sum(len(owned.quarantined) for owned in node.owned_shards) == 300
        await load_again(world, node, times=8)
        assert queued(node) == held(node) == 300
        await world.client.pause("mail", paused=False)
        await world.advance(10_000)
        assert world.times() == {a.key: 1 for a in accepted}


@pytest.mark.parametrize("suspects", [False, True])
async def test_jobs_of_a_paused_app_that_are_moved_again_and_again_leave_little_behind(suspects: bool) -> None:
    async with rig() as world:
        node = await world.node().app().start()
        await world.client.pause("mail", paused=True)
        await world.advance(5000)
        accepted = await world.spread([0] * 20)
        await world.advance(1000)
        if suspects:
            await node.crash()
            node = await world.node("n2").app().start()
            await world.advance(1000)
        for _ in range(8):
            for a in accepted:
                moved = world.change(Change.RESCHEDULE, a, due_ms=world.now)
                assert (await world.run(moved)).granted
            await world.advance(1000)
            assert held(node) == 20
            assert queued(node) <= 2 * 20 + 1
        for a in accepted:
            assert (await world.run(world.change(Change.CANCEL, a))).granted
        await world.advance(1000)
        assert queued(node) == 0
        assert node.engine.oldest_overdue_ms() == 0


async def test_a_node_that_is_drained_has_nothing_overdue() -> None:
    async with rig() as world:
        node = await world.node().app().start()
        await world.client.pause("mail", paused=True)
        await world.advance(5000)
        await world.spread([0] * 50)
        await world.advance(5000)
        assert node.engine.oldest_overdue_ms() >= 5000
        await world.client.drain("n1", draining=True)
        await world.advance(10_000)
        assert node.engine.shards_owned == 0
        assert node.engine.oldest_overdue_ms() == 0
        assert queued(node) == 0
