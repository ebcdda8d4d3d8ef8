"""The right job at the right moment: never early, in order, in bounded memory."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from infinite_scheduler.clock import sleep
from infinite_scheduler.engine.dispatcher import Dispatcher
from infinite_scheduler.engine.pipeline import RESTS
from infinite_scheduler.engine.window import Window
from infinite_scheduler.model import JOB_BYTES, Change, Job, Priority, Status
from infinite_scheduler.observe.events import Early, HandedOver, JobsSettled
from infinite_scheduler.store.ownership import Scan
from tests.unit.engine_rig import APP, EngineNode, EngineRig, rig, set_back_once


async def test_every_job_is_handed_over_in_its_very_millisecond() -> None:
    chance = random.Random(7)
    async with rig() as world:
        await world.node().app().start()
        for _ in range(10):
            await world.add(*(chance.randrange(0, 120_000) for _ in range(30)))
            await world.advance(chance.randrange(0, 5000))
        await world.advance(130_000)
        assert len(world.deliveries) == len(set(world.delivered())) == 300
        late = [d for d in world.deliveries if d.at_ms - d.job.due_ms > 50]
        assert not late, "other processes are noticed by a poll of 50 ms"
        assert sum(d.at_ms == d.job.due_ms for d in world.deliveries) > 290


async def settled_in(world: EngineRig, node: EngineNode, delays: Sequence[int]) -> int:
    """How many transactions it takes to settle jobs that are due after these delays."""
    await world.add(*delays)
    before = len(node.told_of(JobsSettled))
    await world.advance(max(delays) + 100)
    told = node.told_of(JobsSettled)[before:]
    assert sum(each.counts["done"] for each in told) == len(delays)
    return len(told)


async def test_many_a_millisecond_go_out_in_batches_and_are_late_by_little() -> None:
    async with rig() as world:
        node = await world.node().app(concurrency=1000).start()
        few = await settled_in(world, node, range(1000, 1400, 2))
        assert max(d.at_ms - d.job.due_ms for d in world.deliveries) == 0
        assert few > 40  # some three milliseconds wait for each other
        for per_ms, (_, rest_ms) in ((20, RESTS[0]), (16, RESTS[1])):
            world.deliveries.clear()
            many = await settled_in(world, node, [1000 + number // per_ms for number in range(400 * per_ms)])
            late = Counter(d.at_ms - d.job.due_ms for d in world.deliveries)
            assert set(late) <= set(range(rest_ms + 1))
            assert len({d.at_ms for d in world.deliveries}) <= 400 / rest_ms + 4
            assert many < 40


async def test_nothing_is_early_when_the_wall_clock_steps_back() -> None:
    async with rig() as world:
        await world.node().app().start()
        (accepted,) = await world.add(10_000)
        await world.advance(5000)
        world.clock.step_wall(-60_000)
        await world.advance(64_999)
        assert not world.deliveries
        await world.advance(1)
        assert world.delivered() == [accepted.key]


async def test_a_job_that_waits_for_its_turn_is_not_early_when_the_wall_clock_steps_back() -> None:
    async with rig() as world:
        gate = asyncio.Event()

        async def block(job: Job) -> None:
            del job
            await gate.wait()

        await world.node().app(function=block, concurrency=1).start()
        first, second = await world.add(1000, 1500)
        await world.advance(2000)
        assert world.delivered() == [first.key]
        world.clock.step_wall(-30_000)
        gate.set()
        await world.advance(29_499)
        assert world.delivered() == [first.key]
        await world.advance(1)
        assert world.delivered() == [first.key, second.key]


async def test_a_job_that_is_early_at_the_last_look_waits_for_its_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as world:
        node = await world.node().app().start()
        (accepted,) = await world.add(1000)
        set_back_once(world, 30_000, monkeypatch)
        await world.advance(1001)
        assert not world.deliveries
        assert [event.count for event in node.told if isinstance(event, Early)] == [1]
        await world.advance(29_998)
        assert not world.deliveries
        await world.advance(1)
        assert world.delivered() == [accepted.key]
        await world.advance(1000)
        assert (await world.record(accepted)).status is Status.DONE
        assert [list(event.lateness_ms) for event in node.told_of(HandedOver)] == [[0]], "told once, when it took place"


async def test_a_job_that_is_taken_back_since_the_lease_has_lapsed_is_not_told_as_handed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with rig() as world:
        node = await world.node().app().start()
        await world.add(1000)
        start = Dispatcher._start

        def lapsed(self: Dispatcher, batch: Sequence[Job]) -> None:
            start(self, batch)
            monkeypatch.setattr(self._gate.lease, "valid", lambda: False)

        monkeypatch.setattr(Dispatcher, "_start", lapsed)
        await world.advance(1100)
        assert not world.deliveries
        assert not node.told_of(HandedOver)


async def test_a_job_that_was_early_at_the_last_look_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as world:
        await world.node().app().start()
        (accepted,) = await world.add(1000)
        set_back_once(world, 30_000, monkeypatch)
        await world.advance(1001)
        assert (await world.run(world.change(Change.CANCEL, accepted))).granted
        await world.advance(40_000)
        assert not world.deliveries


async def test_only_the_early_jobs_of_a_batch_wait_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as world:

        async def take(jobs: list[Job]) -> None:
            del jobs

        await world.node().app(function=take, batch=10).start()
        await world.client.pause(APP, paused=True)
        await world.advance(1000)
        first, second = await world.add(1000, 1500)
        await world.advance(2000)
        set_back_once(world, 1700, monkeypatch)
        await world.client.pause(APP, paused=False)
        await world.until(world.delivered)
        assert world.delivered() == [first.key]
        await world.advance(5000)
        assert world.delivered() == [first.key, second.key]


async def test_a_step_forward_of_the_wall_clock_is_noticed() -> None:
    async with rig() as world:
        await world.node().app().start()
        await world.add(10_000)
        world.clock.step_wall(60_000)
        await world.advance(500)
        assert len(world.deliveries) == 1


async def test_a_backlog_goes_out_in_the_order_of_due() -> None:
    async with rig() as world:
        delays = random.Random(3).sample(range(50_000), 500)
        await world.add(*delays)
        await world.advance(60_000)
        await world.node().app(concurrency=1).start()
        await world.advance(5000)
        dues = [d.job.due_ms for d in world.deliveries]
        assert len(dues) == 500
        assert dues == sorted(dues)


async def test_a_backlog_goes_out_by_priority_and_nobody_starves() -> None:
    async with rig() as world:
        for priority in (Priority.LOW, Priority.NORMAL, Priority.HIGH):
            await world.add(*[1000] * 300, priority=priority)
        await world.advance(60_000)
        await world.node().app(concurrency=1).start()
        await world.advance(5000)
        order = [d.job.priority for d in world.deliveries]
        assert len(order) == 900
        last_high = max(i for i, p in enumerate(order) if p is Priority.HIGH)
        assert last_high < 300 * 10 / 8 + 10, "at most one of a lower priority after eight"
        assert Priority.LOW in order[:400]


@pytest.mark.parametrize(("budget", "passes"), [(1 << 26, {None}), (300 * (JOB_BYTES + 2), {None, *Priority})])
async def test_a_backlog_is_read_once_for_all_priorities_if_it_fits_half_of_the_memory(
    budget: int, passes: set[Priority | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    scans: list[Scan] = []
    begin = Window.begin

    def noted(window: Window, scan: Scan) -> None:
        scans.append(scan)
        begin(window, scan)

    monkeypatch.setattr(Window, "begin", noted)
    async with rig(budget_bytes=budget) as world:
        for priority in Priority:
            await world.add(*[1000] * 300, priority=priority)
        await world.advance(60_000)
        await world.node().app().start()
        await world.until(lambda: len(world.deliveries) == 900)
        assert {scan.priority for scan in scans} == passes
        assert max(world.times().values()) == 1


async def test_high_ones_go_first_in_a_herd_that_does_not_fit_memory() -> None:
    async with rig(budget_bytes=200 * (JOB_BYTES + 2)) as world:
        for priority in (Priority.LOW, Priority.NORMAL):
            await world.add(*[1000] * 2000, priority=priority)
        await world.add(*[1000] * 500, priority=Priority.HIGH)
        await world.advance(60_000)
        await world.node().app(concurrency=4).start()
        await world.until(lambda: len(world.deliveries) == 4500)
        order = [d.job.priority for d in world.deliveries]
        last_high = max(i for i, p in enumerate(order) if p is Priority.HIGH)
        assert last_high < 500 * 10 / 8 + 200
        assert max(world.times().values()) == 1


@pytest.mark.timeout(60)
async def test_a_herd_of_100_000_in_one_millisecond_stays_inside_the_budget_and_fires_once() -> None:
    budget = 4 << 20
    async with rig(budget_bytes=budget) as world:
        held: list[int] = []
        node = world.node()

        async def note(jobs: list[Job]) -> None:
            del jobs
            held.append(node.engine.bytes_held)

        node.app(function=note, batch=200)
        await node.start()
        for _ in range(20):
            await world.add(*[40_000] * 5000)
        peak = 0
        until_ms = world.clock.steady_ms() + 120_000
        while len(world.deliveries) < 100_000:
            assert world.clock.step(until_ms)
            await world.pump.rest()
            peak = max(peak, node.engine.bytes_held)
        await world.advance(1000)
        assert budget / 2 < max(peak, *held) <= budget
        assert set(world.times().values()) == {1}
        assert len(world.times()) == 100_000
        assert await world.pending() == 0
        assert node.engine.bytes_held == 0


async def test_an_urgent_job_is_not_kept_waiting_by_later_ones_when_memory_is_full() -> None:
    async with rig(budget_bytes=100 * (JOB_BYTES + 2)) as world:
        await world.node().app().start()
        await world.add(*range(20_000, 25_000, 5))
        await world.advance(1000)
        (urgent,) = await world.add(500)
        await world.advance(600)
        assert world.delivered() == [urgent.key]
        assert world.deliveries[0].at_ms == urgent.due_ms
        await world.until(lambda: len(world.deliveries) == 1001)
        assert set(world.times().values()) == {1}
        assert max(d.at_ms - d.job.due_ms for d in world.deliveries) <= 100


async def test_an_urgent_retry_is_not_kept_waiting_when_memory_is_full() -> None:
    async with rig(budget_bytes=100 * (JOB_BYTES + 2)) as world:

        async def fail_once(job: Job) -> None:
            if job.job_name == "flaky" and job.attempt == 1:
                raise ValueError("again")

        await world.node().app(function=fail_once).start()
        await world.add(*range(20_000, 25_000, 5))
        (flaky,) = await world.add(100, job_name="flaky")
        await world.advance(3000)
        assert [(d.job.key, d.job.attempt) for d in world.deliveries] == [(flaky.key, 1), (flaky.key, 2)]


async def test_a_job_larger_than_the_budget_is_handed_over_all_the_same() -> None:
    async with rig(budget_bytes=10_000) as world:
        await world.node().app().start()
        (large,) = await world.add(1000, payload=b'"' + b"x" * 50_000 + b'"')
        await world.add(1000, 1001, 1002)
        await world.advance(3000)
        assert large.key in world.delivered()
        assert len(world.deliveries) == 4


async def test_one_app_with_a_huge_backlog_does_not_starve_another() -> None:
    async with rig(budget_bytes=1 << 20) as world:
        await world.client.register("sms", 4)
        for _ in range(4):
            await world.add(*[0] * 5000, app="sms")

        async def slow(job: Job) -> None:
            del job
            await sleep(world.clock, 10)

        await world.node().app(function=slow, name="sms", concurrency=2).app().start()
        await world.advance(1000)
        assert len(world.delivered("sms")) < 1000
        for _ in range(5):
            accepted = await world.add(*range(100, 2000, 50))
            await world.advance(2500)
            mine = [d for d in world.deliveries if d.job.key in {a.key for a in accepted}]
            assert len(mine) == len(accepted)
            assert max(d.at_ms - d.job.due_ms for d in mine) <= 50


async def test_the_line_does_not_run_away_when_nothing_is_due() -> None:
    async with rig() as world:
        node = await world.node().app().start()
        for _ in range(20):
            await world.advance(9000)
            leads = [t.line_ms - world.now for t in node.owned_shards]
            assert 5000 <= min(leads) <= max(leads) <= 30_000


async def test_jobs_due_far_ahead_wait_in_the_store() -> None:
    async with rig() as world:
        node = await world.node().app().start()
        (far,) = await world.add(3_600_000)
        await world.advance(60_000)
        assert node.engine.bytes_held == 0
        world.clock.step_wall(3_600_000)
        await world.advance(1000)
        assert world.delivered() == [far.key]
        assert (await world.record(far)).status is Status.DONE
        assert (await world.record(far)).job.app == APP
