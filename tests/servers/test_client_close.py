"""A client that is closed while changes are on their way: whoever is told that nothing was changed can rely on it."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any, NamedTuple

import pytest

from infinite_scheduler import Client, NewJob
from infinite_scheduler.errors import StoreUnavailable, Unavailable
from infinite_scheduler.model import Change, JobId, JobRecord, datetime_of
from infinite_scheduler.store.sql import change_requests, store
from infinite_scheduler.store.sql.protocol import anybody
from infinite_scheduler.store.sql.server import session
from infinite_scheduler.store.sql.statements import Statements
from tests.servers.stage import someone_waits
from tests.servers.test_lost_connections import linked
from tests.services.databases import connect, kind_of
from tests.waiting import PATIENCE_S, now_ms, until, until_async

APP = "work"
SOAK = bool(os.environ.get("INFINITE_SCHEDULER_SOAK"))


LATER_MS = 7_200_000
"""Whoever reschedules moves a job by so much: from one hour ahead to three."""

CHANGES = ("cancel", "reschedule", "run_now", "retry")


class Asked(NamedTuple):
    """A change of one job, and what its caller was told."""

    change: str
    before: JobRecord
    answer: JobRecord | BaseException


async def close_amid_changes(url: str, changes: int, inserts: int) -> None:
    """Close a client amid calls, and compare what they were told with what the store says."""
    client = await Client(url).open()
    await client.register(APP, 4)
    jobs = [NewJob(data=n, delay="1h") for n in range(changes)]
    ids = [accepted.id for accepted in await client.schedule_many(APP, jobs)]
    kinds = [CHANGES[n % len(CHANGES)] for n in range(changes)]
    await asyncio.gather(*(client.cancel(job) for job, kind in zip(ids, kinds, strict=True) if kind == "retry"))
    before = {record.id: record async for record in client.find_all(APP)}
    adding = [asyncio.create_task(client.schedule(APP, n, delay="1h")) for n in range(inserts)]
    changing = [asyncio.create_task(asked(client, kind, before[job])) for job, kind in zip(ids, kinds, strict=True)]
    await adding[0]
    await client.close()
    answers = await asyncio.gather(*changing, return_exceptions=True)
    added = await asyncio.gather(*adding)
    async with Client(url) as client:
        after = {record.id: record async for record in client.find_all(APP)}
    assert {accepted.id for accepted in added} <= set(after), "what was accepted is stored"
    for job, kind, answer in zip(ids, kinds, answers, strict=True):
        told = Asked(kind, before[job], answer)
        assert as_told(told, after[job]), f"{kind}: {answer!r}, but the job is {after[job]}"


async def asked(client: Client, kind: str, record: JobRecord) -> JobRecord:
    """Ask for a change of a job."""
    match kind:
        case "cancel":
            return await client.cancel(record.id)
        case "reschedule":
            return await client.reschedule(record.id, at=datetime_of(record.job.due_ms + LATER_MS))
        case "run_now":
            return await client.run_now(record.id)
        case _:
            return await client.retry(record.id)


def as_told(asked: Asked, after: JobRecord) -> bool:
    """Is the job as the one was told who has asked for its change?"""
    changed = is_changed(asked, after)
    unchanged = (after.status, after.job.due_ms) == (asked.before.status, asked.before.job.due_ms)
    if isinstance(asked.answer, JobRecord):
        return changed
    if isinstance(asked.answer, StoreUnavailable):
        text = str(asked.answer)
        return (changed or unchanged) if "unknown" in text else ("was changed" in text and changed)
    return isinstance(asked.answer, Unavailable) and unchanged


def is_changed(asked: Asked, after: JobRecord) -> bool:
    """Did the change take place?"""
    moved_ms = after.job.due_ms - asked.before.job.due_ms
    match asked.change:
        case "cancel":
            return after.status == "cancelled"
        case "reschedule":
            return moved_ms == LATER_MS
        case "run_now":
            return moved_ms < 0
        case _:
            return after.status == "pending"


@pytest.mark.endurance
async def test_whoever_is_told_at_a_close_that_nothing_was_changed_has_an_unchanged_job(url: str) -> None:
    rounds, changes, inserts = (8, 200, 3000) if SOAK else (3, 60, 600)
    for _ in range(rounds):
        await asyncio.wait_for(close_amid_changes(url, changes, inserts), PATIENCE_S)


@asynccontextmanager
async def cancel_in_the_way(url: str) -> AsyncIterator[tuple[Client, str, "asyncio.Task[JobRecord]", Any]]:
    """A cancel that waits, as somebody else has locked the row: the client, the job, the call, the lock."""
    client = await Client(url).open()
    await client.register(APP, 1)
    job = (await client.schedule(APP, delay="1h")).id
    table = (await client.get(job, app=APP)).kept_in
    with closing(connect(url)) as stranger, closing(connect(url)) as watcher, closing(stranger.cursor()) as lock:
        lock.execute("BEGIN")
        lock.execute(f"SELECT id FROM {table} FOR UPDATE")
        async with busy_door(client):  # so the cancel takes another connection than what comes next
            call = asyncio.create_task(client.cancel(job, app=APP))
            await until_async(lambda: someone_waits(watcher, kind_of(url)), "the cancel waits for the row")
        yield client, job, call, lock


@asynccontextmanager
async def busy_door(client: Client) -> AsyncIterator[None]:
    """The first connection of the door has something to do."""
    ready, over = threading.Event(), threading.Event()

    def keep(_: Statements) -> None:
        ready.set()
        over.wait(PATIENCE_S)

    work = asyncio.create_task(client._store._door.write(keep))  # type: ignore[attr-defined]
    try:
        await until_async(ready.is_set)
        yield
    finally:
        over.set()
        await work


async def test_a_close_waits_for_a_change_that_is_being_written(url: str) -> None:
    async with cancel_in_the_way(url) as (client, job, call, lock):
        closing_ = asyncio.create_task(client.close())
        await asyncio.wait([call], timeout=0.3)
        assert not call.done(), "it is not known yet whether it takes place"
        lock.execute("ROLLBACK")
        await closing_
        assert (await call).status == "cancelled"
    assert await status_of(url, job) == "cancelled"


async def test_a_change_that_outlasts_the_close_is_said_to_be_unknown(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (change_requests, store, session):
        monkeypatch.setattr(module, "CLOSE_S", 0.2)
    async with cancel_in_the_way(url) as (client, job, call, lock):
        await client.close()
        with pytest.raises(StoreUnavailable, match="unknown whether the change takes place: look at the job"):
            await call
        lock.execute("ROLLBACK")
    await until_async(lambda: status_of(url, job, "cancelled"), "the transaction goes on, and takes place")


async def status_of(url: str, job: str, wanted: str | None = None) -> Any:
    async with Client(url) as client:
        status = (await client.get(job, app=APP)).status
    return status if wanted is None else status == wanted


async def test_a_change_in_doubt_is_given_up_only_when_its_transaction_has_ended(url: str) -> None:
    async with Client(url) as client:
        await client.register(APP, 1)
        key = bytes(JobId.parse((await client.schedule(APP, delay="1h")).id))
    asked = anybody.ChangeRequest(id=b"\1" * 16, change=Change.CANCEL, app=APP, key=key, due_ms=None, now_ms=now_ms())

    def ask(tx: Statements) -> object:
        return anybody.ask(tx, [asked], exclusive=False)

    with held_open(url, ask) as let_it_commit, closing(linked(url)) as link, closing(connect(url)) as watcher:
        giving_up = asyncio.create_task(
            asyncio.to_thread(link.write, lambda tx: anybody.give_up(tx, [asked], doubtful=True))
        )
        await until_async(lambda: giving_up.done() or someone_waits(watcher, kind_of(url)))
        assert not giving_up.done(), "a transaction without an answer may still be open at the server"
        let_it_commit()
        assert await giving_up == {asked.id: True}


@contextmanager
def held_open(url: str, body: Callable[[Statements], object]) -> Iterator[Callable[[], None]]:
    """A transaction that has done everything but its commit."""
    ready, over = threading.Event(), threading.Event()

    def hold(tx: Statements) -> None:
        body(tx)
        ready.set()
        over.wait(PATIENCE_S)

    link = linked(url)
    work = threading.Thread(target=link.write, args=(hold,))
    work.start()
    try:
        until(ready.is_set)
        yield over.set
    finally:
        over.set()
        work.join()
        link.close()
