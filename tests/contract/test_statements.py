"""What the line protocol relies on of a database: one promise a test, for every database that implements it."""

import asyncio
import random
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path

import msgspec
import pytest

from infinite_scheduler.model import (
    DAY_MS,
    Attempt,
    Change,
    Job,
    JobId,
    JobRecord,
    JobSpec,
    Owner,
    Priority,
    Shard,
    Status,
    position,
    start_of,
)
from infinite_scheduler.store.cluster_state import HeldBack, NodeInfo, ShardInfo
from infinite_scheduler.store.looking import Query
from infinite_scheduler.store.ownership import Request, Scan, named
from infinite_scheduler.store.sql.protocol import anybody
from infinite_scheduler.store.sql.search import search
from infinite_scheduler.store.sql.sqlite.database import SqliteDatabase
from infinite_scheduler.store.sql.statements import Database, LookAt, NewRow, Probe, Session, Statements, Update
from infinite_scheduler.store.sql.tables import SqlApp
from tests.listing import jobs_in

NOW = 1_794_787_200_000  # 2026-11-16 00:00 UTC: the jobs of a test lie on both sides of midnight
SMS, MAIL = "sms_retry", "mail"
ALL = frozenset(range(4))


def new_row(due_ms: int = NOW, *, app: str = SMS, shard: int = 0, later: bool = False, **spec: object) -> NewRow:
    wanted = JobSpec(**{"app": app, "scheduled_ms": due_ms, "payload": b'{"to":"+49"}', **spec})  # type: ignore[arg-type]
    return NewRow(bytes(JobId.make(due_ms, shard, wanted.priority, later=later)), wanted, NOW)


def finished(job: Job, status: Status = Status.DONE) -> Update:
    return Update(
        key=job.key,
        was_status=Status.PENDING,
        was_attempt=job.attempt,
        was_due_ms=job.due_ms,
        status=status,
        attempt=job.attempt,
        due_ms=job.due_ms,
        finished_ms=NOW + 5,
    )


MANY = 103
"""More rows than one statement of any database takes one by one."""

OUTCOMES = {
    "all done": ["done"],
    "all failed": ["failed"],
    "all again": ["again"],
    "some of each": ["done", "again", "failed"],
}


def ended(job: Job, how: str) -> Update:
    """What a settlement sets: the job is done, has failed, or is tried again."""
    match how:
        case "done":
            return finished(job)
        case "failed":
            return msgspec.structs.replace(finished(job, Status.FAILED), error="it's \u2639")
        case _:
            again = msgspec.structs.replace(finished(job, Status.PENDING), finished_ms=None, error="busy")
            return msgspec.structs.replace(again, attempt=job.attempt + 1, due_ms=job.due_ms + 1000)


def is_as_set(record: JobRecord, update: Update) -> bool:
    job = record.job
    assert (record.status, job.attempt, job.due_ms) == (update.status, update.attempt, update.due_ms)
    assert (record.finished_ms, record.error) == (update.finished_ms, update.error)
    return job.scheduled_ms == (update.scheduled_ms or NOW)


def scan_of(start_ms: int = 0, end_ms: int = NOW + 400 * DAY_MS, **wanted: object) -> Scan:
    known: dict[str, object] = {"app": SMS, "shards": ALL, "start": start_of(start_ms), "end": start_of(end_ms)}
    known |= {"limit": 1000, "room": 8 << 20}
    return Scan(**{**known, **wanted})  # type: ignore[arg-type]


def keys_of(records: Sequence[JobRecord]) -> list[bytes]:
    return [record.job.key for record in records]


async def add(session: Session, rows: Sequence[NewRow], app: str = SMS) -> list[bytes]:
    await session.write(lambda tx: tx.insert_jobs(app, rows))
    return [row.key for row in rows]


async def settle(session: Session, keys: Sequence[bytes]) -> None:
    def body(tx: Statements) -> None:
        assert not tx.update_jobs(SMS, [finished(record.job) for record in tx.read_jobs(SMS, keys)])

    await session.write(body)


async def scan_all_rows(session: Session, wanted: Scan) -> list[Job]:
    """Follow the pages to the end; each must go forward."""
    found: list[Job] = []
    start: bytes | None = wanted.start
    while start is not None:
        page = Scan(
            app=wanted.app,
            shards=wanted.shards,
            start=start,
            end=wanted.end,
            priority=wanted.priority,
            limit=wanted.limit,
            room=8 << 20,
        )
        jobs, following = await session.read(lambda tx, page=page: tx.scan_rows(page))  # type: ignore[misc]
        assert len(jobs) <= wanted.limit
        assert all(start <= job.key < (following or wanted.end) for job in jobs)
        assert following is None or start < following < wanted.end
        found += jobs
        start = following
    return found


async def scan_all_entries(session: Session, wanted: Scan) -> list[tuple[bytes, Job]]:
    found: list[tuple[bytes, Job]] = []
    start: bytes | None = wanted.start
    while start is not None:
        page = Scan(
            app=wanted.app,
            shards=wanted.shards,
            start=start,
            end=wanted.end,
            priority=wanted.priority,
            limit=wanted.limit,
            room=8 << 20,
        )
        entries, following = await session.read(lambda tx, page=page: tx.scan_entries(page))  # type: ignore[misc]
        assert all(start <= place < (following or wanted.end) for place, _ in entries)
        assert following is None or start < following < wanted.end
        found += entries
        start = following
    return found


class StatementsContract:
    """Promises of `Statements`, `Session` and `Database`; the name of a test is the promise.

    A subclass brings the fixture `database`: open, empty, closed after the test.
    """

    span = "daily"
    """What span of time a table of the apps is for."""

    @pytest.fixture
    async def session(self, database: Database) -> Session:
        session = database.session("lane-0")

        def body(tx: Statements) -> None:
            for app in (SMS, MAIL):
                tx.insert_app(SqlApp(name=app, shards=4, span=self.span, paused=False, created_ms=NOW), NOW)

        await session.write(body)
        return session

    # sessions

    async def test_a_head_says_what_a_row_is_and_how_many_bytes_it_carries(self, session: Session) -> None:
        rows = [new_row(payload=b'"' + "ä".encode() * n + b'"') for n in (0, 700)]
        keys = await add(session, [*rows, new_row(payload=b"{}", later=True)])
        await settle(session, keys[:1])
        heads = await session.read(lambda tx: tx.read_heads(SMS, [*keys, new_row().key]))
        assert {(h.key, h.due_ms, h.attempt, h.status, h.size) for h in heads} == {
            (keys[0], NOW, 1, Status.DONE, 2),
            (keys[1], NOW, 1, Status.PENDING, 1402),
            (keys[2], NOW, 1, Status.PENDING, 2),
        }
        assert not await session.read(lambda tx: tx.read_heads(SMS, []))

    async def test_what_was_written_is_seen_by_every_session(self, database: Database, session: Session) -> None:
        (key,) = await add(session, [new_row()])
        for name in ("door", "lane-0", "reader"):
            assert keys_of(await database.session(name).read(lambda tx: tx.read_jobs(SMS, [key]))) == [key]

    async def test_a_transaction_sees_its_own_writes(self, session: Session) -> None:
        row = new_row()

        def body(tx: Statements) -> Sequence[JobRecord]:
            tx.insert_jobs(SMS, [row])
            return tx.read_jobs(SMS, [row.key])

        assert keys_of(await session.write(body)) == [row.key]

    async def test_an_error_in_a_transaction_undoes_all_of_it(self, session: Session) -> None:
        row = new_row()

        def body(tx: Statements) -> None:
            tx.insert_jobs(SMS, [row])
            raise LookupError

        with pytest.raises(LookupError):
            await session.write(body)
        assert not await session.read(lambda tx: tx.read_jobs(SMS, [row.key]))
        assert await add(session, [row]) == [row.key]  # nor is the table remembered that was undone with it

    async def test_transactions_run_in_the_order_of_the_calls(self, session: Session) -> None:
        order: list[int] = []
        await asyncio.gather(*(session.write(lambda _, n=n: order.append(n)) for n in range(20)))  # type: ignore[misc]
        assert order == list(range(20))

    # shards and apps

    async def test_the_shards_of_a_new_app_are_released_at_now(self, session: Session) -> None:
        rows = await session.read(lambda tx: tx.read_shards())
        assert [row.shard for row in rows] == [Shard(app, n) for app in (MAIL, SMS) for n in range(4)]
        assert all(row.released and row.line_ms == row.low_ms == NOW for row in rows)

    async def test_an_app_that_is_there_already_is_left_alone(self, session: Session) -> None:
        again = SqlApp(name=SMS, shards=8, paused=True, created_ms=NOW + 1)
        await session.write(lambda tx: tx.insert_app(again, NOW + 1))
        apps = {info.name: info for info in await session.read(lambda tx: tx.read_apps())}
        assert apps[SMS] == SqlApp(name=SMS, shards=4, span=self.span, paused=False, created_ms=NOW)
        assert len(await session.read(lambda tx: tx.read_shards())) == 8

    async def test_an_app_can_be_paused_and_an_unknown_one_cannot(self, session: Session) -> None:
        assert await session.write(lambda tx: tx.set_paused(SMS, paused=True))
        assert await session.write(lambda tx: tx.set_paused(SMS, paused=True))
        assert not await session.write(lambda tx: tx.set_paused("nobody", paused=True))
        paused = {info.name: info.paused for info in await session.read(lambda tx: tx.read_apps())}
        assert paused == {SMS: True, MAIL: False}

    @pytest.mark.parametrize("exclusive", [False, True])
    async def test_locked_shards_are_read_and_unknown_ones_left_out(self, session: Session, exclusive: bool) -> None:
        wanted = {Shard(SMS, 1), Shard(SMS, 3), Shard(MAIL, 0), Shard(SMS, 99), Shard("nobody", 0)}
        locked = await session.write(lambda tx: tx.lock_shards(wanted, exclusive=exclusive))
        assert set(locked) == {Shard(SMS, 1), Shard(SMS, 3), Shard(MAIL, 0)}
        one = await session.write(lambda tx: tx.lock_shards([Shard(SMS, 2)], exclusive=exclusive))
        assert {shard: info.shard for shard, info in one.items()} == {Shard(SMS, 2): Shard(SMS, 2)}

    async def test_a_shard_row_is_as_it_was_written(self, session: Session) -> None:
        row = ShardInfo(shard=Shard(SMS, 2), owner=Owner("a1b2", 7), line_ms=NOW + 30, low_ms=NOW - 3)

        def body(tx: Statements) -> None:
            tx.lock_shards([row.shard], exclusive=True)
            tx.write_shards([row])

        await session.write(body)
        rows = {info.shard: info for info in await session.read(lambda tx: tx.read_shards())}
        assert rows[row.shard] == row
        assert rows[Shard(SMS, 1)].released

    async def test_the_version_of_ownership_changes_with_every_owner_and_with_nothing_else(
        self, session: Session
    ) -> None:
        async def version_after(row: ShardInfo | None = None) -> object:
            def body(tx: Statements) -> None:
                if row is not None:
                    tx.lock_shards([row.shard], exclusive=True)
                    tx.write_shards([row])

            await session.write(body)
            return await session.read(lambda tx: tx.ownership_version())

        row = ShardInfo(shard=Shard(SMS, 2), owner=Owner("a1b2", 7), line_ms=NOW, low_ms=NOW)
        versions = [await version_after(), await version_after(row)]
        moved = ShardInfo(shard=row.shard, owner=row.owner, line_ms=NOW + 30, low_ms=NOW + 3)
        assert await version_after(moved) == versions[-1]
        versions.append(await version_after(msgspec.structs.replace(row, owner=Owner("", 7))))
        versions.append(await version_after(msgspec.structs.replace(row, owner=Owner("c3d4", 8))))
        await session.write(lambda tx: tx.insert_app(SqlApp(name="more", shards=1, paused=False, created_ms=NOW), NOW))
        versions.append(await version_after())
        assert len({repr(version) for version in versions}) == len(versions)

    # jobs

    async def test_a_job_is_read_back_as_it_was_inserted(self, session: Session) -> None:
        row = new_row(
            NOW + 5,
            shard=3,
            scheduled_ms=NOW - 9,
            payload='{"text":"Grüße ☕ \\u0000 %s ?"}'.encode(),
            priority=Priority.HIGH,
            idempotency_key="k-1",
            request_id="r'1",
            job_name="näme",
            group="g",
            tags=("a", 'b"', "c,d"),
        )
        await add(session, [row])
        (record,) = await session.read(lambda tx: tx.read_jobs(SMS, [row.key]))
        assert record == JobRecord(
            job=Job(
                key=row.key,
                app=SMS,
                due_ms=NOW + 5,
                scheduled_ms=NOW - 9,
                payload=row.spec.payload,
                created_ms=NOW,
                attempt=1,
                request_id="r'1",
                job_name="näme",
                group="g",
                tags=("a", 'b"', "c,d"),
            ),
            status=Status.PENDING,
            idempotency_key="k-1",
        )
        assert type(record.job.key) is bytes
        assert type(record.job.payload) is bytes

    async def test_a_job_without_anything_optional_is_read_back(self, session: Session) -> None:
        (key,) = await add(session, [new_row()])
        (record,) = await session.read(lambda tx: tx.read_jobs(SMS, [key]))
        assert (record.job.request_id, record.job.job_name, record.job.group, record.job.tags) == (None, None, None, ())
        assert (record.finished_ms, record.error, record.idempotency_key) == (None, None, None)

    async def test_a_key_that_is_there_already_is_left_alone(self, session: Session) -> None:
        row = new_row()
        await add(session, [row])
        await settle(session, [row.key])
        other = new_row(NOW + 1)
        await add(session, [NewRow(row.key, new_row(payload=b"[]").spec, NOW + 9), other])
        (record,) = await session.read(lambda tx: tx.read_jobs(SMS, [row.key]))
        assert record.status is Status.DONE
        assert record.job.payload == row.spec.payload
        assert keys_of(await session.read(lambda tx: tx.read_jobs(SMS, [other.key]))) == [other.key]

    async def test_jobs_of_any_day_and_of_later_are_found_by_key(self, session: Session) -> None:
        rows = [
            new_row(0),
            new_row(NOW - 1),
            new_row(NOW),
            new_row(NOW + 40 * DAY_MS, later=True),
            new_row(NOW + 40 * DAY_MS),
            new_row(NOW + 9 * 366 * DAY_MS, later=True),
        ]
        keys = await add(session, rows)
        found = keys_of(await session.read(lambda tx: tx.read_jobs(SMS, keys)))
        assert sorted(found) == sorted(keys)

    async def test_unknown_keys_and_other_apps_jobs_are_not_found(self, session: Session) -> None:
        (key,) = await add(session, [new_row()])
        unknown = [new_row(due).key for due in (NOW, NOW + 77 * DAY_MS)]
        assert keys_of(await session.read(lambda tx: tx.read_jobs(SMS, [*unknown, key]))) == [key]
        assert not await session.read(lambda tx: tx.read_jobs(MAIL, [key]))
        assert not await session.read(lambda tx: tx.read_jobs(SMS, []))

    async def test_many_jobs_go_in_and_out_at_once(self, session: Session) -> None:
        keys = await add(session, [new_row(NOW + n * 7, shard=n % 4) for n in range(1537)])
        found = keys_of(await session.read(lambda tx: tx.read_jobs(SMS, keys)))
        assert sorted(found) == sorted(keys)

    # compare and set

    async def test_a_row_that_is_as_remembered_is_set(self, session: Session) -> None:
        (key,) = await add(session, [new_row(NOW + 5, scheduled_ms=NOW)])
        update = Update(
            key=key,
            was_status=Status.PENDING,
            was_attempt=1,
            was_due_ms=NOW + 5,
            status=Status.FAILED,
            attempt=2,
            due_ms=NOW + 8,
            scheduled_ms=NOW + 7,
            finished_ms=NOW + 9,
            error="it's ☹",
        )
        assert not await session.write(lambda tx: tx.update_jobs(SMS, [update]))
        (record,) = await session.read(lambda tx: tx.read_jobs(SMS, [key]))
        assert (record.status, record.job.attempt, record.job.due_ms) == (Status.FAILED, 2, NOW + 8)
        assert (record.job.scheduled_ms, record.finished_ms, record.error) == (NOW + 7, NOW + 9, "it's ☹")

    async def test_scheduled_time_stays_when_it_is_not_given(self, session: Session) -> None:
        (key,) = await add(session, [new_row(NOW + 5, scheduled_ms=NOW)])
        await settle(session, [key])
        (record,) = await session.read(lambda tx: tx.read_jobs(SMS, [key]))
        assert (record.job.scheduled_ms, record.finished_ms, record.error) == (NOW, NOW + 5, None)

    @pytest.mark.parametrize(
        "other",
        [
            {"was_status": Status.DONE},
            {"was_attempt": 2},
            {"was_due_ms": NOW + 1},
            {"key": new_row().key},
            {"key": bytes(16)},
        ],
    )
    async def test_rows_that_differ_are_reported_and_only_the_others_set(
        self, session: Session, other: dict[str, object]
    ) -> None:
        keys = await add(session, [new_row(shard=n) for n in range(3)])
        records = await session.read(lambda tx: tx.read_jobs(SMS, keys))
        updates = [finished(record.job) for record in sorted(records, key=lambda r: keys.index(r.job.key))]
        fields = {name: getattr(updates[1], name) for name in updates[1].__struct_fields__}
        updates[1] = Update(**{**fields, **other})
        missed = await session.write(lambda tx: tx.update_jobs(SMS, updates))
        assert set(missed) == {updates[1].key}
        after = {r.job.key: r.status for r in await session.read(lambda tx: tx.read_jobs(SMS, keys))}
        assert [after[key] for key in keys] == [Status.DONE, Status.PENDING, Status.DONE]

    @pytest.mark.parametrize("moved", [False, True], ids=["at its first moment", "moved"])
    @pytest.mark.parametrize("outcomes", OUTCOMES)
    async def test_in_a_batch_of_any_outcomes_a_row_that_has_changed_meanwhile_is_reported_and_left_alone(
        self, session: Session, outcomes: str, moved: bool
    ) -> None:
        """Each kind of batch has a statement of its own on some database, and so have many rows and a single one."""
        hows = OUTCOMES[outcomes]
        changes: list[dict[str, object]] = [
            {"status": Status.CANCELLED, "finished_ms": NOW + 1},
            {"attempt": 2},
            {"due_ms": NOW if moved else NOW + 1},
        ]
        for count in (1, MANY):
            for change in changes:
                jobs = await self._jobs(session, count, moved=moved)
                changed = jobs[count // 2]
                await self._move(session, [changed], **change)
                (before,) = await self._records(session, [changed.key])
                updates = [ended(job, hows[n % len(hows)]) for n, job in enumerate(jobs)]
                missed = await session.write(lambda tx, some=updates: tx.update_jobs(SMS, some))  # type: ignore[misc]
                assert set(missed) == {changed.key}, (count, change)
                after = await self._records(session, [job.key for job in jobs])
                assert after.pop(count // 2) == before
                updates.pop(count // 2)
                assert all(map(is_as_set, after, updates))

    @pytest.mark.parametrize("column", ["attempt", "due_ms", "scheduled_ms", "error", "finished_ms"])
    async def test_a_row_of_which_more_changes_than_of_the_others_is_set_in_all_columns(
        self, session: Session, column: str
    ) -> None:
        more = {"attempt": 2, "due_ms": NOW + 7, "scheduled_ms": NOW + 8, "error": "no", "finished_ms": None}[column]
        for count in (1, 3, MANY):
            jobs = await self._jobs(session, count)
            updates = [ended(job, "done") for job in jobs]
            updates[count // 2] = msgspec.structs.replace(updates[count // 2], **{column: more})
            assert not await session.write(lambda tx, some=updates: tx.update_jobs(SMS, some))  # type: ignore[misc]
            assert all(map(is_as_set, await self._records(session, [job.key for job in jobs]), updates))

    @pytest.mark.parametrize("count", [1, MANY])
    async def test_a_row_that_is_set_to_what_it_was_counts_as_set(self, session: Session, count: int) -> None:
        jobs = await self._jobs(session, count)
        await self._move(session, jobs)
        assert [record.job for record in await self._records(session, [job.key for job in jobs])] == jobs

    async def test_jobs_of_a_batch_that_ended_at_several_moments_say_so(self, session: Session) -> None:
        jobs = await self._jobs(session, MANY)
        updates = [msgspec.structs.replace(ended(job, "done"), finished_ms=NOW + n % 4) for n, job in enumerate(jobs)]
        assert not await session.write(lambda tx: tx.update_jobs(SMS, updates))
        assert all(map(is_as_set, await self._records(session, [job.key for job in jobs]), updates))

    async def _jobs(self, session: Session, count: int, *, moved: bool = False) -> list[Job]:
        """New jobs, in the order of their keys; perhaps they were moved from their first moment."""
        keys = sorted(await add(session, [new_row(shard=n % 4) for n in range(count)]))
        if moved:
            await self._move(session, [record.job for record in await self._records(session, keys)], due_ms=NOW + 5)
        return [record.job for record in await self._records(session, keys)]

    async def _move(self, session: Session, jobs: Sequence[Job], **fields: object) -> None:
        """Change rows without anybody else knowing."""
        updates = [msgspec.structs.replace(ended(job, "done"), status=Status.PENDING, finished_ms=None) for job in jobs]
        updates = [msgspec.structs.replace(update, **fields) for update in updates]
        assert not await session.write(lambda tx: tx.update_jobs(SMS, updates))

    async def _records(self, session: Session, keys: Sequence[bytes]) -> list[JobRecord]:
        """Rows in the order of their keys."""
        return sorted(await session.read(lambda tx: tx.read_jobs(SMS, keys)), key=lambda record: record.job.key)

    async def test_a_row_that_looks_as_wanted_already_is_reported_too(self, session: Session) -> None:
        keys = await add(session, [new_row(), new_row(NOW - DAY_MS)])
        updates = [finished(r.job) for r in await session.read(lambda tx: tx.read_jobs(SMS, keys))]
        assert not await session.write(lambda tx: tx.update_jobs(SMS, updates))
        assert set(await session.write(lambda tx: tx.update_jobs(SMS, updates))) == set(keys)

    async def test_what_else_a_transaction_wrote_stays_when_a_row_differs(self, session: Session) -> None:
        (key,) = await add(session, [new_row()])
        (record,) = await session.read(lambda tx: tx.read_jobs(SMS, [key]))
        runs: list[int] = []

        def body(tx: Statements) -> Collection[bytes]:
            runs.append(1)
            tx.add_counts({(SMS, "done"): 1}, NOW)
            return tx.update_jobs(SMS, [finished(record.job), finished(record.job)])

        assert set(await session.write(body)) == {key}
        assert (await session.read(lambda tx: tx.read_counts()))[SMS] == {"done": 1}
        (after,) = await session.read(lambda tx: tx.read_jobs(SMS, [key]))
        assert after.status is Status.DONE

    # scans of rows

    async def test_pending_rows_are_scanned_in_the_order_of_their_keys(self, session: Session) -> None:
        moments = [NOW - 2, NOW - 1, NOW, NOW + 1, NOW + DAY_MS, NOW + 50 * DAY_MS]
        rows = [new_row(ms, shard=n % 4, later=n % 2 == 0) for n, ms in enumerate(moments * 3)]
        keys = await add(session, rows)
        for limit in (1, 2, 5, 1000):
            found = await scan_all_rows(session, scan_of(limit=limit))
            assert [job.key for job in found] == sorted(keys)

    async def test_a_scanned_job_is_complete(self, session: Session) -> None:
        row = new_row(scheduled_ms=NOW - 7, request_id="r", job_name="n", group="g", tags=("t", "u"))
        await add(session, [row])
        (job,) = await scan_all_rows(session, scan_of())
        (record,) = await session.read(lambda tx: tx.read_jobs(SMS, [row.key]))
        assert job == record.job
        assert job.tags == ("t", "u")

    async def test_a_scan_begins_with_its_start_and_ends_before_its_end(self, session: Session) -> None:
        keys = sorted(await add(session, [new_row(NOW + n) for n in range(-2, 3)]))
        found = await scan_all_rows(session, scan_of(start=keys[1], end=keys[3]))
        assert [job.key for job in found] == keys[1:3]
        assert await session.read(lambda tx: tx.scan_rows(scan_of(start=keys[2], end=keys[2]))) == ([], None)

    async def test_a_scan_reads_only_the_shards_that_are_asked_for(self, session: Session) -> None:
        keys = await add(session, [new_row(NOW + n, shard=n % 4, later=n > 6) for n in range(12)])
        found = await scan_all_rows(session, scan_of(shards=frozenset({1, 3}), limit=2))
        assert [job.key for job in found] == sorted(key for key in keys if JobId(key).shard in {1, 3})

    async def test_a_scan_reads_only_the_priority_that_is_asked_for(self, session: Session) -> None:
        keys = await add(session, [new_row(NOW + n, priority=Priority(n % 3)) for n in range(9)])
        found = await scan_all_rows(session, scan_of(priority=Priority.LOW, limit=2))
        assert [job.key for job in found] == sorted(key for key in keys if JobId(key).priority is Priority.LOW)

    async def test_settled_rows_are_not_scanned(self, session: Session) -> None:
        keys = await add(session, [new_row(NOW + n) for n in range(9)])
        await settle(session, keys[::2])
        assert [job.key for job in await scan_all_rows(session, scan_of(limit=2))] == sorted(keys[1::2])

    async def test_a_scan_of_mostly_settled_rows_goes_on_to_the_end(self, session: Session) -> None:
        keys = sorted(await add(session, [new_row(NOW - 60 + n) for n in range(120)]))
        await settle(session, keys[1:-1])
        found = await scan_all_rows(session, scan_of(limit=1))
        assert [job.key for job in found] == [keys[0], keys[-1]]

    async def test_a_scan_finds_nothing_where_there_is_nothing(self, session: Session) -> None:
        await add(session, [new_row(app=MAIL)], MAIL)
        assert await session.read(lambda tx: tx.scan_rows(scan_of())) == ([], None)
        assert await scan_all_entries(session, scan_of()) == []

    async def test_an_app_without_rows_and_entries_in_a_range_is_found(self, session: Session) -> None:
        (key,) = await add(session, [new_row(NOW + 5)])
        await add(session, [new_row(NOW + 50 * DAY_MS, app=MAIL, later=True)], MAIL)
        await session.write(lambda tx: tx.insert_entries(SMS, [(position(key, NOW + 9), key)]))

        async def without_jobs(start_ms: int, end_ms: int) -> set[str]:
            scans = [scan_of(start_ms, end_ms, app=app) for app in (SMS, MAIL)]
            return set(await session.read(lambda tx: tx.apps_without_jobs(scans)))

        assert await without_jobs(NOW, NOW + 5) == {SMS, MAIL}
        assert await without_jobs(NOW + 5, NOW + 6) == {MAIL}
        assert await without_jobs(NOW + 9, NOW + 10) == {MAIL}
        assert await without_jobs(NOW + 50 * DAY_MS, NOW + 51 * DAY_MS) == {SMS}
        assert await without_jobs(NOW, NOW + 51 * DAY_MS) == set()

    async def test_every_pending_row_is_met_exactly_once(self, session: Session) -> None:
        rng = random.Random(7)
        rows = [
            new_row(NOW + rng.randrange(-DAY_MS, 3 * DAY_MS), shard=rng.randrange(4), later=rng.random() < 0.3)
            for _ in range(400)
        ]
        keys = await add(session, rows)
        gone = set(rng.sample(keys, 150))
        await settle(session, sorted(gone))
        found = await scan_all_rows(session, scan_of(limit=7))
        assert [job.key for job in found] == sorted(set(keys) - gone)

    # entries

    async def test_entries_are_scanned_by_position_with_their_rows(self, session: Session) -> None:
        rows = [new_row(NOW - DAY_MS * n, shard=n % 4, later=n == 2) for n in range(6)]
        keys = await add(session, rows)
        entries = [(position(key, NOW + 100 - n), key) for n, key in enumerate(keys)]
        await session.write(lambda tx: tx.insert_entries(SMS, entries))
        for limit in (1, 2, 1000):
            found = await scan_all_entries(session, scan_of(NOW, limit=limit))
            assert [(place, job.key) for place, job in found] == sorted(entries)
        assert not await scan_all_entries(session, scan_of(NOW - DAY_MS, NOW + 95))

    async def test_a_position_that_two_jobs_share_is_read_whole(self, session: Session) -> None:
        rows = [new_row(NOW + n) for n in range(4)]
        rows = [NewRow(position(rows[0].key, NOW + n), row.spec, NOW) for n, row in enumerate(rows)]
        keys = await add(session, rows)
        entries = [(position(key, NOW + 50), key) for key in keys]
        await session.write(lambda tx: tx.insert_entries(SMS, entries))
        found = await scan_all_entries(session, scan_of(limit=2))
        assert [(place, job.key) for place, job in found] == sorted(entries)

    async def test_entries_of_settled_or_missing_rows_are_left_out(self, session: Session) -> None:
        keys = await add(session, [new_row(NOW + n) for n in range(3)])
        await settle(session, keys[:1])
        missing = new_row(NOW + 99 * DAY_MS).key
        entries = [(position(key, NOW + 9), key) for key in (*keys, missing)]
        await session.write(lambda tx: tx.insert_entries(SMS, entries))
        assert {job.key for _, job in await scan_all_entries(session, scan_of(limit=1))} == set(keys[1:])

    async def test_entries_are_scanned_by_shard_and_priority(self, session: Session) -> None:
        rows = [new_row(NOW, shard=n % 4, priority=Priority(n % 3)) for n in range(12)]
        keys = await add(session, rows)
        await session.write(lambda tx: tx.insert_entries(SMS, [(position(key, NOW + 9), key) for key in keys]))
        wanted = scan_of(shards=frozenset({2}), priority=Priority.HIGH, limit=1)
        (found,) = await scan_all_entries(session, wanted)
        assert (JobId(found[1].key).shard, found[1].priority) == (2, Priority.HIGH)

    async def test_an_entry_that_is_there_already_is_ignored_and_one_that_is_not_can_be_deleted(
        self, session: Session
    ) -> None:
        (key,) = await add(session, [new_row()])
        entry, other = (position(key, NOW + 9), key), (position(key, NOW + 8), key)

        def body(tx: Statements) -> None:
            tx.insert_entries(SMS, [entry])
            tx.insert_entries(SMS, [entry, other])
            tx.delete_entries(SMS, [other])
            tx.delete_entries(SMS, [other])
            tx.insert_entries(SMS, [])
            tx.delete_entries(SMS, [])

        await session.write(body)
        assert [(place, job.key) for place, job in await scan_all_entries(session, scan_of())] == [entry]

    # looks

    async def test_jobs_are_listed_in_either_order_a_page_at_a_time(self, session: Session) -> None:
        moments = (NOW - 1, NOW, NOW + 1, NOW + 40 * DAY_MS, NOW + 50 * DAY_MS)
        keys = sorted(await add(session, [new_row(ms, later=n % 2 == 0) for n, ms in enumerate(moments)]))
        for newest_first, wanted in ((False, keys), (True, keys[::-1])):
            found: list[bytes] = []
            cursor: str | None = None
            while cursor is not None or not found:
                query = Query(app=SMS, newest_first=newest_first, limit=2, cursor=cursor)
                page = await session.read(lambda tx, q=query: search(tx, q, NOW))  # type: ignore[misc]
                found += keys_of(page.records)
                cursor = page.cursor
            assert found == wanted

    async def test_jobs_are_listed_by_status_and_moment(self, session: Session) -> None:
        keys = await add(session, [new_row(NOW + n) for n in range(-3, 4)])
        await settle(session, keys[:3])
        await self._lower(session, NOW - 3)

        async def find(**wanted: object) -> list[bytes]:
            return keys_of(await session.read(lambda tx: jobs_in(tx, SMS, **wanted)))

        assert await find(status=Status.DONE) == keys[:3]
        assert await find(status=Status.PENDING, newest_first=True) == keys[:2:-1]
        assert await find(from_ms=NOW - 1, to_ms=NOW + 1) == keys[2:4]
        assert await find(from_ms=NOW, status=Status.DONE) == []

    async def _lower(self, session: Session, low_ms: int) -> None:
        """Let everything from this moment on be unsettled."""

        def body(tx: Statements) -> None:
            shards = tx.lock_shards([Shard(SMS, n) for n in range(4)], exclusive=True)
            tx.write_shards(msgspec.structs.replace(info, low_ms=low_ms) for info in shards.values())

        await session.write(body)

    @pytest.mark.parametrize("newest_first", [False, True])
    @pytest.mark.parametrize("most", [1, 3, 7, 100])
    async def test_a_look_goes_through_at_most_so_many_rows_and_says_where_the_rest_is(
        self, session: Session, newest_first: bool, most: int
    ) -> None:
        rows = [new_row(NOW + n * DAY_MS // 4, tags=("t",) if n % 3 == 0 else ()) for n in range(20)]
        wanted = await add(session, rows)
        wanted = sorted(wanted[::3], reverse=newest_first)
        start, end = bytes(16), b"\xff" * 16
        found: list[bytes] = []
        while start < end:
            look = Probe(
                at=LookAt.ROWS,
                app=SMS,
                start=start,
                end=end,
                query=Query(tag="t", newest_first=newest_first),
                most=most,
                limit=100,
            )
            looked = await session.read(lambda tx, look=look: tx.look(look))  # type: ignore[misc]
            assert looked.rows <= most
            found += [key for _, key in looked.found]
            if looked.left is None:
                break
            assert looked.left > start if not newest_first else looked.left < end
            start, end = (start, looked.left) if newest_first else (looked.left, end)
        assert found == wanted

    async def test_the_smallest_low_of_an_app_is_known(self, session: Session) -> None:
        await self._lower(session, NOW + 9)

        def body(tx: Statements) -> None:
            tx.lock_shards([Shard(SMS, 2)], exclusive=True)
            tx.write_shards([ShardInfo(shard=Shard(SMS, 2), owner=Owner("", 0), line_ms=NOW + 9, low_ms=NOW - 5)])

        await session.write(body)
        assert await session.read(lambda tx: tx.lows()) == {SMS: NOW - 5, MAIL: NOW}
        assert await session.read(lambda tx: tx.lows(SMS)) == {SMS: NOW - 5}
        assert await session.read(lambda tx: tx.lows("nobody")) == {}

    # requests and decisions

    async def test_requests_are_read_by_the_shards_they_are_for(self, session: Session) -> None:
        keys = tuple(new_row(NOW + n).key for n in range(3))
        wake = Request(id=b"w" * 16, shard=Shard(SMS, 1), change=None, keys=keys)
        change_request = Request(
            id=b"c" * 16, shard=Shard(SMS, 2), change=Change.RESCHEDULE, keys=keys[:1], due_ms=NOW + 9
        )
        other = Request(id=b"o" * 16, shard=Shard(MAIL, 1), change=Change.CANCEL, keys=keys[:1])
        await session.write(lambda tx: tx.insert_requests([wake, change_request, other]))

        async def read(*shards: Shard) -> list[Request]:
            return sorted(await session.read(lambda tx: tx.read_requests(shards, 1000)), key=lambda request: request.id)

        assert await read(Shard(SMS, 0), Shard(SMS, 1)) == [wake]
        assert await read(Shard(SMS, 1), Shard(SMS, 2), Shard(MAIL, 1)) == [change_request, other, wake]
        assert await read() == []

    async def test_requests_are_read_until_they_name_enough_jobs(self, session: Session) -> None:
        keys = tuple(new_row(NOW + n).key for n in range(300))
        sizes = [1] * 20 + [300] * 3  # few keys are read with their request, many are not
        requests = [
            Request(id=bytes([n]) * 16, shard=Shard((SMS, MAIL)[n % 2], n % 3), change=None, keys=keys[:size])
            for n, size in enumerate(sizes)
        ]
        await session.write(lambda tx: tx.insert_requests(requests))
        mine = [Shard(app, number) for app in (SMS, MAIL) for number in range(2)]
        wanted = {request.id: request for request in requests if request.shard in mine}
        for limit in (1, 5, 100, 301, 10_000):
            page = await session.read(lambda tx: tx.read_requests(mine, limit))  # noqa: B023
            assert all(wanted[request.id] == request for request in page)
            assert len({request.id for request in page}) == len(page)
            assert named(page[:-1]) < limit, "the last one may be one too many, no other"
            assert named(page) >= min(limit, named(wanted.values()))

    async def test_a_request_is_consumed_once(self, session: Session) -> None:
        requests = [Request(id=bytes([n]) * 16, shard=Shard(SMS, 1), change=None, keys=()) for n in range(3)]
        ids = [request.id for request in requests]
        await session.write(lambda tx: tx.insert_requests(requests))
        assert set(await session.write(lambda tx: tx.delete_requests(ids[:2]))) == set(ids[:2])
        assert set(await session.write(lambda tx: tx.delete_requests([*ids, b"x" * 16]))) == {ids[2]}
        assert not await session.write(lambda tx: tx.delete_requests(ids))

    async def test_a_decision_is_read_as_it_was_written(self, session: Session) -> None:
        await session.write(lambda tx: tx.write_decisions({b"a" * 16: True, b"b" * 16: False}, NOW))
        wanted = [b"a" * 16, b"b" * 16, b"c" * 16]
        decisions = await session.read(lambda tx: tx.read_decisions(wanted))
        assert decisions == {b"a" * 16: True, b"b" * 16: False}
        assert all(type(granted) is bool for granted in decisions.values())

    # idempotency keys

    async def test_the_first_job_with_a_key_has_it(self, session: Session) -> None:
        first, second = (new_row(idempotency_key="k", digest=digest) for digest in (b"d1", b"d2"))
        fresh = new_row(idempotency_key="n")
        assert not await session.write(lambda tx: tx.claim_keys(SMS, [first]))
        assert await session.write(lambda tx: tx.claim_keys(SMS, [second, fresh])) == {"k": (first.key, b"d1")}

    async def test_a_job_that_claims_its_key_again_still_has_it(self, session: Session) -> None:
        rows = [new_row(idempotency_key=f"k{n}") for n in range(300)]
        for _ in range(2):
            assert not await session.write(lambda tx: tx.claim_keys(SMS, rows))

    async def test_each_app_has_its_own_keys(self, session: Session) -> None:
        assert not await session.write(lambda tx: tx.claim_keys(SMS, [new_row(idempotency_key="k")]))
        assert not await session.write(lambda tx: tx.claim_keys(MAIL, [new_row(app=MAIL, idempotency_key="k")]))

    async def test_keys_differ_by_case_and_trailing_space(self, session: Session) -> None:
        rows = [new_row(idempotency_key=key) for key in ("key", "KEY", "key ", "kéy")]
        assert not await session.write(lambda tx: tx.claim_keys(SMS, rows))

    # attempts, marks, counts, nodes

    async def test_attempts_are_read_in_order_and_replaced_by_their_number(self, session: Session) -> None:
        key, other = new_row().key, new_row().key
        running = Attempt(attempt=2, started_ms=NOW, node="a")
        ended = Attempt(attempt=2, started_ms=NOW, finished_ms=NOW + 5, node="a", error="no")
        first = Attempt(attempt=1, started_ms=NOW - 9, finished_ms=NOW - 8, node="b", error="boom")

        def body(tx: Statements) -> None:
            tx.write_attempts(SMS, [(key, running), (key, first)])
            tx.write_attempts(SMS, [(key, ended)])

        await session.write(body)
        assert list(await session.read(lambda tx: tx.read_attempts(SMS, key))) == [first, ended]
        assert list(await session.read(lambda tx: tx.read_attempts(SMS, other))) == []
        await session.write(lambda tx: tx.delete_unfinished([(key, 2), (other, 1)]))
        assert list(await session.read(lambda tx: tx.read_attempts(SMS, key))) == [first]

    async def test_attempts_of_many_jobs_are_read_at_once_and_only_those_of_the_app(self, session: Session) -> None:
        keys = [new_row().key for _ in range(300)]
        attempts = [(key, Attempt(attempt=n, started_ms=NOW + n, node="a")) for key in keys[:299] for n in (2, 1)]
        await session.write(lambda tx: tx.write_attempts(SMS, attempts))
        await session.write(lambda tx: tx.write_attempts(MAIL, [(keys[299], attempts[0][1])]))
        found = await session.read(lambda tx: tx.read_attempts_of(SMS, keys))
        assert set(found) == set(keys[:299])
        assert all([one.attempt for one in some] == [1, 2] for some in found.values())
        assert not await session.read(lambda tx: tx.read_attempts_of(SMS, []))

    async def test_marks_belong_to_a_shard_and_are_replaced_and_deleted(self, session: Session) -> None:
        shard, other, key = Shard(SMS, 1), Shard(SMS, 2), new_row().key
        more = new_row().key

        def body(tx: Statements) -> None:
            tx.write_marks([(shard, key, 1000), (shard, more, 1000), (other, key, 5)])
            tx.write_marks([(shard, key, 30)])
            tx.delete_marks([(shard, more), (shard, b"x" * 16)])

        await session.write(body)
        assert await session.read(lambda tx: tx.read_marks({shard, Shard(SMS, 3)})) == {shard: {key: 30}}
        assert await session.read(lambda tx: tx.read_marks({shard, other})) == {shard: {key: 30}, other: {key: 5}}

    async def test_counts_add_up_over_days(self, session: Session) -> None:
        for now_ms in (NOW - 1, NOW, NOW + 1):
            await session.write(
                lambda tx, now=now_ms: tx.add_counts({(SMS, "done"): 2, (MAIL, "failed"): 1}, now)  # type: ignore[misc]
            )
        await session.write(lambda tx: tx.add_counts({}, NOW))
        assert await session.read(lambda tx: tx.read_counts()) == {SMS: {"done": 6}, MAIL: {"failed": 3}}

    async def test_an_insert_that_is_repeated_counts_what_it_has_inserted(self, session: Session) -> None:
        rows = [new_row(NOW - 1), new_row(NOW), new_row(NOW + DAY_MS), new_row(NOW + 40 * DAY_MS, later=True)]
        for some in (rows[:3], rows[:3], rows):
            await session.write(lambda tx, some=some: anybody.insert(tx, {Shard(SMS, 0): some}, NOW))  # type: ignore[misc]
        today = NOW // DAY_MS
        expected = {SMS: {today - 1: 1, today: 1, today + 1: 1, today + 40: 1}}
        assert await session.read(lambda tx: tx.read_waiting()) == expected
        assert await session.read(lambda tx: tx.read_counts()) == {SMS: {"accepted": 4}}

    async def test_what_waits_can_be_counted_and_corrected(self, session: Session) -> None:
        rows = [new_row(NOW), new_row(NOW), new_row(NOW + DAY_MS), new_row(NOW + 40 * DAY_MS, later=True)]
        keys = await add(session, rows)
        await settle(session, keys[:1])
        today = NOW // DAY_MS
        await session.write(lambda tx: tx.add_counts({}, NOW, {(SMS, today): 7, (SMS, today - 9): 2, (MAIL, today): 1}))
        counted, before = await session.read(lambda tx: tx.count_waiting(SMS))
        assert counted == {today: 1, today + 1: 1, today + 40: 1}
        assert before == {today: 7, today - 9: 2}
        deltas = {today: -6, today + 1: 1, today + 40: 1, today - 9: -2}
        await session.write(lambda tx: tx.correct_waiting(SMS, deltas))
        assert await session.read(lambda tx: tx.read_waiting()) == {SMS: counted, MAIL: {today: 1}}
        assert await session.read(lambda tx: tx.read_waiting(MAIL)) == {MAIL: {today: 1}}
        assert await session.read(lambda tx: tx.read_waiting("nobody")) == {}

    async def test_a_node_is_written_replaced_and_deleted(self, session: Session) -> None:
        first = NodeInfo(nonce="n1", node_id="host", apps=frozenset({SMS, MAIL}), started_ms=NOW, beat=1, beat_ms=NOW)
        other = NodeInfo(nonce="n2", node_id="host", apps=frozenset(), started_ms=NOW)
        again = NodeInfo(
            nonce="n1",
            node_id="host",
            apps=frozenset({SMS}),
            started_ms=NOW,
            draining=True,
            clock_off=True,
            clock_offset_ms=-7000,
            held_back={SMS: HeldBack(since_ms=NOW, reason="closed")},
            beat=2,
            beat_ms=9,
            vitals=b'{"done": 7}',
        )
        for node in (first, other, again):
            await session.write(lambda tx, node=node: tx.write_node(node))  # type: ignore[misc]
        assert list(await session.read(lambda tx: tx.read_nodes(vitals=True))) == [again, other]
        again = msgspec.structs.replace(again, vitals=None)
        assert list(await session.read(lambda tx: tx.read_nodes())) == [again, other]
        assert await session.write(lambda tx: tx.set_drain("host", asked=True)) == 2
        assert await session.write(lambda tx: tx.set_drain("nobody", asked=True)) == 0
        await session.write(lambda tx: tx.write_node(again))
        asked = [msgspec.structs.replace(node, drain_asked=True) for node in (again, other)]
        assert list(await session.read(lambda tx: tx.read_nodes())) == asked, "a node does not overwrite what is asked"
        assert await session.write(lambda tx: tx.set_drain("host", asked=False)) == 2
        assert list(await session.read(lambda tx: tx.read_nodes())) == [again, other]
        await session.write(lambda tx: tx.delete_node("n1"))
        assert list(await session.read(lambda tx: tx.read_nodes())) == [other]


class TestSqlite(StatementsContract):
    @pytest.fixture(params=["threads", "inline", "memory"])
    async def database(self, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
        path = ":memory:" if request.param == "memory" else tmp_path / "jobs.db"
        database = SqliteDatabase(path, inline=request.param == "inline")
        await database.open()
        yield database
        await database.close()
