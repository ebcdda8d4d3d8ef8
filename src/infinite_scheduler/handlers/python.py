"""A user's Python function as a handler."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Literal

from infinite_scheduler import forked
from infinite_scheduler.clock import Clock, SystemClock
from infinite_scheduler.errors import HandlerError, HandlerTimeout, WorkerDied
from infinite_scheduler.handlers.answers import DONE, as_error, read_answer, read_answers
from infinite_scheduler.handlers.base import Handler, Report
from infinite_scheduler.handlers.checks import Checks
from infinite_scheduler.handlers.deadlines import Deadlines
from infinite_scheduler.handlers.function import check_function, check_importable, is_async, name_of
from infinite_scheduler.handlers.import_function import load_function
from infinite_scheduler.handlers.processes import Errand, Workers
from infinite_scheduler.handlers.threads import Threads, Work
from infinite_scheduler.model import Job
from infinite_scheduler.observe.context import current_batch, current_job

__all__ = ["PythonHandler", "load_function"]


class PythonHandler(Handler):
    """Calls a function with each job, or with lists of up to `batch` jobs.

    An async function runs in the event loop. A plain function runs in one of `concurrency` threads of its own pool; if
    it returns an awaitable, that is awaited in the event loop. With `pool="process"` it runs in one of `concurrency`
    worker processes, which must be able to import it; there it may end its process without harm to other jobs.

    The function returns None or an outcome; any other value is ignored, and the job is done. Whatever it raises,
    including `SystemExit`, is an error of its job. A function that takes lists returns None or a list with one answer
    per job: an outcome, None or an exception.

    At the time-out a `HandlerTimeout` is reported, and a later result of the function is dropped. An async function is
    cancelled, a worker process is killed. A thread cannot be stopped: the call counts towards the concurrency until it
    returns.
    """

    def __init__(
        self,
        function: Callable[[Any], Any] | str,
        *,
        batch: int | None = None,
        pool: Literal["thread", "process"] | None = None,
        concurrency: int = 1,
        timeout_ms: int | None = None,
        checks: Checks | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._name = function if isinstance(function, str) else name_of(function)
        self._function = load_function(function) if isinstance(function, str) else function
        check_function(self._function, self._name)
        for setting, value in (("batch", batch), ("concurrency", concurrency), ("timeout_ms", timeout_ms)):
            if value is not None and value < 1:
                raise HandlerError(f"handler {self._name!r}: {setting} is {value}; expected 1 or more")
        if pool not in {None, "thread", "process"}:
            raise HandlerError(f"handler {self._name!r}: pool is {pool!r}; expected 'thread' or 'process'")
        self._is_async = is_async(self._function)
        if self._is_async and pool is not None:
            raise HandlerError(
                f"handler {self._name!r} is async and needs no pool: leave out pool={pool!r}, or use a plain def"
            )
        self.batch = batch or 1
        self._checks = checks or Checks()
        self.checks = bool(self._checks)
        self._batched = batch is not None
        self._timeout_ms = timeout_ms or 0
        self._deadlines = None if timeout_ms is None else Deadlines(clock or SystemClock(), timeout_ms)
        self._threads = Threads(concurrency, self._name)
        self._workers = Workers(self._name, batched=self._batched) if pool == "process" else None

    def check(self, data: Any) -> None:
        """Refuse data that the app's own checks refuse."""
        self._checks(data)

    async def start(self) -> None:
        """Check that worker processes can import the function."""
        if self._workers is None:
            return
        check_importable(self._function, self._name)
        self._workers.open()
        work = self._threads.submit(self._workers.prove, ())
        await work.future
        if work.error is not None:
            raise HandlerError(f"handler {self._name!r} cannot run in a process pool: {work.error}") from work.error

    async def stop(self) -> None:
        """End threads and worker processes; a function that still runs in a thread is abandoned."""
        if self._deadlines is not None:
            self._deadlines.stop()
        if self._workers is None:
            self._threads.stop()
        else:
            self._workers.kill()
            self._threads.stop(wait=True)
            self._workers.close()

    async def handle(self, jobs: Sequence[Job], report: Report) -> None:
        """Call the function, and report the outcome of each job.

        The call has its own task: that is what a stop cancels, and its context says which job the function works for.
        """
        if self._batched:
            current_batch.set(jobs)
            await self._hand_over(list(jobs), jobs, report)
        elif not self._is_async or self._deadlines is not None:
            for job in jobs:
                current_job.set(job)
                await self._hand_over(job, (job,), report)
        else:  # the common case, written out: the general one adds a third to the cost of a job
            depth = forked.depth
            for job in jobs:
                current_job.set(job)
                try:
                    value = await self._function(job)
                except BaseException as raised:
                    if _is_stop(raised):
                        raise
                    value = as_error(raised)
                if forked.depth != depth:
                    forked.end()
                report(job, DONE if value is None else read_answer(value))

    def unfinished(self) -> Sequence[Job]:
        """Jobs whose function still runs in a thread."""
        return self._threads.running() if self._workers is None else ()

    def _hand_over(self, argument: Any, jobs: Sequence[Job], report: Report) -> Coroutine[Any, Any, None]:
        if self._is_async:
            return self._in_loop(self._function, argument, jobs, report)
        return self._in_pool(argument, jobs, report)

    async def _in_loop(
        self, function: Callable[[Any], Awaitable[Any]], argument: Any, jobs: Sequence[Job], report: Report
    ) -> None:
        """Await an async function."""
        call = None
        if self._deadlines is not None:
            call = _Call(jobs, report, self._timeout_ms, asyncio.current_task())
            self._deadlines.begin(call)
        depth = forked.depth
        try:
            value = await function(argument)
        except BaseException as raised:
            if _is_stop(raised) and not (call is not None and call.expired):
                raise
            value = self._raised(raised, len(jobs))
        finally:
            if forked.depth != depth:
                forked.end()
            if self._deadlines is not None and call is not None:
                self._deadlines.end(call)
        if call is not None and call.expired:
            call.take_back_cancellation()
        else:
            self._report(value, jobs, report)

    async def _in_pool(self, argument: Any, jobs: Sequence[Job], report: Report) -> None:
        """Call a plain function in a thread, or in a worker process through a thread."""
        call = _Call(jobs, report, self._timeout_ms)
        work = self._submit(argument, jobs, call)
        try:
            await work.future
        except asyncio.CancelledError:  # the node stops: calls that have not begun are dropped, a process is killed
            work.give_up()
            if call.end is not None:
                call.end()
            raise
        finally:
            call.over = True
            if self._deadlines is not None:
                self._deadlines.end(call)
        if call.expired:
            _drop(work.value)
        elif isinstance(work.error, WorkerDied) and len(jobs) > 1:
            for job in jobs:  # one of them ended the process: tried one by one, each shows whether it was that one
                await self._in_pool([job], (job,), report)
        elif work.error is not None:
            self._report(self._raised(work.error, len(jobs)), jobs, report)
        elif inspect.isawaitable(work.value):
            await self._in_loop(lambda _: work.value, argument, jobs, report)
        else:
            self._report(work.value, jobs, report)

    def _submit(self, argument: Any, jobs: Sequence[Job], call: "_Call") -> Work:
        """Begin the call and its time-out, which for a worker process counts from when the process has started."""
        deadlines = self._deadlines
        if self._workers is None:
            if deadlines is not None:
                deadlines.begin(call)
            return self._threads.submit(partial(self._function, argument), jobs)
        loop = asyncio.get_running_loop()

        def begin() -> None:
            if deadlines is not None and not call.over:
                deadlines.begin(call)

        errand = Errand(self._workers, jobs, started=lambda: loop.call_soon_threadsafe(begin))
        call.end = errand.end
        return self._threads.submit(errand, jobs)

    def _raised(self, raised: BaseException, count: int) -> Any:
        """What was raised, as if it had been returned for each job."""
        error = as_error(raised)
        return [error] * count if self._batched else error

    def _report(self, value: Any, jobs: Sequence[Job], report: Report) -> None:
        if not self._batched:
            report(jobs[0], read_answer(value))
            return
        for job, answer in zip(jobs, read_answers(value, len(jobs)), strict=True):
            report(job, answer)


class _Call:
    """One call of the function, as seen by its time-out."""

    expired = False
    over = False  # it returned, or its result is no longer wanted
    end: Callable[[], object] | None = None  # None: it cannot be ended
    _cancellations = 0

    def __init__(
        self, jobs: Sequence[Job], report: Report, timeout_ms: int, task: asyncio.Task[Any] | None = None
    ) -> None:
        self._jobs = jobs
        self._report = report
        self._timeout_ms = timeout_ms
        self._task = task

    def expire(self) -> None:
        """Report the time-out, and end the call if possible."""
        self.expired = True
        for job in self._jobs:
            self._report(job, HandlerTimeout(f"job {job.id} exceeded its handler's time-out of {self._timeout_ms} ms"))
        if self._task is not None:
            self._cancellations = self._task.cancelling()
            self._task.cancel()
        elif self.end is not None:
            self.end()

    def take_back_cancellation(self) -> None:
        """Let the task continue after its time-out, unless the node wants it to stop too."""
        if self._task is not None and self._task.uncancel() > self._cancellations:
            raise asyncio.CancelledError


def _is_stop(raised: BaseException) -> bool:
    """Does it come from outside, and not from the function itself?"""
    if isinstance(raised, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(raised, GeneratorExit)


def _drop(value: object) -> None:
    """Drop a late result, without the warning that it was never awaited."""
    if inspect.iscoroutine(value):
        value.close()
