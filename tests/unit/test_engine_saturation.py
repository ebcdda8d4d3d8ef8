"""A node knows when it has more to read and to settle than it gets done, and that slow handlers are not its fault."""

import asyncio
from collections.abc import Sequence

import pytest

from infinite_scheduler.handlers.base import Report
from infinite_scheduler.model import Job, Status
from tests.unit.engine_rig import rig


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infinite_scheduler.engine.lane.SATURATED", 20)


async def test_a_node_that_keeps_up_is_not_saturated() -> None:
    async with rig() as world:
        node = await world.node().app().start()
        await world.spread(range(0, 5000, 50))
        for _ in range(6):
            await world.advance(1000)
            assert node.engine.saturation() < 1


async def test_outcomes_that_wait_to_be_settled_saturate_it_until_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as world:
        node = await world.node().app().start()
        accepted = await world.add(*[1000] * 50)
        gate, settle = asyncio.Event(), node.lane._ownership.settle

        async def slowly(*args: object) -> object:
            await gate.wait()
            return await settle(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(node.lane._ownership, "settle", slowly)
        monkeypatch.setattr(node.lane.settler, "_at_most", 1)
        await world.advance(1500)
        assert node.engine.saturation() == pytest.approx(49 / 20)
        gate.set()
        await world.advance(1000)
        assert node.engine.saturation() == 0
        assert await world.statuses(accepted) == {Status.DONE: 50}


async def test_a_store_that_is_away_does_not_saturate() -> None:
    async with rig() as world:
        node = await world.node().app().start()
        await world.add(*[1000] * 50)
        await world.advance(999)
        node.wire.away = True
        await world.advance(3000)
        assert node.lane.settler.kept == 50
        assert node.engine.saturation() == 0


async def test_a_backlog_that_is_not_read_saturates_it_until_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infinite_scheduler.engine.lane.SATURATED", 10_000)
    async with rig(page=64) as world:
        await world.spread([0] * 1000)
        await world.advance(60_000)
        node = world.node().app()
        saturations: list[float] = []
        handle = node.handler().handle

        async def looking(jobs: Sequence[Job], report: Report) -> None:
            saturations.append(node.engine.saturation())
            await handle(jobs, report)

        monkeypatch.setattr(node.handler(), "handle", looking)
        await node.start()
        await world.advance(1000)
        assert await world.pending() == 0
        assert max(saturations) == 1
        assert node.engine.saturation() < 1


@pytest.mark.parametrize(
    ("apps", "budget", "jobs", "payload"),
    [(1, 60_000, 1000, 2), (2, 2 << 20, 6, 900_000), (8, 2 << 20, 12, 300_000)],
)
async def test_jobs_that_wait_for_handlers_do_not_saturate(apps: int, budget: int, jobs: int, payload: int) -> None:
    """Whether the memory is full of them, or what is left of it is too little for another."""
    async with rig(page=64, budget_bytes=budget) as world:
        done = asyncio.Event()

        async def slow(job: Job) -> None:
            del job
            await done.wait()

        node = world.node()
        for number in range(apps):
            node.app(f"app{number}", function=slow, concurrency=2)
            await world.client.register(f"app{number}", 4)
        await world.add(*[0] * jobs, app="app0", payload=b'"' + b"x" * (payload - 2) + b'"')
        await world.advance(60_000)
        await node.start()
        await world.advance(5000)
        assert node.engine.oldest_overdue_ms() > 50_000
        for _ in range(30):
            await world.advance(1000)
            assert node.engine.saturation() < 1
        done.set()


async def test_a_node_without_apps_is_never_saturated() -> None:
    async with rig() as world:
        node = await world.node().start()
        assert node.engine.saturation() == 0
