"""Handlers that cancel the tasks of others: no place is lost, and what was never called is handed over again."""

import asyncio

import pytest

from infinite_scheduler.clock import sleep
from infinite_scheduler.model import Job, Status
from infinite_scheduler.observe import events
from infinite_scheduler.observe.events import HandedOver
from infinite_scheduler.policy.retry import RetryPolicy
from tests.unit.engine_rig import APP, EngineNode, rig


def cancel_all_calls() -> None:
    """As a handler does that cancels all tasks; those of the test are spared."""
    for task in asyncio.all_tasks():
        if task.get_name() == APP:
            task.cancel()


def places(node: EngineNode) -> int:
    return node.engine.dispatchers[APP]._free


async def test_a_call_that_is_cancelled_before_its_first_step_gives_its_place_back_and_is_made_again() -> None:
    async with rig() as world:
        offended: list[str] = []

        async def cancel_once(job: Job) -> None:
            if not offended:
                offended.append(job.id)
                cancel_all_calls()

        node = await world.node().app(function=cancel_once, concurrency=5).start()
        accepted = await world.add(*[1000] * 20)
        await world.advance(2000)
        assert offended
        assert await world.statuses(accepted) == {Status.DONE: 20}
        assert [(await world.record(a)).job.attempt for a in accepted] == [1] * 20
        assert set(world.times().values()) == {1}
        assert sum(len(event.lateness_ms) for event in node.told_of(HandedOver)) == 20
        assert places(node) == 5
        assert not node.engine.dispatchers[APP].busy
        assert await node.stop()


@pytest.mark.parametrize("other", [True, False], ids=["by another handler", "by itself"])
async def test_a_running_call_that_is_cancelled_has_failed_an_attempt_and_is_retried_by_the_rules(other: bool) -> None:
    """Nobody can tell who has cancelled it; one that cancels itself each time must come to an end."""
    async with rig() as world:

        async def run(job: Job) -> None:
            if job.attempt == 1 and not other:
                cancel_all_calls()
            await sleep(world.clock, 500)

        retry = RetryPolicy(delays=["10s"], max_attempts=2)
        node = await world.node().app(function=run, retry=retry, concurrency=5).start()
        (accepted,) = await world.add(1000)
        await world.advance(1200)
        if other:
            cancel_all_calls()
        await world.advance(5000)
        record = await world.record(accepted)
        assert (record.status, record.job.attempt) == (Status.PENDING, 2)
        assert record.attempts[0].error == (
            "RuntimeError: the call was cancelled, by its handler or by other code of this program"
        )
        assert places(node) == 5
        await world.advance(10_000)
        assert (await world.record(accepted)).status is Status.DONE


async def test_a_batch_that_is_cancelled_before_its_first_step_is_handed_over_again() -> None:
    async with rig() as world:
        offended: list[str] = []

        async def cancel_once(jobs: list[Job]) -> None:
            if not offended:
                offended.append(jobs[0].id)
                cancel_all_calls()

        node = await world.node().app(function=cancel_once, batch=3, concurrency=4).start()
        accepted = await world.add(*[1000] * 20)
        await world.advance(2000)
        assert await world.statuses(accepted) == {Status.DONE: 20}
        assert set(world.times().values()) == {1}
        assert places(node) == 4


async def test_a_stop_that_interrupts_calls_before_their_first_step_releases_everything() -> None:
    async with rig(stop_timeout_ms=0) as world:
        node = await world.node().app().start()
        accepted = await world.add(*[1000] * 5)
        await world.advance(999)
        dispatcher = node.engine.dispatchers[APP]
        world.clock.step(world.clock.steady_ms() + 1)
        dispatcher.tick(world.now)
        assert dispatcher.busy
        dispatcher.interrupt()
        assert await node.stop()
        assert await world.statuses(accepted) == {Status.PENDING: 5}


PARTS = {"lane", "wheels", "quarantine", "membership", "upkeep"}


async def test_the_parts_of_a_node_that_a_handler_cancels_go_on() -> None:
    async with rig() as world:
        world.alarms_expected = (events.TaskFailed,)

        async def cancel_parts(job: Job) -> None:
            for task in asyncio.all_tasks():
                if task.get_name() in PARTS:
                    task.cancel()

        node = await world.node().app(function=cancel_parts).start()
        accepted = await world.add(1000, 50_000, 90_000)
        await world.advance(100_000)
        assert {event.part for event in node.told_of(events.TaskFailed)} == PARTS
        assert await world.statuses(accepted) == {Status.DONE: 3}
        assert [d.at_ms for d in world.deliveries] == [a.due_ms for a in accepted]
