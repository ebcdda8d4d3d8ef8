"""What every handler promises: one test each, the name of the test is the promise. Needs pytest and pytest-asyncio."""

import asyncio
import multiprocessing
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import msgspec
import pytest

from infinite_scheduler.clock import Clock
from infinite_scheduler.errors import DestinationAway, InvalidPayload
from infinite_scheduler.handlers.answers import OUTCOMES, Answer
from infinite_scheduler.handlers.base import Handler
from infinite_scheduler.model import Cancelled, Done, Expired, Job, JobId, Retry
from infinite_scheduler.testing.manual_clock import START_MS, ManualClock

TIMEOUT_MS: Final = 300
"""The time-out of handlers whose time-out is tried: short, as some count it by real time."""

_LOOK_S: Final = 0.005
"""How often something is looked at that happens in a thread, a process or a broker."""

_NO_DATA: Final[Sequence[Any]] = (None, 1, "text", [], {}, {"of": "somebody else"})


class Reports:
    """What a handler reported, in order, and in which threads."""

    def __init__(self) -> None:
        self.told: list[tuple[Job, Answer]] = []
        self.threads: set[int] = set()

    def __call__(self, job: Job, answer: Answer) -> None:
        self.threads.add(threading.get_ident())
        self.told.append((job, answer))

    @property
    def ids(self) -> list[str]:
        return [job.id for job, _ in self.told]

    def of(self, job: Job) -> Answer:
        """The one answer for this job."""
        (answer,) = [answer for reported, answer in self.told if reported.id == job.id]
        return answer


class StuckDelivery:
    """A delivery that does not end by itself."""

    def __init__(self, handler: Handler, job: Job, clock: ManualClock) -> None:
        self.handler, self.job, self.clock = handler, job, clock
        self.reports = Reports()
        self.call = asyncio.create_task(handler.handle([job], self.reports))
        self._stopped = False

    async def cancelled(self) -> None:
        """Cancel the call as a node does that must stop, and wait until it has ended."""
        self.call.cancel()
        await asyncio.wait([self.call])

    async def stop(self) -> None:
        """Stop the handler, once."""
        if not self._stopped:
            self._stopped = True
            await self.handler.stop()


class HandlerContract(ABC):
    """Promises of `Handler`; put a handler under them by saying how it is made, what makes it fail, what makes it hang.

    ```python
    class TestMyHandler(HandlerContract):
        data = b'{"to": "Ada"}'
        bad_data = b'{"to": null}'

        def make_handler(self, clock: Clock) -> Handler:
            return MyHandler(self.server.url, clock=clock)

        def make_stuck_handler(self, clock: Clock, timeout_ms: int | None) -> Handler:
            return MyHandler(SILENT_URL, timeout_ms=timeout_ms, clock=clock)

        async def arrived(self) -> Collection[str]:
            return [message["id"] for message in self.server.messages]
    ```
    """

    data: bytes = b"{}"
    """The payload of a job that can be handed over."""

    bad_data: bytes = b"null"
    """The payload of a job whose delivery fails."""

    has_timeout: bool = True
    """Does the handler itself give up a delivery that takes too long?"""

    can_be_interrupted: bool = True
    """Does work end when its call is cancelled or times out? That of a thread does not."""

    patience_s: float = 20.0
    """How long, in real time, to wait for something that must happen by itself."""

    @abstractmethod
    def make_handler(self, clock: Clock) -> Handler:
        """A handler that is not started yet."""

    @abstractmethod
    def make_stuck_handler(self, clock: Clock, timeout_ms: int | None) -> Handler:
        """A handler that is not started yet, and whose deliveries do not end by themselves.

        `timeout_ms` is its time-out, by `clock` or in real time; None: one that no test lives to see, or none at all.
        """

    def make_away_handler(self, clock: Clock) -> Handler | None:
        """A handler that is not started yet, and whose destination takes nothing; None: that cannot be told apart."""
        del clock
        return None

    @abstractmethod
    async def arrived(self) -> Collection[str]:
        """The ids of the jobs that are where the handler hands them over to."""

    async def until_stuck(self) -> None:
        """Return when a delivery of the stuck handler is under way."""
        await asyncio.sleep(0)

    def release(self) -> None:
        """Let deliveries of the stuck handler end that cannot be interrupted."""
        return

    # Handing over

    async def test_a_call_takes_as_many_jobs_as_the_batch_says_and_reports_each_of_them_once(self) -> None:
        async with self._running() as handler:
            assert handler.batch >= 1
            jobs, reports = self._jobs(handler.batch), Reports()
            await self._soon(handler.handle(jobs, reports))
            assert sorted(reports.ids) == sorted(job.id for job in jobs)

    async def test_a_job_that_is_done_has_arrived(self) -> None:
        jobs = self._jobs(3)
        async with self._running() as handler:
            reports = await self._handed_over(handler, jobs)
        assert [reports.of(job) for job in jobs] == [Done()] * 3
        assert {job.id for job in jobs} <= set(await self.arrived())

    async def test_the_failure_of_one_job_leaves_the_others_of_its_call_alone(self) -> None:
        first, last = self._jobs(2)
        jobs = [first, self._bad_job(2), last]
        async with self._running() as handler:
            reports = await self._handed_over(handler, jobs)
        assert (reports.of(first), reports.of(last)) == (Done(), Done())

    async def test_a_failure_is_reported_and_not_raised(self) -> None:
        bad = self._bad_job(0)
        async with self._running() as handler:
            answer = (await self._handed_over(handler, [bad])).of(bad)
        assert not isinstance(answer, Done | Expired | Cancelled)

    async def test_a_report_is_an_outcome_or_an_error(self) -> None:
        jobs = [*self._jobs(1), self._bad_job(1)]
        async with self._running() as handler:
            reports = await self._handed_over(handler, jobs)
        assert all(isinstance(answer, (*OUTCOMES, Exception)) for _, answer in reports.told)

    async def test_a_report_names_the_very_job_that_came(self) -> None:
        jobs = [*self._jobs(1), self._bad_job(1)]
        async with self._running() as handler:
            reports = await self._handed_over(handler, jobs)
        assert reports.told
        assert all(any(job is came for came in jobs) for job, _ in reports.told)

    async def test_reports_come_in_the_thread_of_the_event_loop(self) -> None:
        async with self._running() as handler:
            reports = await self._handed_over(handler, [*self._jobs(1), self._bad_job(1)])
        assert reports.threads == {threading.get_ident()}

    async def test_calls_at_the_same_time_report_their_own_jobs(self) -> None:
        jobs = self._jobs(4)
        reports = [Reports() for _ in jobs]
        async with self._running() as handler:
            calls = [handler.handle([job], own) for job, own in zip(jobs, reports, strict=True)]
            await self._soon(asyncio.gather(*calls))
        assert [own.ids for own in reports] == [[job.id] for job in jobs]

    async def test_the_same_job_may_come_again(self) -> None:
        (job,) = self._jobs(1)
        async with self._running() as handler:
            for _ in range(2):
                assert (await self._handed_over(handler, [job])).of(job) == Done()

    # Without a destination

    async def test_a_destination_that_takes_nothing_is_told_for_each_job_and_is_no_fault_of_theirs(self) -> None:
        handler = self.make_away_handler(ManualClock())
        if handler is None:
            pytest.skip("this handler does not know whether its destination is away")
        jobs = self._jobs(3)
        async with self._running(handler):
            reports = await self._handed_over(handler, jobs)
        assert sorted(reports.ids) == sorted(job.id for job in jobs)
        assert all(isinstance(answer, DestinationAway) and str(answer) for _, answer in reports.told)

    async def test_a_look_at_the_destination_finds_it_there_or_says_why_not(self) -> None:
        async with self._running() as handler:
            await self._handed_over(handler, self._jobs(1))  # some destinations are created by using them
            await self._soon(handler.ready())
        away = self.make_away_handler(ManualClock())
        if away is not None:
            async with self._running(away):
                with suppress(DestinationAway):  # a handler need not look
                    await self._soon(away.ready())

    async def test_a_look_at_the_destination_ends_when_it_is_cancelled(self) -> None:
        async with self._running(self.make_away_handler(ManualClock())) as handler:
            looking = asyncio.create_task(handler.ready())
            await asyncio.sleep(0)
            looking.cancel()
            await self._soon(asyncio.wait([looking]))

    # At the door

    async def test_data_that_can_be_handed_over_is_accepted_at_the_door(self) -> None:
        self.make_handler(ManualClock()).check(msgspec.json.decode(self.data))

    async def test_a_check_refuses_with_invalid_payload_and_only_where_checks_says_so(self) -> None:
        handler = self.make_handler(ManualClock())
        for data in _NO_DATA:
            try:
                handler.check(data)
            except InvalidPayload:
                assert handler.checks, f"{data!r} was refused, and doors do not look: set checks"

    async def test_a_message_of_somebody_else_is_not_adopted(self) -> None:
        assert self.make_handler(ManualClock()).adopt({"of": "somebody else"}) is None

    # Time-outs

    async def test_a_time_out_is_an_error_that_is_worth_another_attempt(self) -> None:
        async with self._timed_out_delivery() as stuck:
            answer = stuck.reports.of(stuck.job)
            assert isinstance(answer, Retry | Exception)
            assert getattr(answer, "retryable", True)

    async def test_after_a_time_out_the_call_returns_when_the_work_has_ended_and_not_before(self) -> None:
        async with self._timed_out_delivery() as stuck:
            if not self.can_be_interrupted:
                await asyncio.wait([stuck.call], timeout=20 * _LOOK_S)
                assert not stuck.call.done(), "its place is free, and its work still runs"
                self.release()
            await self._soon(stuck.call)
            assert stuck.reports.ids == [stuck.job.id]

    # Stops

    async def test_a_cancelled_call_ends_as_cancelled_and_reports_nothing(self) -> None:
        async with self._stuck_delivery() as stuck:
            await self._soon(stuck.cancelled())
            assert stuck.call.cancelled(), "the node would take its job for a failed one"
            self.release()
        assert stuck.reports.told == []

    async def test_unfinished_names_the_jobs_whose_work_a_cancelled_call_leaves_running(self) -> None:
        async with self._stuck_delivery() as stuck:
            left = [] if self.can_be_interrupted else [stuck.job]
            assert list(stuck.handler.unfinished()) == left
            await self._soon(stuck.cancelled())
            assert list(stuck.handler.unfinished()) == left
            self.release()
            await self._until(lambda: not stuck.handler.unfinished())

    async def test_nothing_is_unfinished_when_all_calls_have_returned(self) -> None:
        async with self._running() as handler:
            assert not handler.unfinished()
            await self._handed_over(handler, self._jobs(1))
            assert not handler.unfinished()

    async def test_a_stop_waits_for_no_delivery_that_hangs(self) -> None:
        async with self._stuck_delivery() as stuck:
            await self._soon(stuck.stop())

    async def test_a_stop_leaves_no_thread_task_or_process_behind(self) -> None:
        threads, tasks, processes = _left()
        async with self._running() as handler:
            await self._handed_over(handler, [*self._jobs(2), self._bad_job(2)])
        now = _left()
        assert now[0] <= threads, "a thread was left behind"
        assert now[1] <= tasks, "a task was left behind"
        assert now[2] <= processes, "a process was left behind"

    async def test_a_stop_without_a_start_does_nothing(self) -> None:
        await self._soon(self.make_handler(ManualClock()).stop())

    async def test_a_handler_that_was_stopped_can_be_started_again(self) -> None:
        handler = self.make_handler(ManualClock())
        for number in range(2):
            async with self._running(handler):
                job = self._job(number, self.data)
                assert (await self._handed_over(handler, [job])).of(job) == Done()

    # What the promises are tried with

    def _job(self, number: int, payload: bytes) -> Job:
        return Job(
            key=bytes(JobId.make(START_MS, 0, 1, entropy=number.to_bytes(8, "big"))),
            app="contract",
            due_ms=START_MS,
            scheduled_ms=START_MS,
            payload=payload,
            created_ms=START_MS,
        )

    def _jobs(self, count: int) -> list[Job]:
        return [self._job(number, self.data) for number in range(count)]

    def _bad_job(self, number: int) -> Job:
        return self._job(1000 + number, self.bad_data)

    @asynccontextmanager
    async def _running(self, handler: Handler | None = None) -> AsyncIterator[Handler]:
        handler = handler or self.make_handler(ManualClock())
        await self._soon(handler.start())
        try:
            yield handler
        finally:
            await self._soon(handler.stop())

    async def _handed_over(self, handler: Handler, jobs: Sequence[Job]) -> Reports:
        """The reports of jobs that are handed over as a node does it: in calls of up to a batch, at the same time."""
        reports = Reports()
        batches = [jobs[first : first + handler.batch] for first in range(0, len(jobs), handler.batch)]
        await self._soon(asyncio.gather(*(handler.handle(batch, reports) for batch in batches)))
        return reports

    @asynccontextmanager
    async def _stuck_delivery(self, timeout_ms: int | None = None) -> AsyncIterator[StuckDelivery]:
        clock = ManualClock()
        handler = self.make_stuck_handler(clock, timeout_ms)
        await self._soon(handler.start())
        stuck = StuckDelivery(handler, self._job(0, self.data), clock)
        try:
            await self._soon(self.until_stuck())
            yield stuck
        finally:
            self.release()
            await self._soon(stuck.cancelled())
            await self._soon(stuck.stop())

    @asynccontextmanager
    async def _timed_out_delivery(self) -> AsyncIterator[StuckDelivery]:
        """A delivery whose time-out was just reported."""
        if not self.has_timeout:
            pytest.skip("this handler has no time-out")
        async with self._stuck_delivery(TIMEOUT_MS) as stuck:

            def is_told() -> bool:
                stuck.clock.advance(TIMEOUT_MS)
                return bool(stuck.reports.told)

            await self._until(is_told)
            yield stuck

    async def _soon(self, ending: Any) -> Any:
        """What this ends with, which must not take long."""
        async with asyncio.timeout(self.patience_s):
            return await ending

    async def _until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(self.patience_s):
            while not condition():  # noqa: ASYNC110 - threads, processes and brokers set no event of the loop
                await asyncio.sleep(_LOOK_S)


def _left() -> tuple[set[threading.Thread], set[asyncio.Task[Any]], set[Any]]:
    return set(threading.enumerate()), asyncio.all_tasks(), set(multiprocessing.active_children())
