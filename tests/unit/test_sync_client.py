"""The client for programs without an event loop: shared between threads, on a file."""

import asyncio
import gc
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from infinite_scheduler.client import NewJob
from infinite_scheduler.errors import (
    InvalidRequest,
    InvalidTime,
    KeyConflict,
    SchedulerError,
    StoreMismatch,
    StoreUnavailable,
    TooLate,
    Unavailable,
    UnknownApp,
    UnknownJob,
)
from infinite_scheduler.model import JobRecord, Status
from infinite_scheduler.sync_client import SyncClient

T = TypeVar("T")
NO_JOB = "019a8b7c-3d20-8014-9f3a-5c1e2b7d4a60"
THREADS = 8
BOUND_S = 20


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
def client(url: str) -> Iterator[SyncClient]:
    with SyncClient(url) as client:
        client.register("mail", 4)
        yield client


def in_threads(work: Callable[[int], T]) -> list[T]:
    """Run this in several threads, which begin together."""
    barrier = threading.Barrier(THREADS, timeout=BOUND_S)

    def begin(number: int) -> T:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(begin, range(THREADS), timeout=BOUND_S))


def in_a_thread(work: Callable[[], T]) -> "Future[T]":
    """Run this in a thread that does not hold up the end of the tests, should it hang."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def gone(threads: set[threading.Thread]) -> bool:
    """Have all threads but these ended? One that was let go may need a moment."""
    until = time.monotonic() + BOUND_S
    while (left := set(threading.enumerate()) - threads) and time.monotonic() < until:
        for thread in left:
            thread.join(0.1)
    return not left


def test_a_job_through_all_calls(client: SyncClient) -> None:
    job = client.schedule("mail", {"to": "ann"}, delay="1h", tags=["t"], idempotency_key="k")
    assert not job.repeated
    assert client.schedule("mail", {"to": "ann"}, delay="1h", tags=["t"], idempotency_key="k").id == job.id
    record = client.get(job.id)
    assert (record.id, record.job.data, record.status) == (job.id, {"to": "ann"}, Status.PENDING)
    assert [r.id for r in client.find("mail", tag="t").records] == [job.id]
    moved = client.reschedule(job.id, delay="2h")
    assert moved.job.due_ms > record.job.due_ms
    assert client.run_now(job.id).job.due_ms < record.job.due_ms
    assert client.cancel(job.id).status is Status.CANCELLED
    assert client.wait(job.id).status is Status.CANCELLED
    again = client.retry(job.id)
    assert (again.status, again.job.attempt) == (Status.PENDING, 2)
    assert [a.due_ms for a in client.schedule_many("mail", [NewJob(at=5_000_000_000_000)] * 2)] == [
        5_000_000_000_000
    ] * 2


def test_apps(client: SyncClient) -> None:
    assert client.register("sms", 2).shards == 2
    assert client.register("sms").shards == 2
    assert {app.name: app.paused for app in client.survey().view.apps} == {"mail": False, "sms": False}
    client.pause("sms")
    assert {app.name: app.paused for app in client.survey().view.apps} == {"mail": False, "sms": True}
    client.schedule("sms", delay="1h")
    client.resume("sms")
    survey = client.survey()
    assert {app.name: app.paused for app in survey.view.apps} == {"mail": False, "sms": False}
    assert survey.counts["sms"]["accepted"] == 1


def test_threads_share_a_client(client: SyncClient) -> None:
    def life(number: int) -> tuple[str, JobRecord]:
        job = client.schedule("mail", number, delay="1h")
        assert client.get(job.id).job.data == number
        client.reschedule(job.id, delay="2h")
        client.cancel(job.id)
        assert client.wait(job.id).status is Status.CANCELLED
        client.retry(job.id)
        client.run_now(job.id)
        assert job.id in {record.id for record in client.find("mail").records}
        client.survey()
        return job.id, client.get(job.id)

    lives = in_threads(life)
    assert len({id_ for id_, _ in lives}) == THREADS
    assert [record.job.data for _, record in lives] == list(range(THREADS))
    assert {record.status for _, record in lives} == {Status.PENDING}
    assert client.survey().counts["mail"]["accepted"] == THREADS


def test_threads_register_and_pause_apps(client: SyncClient) -> None:
    def work(number: int) -> int:
        shards = client.register(f"app{number % 2}", 3).shards
        client.pause(f"app{number % 2}")
        client.resume(f"app{number % 2}")
        return shards

    assert in_threads(work) == [3] * THREADS
    assert {(a.name, a.paused) for a in client.survey().view.apps} >= {("app0", False), ("app1", False)}


def test_one_key_from_many_threads_is_one_job(client: SyncClient) -> None:
    answers = in_threads(lambda _: client.schedule("mail", 1, at="2100-01-01T00:00:00Z", idempotency_key="k"))
    assert len({answer.id for answer in answers}) == 1
    assert sorted(answer.repeated for answer in answers) == [False] + [True] * (THREADS - 1)


def test_one_job_is_cancelled_in_one_thread_and_waited_for_in_others(client: SyncClient) -> None:
    job = client.schedule("mail", delay="1h")
    waiting = [in_a_thread(lambda: client.wait(job.id, timeout=BOUND_S)) for _ in range(THREADS)]
    client.cancel(job.id)
    assert {future.result(BOUND_S).status for future in waiting} == {Status.CANCELLED}


def test_waiting_does_not_hold_up_other_threads(client: SyncClient) -> None:
    job = client.schedule("mail", delay="1h")
    waiting = in_a_thread(lambda: client.wait(job.id, timeout=BOUND_S))
    assert client.get(job.id).status is Status.PENDING
    assert not waiting.done()
    client.cancel(job.id)
    waiting.result(BOUND_S)


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda c, _: c.schedule("nobody", delay="1h"), UnknownApp),
        (lambda c, _: c.schedule("mail", delay="soon"), InvalidTime),
        (lambda c, _: c.schedule("mail"), InvalidTime),
        (lambda c, _: c.schedule("mail", 2, delay="1h", idempotency_key="k"), KeyConflict),
        (lambda c, _: c.schedule_many("mail", ["no job"]), InvalidRequest),
        (lambda c, _: c.get(NO_JOB), UnknownJob),
        (lambda c, _: c.get("no id"), InvalidRequest),
        (lambda c, _: c.get(None), InvalidRequest),
        (lambda c, _: c.cancel(NO_JOB), UnknownJob),
        (lambda c, _: c.wait(NO_JOB), UnknownJob),
        (lambda c, job: c.wait(job, timeout="1ms"), Unavailable),
        (lambda c, job: c.retry(job), InvalidRequest),
        (lambda c, job: c.reschedule(job), InvalidTime),
        (lambda c, _: c.find(status="lost"), InvalidRequest),
        (lambda c, _: c.find(limit=0), InvalidRequest),
        (lambda c, _: c.register("mail", 5), StoreMismatch),
        (lambda c, _: c.register("No Name"), InvalidRequest),
        (lambda c, _: c.pause("nobody"), UnknownApp),
        (lambda c, _: c.resume("nobody"), UnknownApp),
    ],
)
def test_errors_come_through_as_themselves(
    client: SyncClient, call: Callable[[Any, str], object], kind: type[SchedulerError]
) -> None:
    job = client.schedule("mail", 1, delay="1h", idempotency_key="k")
    with pytest.raises(SchedulerError) as caught:
        call(client, job.id)
    assert caught.type is kind
    assert client.get(job.id).status is Status.PENDING  # the client works on


def test_a_cancelled_job_is_too_late_to_move(client: SyncClient) -> None:
    job = client.schedule("mail", delay="1h")
    client.cancel(job.id)
    with pytest.raises(TooLate, match=job.id):
        client.reschedule(job.id, delay="1h")
    with pytest.raises(TooLate, match=job.id):
        client.run_now(job.id)


def test_errors_in_threads_reach_their_threads(client: SyncClient) -> None:
    def work(number: int) -> str:
        if number % 2:
            return client.schedule("mail", number, delay="1h").id
        with pytest.raises(UnknownApp, match=f"app{number}"):
            client.schedule(f"app{number}", delay="1h")
        return ""

    assert len({id_ for id_ in in_threads(work) if id_}) == THREADS // 2


def test_an_error_in_the_block_comes_through(url: str) -> None:
    before = set(threading.enumerate())

    def fail() -> None:
        with SyncClient(url) as client:
            client.register("mail")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert gone(before)


def test_leaving_ends_all_threads(url: str) -> None:
    before = set(threading.enumerate())
    with SyncClient(url) as client:
        client.register("mail")
        in_threads(lambda number: client.schedule("mail", number, delay="1h"))
        assert set(threading.enumerate()) > before
    assert gone(before)


def test_what_was_accepted_is_there_for_the_next(url: str) -> None:
    with SyncClient(url) as client:
        client.register("mail")
        job = client.schedule("mail", 1, delay="1h")
    with SyncClient(url) as client:
        assert client.get(job.id).job.data == 1


def test_a_store_that_cannot_be_opened_leaves_no_thread(tmp_path: Path) -> None:
    (tmp_path / "no.db").write_bytes(b"this is no database " * 1000)
    before = set(threading.enumerate())
    with pytest.raises(SchedulerError), SyncClient(f"sqlite:///{tmp_path / 'no.db'}"):
        pass
    assert gone(before)


def test_after_leaving_it_says_so(url: str) -> None:
    with SyncClient(url) as client:
        client.register("mail")
    with pytest.raises(Unavailable, match="not open"):
        client.survey()
    with pytest.raises(Unavailable, match="not open"):
        client.schedule("mail", delay="1h")


def test_before_entering_it_says_so_and_leaves_nothing_behind(url: str) -> None:
    client = SyncClient(url)
    with pytest.raises(Unavailable, match="not open"):
        client.survey()
    del client
    gc.collect()  # an event loop that nobody closed would warn, and pytest make an error of it


def test_who_waits_while_another_leaves_is_let_go(url: str) -> None:
    asked = threading.Event()

    async def silent(*_: object, **__: object) -> JobRecord:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    with SyncClient(url) as client:
        client.register("mail")
        client._client.get = silent  # type: ignore[method-assign]
        waiting = in_a_thread(lambda: client.wait(NO_JOB))
        assert asked.wait(BOUND_S)
    with pytest.raises(StoreUnavailable, match="it is unknown whether the call took effect"):
        waiting.result(5)


def test_jobs_in_a_transaction_of_ones_own(client: SyncClient, url: str) -> None:
    import sqlalchemy as sa

    engine = sa.create_engine(url)
    with engine.begin() as connection:
        (job,) = client.enqueue(connection, "mail", [NewJob(data=1, delay="1h")])
        with pytest.raises(UnknownJob):
            client.get(job.id)
    engine.dispose()
    assert client.get(job.id).job.data == 1


def test_every_call_of_the_client_is_there() -> None:
    from infinite_scheduler.client import Client

    doors = {"submit", "conflicts", "holders", "change", "search", "backlog", "inbox", "ledger"}
    instead = {"bulk_change"}  # `preview_change` and `change_jobs`, as what it returns is used with `await`
    apart = {"open", "close", "find_all", *doors, *instead}  # `with`, and an async iterator
    calls = {name for name in vars(Client) if not name.startswith("_")} - apart
    assert calls <= set(vars(SyncClient))


def test_the_file_is_let_go(url: str, tmp_path: Path) -> None:
    with SyncClient(url) as client:
        client.register("mail")
    connection = sqlite3.connect(tmp_path / "jobs.db", timeout=0)
    try:
        connection.execute("BEGIN EXCLUSIVE")
        assert connection.in_transaction
    finally:
        connection.close()
