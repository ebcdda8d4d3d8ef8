"""Functions in worker processes: real processes, real deaths."""

import asyncio
import json
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from infinite_scheduler.errors import HandlerError, HandlerTimeout, WorkerDied
from infinite_scheduler.handlers.answers import Answer
from infinite_scheduler.handlers.python import PythonHandler, load_function
from infinite_scheduler.model import Done, Failed, Job, JobId, Retry
from infinite_scheduler.observe.context import current_job, job_fields
from tests.waiting import until_async


class Refused(Exception):
    """An error with a mind of its own: it cannot be made from its arguments."""

    retryable = False

    def __init__(self, code: int, *, why: str) -> None:
        self.code = code
        super().__init__(f"refused with {code}: {why}")


def act(job: Job) -> object:
    """Do what the job's data says."""
    what, *arguments = job.data
    return ACTIONS[what](*arguments)


def act_on_all(jobs: list[Job]) -> list[object]:
    return [act(job) for job in jobs]


def _raise(kind: str) -> None:
    if kind == "refused":
        raise Refused(7, why="closed")
    if kind == "key":
        raise KeyError("missing")
    if kind == "file":
        Path("/nowhere/at/all").read_text()
    if kind == "local":

        class Local(Exception):
            pass

        raise Local("nobody knows me")
    raise SystemExit(3)


def _touch(path: str) -> None:
    with Path(path).open("a") as file:
        file.write("x")


def _touch_and_wait(path: str) -> None:
    _touch(path)
    time.sleep(60)


def _wait_for(path: str) -> object:
    end = time.monotonic() + 30
    while not Path(path).exists() and time.monotonic() < end:
        time.sleep(0.005)
    return Failed("waited")


def _signal_itself() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.raise_signal(number)


ACTIONS: dict[str, Any] = {
    "done": lambda: 42,
    "retry": lambda: Retry(after=timedelta(seconds=1.5), at=datetime(2030, 1, 1, tzinfo=UTC), reason="ü"),
    "pid": lambda: Failed(str(os.getpid())),
    "exit": lambda: os._exit(9),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "raise": _raise,
    "wait": _touch_and_wait,
    "wait for": _wait_for,
    "touch": _touch,
    "surrogate": lambda: Failed("\ud800"),
    "context": lambda: Failed(f"{job_fields()['job_id']} {threading.current_thread() is threading.main_thread()}"),
    "job": lambda: Failed(repr(current_job.get())),
    "signals": _signal_itself,
    "log": lambda: logging.getLogger("user").warning("from a worker"),
}


def job(number: int, *what: object) -> Job:
    return Job(
        key=JobId.make(1_000 + number, 3, 1, entropy=number.to_bytes(8, "big")),
        app="shop",
        due_ms=1_000 + number,
        scheduled_ms=1_000,
        payload=json.dumps(what).encode(),
        created_ms=5,
        attempt=2,
        tags=("a", "b"),
    )


class Reports(dict[Job, Answer]):
    def __call__(self, job: Job, answer: Answer) -> None:
        assert job not in self, "reported twice"
        self[job] = answer


@asynccontextmanager
async def running(function: Any = act, **options: Any) -> AsyncIterator[PythonHandler]:
    handler = PythonHandler(function, pool="process", **options)
    threads = set(threading.enumerate())
    await handler.start()
    try:
        yield handler
    finally:
        await handler.stop()
    assert not multiprocessing.active_children()
    assert set(threading.enumerate()) <= threads
    assert handler.unfinished() == ()


async def call(*what: object, **options: Any) -> Answer:
    reports = Reports()
    async with running(**options) as handler:
        await handler.handle([job(0, *what)], reports)
    (answer,) = reports.values()
    return answer


async def seen(path: Path) -> None:
    """Wait until a worker has left its mark."""
    await asyncio.to_thread(_wait_for, str(path))
    await asyncio.get_running_loop().shutdown_default_executor()


async def test_answers_come_back_as_they_were_given() -> None:
    reports = Reports()
    async with running() as handler:
        for number, what in enumerate(("done", "retry", "surrogate")):
            await handler.handle([job(number, what)], reports)
    done, retry, surrogate = reports.values()
    assert done == Done()
    assert retry == ACTIONS["retry"]()
    assert isinstance(surrogate, ValueError)
    assert "cannot be passed on" in str(surrogate)


async def test_errors_keep_their_class_so_that_a_retry_policy_knows_them() -> None:
    reports = Reports()
    async with running() as handler:
        for number, what in enumerate(("refused", "key", "file", "local", "exit")):
            await handler.handle([job(number, "raise", what)], reports)
    refused, key, file, local, left = reports.values()
    assert isinstance(refused, Refused)
    assert (refused.code, refused.retryable) == (7, False)
    assert str(refused) == "refused with 7: closed"
    assert "_raise" in refused.__notes__[0], "the traceback of the worker"
    assert isinstance(key, KeyError)
    assert key.args == ("missing",)
    assert isinstance(file, FileNotFoundError)
    assert "/nowhere/at/all" in str(file)
    assert isinstance(local, RuntimeError)
    assert "nobody knows me" in str(local)
    assert isinstance(left, RuntimeError)
    assert "SystemExit" in str(left)


async def test_the_function_gets_the_same_job_and_knows_it() -> None:
    assert await call("job") == Failed(repr(job(0, "job")))
    assert await call("context") == Failed(f"{job(0).id} True")


async def test_a_worker_serves_many_jobs() -> None:
    reports = Reports()
    async with running(concurrency=4) as handler:
        for number in range(5):
            await handler.handle([job(number, "pid")], reports)
    assert len(set(map(str, reports.values()))) == 1
    assert reports[job(0, "pid")] != Failed(str(os.getpid()))


@pytest.mark.parametrize(("what", "how"), [("exit", "exit code 9"), ("kill", "SIGKILL")])
async def test_a_job_that_ends_its_process_fails_alone(what: str, how: str, tmp_path: Path) -> None:
    reports, mark = Reports(), tmp_path / "mark"
    async with running(concurrency=2) as handler:
        innocent = asyncio.create_task(handler.handle([job(1, "wait for", str(mark))], reports))
        await handler.handle([job(2, what)], reports)
        assert not innocent.done()
        mark.touch()
        await innocent
        await handler.handle([job(3, "done")], reports)
    assert reports[job(1, "wait for", str(mark))] == Failed("waited")
    died = reports[job(2, what)]
    assert isinstance(died, WorkerDied)
    assert died.retryable
    assert job(2).id in str(died)
    assert how in str(died)
    assert reports[job(3, "done")] == Done()


async def test_of_a_batch_only_the_job_that_ends_its_process_fails() -> None:
    reports = Reports()
    jobs = [job(0, "done"), job(1, "exit"), job(2, "retry"), job(3, "raise", "key")]
    async with running(act_on_all, batch=10) as handler:
        await handler.handle(jobs, reports)
    assert list(reports) == jobs
    kinds = [type(answer) for answer in reports.values()]
    assert kinds == [Done, WorkerDied, Retry, KeyError]


@pytest.mark.timeout(30)
async def test_at_the_time_out_the_worker_is_killed_and_others_go_on(tmp_path: Path) -> None:
    reports, mark = Reports(), tmp_path / "mark"
    slow, innocent = job(1, "wait", str(tmp_path / "begun")), job(2, "wait for", str(mark))
    async with running(concurrency=2, timeout_ms=2_000) as handler:
        first = asyncio.create_task(handler.handle([slow], reports))
        await seen(tmp_path / "begun")
        await first
        second = asyncio.create_task(handler.handle([innocent], reports))
        mark.touch()
        await second
    assert isinstance(reports[slow], HandlerTimeout)
    assert reports[innocent] == Failed("waited")


@pytest.mark.timeout(30)
async def test_a_stop_kills_what_runs_and_reports_nothing(tmp_path: Path) -> None:
    reports, begun = Reports(), tmp_path / "begun"
    async with running() as handler:
        task = asyncio.create_task(handler.handle([job(1, "wait", str(begun))], reports))
        await seen(begun)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not reports


@pytest.mark.parametrize("noticed", [True, False], ids=["noticed", "not noticed before the job is sent"])
async def test_a_worker_that_died_while_idle_is_replaced_without_charging_the_job(
    noticed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = Reports()
    if not noticed:
        monkeypatch.setattr("infinite_scheduler.handlers.processes.Worker.alive", True)
    async with running() as handler:
        await handler.handle([job(1, "pid")], reports)
        first = reports[job(1, "pid")]
        assert isinstance(first, Failed)
        os.kill(int(first.reason), signal.SIGKILL)
        status = Path(f"/proc/{first.reason}/stat")
        await until_async(lambda: status.read_text().rpartition(")")[2].split()[0] == "Z")
        await handler.handle([job(2, "pid")], reports)
    second = reports[job(2, "pid")]
    assert isinstance(second, Failed)
    assert second != first


async def test_signals_to_the_whole_group_leave_the_end_of_workers_to_the_node() -> None:
    assert await call("signals") == Done()


async def test_a_module_that_workers_cannot_import_is_found_out_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "only_here.py").write_text(
        "import multiprocessing\ndef f(job): pass\nif multiprocessing.parent_process(): raise ValueError('not here')"
    )
    function = load_function("only_here:f", [tmp_path])
    handler = PythonHandler(function, pool="process")
    with pytest.raises(HandlerError, match=r"only_here:f.*ValueError: not here"):
        await handler.start()
    await handler.stop()
    assert not multiprocessing.active_children()


SCRIPT = """
import asyncio, sys, time
from infinite_scheduler.handlers.python import PythonHandler
from infinite_scheduler.model import Done, Failed, Job, JobId
from infinite_scheduler.observe.logs import configure_logging

class Mine(Exception): pass

def compute(job):
    import logging
    logging.getLogger("user").warning("from a worker")
    raise Mine("raised in the script")

async def main():
    configure_logging("info", "json")
    handler = PythonHandler(compute, pool="process")
    await handler.start()
    job = Job(key=JobId.make(1, 0, 1), app="shop", due_ms=1, scheduled_ms=1, payload=b"1", created_ms=1)
    await handler.handle([job], lambda job, answer: print(type(answer) is Mine, answer))
    # No stop: the process must end all the same.

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_a_function_of_the_users_script_works_and_logs_like_the_node(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "True raised in the script\n"
    assert '"message": "from a worker"' in ended.stderr
    assert '"job_id": "00000000-0001-80' in ended.stderr


def test_a_script_without_a_main_guard_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace('if __name__ == "__main__":\n    asyncio', "asyncio"))
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "cannot run in a process pool" in ended.stderr
