"""The safety net and the gauges that show trouble."""

from collections.abc import Callable
from typing import Any

import pytest

from infinite_scheduler.clock import sleep
from infinite_scheduler.engine.window import Window
from infinite_scheduler.errors import StoreUnavailable
from infinite_scheduler.model import Job, Status
from infinite_scheduler.observe import events
from infinite_scheduler.store.ownership import Page, Scan
from tests.unit.engine_rig import rig


async def test_a_job_that_memory_lost_is_found_and_told() -> None:
    async with rig() as world:
        world.alarms_expected = (events.Swept,)
        node = await world.node().app().start()
        lost, kept = await world.add(5000, 6000)
        await world.advance(1000)
        (owned,) = [t for t in node.owned_shards if lost.key in t.held]
        window = node.lane._windows["mail"]
        window.take_off(lost.key, owned)
        await world.advance(10_000)
        assert world.delivered() == [kept.key]
        await world.advance(120_000)
        assert world.delivered() == [kept.key, lost.key]
        (swept,) = node.told_of(events.Swept)
        assert (swept.app, swept.count, list(swept.job_ids)) == ("mail", 1, [lost.id])
        assert (await world.record(lost)).status is Status.DONE


async def test_the_sweep_leaves_alone_what_is_held_handed_over_or_still_to_be_read() -> None:
    async with rig(budget_bytes=100_000) as world:

        async def slow(job: Job) -> None:
            await sleep(world.clock, 20_000)

        node = await world.node().app(function=slow, concurrency=3).start()
        await world.add(*range(0, 50_000, 100))
        await world.advance(300_000)
        assert not node.told_of(events.Swept)
        assert max(world.times().values()) == 1


async def test_the_age_of_the_oldest_overdue_job_is_known() -> None:
    async with rig() as world:
        node = await world.node().app(concurrency=1).start()
        await world.add(1000)
        await world.advance(3000)
        assert node.engine.oldest_overdue_ms() == 0
        await world.client.pause("mail", paused=True)
        await world.advance(2000)
        (waiting,) = await world.add(1000)
        await world.advance(31_000)
        assert node.engine.oldest_overdue_ms() == world.now - waiting.due_ms == 30_000
        await world.client.pause("mail", paused=False)
        await world.advance(2000)
        assert node.engine.oldest_overdue_ms() == 0


async def test_the_age_of_what_is_not_read_yet_counts() -> None:
    async with rig(budget_bytes=60_000) as world:
        await world.add(*[1000] * 500)
        await world.advance(60_000)

        async def slow(job: Job) -> None:
            await sleep(world.clock, 5000)

        node = await world.node().app(function=slow, concurrency=1).start()
        await world.advance(1000)
        assert node.engine.oldest_overdue_ms() >= 59_000


async def test_a_page_that_could_not_be_read_is_read_again() -> None:
    """Nothing but that read fails, so nothing else would load the shard again."""
    async with rig() as world:
        accepted = await world.add(5000, 6000)
        node = world.node().app()
        await node.start()
        ownership: Any = node.engine._ownership
        scan, failed = ownership.scan, list[Scan]()

        async def fails_once(wanted: Scan) -> Page:
            if not failed:
                failed.append(wanted)
                raise StoreUnavailable("a read was not answered")
            page: Page = await scan(wanted)
            return page

        ownership.scan = fails_once
        node.lane.doubt([owned.shard for owned in node.owned_shards], "so that all is read again")
        await world.advance(10_000)
        assert failed
        assert world.delivered() == [job.key for job in accepted]


async def test_a_bug_between_a_read_and_memory_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as world:
        world.alarms_expected = (events.TaskFailed,)
        accepted = await world.add(5000, 6000)
        scanned = Window.scanned

        def fails_once(self: Window, scan: Scan, page: Page) -> None:
            monkeypatch.setattr(Window, "scanned", scanned)
            raise LookupError("a bug")

        monkeypatch.setattr(Window, "scanned", fails_once)
        node = await world.node().app().start()
        await world.advance(10_000)
        assert node.told_of(events.TaskFailed)
        assert world.delivered() == [job.key for job in accepted]


async def test_an_error_that_nobody_expected_becomes_lateness() -> None:
    async with rig() as world:
        world.alarms_expected = (events.TaskFailed,)
        node = await world.node().app().start()
        accepted = await world.add(5000, 6000)
        window = node.lane._windows["mail"]
        broken = iter([ZeroDivisionError("a bug"), ZeroDivisionError("a bug")])
        real = window.next_steps

        def next_steps(*args: int) -> object:
            for error in broken:
                raise error
            return real(*args)

        window.next_steps = next_steps  # type: ignore[method-assign,assignment]
        await world.advance(60_000)
        assert [e.part for e in node.told_of(events.TaskFailed)] == ["lane", "lane"]
        assert await world.statuses(accepted) == {Status.DONE: 2}
        assert len(world.deliveries) == 2


@pytest.mark.parametrize("part", ["membership", "wheels", "quarantine"])
async def test_a_part_that_meets_a_bug_goes_on(part: str) -> None:
    async with rig() as world:
        world.alarms_expected = (events.TaskFailed,)
        node = await world.node().app().start()
        broken = iter([ZeroDivisionError("a bug")])

        def once(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **options: Any) -> Any:
                for error in broken:
                    raise error
                return real(*args, **options)

            return call

        engine: Any = node.engine
        match part:
            case "membership":
                engine.membership.look = once(engine.membership.look)
            case "wheels":
                engine.dispatchers["mail"].tick = once(engine.dispatchers["mail"].tick)
            case _:
                engine._quarantine._next_batch = once(engine._quarantine._next_batch)
                for owned in node.owned_shards:
                    owned.suspect_until_ms = world.now + 60_000
        accepted = await world.add(5000, 6000, 40_000)
        await world.advance(60_000)
        assert [e.part for e in node.told_of(events.TaskFailed)] == [part]
        assert await world.statuses(accepted) == {Status.DONE: 3}


async def test_what_others_have_just_inserted_is_no_find_of_the_sweep() -> None:
    async with rig() as world:
        node = await world.node().app().start()
        await world.advance(59_900)
        for _ in range(200):
            await world.add(0, -5, -5000)
            await world.advance(1)
        await world.advance(1000)
        assert not node.told_of(events.Swept)
        assert len(world.deliveries) == 600


async def test_a_sweep_that_the_store_interrupts_is_finished_later() -> None:
    async with rig(lease_ms=600_000) as world:
        world.alarms_expected = (events.Swept,)
        node = await world.node().app().start()
        (lost,) = await world.add(5000)
        await world.advance(1000)
        (owned,) = [t for t in node.owned_shards if lost.key in t.held]
        node.lane._windows["mail"].take_off(lost.key, owned)
        real = node.lane._sweep._ownership.scan
        broken = iter([StoreUnavailable("away")] * 3)

        async def scan(what: Scan) -> Page:
            if what.start < lost.key:
                for error in broken:
                    raise error
            return await real(what)

        node.lane._sweep._ownership = with_scan(node.lane._sweep._ownership, scan)
        await world.advance(130_000)
        assert world.delivered() == [lost.key]


def with_scan(ownership: Any, scan: Any) -> Any:
    """The same ownership with another scan."""

    class Other:
        def __getattr__(self, name: str) -> Any:
            return scan if name == "scan" else getattr(ownership, name)

    return Other()
