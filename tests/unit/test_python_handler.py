import asyncio
import contextvars
import functools
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infinite_scheduler.clock import Timer
from infinite_scheduler.errors import HandlerError, HandlerTimeout, Unavailable
from infinite_scheduler.handlers.answers import Answer
from infinite_scheduler.handlers.processes import Errand
from infinite_scheduler.handlers.python import PythonHandler, load_function
from infinite_scheduler.model import Done, Expired, Failed, Job, JobId, Retry
from infinite_scheduler.observe.context import current_batch, current_job, job_fields


def job(number: int = 0) -> Job:
    return Job(
        key=JobId.make(1_000 + number, 0, 1, entropy=number.to_bytes(8, "big")),
        app="shop",
        due_ms=1_000 + number,
        scheduled_ms=1_000 + number,
        payload=b"%d" % number,
        created_ms=0,
        request_id=f"r{number}",
    )


class HandClock:
    """Time that moves when told to."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.timers: list[tuple[float, Callable[[], object]]] = []

    def wall_ms(self) -> int:
        return self.now_ms

    def steady_ms(self) -> int:
        return self.now_ms

    def steady_us(self) -> int:
        return self.now_ms * 1000

    def call_later(self, ms: float, callback: Callable[[], object]) -> Timer:
        entry = (self.now_ms + ms, callback)
        self.timers.append(entry)
        timers = self.timers

        class Cancel:
            def cancel(self) -> None:
                if entry in timers:
                    timers.remove(entry)

        return Cancel()

    def advance(self, ms: int) -> None:
        self.now_ms += ms
        while due := [entry for entry in self.timers if entry[0] <= self.now_ms]:
            self.timers.remove(due[0])
            due[0][1]()


class Reports:
    """What a handler reported, in order; a job that is reported twice is an error."""

    def __init__(self) -> None:
        self.answers: dict[Job, Answer] = {}
        self.told = asyncio.Event()

    def __call__(self, job: Job, answer: Answer) -> None:
        assert job not in self.answers, "reported twice"
        self.answers[job] = answer
        self.told.set()

    @property
    def only(self) -> Answer:
        (answer,) = self.answers.values()
        return answer

    def error(self, kind: type[BaseException] = Exception) -> str:
        assert isinstance(self.only, kind)
        return str(self.only)


@asynccontextmanager
async def running(function: Any, **options: Any) -> AsyncIterator[PythonHandler]:
    before = set(threading.enumerate())
    handler = PythonHandler(function, **options)
    await handler.start()
    try:
        yield handler
    finally:
        await handler.stop()
    assert set(threading.enumerate()) <= before, "a thread was left behind"


async def call(function: Any, **options: Any) -> Answer:
    reports = Reports()
    async with running(function, **options) as handler:
        await handler.handle([job()], reports)
    return reports.only


def returning(value: object) -> Callable[[Job], object]:
    def plain(job: Job) -> object:
        return value

    return plain


def returning_async(value: object) -> Callable[[Job], Awaitable[object]]:
    async def coroutine(job: Job) -> object:
        return value

    return coroutine


def raising(error: BaseException) -> Callable[[Job], object]:
    def plain(job: Job) -> object:
        raise error

    return plain


def raising_async(error: BaseException) -> Callable[[Job], Awaitable[object]]:
    async def coroutine(job: Job) -> object:
        raise error

    return coroutine


both_ways = pytest.mark.parametrize("make", [returning, returning_async])
both_raise = pytest.mark.parametrize("make", [raising, raising_async])


class TestAnswers:
    @both_ways
    @pytest.mark.parametrize("value", [None, 42, "done", {"any": "thing"}, [Failed()], object(), False, ValueError])
    async def test_a_value_that_is_no_outcome_means_done(self, make: Any, value: object) -> None:
        assert await call(make(value)) == Done()

    @both_ways
    @pytest.mark.parametrize("value", [Done(), Retry(after=timedelta(seconds=5)), Failed("no"), Expired()])
    async def test_an_outcome_is_passed_on(self, make: Any, value: object) -> None:
        assert await call(make(value)) is value

    @both_ways
    async def test_a_returned_exception_counts_as_raised(self, make: Any) -> None:
        error = ValueError("returned")
        assert await call(make(error)) is error

    @both_ways
    async def test_the_class_of_an_outcome_is_an_error_and_not_done(self, make: Any) -> None:
        answer = await call(make(Retry))
        assert isinstance(answer, TypeError)
        assert "Retry()" in str(answer)

    @both_ways
    async def test_a_generator_of_which_nothing_ran_is_an_error_and_not_done(self, make: Any) -> None:
        answer = await call(make(number for number in range(3)))
        assert isinstance(answer, TypeError)
        assert "never ran" in str(answer)

    async def test_a_coroutine_that_an_async_function_forgot_to_await_is_an_error(self) -> None:
        async def inner() -> None: ...

        async def forgetful(job: Job) -> object:
            return inner()

        assert isinstance(await call(forgetful), TypeError)

    @both_raise
    async def test_what_a_function_raises_is_reported(self, make: Any) -> None:
        error = ValueError("broken")
        assert await call(make(error)) is error

    @both_raise
    @pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError("mine")])
    async def test_an_exit_or_cancellation_of_its_own_fails_the_job_and_nothing_else(
        self, make: Any, error: BaseException
    ) -> None:
        answer = await call(make(error))
        assert isinstance(answer, RuntimeError)
        assert answer.__cause__ is error
        assert type(error).__name__ in str(answer)

    async def test_a_stop_iteration_from_a_thread_is_reported(self) -> None:
        assert isinstance(await call(raising(StopIteration())), StopIteration)


class TestFunctions:
    async def test_a_partial_of_an_async_function_is_awaited_in_the_loop(self) -> None:
        async def seen(mark: str, job: Job) -> object:
            return Failed(f"{mark} {threading.current_thread() is threading.main_thread()}")

        assert await call(functools.partial(seen, "x")) == Failed("x True")

    async def test_an_object_with_an_async_call_is_awaited_in_the_loop(self) -> None:
        class Sender:
            async def __call__(self, job: Job) -> object:
                return Failed(str(threading.current_thread() is threading.main_thread()))

        assert await call(functools.partial(Sender())) == Failed("True")

    async def test_a_lambda_around_an_async_function_is_awaited(self) -> None:
        async def send(job: Job) -> object:
            await asyncio.sleep(0)
            return Failed(job.id)

        answer = await call(lambda one: send(one))  # noqa: PLW0108 - a plain function around an async one
        assert answer == Failed(job().id)

    async def test_a_plain_function_does_not_block_the_loop(self) -> None:
        released = threading.Event()
        reports = Reports()
        async with running(lambda job: released.wait(10) or Failed("blocked")) as handler:
            task = asyncio.create_task(handler.handle([job()], reports))
            await asyncio.sleep(0)
            released.set()
            await task
        assert reports.only == Done()

    async def test_no_more_threads_than_concurrency(self) -> None:
        together = threading.Barrier(3)
        names = set()

        def meet(job: Job) -> None:
            names.add(threading.current_thread().name)
            together.wait(10)

        reports = Reports()
        async with running(meet, concurrency=3) as handler, asyncio.TaskGroup() as tasks:
            for number in range(30):
                tasks.create_task(handler.handle([job(number)], reports))
        assert len(names) == 3
        assert len(reports.answers) == 30

    @pytest.mark.parametrize(
        ("function", "options", "says"),
        [
            (lambda: None, {}, "must take one argument, the job; its signature is"),
            (lambda a, b: None, {}, "must take one argument, the job; its signature is"),
            (dict, {}, "class"),
            (42, {}, "cannot be called"),
            (returning(None), {"batch": 0}, "batch is 0"),
            (returning(None), {"concurrency": 0}, "concurrency is 0"),
            (returning(None), {"timeout_ms": 0}, "timeout_ms is 0"),
            (returning(None), {"pool": "fibre"}, "'thread' or 'process'"),
            (returning_async(None), {"pool": "thread"}, "needs no pool"),
        ],
    )
    def test_what_cannot_work_is_refused_at_once(self, function: Any, options: dict[str, Any], says: str) -> None:
        with pytest.raises(HandlerError, match=says):
            PythonHandler(function, **options)

    def test_a_function_with_yield_is_refused_since_calling_it_runs_nothing(self) -> None:
        def generator(job: Job) -> Iterator[int]:
            yield 1

        async def asynchronous(job: Job) -> AsyncIterator[int]:
            yield 1

        for function in (generator, asynchronous):
            with pytest.raises(HandlerError, match="yield"):
                PythonHandler(function)

    @pytest.mark.parametrize("function", [lambda job: None, functools.partial(returning(None)), returning(None)])
    async def test_a_process_pool_takes_only_what_can_be_imported(self, function: Any) -> None:
        with pytest.raises(HandlerError, match="top level of a module"):
            await PythonHandler(function, pool="process").start()


class TestBatches:
    @staticmethod
    async def call(value: object, count: int = 3) -> list[Answer]:
        reports = Reports()

        async def function(jobs: list[Job]) -> object:
            assert isinstance(jobs, list)
            if isinstance(value, BaseException):
                raise value
            return value

        async with running(function, batch=10) as handler:
            assert handler.batch == 10
            await handler.handle([job(number) for number in range(count)], reports)
        assert list(reports.answers) == [job(number) for number in range(count)]
        return list(reports.answers.values())

    async def test_none_means_that_all_are_done(self) -> None:
        assert await self.call(None) == [Done()] * 3

    async def test_each_job_gets_its_own_answer(self) -> None:
        error = ValueError()
        assert await self.call([Failed("a"), None, error]) == [Failed("a"), Done(), error]
        assert await self.call((Retry(), 7, Done())) == [Retry(), Done(), Done()]

    @pytest.mark.parametrize("value", [[], [None], [None] * 4, 3, "abc", Failed(), {1: 2, 3: 4, 5: 6}])
    async def test_anything_but_one_answer_a_job_is_an_error_of_every_job(self, value: object) -> None:
        for answer in await self.call(value):
            assert isinstance(answer, TypeError)
            assert "each of the 3 jobs" in str(answer)

    async def test_what_it_raises_is_an_error_of_every_job(self) -> None:
        error = ValueError("all of them")
        assert await self.call(error) == [error] * 3

    async def test_a_plain_function_takes_batches_in_a_thread(self) -> None:
        reports = Reports()
        async with running(lambda jobs: [Failed(one.id) for one in jobs], batch=2) as handler:
            await handler.handle([job(1), job(2)], reports)
        assert list(reports.answers.values()) == [Failed(job(1).id), Failed(job(2).id)]


class TestTimeouts:
    async def test_an_async_function_past_its_time_out_is_cancelled_and_reported(self) -> None:
        clock, reports, ended = HandClock(), Reports(), []

        async def slow(job: Job) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(job)

        async with running(slow, timeout_ms=500, clock=clock) as handler:
            task = asyncio.create_task(handler.handle([job()], reports))
            await asyncio.sleep(0)
            clock.advance(499)
            await asyncio.sleep(0)
            assert not reports.answers
            clock.advance(1)
            await task
        assert ended == [job()]
        assert "500 ms" in reports.error(HandlerTimeout)
        assert not task.cancelled()
        assert task.cancelling() == 0

    async def test_each_call_has_its_own_time(self) -> None:
        clock, reports = HandClock(), Reports()
        done = {number: asyncio.Event() for number in range(3)}

        async def slow(job: Job) -> None:
            await done[job.data].wait()

        async with running(slow, timeout_ms=100, clock=clock) as handler:
            tasks = []
            for number in range(3):
                tasks.append(asyncio.create_task(handler.handle([job(number)], reports)))
                await asyncio.sleep(0)
                clock.advance(40)
            done[1].set()
            await tasks[1]
            clock.advance(0)
            assert list(reports.answers) == [job(0), job(1)]
            clock.advance(59)
            await asyncio.sleep(0)
            assert job(2) not in reports.answers
            clock.advance(1)
            await asyncio.gather(*tasks)
            assert not clock.timers
        assert [type(reports.answers[job(number)]) for number in range(3)] == [HandlerTimeout, Done, HandlerTimeout]

    async def test_one_timer_serves_many_calls(self) -> None:
        clock, reports = HandClock(), Reports()
        async with running(returning_async(None), timeout_ms=100, clock=clock) as handler:
            for number in range(50):
                await handler.handle([job(number)], reports)
                assert len(clock.timers) == 1
            clock.advance(100)
            assert not clock.timers

    async def test_a_function_that_ignores_its_cancellation_is_reported_in_time_and_its_result_dropped(self) -> None:
        clock, reports, go_on = HandClock(), Reports(), asyncio.Event()

        async def stubborn(job: Job) -> object:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await go_on.wait()
            return Failed("too late")

        async with running(stubborn, timeout_ms=5, clock=clock) as handler:
            task = asyncio.create_task(handler.handle([job()], reports))
            await asyncio.sleep(0)
            clock.advance(5)
            assert isinstance(reports.only, HandlerTimeout)
            await asyncio.sleep(0)
            assert not task.done()
            go_on.set()
            await task
        assert isinstance(reports.only, HandlerTimeout)

    async def test_a_stop_during_a_time_out_still_stops(self) -> None:
        clock, reports = HandClock(), Reports()

        async def slow(job: Job) -> None:
            await asyncio.Event().wait()

        async with running(slow, timeout_ms=5, clock=clock) as handler:
            task = asyncio.create_task(handler.handle([job()], reports))
            await asyncio.sleep(0)
            clock.advance(5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert isinstance(reports.only, HandlerTimeout)

    async def test_every_job_of_a_batch_past_its_time_out_is_reported(self) -> None:
        clock, reports = HandClock(), Reports()

        async def slow(jobs: list[Job]) -> None:
            await asyncio.Event().wait()

        async with running(slow, batch=2, timeout_ms=5, clock=clock) as handler:
            task = asyncio.create_task(handler.handle([job(1), job(2)], reports))
            await asyncio.sleep(0)
            clock.advance(5)
            await task
        assert [type(answer) for answer in reports.answers.values()] == [HandlerTimeout] * 2

    async def test_a_plain_function_is_reported_in_time_but_keeps_its_place_until_it_returns(self) -> None:
        clock, reports = HandClock(), Reports()
        begun, release = threading.Event(), threading.Event()

        def slow(job: Job) -> object:
            begun.set()
            release.wait(10)
            return Failed("too late")

        async with running(slow, timeout_ms=5, clock=clock) as handler:
            task = asyncio.create_task(handler.handle([job()], reports))
            await asyncio.to_thread(begun.wait, 10)
            clock.advance(5)
            assert isinstance(reports.only, HandlerTimeout)
            await asyncio.sleep(0)
            assert not task.done()
            assert handler.unfinished() == [job()]
            release.set()
            await task
            assert handler.unfinished() == []
            await asyncio.get_running_loop().shutdown_default_executor()
        assert isinstance(reports.only, HandlerTimeout)

    async def test_a_coroutine_that_comes_out_of_a_thread_too_late_never_runs(self) -> None:
        clock, reports, ran = HandClock(), Reports(), []
        begun, release = threading.Event(), threading.Event()

        async def send(job: Job) -> None:
            ran.append(job)

        def slow(job: Job) -> object:
            begun.set()
            release.wait(10)
            return send(job)

        async with running(slow, timeout_ms=5, clock=clock) as handler:
            task = asyncio.create_task(handler.handle([job()], reports))
            await asyncio.to_thread(begun.wait, 10)
            clock.advance(5)
            release.set()
            await task
            await asyncio.get_running_loop().shutdown_default_executor()
        assert not ran


class TestStop:
    async def test_a_cancelled_async_function_is_not_reported(self) -> None:
        reports = Reports()

        async def slow(job: Job) -> None:
            await asyncio.Event().wait()

        for options in ({}, {"timeout_ms": 10_000}):
            async with running(slow, **options) as handler:
                task = asyncio.create_task(handler.handle([job()], reports))
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
        assert not reports.answers

    async def test_a_plain_function_that_cannot_be_stopped_is_listed_until_it_returns(self) -> None:
        reports, release, begun = Reports(), threading.Event(), threading.Event()

        def slow(job: Job) -> None:
            begun.set()
            release.wait(10)

        handler = PythonHandler(slow, concurrency=1)
        await handler.start()
        first = asyncio.create_task(handler.handle([job(1)], reports))
        second = asyncio.create_task(handler.handle([job(2)], reports))
        await asyncio.to_thread(begun.wait, 10)
        for task in (first, second):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert handler.unfinished() == [job(1)], "the second never began"
        threads = {thread for thread in threading.enumerate() if thread.name.startswith(__name__)}
        assert len(threads) == 1
        await handler.stop()
        assert handler.unfinished() == [job(1)]
        release.set()
        for thread in threads:
            await asyncio.to_thread(thread.join, 10)
        assert handler.unfinished() == []
        assert not reports.answers

    async def test_work_that_has_not_begun_never_does(self) -> None:
        reports, release, seen = Reports(), threading.Event(), []

        def slow(job: Job) -> None:
            seen.append(job.data)
            release.wait(10)

        async with running(slow, concurrency=1) as handler:
            first = asyncio.create_task(handler.handle([job(1)], reports))
            second = asyncio.create_task(handler.handle([job(2)], reports))
            await asyncio.sleep(0)
            second.cancel()
            await asyncio.wait([second])
            release.set()
            await first
        assert seen == [1]


class TestContext:
    @both_ways
    async def test_the_running_code_knows_its_job(self, make: Any) -> None:
        seen: list[object] = []

        async def asynchronous(one: Job) -> None:
            seen.extend([current_job.get(), job_fields()])

        def plain(one: Job) -> None:
            seen.extend([current_job.get(), job_fields()])

        await asyncio.create_task(call(asynchronous if make is returning_async else plain))
        assert seen == [job(), {"job_id": job().id, "app": "shop", "attempt": 1, "request_id": "r0"}]
        assert current_job.get() is None
        assert job_fields() == {}

    async def test_the_running_code_knows_its_batch(self) -> None:
        seen: list[object] = []

        def plain(jobs: list[Job]) -> None:
            seen.extend([list(current_batch.get()), job_fields()])

        async def run(count: int) -> None:
            async with running(plain, batch=2) as handler:
                await handler.handle([job(number) for number in range(count)], Reports())

        await asyncio.create_task(run(2))
        await asyncio.create_task(run(1))
        assert seen[:2] == [[job(0), job(1)], {"app": "shop", "batch": 2}]
        assert seen[3] == {"job_id": job().id, "app": "shop", "attempt": 1, "request_id": "r0"}

    async def test_what_one_call_sets_in_its_thread_does_not_reach_the_next(self) -> None:
        variable = contextvars.ContextVar("variable", default=0)
        seen = []

        def plain(job: Job) -> None:
            seen.append(variable.get())
            variable.set(1)

        async with running(plain, concurrency=1) as handler:
            for number in range(3):
                await handler.handle([job(number)], Reports())
        assert seen == [0, 0, 0]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder beside the working directory; what is imported is forgotten afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    loaded = set(sys.modules)
    (tmp_path / "config").mkdir()
    yield tmp_path / "config"
    for name in set(sys.modules) - loaded:
        del sys.modules[name]


class TestLoading:
    def test_a_function_is_found_in_the_given_folder_with_its_own_imports(self, folder: Path) -> None:
        (folder / "texts_a.py").write_text("HELLO = 'hello'")
        (folder / "hooks_a.py").write_text(
            "import texts_a\ndef hello(job):\n    import later_a\n    return texts_a.HELLO + later_a.MARK"
        )
        (folder / "later_a.py").write_text("MARK = '!'")
        assert load_function("hooks_a:hello", [folder])(None) == "hello!"
        assert sys.path[0] == str(folder)

    def test_the_given_folder_comes_before_the_working_directory_and_both_before_the_rest(self, folder: Path) -> None:
        (folder / "hooks_b.py").write_text("def f(job): return 'config'")
        (folder.parent / "hooks_b.py").write_text("def f(job): return 'cwd'")
        (folder.parent / "hooks_c.py").write_text("def f(job): return 'cwd'")
        assert load_function("hooks_b:f", [folder])(None) == "config"
        assert load_function("hooks_c:f", [folder])(None) == "cwd"
        assert load_function("json:loads", [folder]) is __import__("json").loads

    def test_a_module_that_is_installed_puts_no_folder_on_the_path(self, folder: Path) -> None:
        before = list(sys.path)
        load_function("json:loads", [folder])
        assert sys.path == before

    def test_attributes_of_objects_in_packages_are_found(self, folder: Path) -> None:
        (folder / "pack_d").mkdir()
        (folder / "pack_d" / "mod.py").write_text("class C:\n    def send(self, job): return 7\nsender = C()")
        assert load_function("pack_d.mod:sender.send", [folder])(None) == 7

    @pytest.mark.parametrize(
        ("spec", "says"),
        [
            ("nowhere_e:f", "no module 'nowhere_e'; looked in {folder}, {cwd}"),
            ("pack_e.nowhere:f", "no module 'pack_e.nowhere'"),
            ("typo_e:f", "SyntaxError: .*typo_e.py, line 2"),
            ("crash_e:f", "ZeroDivisionError: division by zero .*crash_e.py, line 3"),
            ("needs_e:f", "No module named 'not_installed_e' .*needs_e.py, line 1"),
            ("exits_e:f", "cannot be imported: SystemExit: 4"),
            ("fine_e:send_sns", "no 'send_sns' in fine_e .*did you mean 'send_sms'"),
            ("fine_e:NUMBER", "int object, which cannot be called"),
            ("fine_e:send_sms.more", "no 'more' in function object"),
            ("fine_e", "write 'module:name'"),
            ("fine_e.send_sms", "did you mean 'fine_e:send_sms'"),
            ("fine_e:", "write 'module:name'"),
            (":send_sms", "write 'module:name'"),
            ("fine-e:send", "write 'module:name'"),
            ("a:b:c", "write 'module:name'"),
            ("", "write 'module:name'"),
        ],
    )
    def test_a_refusal_names_the_handler_and_the_reason(self, folder: Path, spec: str, says: str) -> None:
        (folder / "pack_e").mkdir()
        (folder / "typo_e.py").write_text("x = 1\ndef f(:\n")
        (folder / "crash_e.py").write_text("\n\n1 / 0\n")
        (folder / "needs_e.py").write_text("import not_installed_e\n")
        (folder / "exits_e.py").write_text("raise SystemExit(4)\n")
        (folder / "fine_e.py").write_text("NUMBER = 1\ndef send_sms(job): pass\n")
        with pytest.raises(HandlerError, match=says.format(folder=folder, cwd=folder.parent)) as refused:
            load_function(spec, [folder])
        assert repr(spec) in str(refused.value)

    async def test_a_handler_takes_the_name_of_its_function(self, folder: Path) -> None:
        (folder.parent / "hooks_f.py").write_text(
            "from infinite_scheduler.model import Failed\nasync def f(job):\n    return Failed('by name')"
        )
        assert await call("hooks_f:f") == Failed("by name")


def test_jobs_of_a_sequence_are_handed_over_one_by_one() -> None:
    seen: list[int] = []

    async def function(job: Job) -> None:
        seen.append(job.data)

    async def main() -> Sequence[Job]:
        reports = Reports()
        await PythonHandler(function).handle([job(1), job(2)], reports)
        return list(reports.answers)

    assert asyncio.run(main()) == [job(1), job(2)]
    assert seen == [1, 2]


def test_a_call_that_was_given_up_before_it_began_is_not_made_in_a_worker() -> None:
    given_back: list[object] = []
    sent: list[bytes] = []
    worker = SimpleNamespace(send=sent.append, kill=lambda: None)
    workers: Any = SimpleNamespace(borrow=lambda: worker, give_back=given_back.append, discard=lambda _: None)
    errand = Errand(workers, [job()], started=lambda: None)
    errand.end()
    with pytest.raises(Unavailable, match="given up before it began"):
        errand()
    assert (given_back, sent) == ([worker], [])
