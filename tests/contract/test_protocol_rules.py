"""Rules of the line protocol that one transaction keeps: each test fails when its rule is taken out of the body."""

import functools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import msgspec
import pytest

from infinite_scheduler.errors import StoreUnavailable
from infinite_scheduler.model import Change, Job, JobId, JobSpec, Owner, Priority, Shard, Status, position, start_of
from infinite_scheduler.store.ownership import Page, Scan, Settlement
from infinite_scheduler.store.sql.protocol import anybody, owner
from infinite_scheduler.store.sql.sqlite.database import SqliteDatabase
from infinite_scheduler.store.sql.statements import NewRow, Session, Statements, Update
from infinite_scheduler.store.sql.tables import SqlApp
from tests.simulation.rules import without

NOW = 1_794_787_200_000
LINE = NOW + 10_000
APP = "mail"
SHARD = Shard(APP, 0)
ME = Owner("me", 7)
OWNERS = {SHARD: ME}


@pytest.fixture
async def session() -> AsyncIterator[Session]:
    """A database with one app of one shard, which `me` owns up to the line."""
    database = SqliteDatabase(":memory:", inline=True)
    await database.open()
    door_session = database.session("door")

    def body(tx: Statements) -> None:
        tx.insert_app(SqlApp(name=APP, shards=1, paused=False, created_ms=NOW), NOW)
        (row,) = tx.lock_shards([SHARD], exclusive=True).values()
        tx.write_shards([msgspec.structs.replace(row, owner=ME, line_ms=LINE, low_ms=NOW)])

    await door_session.write(body)
    yield door_session
    await database.close()


async def add(session: Session, due_ms: int) -> bytes:
    spec = JobSpec(app=APP, scheduled_ms=due_ms, payload=b"{}")
    row = NewRow(bytes(JobId.make(due_ms, SHARD.number, Priority.NORMAL)), spec, NOW)
    await session.write(lambda tx: anybody.insert(tx, {SHARD: [row]}, NOW))
    return row.key


async def job(session: Session, key: bytes) -> Job:
    (record,) = await session.read(lambda tx: tx.read_jobs(APP, [key]))
    return record.job


async def scan(session: Session, end_ms: int) -> Page:
    wanted = Scan(
        app=APP, shards=frozenset({SHARD.number}), start=start_of(0), end=start_of(end_ms), limit=1000, room=8 << 20
    )
    return await session.read(lambda tx: owner.scan(tx, wanted))


def change_request(key: bytes, change: Change = Change.CANCEL, due_ms: int | None = None) -> anybody.ChangeRequest:
    return anybody.ChangeRequest(id=os.urandom(16), change=change, app=APP, key=key, due_ms=due_ms, now_ms=NOW)


def again(of: Job, due_ms: int) -> Settlement:
    return Settlement(job=of, status=Status.PENDING, started_ms=NOW, finished_ms=NOW, due_ms=due_ms)


# Rule 5: row.due is the only truth


async def test_a_scan_skips_an_entry_that_no_longer_equals_the_due_moment_of_its_row(session: Session) -> None:
    key = await add(session, NOW + 1000)

    def body(tx: Statements) -> None:
        moved = Update(
            key=key,
            was_status=Status.PENDING,
            was_attempt=1,
            was_due_ms=NOW + 1000,
            status=Status.PENDING,
            attempt=1,
            due_ms=NOW + 9000,
        )
        assert not tx.update_jobs(APP, [moved])
        tx.insert_entries(APP, [(position(key, NOW + 3000), key), (position(key, NOW + 9000), key)])

    await session.write(body)
    assert list((await scan(session, NOW + 9000)).jobs) == [], "neither its first moment nor the one in between"
    assert [(j.key, j.due_ms) for j in (await scan(session, LINE)).jobs] == [(key, NOW + 9000)]


async def test_the_entries_of_a_page_are_read_up_to_where_its_rows_were(session: Session) -> None:
    first, second = await add(session, NOW + 1000), await add(session, NOW + 2000)
    ends = []

    def body(tx: Statements) -> Page:
        read = tx.scan_entries

        def noted(scan: Scan) -> tuple[Sequence[tuple[bytes, Job]], bytes | None]:
            ends.append(scan.end)
            return read(scan)

        wanted = Scan(app=APP, shards=frozenset({0}), start=start_of(0), end=start_of(LINE), limit=1, room=8 << 20)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tx, "scan_entries", noted)
            return owner.scan(tx, wanted)

    page = await session.read(body)
    assert [j.key for j in page.jobs] == [first]
    assert page.next is not None
    assert first < page.next <= second
    assert ends == [page.next]


# Rule 6: exactly the requests that were read are consumed


async def test_a_wake_that_comes_between_read_and_answer_survives(session: Session) -> None:
    first = await add(session, NOW + 1000)
    read = await session.read(lambda tx: tx.read_requests([SHARD], 1000))
    second = await add(session, NOW + 2000)
    answers = await session.write(lambda tx: owner.answer(tx, OWNERS, read, (), NOW, 8 << 20))
    assert [j.key for j in answers.woken] == [first]
    left = await session.read(lambda tx: tx.read_requests([SHARD], 1000))
    assert [request.keys for request in left] == [(second,)]


# Rule 7: before the line only an owner decides


async def test_a_change_at_a_shard_that_found_an_owner_meanwhile_is_asked_of_it(session: Session) -> None:
    def give_to(tx: Statements, to: Owner) -> None:
        (row,) = tx.lock_shards([SHARD], exclusive=True).values()
        tx.write_shards([msgspec.structs.replace(row, owner=to)])

    key = await add(session, NOW + 1000)
    await session.write(lambda tx: owner.answer(tx, OWNERS, tx.read_requests([SHARD], 1000), (), NOW, 8 << 20))
    asked = change_request(key)
    await session.write(lambda tx: give_to(tx, Owner("", 7)))
    state = await session.write(lambda tx: anybody.ask(tx, [asked], exclusive=False))
    assert state == {asked.id: anybody.RequestState.RELEASED}
    await session.write(lambda tx: give_to(tx, Owner("other", 8)))
    state = await session.write(lambda tx: anybody.ask(tx, [asked], exclusive=True))
    assert state == {asked.id: anybody.RequestState.ASKED}
    (request,) = await session.read(lambda tx: tx.read_requests([SHARD], 1000))
    assert (request.id, request.change, request.keys) == (asked.id, Change.CANCEL, (key,))
    (record,) = await session.read(lambda tx: tx.read_jobs(APP, [key]))
    assert record.status is Status.PENDING
    assert not await session.read(lambda tx: tx.read_decisions([asked.id]))


async def test_a_change_at_a_released_shard_is_decided_by_the_row_under_the_exclusive_lock(session: Session) -> None:
    key = await add(session, NOW + 1000)
    asked = change_request(key)
    await session.write(lambda tx: owner.release(tx, OWNERS, {SHARD: NOW}, {}))
    state = await session.write(lambda tx: anybody.ask(tx, [asked], exclusive=True))
    assert state == {asked.id: anybody.RequestState.GRANTED}
    (record,) = await session.read(lambda tx: tx.read_jobs(APP, [key]))
    assert record.status is Status.CANCELLED


async def test_a_request_that_was_taken_back_is_not_decided(session: Session) -> None:
    key = await add(session, NOW + 1000)
    asked = change_request(key)
    await session.write(lambda tx: anybody.ask(tx, [asked], exclusive=False))
    read = await session.read(lambda tx: tx.read_requests([SHARD], 1000))
    assert await session.write(lambda tx: anybody.give_up(tx, [asked])) == {asked.id: None}
    answers = await session.write(lambda tx: owner.answer(tx, OWNERS, read, (), NOW, 8 << 20))
    assert [(r.request.id, r.claimed, r.granted) for r in answers.decisions] == [(asked.id, False, False)]
    (record,) = await session.read(lambda tx: tx.read_jobs(APP, [key]))
    assert record.status is Status.PENDING
    assert not await session.read(lambda tx: tx.read_decisions([asked.id]))


async def asked_again(session: Session, asked: anybody.ChangeRequest, *, exclusive: bool = False) -> object:
    """Ask once more, since the answer was lost."""
    states = await session.write(lambda tx: anybody.ask(tx, [asked], exclusive=exclusive, doubtful=[asked.id]))
    return states[asked.id]


async def test_a_change_whose_answer_was_lost_is_granted_again_and_made_once(session: Session) -> None:
    key = await add(session, LINE + 1000)
    failed = Settlement(job=await job(session, key), status=Status.FAILED, started_ms=NOW, finished_ms=NOW, error="no")
    await session.write(lambda tx: owner.settle(tx, OWNERS, "n1", [failed], (), exclusive=False))
    asked = change_request(key, Change.RETRY, LINE + 2000)
    states = await session.write(lambda tx: anybody.ask(tx, [asked], exclusive=False))
    assert states == {asked.id: anybody.RequestState.GRANTED}
    assert await asked_again(session, asked) is anybody.RequestState.GRANTED, "the job waits because of this very call"
    assert (await job(session, key)).attempt == 2
    counts = await session.read(lambda tx: tx.read_counts())
    assert counts[APP]["revived"] == 1


async def test_a_request_whose_answer_was_lost_is_there_once_when_it_is_asked_again(session: Session) -> None:
    key = await add(session, NOW + 1000)
    asked = change_request(key)
    await session.write(lambda tx: anybody.ask(tx, [asked], exclusive=False))
    assert await asked_again(session, asked) is anybody.RequestState.ASKED
    requests = await session.read(lambda tx: tx.read_requests([SHARD], 1000))
    assert [request.id for request in requests if request.change is not None] == [asked.id]


async def test_a_request_whose_answer_was_lost_is_not_left_to_an_owner_when_the_row_decides_after_all(
    session: Session,
) -> None:
    key = await add(session, NOW + 1000)
    asked = change_request(key)
    await session.write(lambda tx: anybody.ask(tx, [asked], exclusive=False))
    await session.write(lambda tx: owner.release(tx, OWNERS, {SHARD: NOW}, {}))
    assert await asked_again(session, asked, exclusive=True) is anybody.RequestState.GRANTED
    requests = await session.read(lambda tx: tx.read_requests([SHARD], 1000))
    assert not [request for request in requests if request.change is not None]


async def test_what_the_owner_has_decided_counts_when_a_request_is_asked_again(session: Session) -> None:
    key = await add(session, NOW + 1000)
    asked = change_request(key)
    await session.write(lambda tx: anybody.ask(tx, [asked], exclusive=False))
    read = await session.read(lambda tx: tx.read_requests([SHARD], 1000))
    await session.write(lambda tx: owner.answer(tx, OWNERS, read, {key}, NOW, 8 << 20))
    assert await asked_again(session, asked) is anybody.RequestState.TOO_LATE
    assert not await session.read(lambda tx: tx.read_requests([SHARD], 1000))


# Rule 11: entries are inserted or ignored


@pytest.mark.parametrize("due_ms", [NOW + 1000, NOW + 5000], ids=["its first moment", "another moment"])
async def test_a_job_that_is_tried_again_at_the_same_moment_is_found_once(session: Session, due_ms: int) -> None:
    key = await add(session, NOW + 1000)
    for attempt in (2, 3, 4):
        outcome = again(await job(session, key), due_ms)
        settled = await session.write(
            lambda tx, outcome=outcome: owner.settle(tx, OWNERS, "n1", [outcome], (), exclusive=False)  # type: ignore[misc]
        )
        assert settled is not None
        assert not settled.missed
        assert [(j.key, j.due_ms, j.attempt) for j in (await scan(session, LINE)).jobs] == [(key, due_ms, attempt)]


async def test_a_job_that_is_rescheduled_twice_to_the_same_moment_is_found_once(session: Session) -> None:
    key = await add(session, LINE + 1000)
    for _ in range(2):
        asked = change_request(key, Change.RESCHEDULE, LINE + 5000)
        state = await session.write(lambda tx, asked=asked: anybody.ask(tx, [asked], exclusive=False))  # type: ignore[misc]
        assert state == {asked.id: anybody.RequestState.GRANTED}
        assert [(j.key, j.due_ms) for j in (await scan(session, LINE + 9000)).jobs] == [(key, LINE + 5000)]


# Every rule is needed


NEEDED: dict[str, Callable[[Session], Awaitable[None]]] = {
    "stale_row_is_skipped": test_a_scan_skips_an_entry_that_no_longer_equals_the_due_moment_of_its_row,
    "stale_entry_is_skipped": test_a_scan_skips_an_entry_that_no_longer_equals_the_due_moment_of_its_row,
    "only_read_requests_are_deleted": test_a_wake_that_comes_between_read_and_answer_survives,
    "released_shard_is_checked_again": test_a_change_at_a_shard_that_found_an_owner_meanwhile_is_asked_of_it,
    "withdrawn_request_is_not_decided": test_a_request_that_was_taken_back_is_not_decided,
    "existing_entry_is_ignored": functools.partial(
        test_a_job_that_is_tried_again_at_the_same_moment_is_found_once, due_ms=NOW + 1000
    ),
}
"""Rules as tests/simulation/rules.py takes them out, and the test that fails without each."""


@pytest.mark.parametrize("name", NEEDED)
async def test_without_the_rule_its_test_fails(name: str, session: Session) -> None:
    with without(name), pytest.raises((AssertionError, StoreUnavailable)):
        await NEEDED[name](session)
