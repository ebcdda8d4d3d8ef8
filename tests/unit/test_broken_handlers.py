"""The contract of handlers finds each broken promise: for every test of it there is a handler that turns it red."""

import asyncio
import inspect
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import msgspec
import pytest

from infinite_scheduler.clock import Clock
from infinite_scheduler.errors import DestinationAway, HandlerTimeout, InvalidPayload
from infinite_scheduler.handlers.base import Handler, Report
from infinite_scheduler.model import Done, Failed, Job
from infinite_scheduler.testing import HandlerContract

GOOD, BAD = b'{"n":1}', b"null"


class Plain(Handler):
    """Hands over to a list, and keeps every promise. Where it hangs, its time-out ends that."""

    batch = 3

    def __init__(
        self,
        clock: Clock,
        arrived: list[str],
        *,
        hangs: bool = False,
        timeout_ms: int | None = None,
        is_away: bool = False,
    ) -> None:
        self.clock, self.arrived, self.hangs, self.timeout_ms = clock, arrived, hangs, timeout_ms
        self.is_away = is_away

    async def ready(self) -> None:
        if self.is_away:
            raise DestinationAway("closed")

    async def handle(self, jobs: Sequence[Job], report: Report) -> None:
        for job in jobs:
            if self.is_away:
                await self.come_back(job, report)
            elif self.hangs:
                await self.hang(job, report)
            elif job.payload == BAD:
                await self.refuse(job, report)
            else:
                await self.deliver(job, report)

    async def deliver(self, job: Job, report: Report) -> None:
        self.arrived.append(job.id)
        report(job, Done())

    async def come_back(self, job: Job, report: Report) -> None:
        report(job, DestinationAway("closed"))

    async def refuse(self, job: Job, report: Report) -> None:
        report(job, ValueError("bad data"))

    async def hang(self, job: Job, report: Report) -> None:
        await self.time_out()
        report(job, HandlerTimeout("too long"))

    async def time_out(self) -> None:
        over = asyncio.Event()
        if self.timeout_ms is not None:
            self.clock.call_later(self.timeout_ms, over.set)
        await over.wait()


class Unstoppable(Plain):
    """Its work runs on until it is released, like that of a thread."""

    gate: asyncio.Event

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.running: dict[asyncio.Task[Any], Job] = {}

    async def start(self) -> None:
        type(self).gate = asyncio.Event()

    async def hang(self, job: Job, report: Report) -> None:
        work = asyncio.create_task(self.gate.wait())
        self.running[work] = job
        work.add_done_callback(self.running.pop)
        await self.time_out()
        report(job, HandlerTimeout("too long"))
        await self.wait_for(work)

    async def wait_for(self, work: asyncio.Task[Any]) -> None:
        await asyncio.shield(work)

    def unfinished(self) -> Sequence[Job]:
        return list(self.running.values())


class PlainContract(HandlerContract):
    """The contract, on one of these handlers."""

    data, bad_data = GOOD, BAD

    def __init__(self, kind: type[Plain], patience_s: float) -> None:
        self.kind = kind
        self.patience_s = patience_s
        self.can_be_interrupted = not issubclass(kind, Unstoppable)
        self.messages: list[str] = []

    def make_handler(self, clock: Clock) -> Handler:
        return self.kind(clock, self.messages)

    def make_stuck_handler(self, clock: Clock, timeout_ms: int | None) -> Handler:
        return self.kind(clock, self.messages, hangs=True, timeout_ms=timeout_ms)

    def make_away_handler(self, clock: Clock) -> Handler:
        return self.kind(clock, self.messages, is_away=True)

    async def arrived(self) -> Collection[str]:
        return self.messages

    async def until_stuck(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    def release(self) -> None:
        if issubclass(self.kind, Unstoppable):
            self.kind.gate.set()


# Handlers that break one promise each


class ReportsTwice(Plain):
    async def deliver(self, job: Job, report: Report) -> None:
        await super().deliver(job, report)
        report(job, Done())


class ForgetsTheLast(Plain):
    async def handle(self, jobs: Sequence[Job], report: Report) -> None:
        await super().handle(jobs[:2], report)


class HandsNothingOver(Plain):
    async def deliver(self, job: Job, report: Report) -> None:
        report(job, Done())


class FailsAllForOne(Plain):
    async def handle(self, jobs: Sequence[Job], report: Report) -> None:
        if all(job.payload == GOOD for job in jobs):
            await super().handle(jobs, report)
        else:
            for job in jobs:
                report(job, ValueError("one of them has bad data"))


class Raises(Plain):
    async def refuse(self, job: Job, report: Report) -> None:
        raise ValueError("bad data")


class TakesFailureForSuccess(Plain):
    async def refuse(self, job: Job, report: Report) -> None:
        report(job, Done())


class ReportsAnExit(Plain):
    async def refuse(self, job: Job, report: Report) -> None:
        report(job, SystemExit(1))


class ReportsACopy(Plain):
    async def deliver(self, job: Job, report: Report) -> None:
        await super().deliver(msgspec.structs.replace(job), report)


class ReportsInAThread(Plain):
    async def deliver(self, job: Job, report: Report) -> None:
        await asyncio.to_thread(report, job, Done())


class ConfusesCalls(Plain):
    async def handle(self, jobs: Sequence[Job], report: Report) -> None:
        self.report = report
        await asyncio.sleep(0)
        await super().handle(jobs, self.report)


class RefusesRepeats(Plain):
    async def deliver(self, job: Job, report: Report) -> None:
        if job.id in self.arrived:
            report(job, Failed("it was here before"))
        else:
            await super().deliver(job, report)


class RefusesGoodData(Plain):
    checks = True

    def check(self, data: Any) -> None:
        raise InvalidPayload(f"{data!r} is not wanted")


class ChecksInSecret(Plain):
    def check(self, data: Any) -> None:
        if data is None:
            raise InvalidPayload("no data")


class RefusesInOtherWords(Plain):
    checks = True

    def check(self, data: Any) -> None:
        data["n"]


class AdoptsEverything(Plain):
    def adopt(self, message: Mapping[str, Any]) -> object | None:
        return "now"


class GivesUpAtTheTimeOut(Plain):
    async def hang(self, job: Job, report: Report) -> None:
        await self.time_out()
        report(job, Failed("too long"))


class TakesATimeOutForLasting(Plain):
    class Late(Exception):
        retryable = False

    async def hang(self, job: Job, report: Report) -> None:
        await self.time_out()
        report(job, self.Late())


class HasNoTimeOut(Plain):
    async def time_out(self) -> None:
        await asyncio.Event().wait()


class NeverReturns(Plain):
    async def hang(self, job: Job, report: Report) -> None:
        await super().hang(job, report)
        await asyncio.Event().wait()


class GivesItsPlaceAway(Unstoppable):
    async def wait_for(self, work: asyncio.Task[Any]) -> None:
        return


class SwallowsTheCancel(Plain):
    async def handle(self, jobs: Sequence[Job], report: Report) -> None:
        try:
            await super().handle(jobs, report)
        except asyncio.CancelledError:
            return


class ReportsTheCancel(Plain):
    async def handle(self, jobs: Sequence[Job], report: Report) -> None:
        try:
            await super().handle(jobs, report)
        except asyncio.CancelledError as error:
            report(jobs[0], RuntimeError(f"stopped: {error!r}"))
            raise


class HidesWhatRuns(Unstoppable):
    def unfinished(self) -> Sequence[Job]:
        return ()


class NamesWhatEnds(Plain):
    current: tuple[Job, ...] = ()

    async def hang(self, job: Job, report: Report) -> None:
        self.current = (job,)
        await super().hang(job, report)

    def unfinished(self) -> Sequence[Job]:
        return self.current


class NeverFinishes(Plain):
    all: ClassVar[list[Job]] = []

    async def deliver(self, job: Job, report: Report) -> None:
        await super().deliver(job, report)
        self.all.append(job)

    def unfinished(self) -> Sequence[Job]:
        return self.all


class WaitsAtTheStop(Plain):
    async def stop(self) -> None:
        if self.hangs:
            await asyncio.Event().wait()


class LeavesATask(Plain):
    async def start(self) -> None:
        self.task = asyncio.create_task(asyncio.Event().wait())


class StopsOnlyAfterAStart(Plain):
    started = False

    async def start(self) -> None:
        self.started = True

    async def stop(self) -> None:
        if not self.started:
            raise RuntimeError("not started")


class StartsOnce(Plain):
    stopped = False

    async def start(self) -> None:
        if self.stopped:
            raise RuntimeError("stopped")

    async def stop(self) -> None:
        self.stopped = True


class BlamesTheJob(Plain):
    async def come_back(self, job: Job, report: Report) -> None:
        report(job, ConnectionError("closed"))


class ForgetsWhatCameBack(Plain):
    async def come_back(self, job: Job, report: Report) -> None:
        return


class MissesItsDestination(Plain):
    async def ready(self) -> None:
        raise DestinationAway("closed")


class LooksInOtherWords(Plain):
    async def ready(self) -> None:
        raise RuntimeError("closed")


class LooksForEver(Plain):
    async def ready(self) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()


BROKEN: Mapping[str, Sequence[type[Plain]]] = {
    "test_a_call_takes_as_many_jobs_as_the_batch_says_and_reports_each_of_them_once": [ReportsTwice, ForgetsTheLast],
    "test_a_job_that_is_done_has_arrived": [HandsNothingOver],
    "test_the_failure_of_one_job_leaves_the_others_of_its_call_alone": [FailsAllForOne],
    "test_a_failure_is_reported_and_not_raised": [Raises, TakesFailureForSuccess],
    "test_a_report_is_an_outcome_or_an_error": [ReportsAnExit],
    "test_a_report_names_the_very_job_that_came": [ReportsACopy],
    "test_reports_come_in_the_thread_of_the_event_loop": [ReportsInAThread],
    "test_calls_at_the_same_time_report_their_own_jobs": [ConfusesCalls],
    "test_the_same_job_may_come_again": [RefusesRepeats],
    "test_a_destination_that_takes_nothing_is_told_for_each_job_and_is_no_fault_of_theirs": [
        BlamesTheJob,
        ForgetsWhatCameBack,
    ],
    "test_a_look_at_the_destination_finds_it_there_or_says_why_not": [MissesItsDestination, LooksInOtherWords],
    "test_a_look_at_the_destination_ends_when_it_is_cancelled": [LooksForEver],
    "test_data_that_can_be_handed_over_is_accepted_at_the_door": [RefusesGoodData],
    "test_a_check_refuses_with_invalid_payload_and_only_where_checks_says_so": [ChecksInSecret, RefusesInOtherWords],
    "test_a_message_of_somebody_else_is_not_adopted": [AdoptsEverything],
    "test_a_time_out_is_an_error_that_is_worth_another_attempt": [
        GivesUpAtTheTimeOut,
        TakesATimeOutForLasting,
        HasNoTimeOut,
    ],
    "test_after_a_time_out_the_call_returns_when_the_work_has_ended_and_not_before": [NeverReturns, GivesItsPlaceAway],
    "test_a_cancelled_call_ends_as_cancelled_and_reports_nothing": [SwallowsTheCancel, ReportsTheCancel],
    "test_unfinished_names_the_jobs_whose_work_a_cancelled_call_leaves_running": [HidesWhatRuns, NamesWhatEnds],
    "test_nothing_is_unfinished_when_all_calls_have_returned": [NeverFinishes],
    "test_a_stop_waits_for_no_delivery_that_hangs": [WaitsAtTheStop],
    "test_a_stop_leaves_no_thread_task_or_process_behind": [LeavesATask],
    "test_a_stop_without_a_start_does_nothing": [StopsOnlyAfterAStart],
    "test_a_handler_that_was_stopped_can_be_started_again": [StartsOnce],
}
PROMISES = [name for name, _ in inspect.getmembers(HandlerContract, inspect.isfunction) if name.startswith("test_")]
RED = (AssertionError, DestinationAway, InvalidPayload, TimeoutError, ValueError, TypeError, RuntimeError)


async def tried(kind: type[Plain], promise: str, patience_s: float) -> None:
    try:
        await getattr(PlainContract(kind, patience_s), promise)()
    finally:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


def test_every_promise_has_a_handler_that_breaks_it() -> None:
    assert set(BROKEN) == set(PROMISES)


@pytest.mark.parametrize("kind", [Plain, Unstoppable])
@pytest.mark.parametrize("promise", PROMISES)
async def test_a_handler_that_keeps_its_promises_is_accepted(kind: type[Plain], promise: str) -> None:
    await tried(kind, promise, patience_s=20)


@pytest.mark.parametrize(("promise", "kind"), [(promise, kind) for promise, kinds in BROKEN.items() for kind in kinds])
async def test_a_handler_that_breaks_a_promise_is_found(promise: str, kind: type[Plain]) -> None:
    with pytest.raises(RED):
        await tried(kind, promise, patience_s=0.2)
