"""What follows from how a delivery ended: retries, misfires, time-outs, limits, pauses."""

import asyncio
import threading
from collections.abc import Sequence
from datetime import timedelta

import pytest

from infinite_scheduler.clock import sleep
from infinite_scheduler.engine.lane import LaneSettings
from infinite_scheduler.handlers.base import Handler, Report
from infinite_scheduler.model import Cancelled, Done, Expired, Failed, Job, Outcome, Retry, Status, datetime_of
from infinite_scheduler.observe import events
from infinite_scheduler.policy.misfire import ExpireAfter, FireNow, Misfire, Skip
from infinite_scheduler.policy.retry import RetryPolicy
from tests.unit.engine_rig import EngineRig, rig


async def attempts(world: EngineRig, start_ms: int) -> list[tuple[int, int]]:
    return [(d.job.attempt, d.at_ms - start_ms) for d in world.deliveries]


# Retries


async def test_a_failing_job_is_tried_by_its_policy_and_then_failed_with_every_error() -> None:
    async with rig() as world:

        async def fail(job: Job) -> None:
            raise ValueError(f"error {job.attempt}")

        policy = RetryPolicy(delays=("1s", "5s", "1m"), jitter=0, max_attempts=4)
        await world.node().app(function=fail, retry=policy).start()
        (accepted,) = await world.add(1000)
        await world.advance(120_000)
        assert await attempts(world, accepted.due_ms) == [(1, 0), (2, 1000), (3, 6000), (4, 66_000)]
        record = await world.record(accepted)
        assert (record.status, record.error) == (Status.FAILED, "ValueError: error 4")
        assert [(a.attempt, a.error) for a in record.attempts] == [(n, f"ValueError: error {n}") for n in (1, 2, 3, 4)]


async def test_an_exponential_policy_spreads_its_attempts() -> None:
    async with rig() as world:

        async def fail(job: Job) -> None:
            raise ValueError

        await world.node().app(function=fail, retry=RetryPolicy(jitter=0, max_attempts=5)).start()
        (accepted,) = await world.add(1000)
        await world.advance(60_000)
        assert [at for _, at in await attempts(world, accepted.due_ms)] == [0, 1000, 3000, 7000, 15_000]


async def test_a_retry_far_after_the_line_is_found_again() -> None:
    async with rig(lane=LaneSettings(request_poll_ms=5000)) as world:

        async def later(job: Job) -> Outcome:
            return Retry(after=timedelta(minutes=30)) if job.attempt == 1 else Done()

        await world.node().app(function=later).start()
        (accepted,) = await world.add(40_000)
        await world.advance(1_900_000)
        assert await attempts(world, accepted.due_ms) == [(1, 0), (2, 1_800_000)]
        assert (await world.record(accepted)).status is Status.DONE


async def test_a_handler_may_name_the_moment_of_the_next_attempt() -> None:
    async with rig() as world:
        at_ms = world.now + 7000

        async def later(job: Job) -> Outcome:
            return Retry(at=datetime_of(at_ms)) if job.attempt == 1 else Done()

        await world.node().app(function=later).start()
        await world.add(1000)
        await world.advance(10_000)
        assert [d.at_ms for d in world.deliveries][1] == at_ms


async def test_an_error_that_is_not_worth_trying_again_fails_at_once() -> None:
    async with rig() as world:

        async def fail(job: Job) -> None:
            raise KeyError("no such user")

        await world.node().app(function=fail, retry=RetryPolicy(give_up_on=(KeyError,))).start()
        (accepted,) = await world.add(1000)
        await world.advance(30_000)
        assert len(world.deliveries) == 1
        assert (await world.record(accepted)).status is Status.FAILED


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Done(), Status.DONE),
        (Failed("no"), Status.FAILED),
        (Expired("late"), Status.EXPIRED),
        (Cancelled(), Status.CANCELLED),
    ],
    ids=["done", "failed", "expired", "cancelled"],
)
async def test_a_final_outcome_of_the_handler_is_the_status(outcome: Outcome, status: Status) -> None:
    async with rig() as world:

        async def answer(job: Job) -> Outcome:
            return outcome

        await world.node().app(function=answer).start()
        (accepted,) = await world.add(1000)
        await world.advance(30_000)
        assert len(world.deliveries) == 1
        assert (await world.record(accepted)).status is status


class Silent(Handler):
    """Breaks its promise: it says nothing about its jobs."""

    async def handle(self, jobs: Sequence[Job], report: Report) -> None:
        del jobs, report


class Twice(Handler):
    """Breaks its promise: it says two things about each job."""

    async def handle(self, jobs: Sequence[Job], report: Report) -> None:
        for job in jobs:
            report(job, Done())
            report(job, Failed("changed my mind"))


class Broken(Handler):
    """Breaks its promise: it raises."""

    async def handle(self, jobs: Sequence[Job], report: Report) -> None:
        raise OSError("broken")


@pytest.mark.parametrize(
    ("handler", "status", "error"),
    [
        (Silent(), Status.FAILED, "RuntimeError: the handler ended without reporting this job"),
        (Twice(), Status.DONE, None),
        (Broken(), Status.FAILED, "OSError: broken"),
    ],
    ids=["silent", "twice", "broken"],
)
async def test_a_handler_that_breaks_its_promise_loses_no_job(
    handler: Handler, status: Status, error: str | None
) -> None:
    async with rig() as world:
        await world.node().app(handler=handler, retry=RetryPolicy(max_attempts=1)).start()
        (accepted,) = await world.add(1000)
        await world.advance(5000)
        record = await world.record(accepted)
        assert (record.status, record.error) == (status, error)


async def test_a_handler_that_cancels_itself_is_an_error_of_its_job() -> None:
    async with rig() as world:

        async def cancel(job: Job) -> None:
            raise asyncio.CancelledError

        node = await world.node().app(function=cancel, retry=RetryPolicy(max_attempts=2, jitter=0)).start()
        (accepted,) = await world.add(1000)
        await world.advance(10_000)
        assert (await world.record(accepted)).status is Status.FAILED
        assert len(world.deliveries) == 2
        assert node.engine.shards_owned == 4


# Misfires


@pytest.mark.parametrize(
    ("misfire", "status"),
    [(FireNow(), Status.DONE), (Skip(), Status.EXPIRED), (ExpireAfter("5m"), Status.EXPIRED)],
    ids=["fire_now", "skip", "expire_after"],
)
async def test_a_job_that_comes_too_late_meets_its_policy(misfire: Misfire, status: Status) -> None:
    async with rig() as world:
        late, in_time = await world.add(1000, 580_000)
        await world.advance(600_000)
        await world.node().app(misfire=misfire).start()
        await world.advance(1000)
        assert (await world.record(late)).status is status
        assert (await world.record(in_time)).status is Status.DONE
        assert (late.key in world.delivered()) == (status is Status.DONE)


async def test_a_past_moment_is_no_misfire() -> None:
    async with rig() as world:
        await world.node().app(misfire=Skip()).start()
        (accepted,) = await world.add(-3_600_000)
        await world.advance(1000)
        assert (await world.record(accepted)).status is Status.DONE


# Time-outs and limits


async def test_a_handler_that_runs_past_its_time_out_is_tried_again() -> None:
    async with rig() as world:

        async def hang_once(job: Job) -> None:
            if job.attempt == 1:
                await asyncio.Event().wait()

        policy = RetryPolicy(delays=["1s"], jitter=0)
        await world.node().app(function=hang_once, timeout_ms=5000, retry=policy).start()
        (accepted,) = await world.add(1000)
        await world.advance(20_000)
        assert await attempts(world, accepted.due_ms) == [(1, 0), (2, 6000)]
        record = await world.record(accepted)
        assert record.status is Status.DONE
        assert "HandlerTimeout" in (record.attempts[0].error or "")


async def test_concurrency_is_never_exceeded() -> None:
    async with rig() as world:

        async def slow(job: Job) -> None:
            await sleep(world.clock, 30)

        node = await world.node().app(function=slow, concurrency=7).start()
        await world.add(*[1000] * 100, *range(1000, 2000, 10))
        await world.advance(5000)
        assert len(world.deliveries) == 200
        assert node.handler().most == 7


async def test_a_sync_function_past_its_time_out_keeps_its_place() -> None:
    async with rig(patience_s=0.05) as world:
        gate, begins = threading.Event(), threading.Semaphore(0)
        began: list[str] = []

        def block(job: Job) -> None:
            began.append(job.id)
            begins.release()
            gate.wait()

        policy = RetryPolicy(max_attempts=1)
        node = await world.node().app(function=block, concurrency=2, timeout_ms=1000, retry=policy).start()
        accepted = await world.add(1000, 1000, 1000)
        await world.advance(1000)
        assert all([await asyncio.to_thread(begins.acquire, timeout=20) for _ in range(2)])
        await world.advance(9000)
        assert len(began) == 2
        assert (await world.statuses(accepted))[Status.FAILED] == 2
        gate.set()
        assert await asyncio.to_thread(begins.acquire, timeout=20)
        while node.handler().running:  # noqa: ASYNC110 - threads return in their own time
            await asyncio.sleep(0)
        assert await node.stop()


async def test_a_batch_handler_gets_lists_of_at_most_its_size() -> None:
    async with rig() as world:

        async def some_fail(jobs: list[Job]) -> list[Outcome | Exception | None]:
            return [ValueError("odd") if i % 2 else None for i, _ in enumerate(jobs)]

        policy = RetryPolicy(max_attempts=1)
        node = await world.node().app(function=some_fail, batch=10, retry=policy, concurrency=3).start()
        accepted = await world.add(*[1000] * 95)
        await world.advance(5000)
        sizes = node.handler().sizes
        assert sum(sizes) == 95
        assert max(sizes) == 10
        assert len(sizes) <= 12
        found = await world.statuses(accepted)
        assert found[Status.DONE] + found[Status.FAILED] == 95
        assert 40 <= found[Status.FAILED] <= 48


async def test_a_delivery_that_runs_for_long_is_shown_to_people() -> None:
    async with rig() as world:

        async def slow(job: Job) -> None:
            await sleep(world.clock, 10_000)

        await world.node().app(function=slow).start()
        (accepted,) = await world.add(1000)
        await world.advance(6000)
        record = await world.record(accepted)
        assert [(a.started_ms, a.finished_ms) for a in record.attempts] == [(accepted.due_ms, None)]
        await world.advance(6000)
        record = await world.record(accepted)
        assert record.status is Status.DONE


async def test_deliveries_that_run_for_long_are_shown_whichever_lane_looks_first() -> None:
    async with rig() as world:

        async def slow(job: Job) -> None:
            await sleep(world.clock, 10_000)

        node = world.node()
        node.wire.lanes = 2
        await node.app(function=slow).start()
        accepted = await world.spread([1000] * 8)
        await world.advance(6000)
        assert all([(await world.record(one)).attempts for one in accepted])


# Pauses


async def test_a_paused_app_hands_nothing_over_and_the_others_go_on() -> None:
    async with rig() as world:
        await world.client.register("sms", 4)
        await world.node().app().app("sms").start()
        await world.client.pause("mail", paused=True)
        await world.advance(2000)
        await world.add(*range(1000, 2000, 10))
        await world.add(*range(1000, 2000, 10), app="sms")
        await world.advance(60_000)
        assert not world.delivered("mail")
        assert len(world.delivered("sms")) == 100
        await world.client.pause("mail", paused=False)
        await world.advance(2000)
        assert len(world.delivered("mail")) == 100
        assert set(world.times().values()) == {1}


async def test_what_is_in_flight_when_an_app_is_paused_ends_in_good_order() -> None:
    async with rig() as world:

        async def slow(job: Job) -> None:
            await sleep(world.clock, 5000)

        await world.node().app(function=slow).start()
        (accepted,) = await world.add(1000)
        await world.advance(2000)
        await world.client.pause("mail", paused=True)
        await world.advance(10_000)
        assert (await world.record(accepted)).status is Status.DONE


async def test_what_happens_is_told_in_batches() -> None:
    async with rig() as world:
        node = await world.node().app(concurrency=200).start()
        await world.add(*[1000] * 150)
        await world.advance(3000)
        handed = node.told_of(events.HandedOver)
        settled = node.told_of(events.JobsSettled)
        assert sum(len(e.lateness_ms) for e in handed) == 150
        assert sum(e.counts["done"] for e in settled) == 150
        assert len(handed) <= 4
        assert len(settled) <= 4
