"""A destination that takes nothing: its app is held back on the node, and no job pays for it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from infinite_scheduler.clock import sleep
from infinite_scheduler.engine.destination_looks import AT_ONCE as LOOKS
from infinite_scheduler.errors import DestinationAway
from infinite_scheduler.handlers.base import Handler, Report
from infinite_scheduler.handlers.python import PythonHandler
from infinite_scheduler.model import Accepted, Change, Done, Failed, Job, Status
from infinite_scheduler.observe.events import (
    AppHeldBack,
    AppResumed,
    AttemptFailed,
    DestinationUnready,
    HandedOver,
    JobsHeldBack,
    ShardsReleased,
)
from infinite_scheduler.policy.misfire import Skip
from infinite_scheduler.policy.retry import RetryPolicy
from infinite_scheduler.views.explain import Reason, explain
from tests.unit.engine_rig import APP, EngineNode, EngineRig, rig

ONCE = RetryPolicy(max_attempts=1)


class Destination:
    """Where the jobs of a test go, as long as it is not away."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.got: list[bytes] = []

    async def take(self, job: Job) -> None:
        if self.error is not None:
            raise self.error
        self.got.append(job.key)

    def take_slowly(self, world: EngineRig) -> Callable[[Job], Awaitable[None]]:
        """A function that needs three seconds to find out that it is away."""

        async def take(job: Job) -> None:
            if self.error is not None:
                await sleep(world.clock, 3000)
            await self.take(job)

        return take

    async def take_all(self, jobs: list[Job]) -> list[Any]:
        answers: list[Any] = []
        for job in jobs:
            if self.error is not None and not job.data.get("passes"):
                answers.append(self.error)
            else:
                self.got.append(job.key)
                answers.append(Done())
        return answers


def away(reason: str = "the gateway is closed", **options: Any) -> DestinationAway:
    return DestinationAway(reason, **options)


def held_back(node: EngineNode, app: str = APP) -> bool:
    return node.engine.dispatchers[app].outage.ongoing


async def test_jobs_wait_while_the_destination_is_away_and_are_done_when_it_is_back_as_their_first_attempt() -> None:
    async with rig() as world:
        there = Destination(away())
        node = await world.node().app(function=there.take, retry=ONCE).start()
        accepted = await world.add(*[1000] * 40)
        await world.advance(200_000)
        assert await world.statuses(accepted) == {Status.PENDING: 40}
        there.error = None
        await world.advance(60_000)
        assert await world.statuses(accepted) == {Status.DONE: 40}
        assert {(await world.record(one)).job.attempt for one in accepted} == {1}
        assert not node.told_of(AttemptFailed)


@asynccontextmanager
async def shown_and_held_back(**settings: Any) -> AsyncIterator[tuple[EngineRig, EngineNode, Destination, Accepted]]:
    """A job that came back after it was shown as running for a while, as all do that wait for a broker."""
    async with rig(**settings) as world:
        there = Destination(away())
        node = await world.node("n1").app(function=there.take_slowly(world), retry=ONCE).start()
        (accepted,) = await world.add(1000)
        await world.advance(3500)
        (shown,) = (await world.record(accepted)).attempts
        assert shown.finished_ms is None
        await world.advance(1000)
        assert held_back(node)
        yield world, node, there, accepted
        assert not [owned for owned in node.owned_shards if owned.came_back]


async def test_a_delivery_that_came_back_is_not_shown_as_running() -> None:
    async with shown_and_held_back() as (world, _, there, accepted):
        assert not (await world.record(accepted)).attempts
        there.error = None
        await world.advance(60_000)
        record = await world.record(accepted)
        assert (record.status, record.attempts) == (Status.DONE, ())


async def test_a_job_that_is_cancelled_while_it_is_held_back_leaves_no_delivery_that_runs() -> None:
    async with shown_and_held_back() as (world, _, _, accepted):
        assert (await world.run(world.change(Change.CANCEL, accepted))).granted
        await world.advance(1000)
        record = await world.record(accepted)
        assert (record.status, record.attempts) == (Status.CANCELLED, ())


async def test_a_job_that_is_moved_to_tomorrow_while_it_is_held_back_is_not_in_flight_until_then() -> None:
    async with shown_and_held_back() as (world, _, there, accepted):
        assert (await world.run(world.change(Change.RESCHEDULE, accepted, due_ms=world.now + 86_400_000))).granted
        there.error = None
        await world.add(world.now + 100)
        await world.advance(60_000)
        why = explain(await world.record(accepted), await world.client.survey(), now_ms=world.now, lease_ms=10_000)
        assert why.reason is Reason.NOT_DUE


async def test_the_next_node_of_a_rolling_restart_leaves_no_delivery_that_runs_on_the_first() -> None:
    async with shown_and_held_back() as (world, node, there, accepted):
        await world.advance(6500)
        (probe,) = (await world.record(accepted)).attempts
        assert probe.finished_ms is None
        assert await node.stop()
        there.error = None
        await world.node("n2").app(function=there.take, retry=ONCE).start()
        await world.advance(20_000)
        record = await world.record(accepted)
        assert (record.status, record.attempts) == (Status.DONE, ())


async def test_what_a_store_outage_kept_from_being_taken_back_is_taken_back_afterwards() -> None:
    async with rig() as world:
        there = Destination(away())
        node = await world.node().app(function=there.take_slowly(world), retry=ONCE).start()
        (accepted,) = await world.add(1000)
        await world.advance(3500)
        assert (await world.record(accepted)).attempts
        node.wire.away = True
        await world.until(lambda: held_back(node))
        await world.advance(3000)
        node.wire.away = False
        await world.advance(3000)
        assert not (await world.record(accepted)).attempts


async def test_a_delivery_that_a_dead_node_has_left_is_replaced_by_what_the_next_one_did() -> None:
    async with rig() as world:
        never = asyncio.Event()

        async def hang(_: Job) -> None:
            await never.wait()

        node = await world.node("n1").app(function=hang).start()
        done, cancelled, moved = await world.add(1000, 1000, 1000)
        await world.advance(3500)
        assert all([(await world.record(one)).attempts for one in (done, cancelled, moved)])
        await node.crash()
        await world.client.pause(APP, paused=True)
        await world.node("n2").app().start()
        await world.advance(5000)
        assert (await world.run(world.change(Change.CANCEL, cancelled))).granted
        assert (await world.run(world.change(Change.RESCHEDULE, moved, due_ms=world.now + 300_000))).granted
        assert not (await world.record(cancelled)).attempts
        assert not (await world.record(moved)).attempts
        await world.client.pause(APP, paused=False)
        await world.advance(30_000)
        record = await world.record(done)
        assert (record.status, record.attempts) == (Status.DONE, ())


async def test_one_job_at_a_time_probes_after_5_s_and_then_twice_as_long_up_to_a_minute() -> None:
    async with rig() as world:
        await world.node().app(function=Destination(away()).take, concurrency=4).start()
        await world.add(*[1000] * 10)
        await world.advance(1000)
        assert len(world.deliveries) == 4
        began_ms = world.deliveries[0].at_ms
        await world.advance(300_000)
        waits = [round((d.at_ms - began_ms) / 1000) for d in world.deliveries[4:]]
        assert waits == [5, 15, 35, 75, 135, 195, 255]


async def test_a_wrong_argument_is_an_error_of_the_job_and_its_attempt_says_what_to_write() -> None:
    async with rig() as world:

        async def take(_: Job) -> None:
            raise away(retry_after="soon")

        node = await world.node().app(function=take, retry=RetryPolicy(max_attempts=2)).start()
        (accepted,) = await world.add(1000)
        await world.advance(10_000)
        record = await world.record(accepted)
        assert (record.status, len(record.attempts)) == (Status.FAILED, 2)
        for attempt in record.attempts:
            assert (attempt.error or "").startswith("TypeError: the retry_after of DestinationAway is 'soon', which is")
            assert (attempt.error or "").endswith("use a timedelta or a number of seconds, such as retry_after=30")
        assert not node.told_of(AppHeldBack)


async def test_a_batch_handler_is_probed_with_one_job_and_what_arrived_is_done() -> None:
    async with rig() as world:
        there = Destination(away())
        node = await world.node().app(function=there.take_all, batch=10).start()
        accepted = await world.add(*[1000] * 6)
        arrived = await world.add(1000, payload=b'{"passes": true}')
        await world.advance(2000)
        assert await world.statuses(arrived) == {Status.DONE: 1}
        assert await world.statuses(accepted) == {Status.PENDING: 6}
        there.error = None
        await world.advance(10_000)
        assert await world.statuses(accepted) == {Status.DONE: 6}
        assert node.handler().sizes == [7, 1, 5]


async def test_a_batch_that_raises_is_held_back_as_a_whole() -> None:
    async with rig() as world:
        there = Destination(away())

        async def take_all(jobs: list[Job]) -> None:
            for job in jobs:
                await there.take(job)

        await world.node().app(function=take_all, batch=10, retry=ONCE).start()
        accepted = await world.add(*[1000] * 6)
        await world.advance(2000)
        there.error = None
        await world.advance(10_000)
        assert await world.statuses(accepted) == {Status.DONE: 6}


async def test_other_apps_and_other_nodes_go_on() -> None:
    async with rig() as world:
        broken, fine = Destination(away()), Destination()
        one = await world.node("n1").app(function=broken.take).app("fax", fine.take).start()
        two = await world.node("n2").app(function=fine.take).start()
        await world.until(lambda: len(one.owned_shards) == 6 and len(two.owned_shards) == 2)
        await world.spread([1000] * 20)
        faxes = await world.add(*[1000] * 5, app="fax")
        await world.advance(5000)
        assert await world.statuses(faxes, "fax") == {Status.DONE: 5}
        assert (held_back(one), held_back(one, "fax"), held_back(two)) == (True, False, False)
        assert len(fine.got) == 5 + 10


async def test_a_held_back_job_can_be_cancelled() -> None:
    async with rig() as world:
        there = Destination(away())
        await world.node().app(function=there.take).start()
        first, second = await world.add(1000, 1000)
        await world.advance(2000)
        decision = await world.run(world.change(Change.CANCEL, first))
        assert decision.granted
        there.error = None
        await world.advance(20_000)
        assert there.got == [second.key]
        assert (await world.record(first)).status is Status.CANCELLED


async def test_a_held_back_job_can_be_rescheduled() -> None:
    async with rig() as world:
        there = Destination(away())
        await world.node().app(function=there.take).start()
        moved, other = await world.add(1000, 1000)
        await world.advance(2000)
        assert (await world.run(world.change(Change.RESCHEDULE, moved, due_ms=world.now + 100_000))).granted
        there.error = None
        await world.advance(20_000)
        assert there.got == [other.key]
        await world.advance(100_000)
        assert there.got == [other.key, moved.key]
        assert (await world.record(moved)).job.attempt == 1


async def test_a_retry_after_counts_instead_of_the_usual_wait() -> None:
    async with rig() as world:
        await world.node().app(function=Destination(away(retry_after=20)).take).start()
        await world.add(1000)
        await world.advance(62_000)
        began_ms = world.deliveries[0].at_ms
        assert [round((d.at_ms - began_ms) / 1000) for d in world.deliveries] == [0, 20, 40, 60]


async def test_a_job_that_the_destination_refuses_fails_and_shows_that_it_is_back() -> None:
    async with rig() as world:
        there = Destination(away())

        async def take(job: Job) -> Failed | None:
            await there.take(job)
            return Failed("too large") if job.data.get("large") else None

        node = await world.node().app(function=take).start()
        (large,) = await world.add(1000, payload=b'{"large": true}')
        others = await world.add(*[1001] * 3)
        await world.advance(2000)
        there.error = None
        await world.advance(4500)
        assert (await world.record(large)).status is Status.FAILED
        assert await world.statuses(others) == {Status.DONE: 3}
        assert not held_back(node)


async def test_a_probe_that_fails_otherwise_is_a_failed_attempt_and_does_not_show_that_it_is_back() -> None:
    async with rig() as world:
        there = Destination(away())
        node = await world.node().app(function=there.take, concurrency=1, retry=RetryPolicy(delays=["1h"])).start()
        first, second = await world.spread([1000, 1001])
        await world.advance(2000)
        there.error = TimeoutError("no answer")
        await world.advance(5000)
        assert held_back(node)
        there.error = None
        await world.advance(10_000)
        statuses = {(await world.record(one)).job.attempt: (await world.record(one)).status for one in (first, second)}
        assert statuses == {2: Status.PENDING, 1: Status.DONE}


async def test_a_job_that_is_always_answered_so_does_not_hold_the_others_back_for_ever() -> None:
    async with rig() as world:
        got: list[bytes] = []

        async def take(job: Job) -> None:
            if job.data.get("bad"):
                raise away()
            got.append(job.key)

        await world.node().app(function=take, concurrency=1).start()
        (bad,) = await world.add(1000, payload=b'{"bad": true}')
        others = await world.add(*[1001] * 3)
        await world.advance(120_000)
        assert sorted(got) == sorted(one.key for one in others)
        assert (await world.record(bad)).status is Status.PENDING


async def test_late_jobs_are_judged_when_the_destination_is_back_as_those_of_a_paused_app() -> None:
    async with rig() as world:
        there = Destination(away())
        await world.node().app(function=there.take, misfire=Skip()).start()
        late = await world.add(*[1000] * 3)
        await world.advance(10_000)
        fresh = await world.add(85_000)
        await world.advance(50_000)
        there.error = None
        await world.advance(90_000)
        assert await world.statuses(late) == {Status.EXPIRED: 3}
        assert await world.statuses(fresh) == {Status.DONE: 1}


async def test_a_paused_app_is_not_probed() -> None:
    async with rig() as world:
        there = Destination(away())
        await world.node().app(function=there.take).start()
        await world.add(*[1000] * 3)
        await world.advance(2000)
        seen = len(world.deliveries)
        await world.client.pause(APP, paused=True)
        await world.advance(60_000)
        assert len(world.deliveries) == seen
        await world.client.pause(APP, paused=False)
        there.error = None
        await world.advance(5000)
        assert len(there.got) == 3


async def test_it_is_told_once_when_it_begins_once_per_new_reason_and_once_when_it_ends() -> None:
    async with rig() as world:
        there = Destination(away("no topic"))
        node = await world.node().app(function=there.take).start()
        await world.add(*[1000] * 3)
        await world.advance(20_000)
        there.error = away("no right")
        await world.advance(100_000)
        there.error = None
        await world.advance(60_000)
        assert [event.error for event in node.told_of(AppHeldBack)] == ["no topic", "no right"]
        (resumed,) = node.told_of(AppResumed)
        assert resumed.app == APP
        assert resumed.held_back_ms > 100_000
        came_back = sum(event.count for event in node.told_of(JobsHeldBack))
        assert came_back == sum(len(event.lateness_ms) for event in node.told_of(HandedOver)) - 3


async def test_what_was_handed_over_before_a_probe_that_succeeds_does_not_begin_another_outage() -> None:
    async with rig() as world:
        slow = asyncio.Event()
        taken: list[Job] = []

        async def take(job: Job) -> None:
            taken.append(job)
            if len(taken) == 1:
                await slow.wait()
                raise away("it timed out")
            if len(taken) == 2:
                raise away("it is closed")

        node = await world.node().app(function=take).start()
        accepted = await world.add(1000, 1000)
        await world.until(lambda: held_back(node))
        await world.until(lambda: not held_back(node))
        slow.set()
        await world.advance(1000)
        assert not held_back(node)
        assert await world.statuses(accepted) == {Status.DONE: 2}


async def test_other_jobs_of_a_call_may_still_run_while_one_that_came_back_is_the_probe() -> None:
    async with rig() as world:
        slow = asyncio.Event()
        calls: list[int] = []

        class Halves(Handler):
            """Reports the first job of its first call at once, and the second when a probe has begun."""

            batch = 2

            async def handle(self, jobs: Any, report: Report) -> None:
                calls.append(len(jobs))
                if len(calls) == 1:
                    report(jobs[0], away())
                    await slow.wait()
                    report(jobs[1], Done())
                    return
                slow.set()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                for job in jobs:
                    report(job, Done())

        node = await world.node().app(handler=Halves(), retry=ONCE).start()
        accepted = await world.add(1000, 1000)
        await world.advance(20_000)
        assert calls == [2, 1]
        assert await world.statuses(accepted) == {Status.DONE: 2}
        assert not node.told_of(AttemptFailed)


async def test_a_node_stops_and_releases_while_an_app_is_held_back_and_the_next_one_goes_on() -> None:
    async with rig() as world:
        there = Destination(away())
        node = await world.node("n1").app(function=there.take).start()
        accepted = await world.add(*[1000] * 5)
        await world.advance(3000)
        assert await node.stop()
        assert node.told_of(ShardsReleased)
        there.error = None
        await world.node("n2").app(function=there.take).start()
        await world.advance(5000)
        assert await world.statuses(accepted) == {Status.DONE: 5}
        assert {(await world.record(one)).job.attempt for one in accepted} == {1}


@pytest.mark.parametrize("deaths", [1, 3])
async def test_suspects_of_a_dead_process_are_probes_too(deaths: int) -> None:
    """After one death suspects go in a large window, after three one alone."""
    async with rig() as world:
        there, accepted = Destination(away()), list[Accepted]()
        for number in range(deaths):
            stuck = asyncio.Event()

            async def hang(job: Job, stuck: asyncio.Event = stuck) -> None:
                await stuck.wait()

            seen = len(world.deliveries)
            node = await world.node(f"dies-{number}").app(function=hang).start()
            if not number:
                accepted += await world.add(1000, 1000)
            await world.until(lambda: len(world.deliveries) > seen)  # noqa: B023 - it is waited for here
            await world.advance(100)
            await node.crash()
        node = await world.node("lives").app(function=there.take, retry=ONCE).start()
        await world.until(lambda: held_back(node))
        await world.advance(30_000)
        assert await world.statuses(accepted) == {Status.PENDING: 2}
        there.error = None
        await world.advance(120_000)
        assert await world.statuses(accepted) == {Status.DONE: 2}


async def test_jobs_come_back_also_while_their_shards_are_in_doubt() -> None:
    async with rig() as world:
        there = Destination(away())
        go = asyncio.Event()

        async def take(job: Job) -> None:
            await go.wait()
            await there.take(job)

        node = await world.node().app(function=take).start()
        accepted = await world.add(*[1000] * 3)
        await world.until(lambda: len(world.deliveries) == 3)
        node.wire.away = True
        node.lane.doubt([owned.shard for owned in node.owned_shards], "a test says so")
        await world.advance(100)
        go.set()
        await world.advance(100)
        node.wire.away = False
        there.error = None
        await world.advance(20_000)
        assert await world.statuses(accepted) == {Status.DONE: 3}
        assert len(there.got) == 3


async def test_memory_of_held_back_jobs_is_given_back_when_they_are_done() -> None:
    async with rig() as world:
        there = Destination(away())
        node = await world.node().app(function=there.take).start()
        await world.add(*[1000] * 50)
        await world.advance(30_000)
        there.error = None
        await world.advance(60_000)
        assert len(there.got) == 50
        assert node.engine.bytes_held == 0


async def test_a_node_that_was_stopped_probes_no_more() -> None:
    async with rig() as one:
        node = await one.node().app(function=Destination(away()).take).start()
        await one.add(1000)
        await one.advance(2000)
        await node.stop()
        seen = len(one.deliveries)
        await one.advance(120_000)
        assert len(one.deliveries) == seen


# No job to probe with


class Asked(PythonHandler):
    """A handler that can be asked whether its destination takes jobs."""

    def __init__(self, there: Destination, world: EngineRig) -> None:
        super().__init__(there.take, clock=world.clock)
        self.there = there
        self.asked: list[int] = []
        self._clock_ms = world.clock.wall_ms

    async def ready(self) -> None:
        self.asked.append(self._clock_ms())
        if self.there.error is not None:
            raise self.there.error


async def test_without_a_job_to_probe_with_the_handler_is_asked_at_the_times_of_probes() -> None:
    async with rig() as world:
        there = Destination(away())
        handler = Asked(there, world)
        node = await world.node().app(handler=handler).start()
        (accepted,) = await world.add(1000)
        await world.advance(2000)
        assert (await world.run(world.change(Change.CANCEL, accepted))).granted
        handler.asked.clear()
        await world.advance(100_000)
        assert [round((ms - accepted.due_ms) / 1000) for ms in handler.asked] == [5, 15, 35, 75]
        assert held_back(node)
        there.error = OSError("no route")
        await world.advance(60_000)
        assert [event.error for event in node.told_of(AppHeldBack)] == ["the gateway is closed", "OSError: no route"]
        there.error = None
        await world.advance(60_000)
        assert not held_back(node)
        assert len(node.told_of(AppResumed)) == 1


async def test_a_job_that_is_due_is_the_probe_and_the_handler_is_not_asked() -> None:
    async with rig() as world:
        handler = Asked(Destination(away()), world)
        node = await world.node().app(handler=handler).start()
        await world.add(1000)
        handler.asked.clear()
        await world.advance(100_000)
        assert held_back(node)
        assert len(world.deliveries) == 5
        assert not handler.asked


async def test_a_job_is_no_probe_while_the_handler_is_asked() -> None:
    async with rig() as world:
        asked, go_on = asyncio.Event(), asyncio.Event()

        class Slow(Asked):
            async def ready(self) -> None:
                asked.set()
                await go_on.wait()
                await super().ready()

        go_on.set()
        there = Destination(away())
        node = await world.node().app(handler=Slow(there, world)).start()
        (accepted,) = await world.add(1000)
        await world.advance(2000)
        assert (await world.run(world.change(Change.CANCEL, accepted))).granted
        asked.clear()
        go_on.clear()
        await world.until(asked.is_set)
        seen = len(world.deliveries)
        await world.add(100)
        await world.advance(2000)
        assert len(world.deliveries) == seen
        there.error = None
        go_on.set()
        await world.advance(100)
        assert not held_back(node)
        assert len(there.got) == 1


async def test_a_function_without_a_job_left_is_held_back_until_the_next_probe_would_have_been_made() -> None:
    async with rig() as world:
        there = Destination(away())
        node = await world.node().app(function=there.take).start()
        (moved,) = await world.add(1000)
        await world.advance(2000)
        assert (await world.run(world.change(Change.RESCHEDULE, moved, due_ms=world.now + 300_000))).granted
        await world.advance(3500)
        assert held_back(node)
        await world.advance(1000)
        assert not held_back(node)
        await world.advance(300_000)
        assert held_back(node), "the next job has found out that it is still away"


async def test_a_function_is_held_back_while_its_jobs_wait_though_its_app_is_paused() -> None:
    async with rig() as world:
        node = await world.node().app(function=Destination(away()).take).start()
        await world.add(1000)
        await world.advance(2000)
        await world.client.pause(APP, paused=True)
        await world.advance(60_000)
        assert held_back(node)


async def test_of_many_apps_a_few_destinations_are_looked_at_at_a_time() -> None:
    async with rig() as world:
        go_on = asyncio.Event()
        looks = most = 0

        class Looked(PythonHandler):
            async def ready(self) -> None:
                nonlocal looks, most
                looks += 1
                most = max(most, looks)
                await go_on.wait()
                looks -= 1
                raise away()

        node = world.node()
        for number in range(3 * LOOKS):
            node.app(f"app{number}", handler=Looked(Destination().take, clock=world.clock))
        await node.start()
        await world.advance(100)
        assert (looks, most) == (LOOKS, LOOKS)
        go_on.set()
        await world.advance(100)
        assert most == LOOKS
        assert len(node.told_of(DestinationUnready)) == 3 * LOOKS


async def test_a_node_that_is_stopped_while_its_destinations_are_looked_at_leaves_no_look_behind() -> None:
    async with rig() as world:
        ended: list[str] = []

        class Looked(PythonHandler):
            async def ready(self) -> None:
                try:
                    await asyncio.Event().wait()
                finally:
                    ended.append("it was cancelled")

        node = await world.node().app(handler=Looked(Destination().take, clock=world.clock)).start()
        await world.advance(100)
        assert await node.stop()
        assert ended
