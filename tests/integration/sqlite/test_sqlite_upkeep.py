"""Upkeep of a file of SQLite: what is deleted when, and what is never deleted."""

import sqlite3
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from infinite_scheduler.errors import StoreBroken
from infinite_scheduler.model import DAY_MS, Attempt, Job, Owner, Shard, Status, position, start_of
from infinite_scheduler.store.cluster_state import NodeInfo, ShardInfo
from infinite_scheduler.store.ownership import Request
from infinite_scheduler.store.sql import upkeep
from infinite_scheduler.store.sql.sqlite.database import SqliteDatabase
from infinite_scheduler.store.sql.statements import Session, Statements
from infinite_scheduler.store.sql.tables import DAILY, moved_table
from infinite_scheduler.store.sql.upkeep_rows import FIRST
from tests.contract.test_statements import MAIL, NOW, SMS, add, finished, keys_of, new_row
from tests.integration.sqlite.sqlite_file import WEEK_MS, maintained, opened

HOUR_MS = 3_600_000


async def set_low(session: Session, low_ms: int, shards: Sequence[int] = range(4)) -> None:
    def body(tx: Statements) -> None:
        rows = tx.lock_shards([Shard(SMS, number) for number in shards], exclusive=True)
        tx.write_shards(
            ShardInfo(shard=row.shard, owner=row.owner, line_ms=max(row.line_ms, low_ms), low_ms=low_ms)
            for row in rows.values()
        )

    await session.write(body)


async def end(session: Session, keys: Sequence[bytes], ended_ms: int, status: Status = Status.DONE) -> None:
    def body(tx: Statements) -> None:
        jobs = [record.job for record in tx.read_jobs(SMS, keys)]
        assert not tx.update_jobs(
            SMS, [msgspec.structs.replace(finished(job, status), finished_ms=ended_ms) for job in jobs]
        )

    await session.write(body)


async def tables(session: Session) -> set[str]:
    """The day tables of the app."""

    def body(tx: Statements) -> set[str]:
        return {DAILY.table(SMS, day) for day in tx._periods(SMS)}  # type: ignore[attr-defined]

    return await session.read(body)


OLD = NOW - 9 * DAY_MS  # 2026-11-07
OLD_TABLE = "sms_retry_scheduled_jobs_20261107"
AHEAD = {f"sms_retry_scheduled_jobs_{day}" for day in (20261116, 20261117, 20261118)}


class TestUpkeep:
    async def test_tables_are_made_ahead_for_an_app_that_has_jobs(
        self, database: SqliteDatabase, session: Session
    ) -> None:
        assert (await maintained(database)).made == ()
        await add(session, [new_row(later=True)])
        assert set((await maintained(database)).made) == AHEAD
        assert (await maintained(database)).made == ()

    async def test_a_day_that_ended_longer_than_the_retention_ago_is_dropped(
        self, database: SqliteDatabase, session: Session
    ) -> None:
        keys = await add(session, [new_row(OLD + n, shard=n % 4) for n in range(2500)])
        await end(session, keys, OLD + 5000)
        await set_low(session, NOW)
        done = await maintained(database)
        assert done.dropped == (OLD_TABLE,)
        assert done.rows_pruned == 2500
        assert await tables(session) == AHEAD
        assert not await session.read(lambda tx: tx.read_jobs(SMS, keys))

    async def test_a_day_within_the_retention_is_kept(self, database: SqliteDatabase, session: Session) -> None:
        keys = await add(session, [new_row(NOW - WEEK_MS)])
        await end(session, keys, NOW - WEEK_MS)
        await set_low(session, NOW)
        assert (await maintained(database)).dropped == ()
        assert keys_of(await session.read(lambda tx: tx.read_jobs(SMS, keys))) == keys

    async def test_a_pending_job_is_never_deleted_nor_its_table(
        self, database: SqliteDatabase, session: Session
    ) -> None:
        keys = sorted(await add(session, [new_row(OLD + n) for n in range(9)]))
        await end(session, [key for n, key in enumerate(keys) if n != 4], OLD + 10)
        await set_low(session, NOW)  # even if low were wrong
        assert (await maintained(database)).dropped == ()
        assert keys_of(await session.read(lambda tx: tx.read_jobs(SMS, keys))) == [keys[4]]

    async def test_a_moved_job_that_is_pending_keeps_its_row(self, database: SqliteDatabase, session: Session) -> None:
        keys = await add(session, [new_row(OLD), new_row(OLD + 1)])
        (record,) = await session.read(lambda tx: tx.read_jobs(SMS, keys[:1]))
        await move(session, record.job, NOW + 90 * DAY_MS)
        await end(session, keys[1:], OLD + 10)
        await set_low(session, NOW)
        assert (await maintained(database)).dropped == ()
        (kept,) = await session.read(lambda tx: tx.read_jobs(SMS, keys))
        assert (kept.job.key, kept.job.due_ms) == (keys[0], NOW + 90 * DAY_MS)

    async def test_a_day_is_kept_while_one_shard_is_not_settled_up_to_its_end(
        self, database: SqliteDatabase, session: Session
    ) -> None:
        keys = await add(session, [new_row(OLD)])
        await end(session, keys, OLD + 10)
        await set_low(session, NOW)
        await set_low(session, OLD + DAY_MS - 1, [2])
        assert (await maintained(database)).dropped == ()
        assert keys_of(await session.read(lambda tx: tx.read_jobs(SMS, keys))) == keys
        await set_low(session, OLD + DAY_MS, [2])
        assert (await maintained(database)).dropped == (OLD_TABLE,)

    async def test_a_job_that_ended_lately_is_kept_for_the_retention_whatever_its_day(
        self, database: SqliteDatabase, session: Session
    ) -> None:
        late, early = await add(session, [new_row(OLD), new_row(OLD + 1)])
        await end(session, [early], OLD + 10)
        await end(session, [late], NOW - DAY_MS, Status.FAILED)
        await set_low(session, NOW)
        await maintained(database)
        assert keys_of(await session.read(lambda tx: tx.read_jobs(SMS, [late, early]))) == [late]
        assert (await maintained(database, NOW + WEEK_MS)).dropped == (OLD_TABLE,)

    async def test_ended_jobs_of_later_are_deleted_and_waiting_ones_kept(
        self, database: SqliteDatabase, session: Session
    ) -> None:
        moments = (OLD, OLD + 1, NOW - 1, NOW + 99 * DAY_MS)
        keys = await add(session, [new_row(ms, later=True) for ms in moments])
        await end(session, [keys[0], keys[2]], OLD + 10)
        await set_low(session, NOW)
        await maintained(database)
        assert sorted(keys_of(await session.read(lambda tx: tx.read_jobs(SMS, keys)))) == keys[1:]

    async def test_attempts_go_with_their_jobs(self, database: SqliteDatabase, session: Session) -> None:
        gone, kept = await add(session, [new_row(OLD), new_row(OLD + 1)])
        attempts = [(key, Attempt(attempt=n, started_ms=OLD, node="a")) for key in (gone, kept) for n in (1, 2)]
        await session.write(lambda tx: tx.write_attempts(SMS, attempts))
        await end(session, [gone], OLD + 10)
        await set_low(session, NOW)
        await maintained(database)
        assert not await session.read(lambda tx: tx.read_attempts(SMS, gone))
        assert len(await session.read(lambda tx: tx.read_attempts(SMS, kept))) == 2

    async def test_maintenance_does_not_read_what_jobs_carry(self, database: SqliteDatabase, session: Session) -> None:
        large = b'"' + b"x" * (1 << 20) + b'"'
        keys = await add(session, [new_row(OLD + n, payload=large) for n in range(12)])
        records = await session.read(lambda tx: tx.read_jobs(SMS, keys))
        for record in records:
            await move(session, record.job, OLD + 1000)
        attempts = [(key, Attempt(attempt=1, started_ms=OLD, node="a")) for key in keys]
        await session.write(lambda tx: tx.write_attempts(SMS, attempts))
        await set_low(session, NOW)
        del records
        tracemalloc.start()
        try:
            await maintained(database)
            assert tracemalloc.get_traced_memory()[1] < len(large)
        finally:
            tracemalloc.stop()

    async def test_idempotency_keys_are_kept_for_their_time(self, database: SqliteDatabase, session: Session) -> None:
        rows = [new_row(idempotency_key=f"k{n}") for n in range(2300)]
        await session.write(lambda tx: tx.claim_keys(SMS, rows))
        other = [new_row(idempotency_key=row.spec.idempotency_key) for row in rows]
        await maintained(database, NOW + DAY_MS)
        assert len(await session.write(lambda tx: tx.claim_keys(SMS, other))) == 2300
        await maintained(database, NOW + DAY_MS + 1)
        assert not await session.write(lambda tx: tx.claim_keys(SMS, other))

    async def test_stale_entries_go_and_those_that_lead_to_a_pending_job_stay(
        self, database: SqliteDatabase, session: Session
    ) -> None:
        keys = await add(session, [new_row(OLD + n) for n in range(4)])
        records = {r.job.key: r.job for r in await session.read(lambda tx: tx.read_jobs(SMS, keys))}
        for key in keys[:2]:
            await move(session, records[key], OLD + 100)
        entries = [
            (position(keys[0], OLD + 50), keys[0]),  # it was moved on from there
            (position(keys[2], OLD + 2), keys[2]),  # it ended
            (position(keys[3], NOW + 50), keys[3]),  # stale, but not before low
            (position(new_row(OLD).key, OLD + 50), new_row(OLD).key),  # of a job that is gone
        ]
        await session.write(lambda tx: tx.insert_entries(SMS, entries))
        await end(session, [keys[2]], NOW)
        await set_low(session, NOW)
        assert (await maintained(database)).rows_pruned == 3
        left = await session.read(moved)
        current = {(position(key, OLD + 100), key) for key in keys[:2]}
        assert left == current | {entries[2]}

    async def test_an_entry_that_leads_to_its_job_again_when_it_is_to_be_deleted_stays(
        self, database: SqliteDatabase, session: Session
    ) -> None:
        (key,) = await add(session, [new_row(OLD, shard=1)])
        (record,) = await session.read(lambda tx: tx.read_jobs(SMS, [key]))
        entry = (position(key, OLD + 50), key)
        await session.write(lambda tx: tx.insert_entries(SMS, [entry]))
        await set_low(session, NOW)
        rows: Any = session
        judged, _ = await rows.read(lambda tx: tx.stale_entries(SMS, FIRST))
        assert judged == {Shard(SMS, 1): [entry]}
        await move(session, record.job, OLD + 50)
        assert await rows.write(lambda tx: tx.prune_entries(Shard(SMS, 1), judged[Shard(SMS, 1)])) == 0
        assert entry in await session.read(moved)

    async def test_old_verdicts_go_and_requests_stay(self, database: SqliteDatabase, session: Session) -> None:
        wake = Request(id=b"w" * 16, shard=Shard(SMS, 0), change=None, keys=(new_row().key,))
        await session.write(lambda tx: tx.insert_requests([wake]))
        await session.write(lambda tx: tx.write_decisions({b"a" * 16: True}, NOW - DAY_MS))
        await session.write(lambda tx: tx.write_decisions({b"b" * 16: True}, NOW - 1000))
        await maintained(database)
        assert await session.read(lambda tx: tx.read_decisions([b"a" * 16, b"b" * 16])) == {b"b" * 16: True}
        assert await session.read(lambda tx: tx.read_requests([wake.shard], 1000)) == [wake]

    async def test_counters_of_past_days_are_added_up(
        self, database: SqliteDatabase, session: Session, path: Path
    ) -> None:
        other = await opened(path)
        for each in (session, other.session("door")):
            for days in (0, 1, 2, 30):
                await each.write(
                    lambda tx, ms=NOW - days * DAY_MS: tx.add_counts({(SMS, "done"): 10}, ms)  # type: ignore[misc]
                )
        await other.close()
        await maintained(database)
        assert await session.read(lambda tx: tx.read_counts()) == {SMS: {"done": 60}}
        shell = sqlite3.connect(path)
        assert shell.execute("SELECT COUNT(*) FROM scheduler_counters").fetchone() == (4,)
        shell.close()

    async def test_counters_of_what_waits_are_added_up_by_their_age_and_go_when_all_is_settled(
        self, database: SqliteDatabase, session: Session
    ) -> None:
        day = NOW // DAY_MS

        async def count(process: str, deltas: dict[int, int], ms: int) -> None:
            def body(tx: Any) -> None:
                mine, tx._process = tx._process, process
                try:
                    tx.add_counts({}, ms, {(SMS, day + ahead): n for ahead, n in deltas.items()})
                finally:
                    tx._process = mine

            await session.write(body)

        async def rows() -> list[tuple[Any, ...]]:
            text = "SELECT process, day, n FROM scheduler_counters ORDER BY process, day"
            return [tuple(row) for row in await session.read(lambda tx: tx._select(text))]  # type: ignore[attr-defined]

        await count("old", {-30: 5, 0: 5, 9: 5}, NOW - 2 * HOUR_MS)
        await count("young", {-30: -4, 0: -5, 9: -1}, NOW - 1000)
        for _ in range(2):
            await maintained(database)
            assert await rows() == [
                ("", day - 30, 5), ("", day, 5), ("", day + 9, 5),
                ("young", day - 30, -4), ("young", day, -5), ("young", day + 9, -1),
            ], "what was written lately stays"  # fmt: skip
        await count("young", {9: -1}, NOW)
        for _ in range(2):
            await maintained(database, NOW + 2 * HOUR_MS)
        assert await rows() == [("", day - 30, 1), ("", day + 9, 3)]
        assert await session.read(lambda tx: tx.read_waiting()) == {SMS: {day - 30: 1, day + 9: 3}}

    async def test_a_node_that_is_long_gone_is_forgotten_once_it_owns_nothing(
        self, database: SqliteDatabase, session: Session
    ) -> None:
        for nonce, beat_ms in (("gone", NOW - DAY_MS), ("owner", NOW - DAY_MS), ("here", NOW - 1000)):
            node = NodeInfo(nonce=nonce, node_id=nonce, apps=frozenset(), started_ms=0, beat_ms=beat_ms)
            await session.write(lambda tx, node=node: tx.write_node(node))  # type: ignore[misc]
        owned = ShardInfo(shard=Shard(SMS, 0), owner=Owner("owner", 1), line_ms=NOW, low_ms=NOW)
        await session.write(lambda tx: tx.write_shards([owned]))
        await maintained(database)
        assert [node.nonce for node in await session.read(lambda tx: tx.read_nodes())] == ["here", "owner"]

    async def test_a_node_that_beats_again_when_it_is_to_be_forgotten_stays(self, session: Session) -> None:
        node = NodeInfo(nonce="slow", node_id="slow", apps=frozenset(), started_ms=0, beat=7, beat_ms=NOW - DAY_MS)
        await session.write(lambda tx: tx.write_node(node))
        rows: Any = session
        silent = await rows.read(lambda tx: tx.silent_nodes(NOW))
        assert silent == [("slow", 7)]
        await session.write(lambda tx: tx.write_node(msgspec.structs.replace(node, beat=8, beat_ms=NOW)))
        assert await rows.write(lambda tx: tx.delete_nodes(silent)) == 0
        assert [found.nonce for found in await session.read(lambda tx: tx.read_nodes())] == ["slow"]

    async def test_how_long_a_node_is_silent_goes_by_the_clock_of_the_store(
        self, database: SqliteDatabase, session: Session
    ) -> None:
        hour_ms = DAY_MS // 24
        for nonce, offset_ms, heard_ms in (
            ("ahead", -3 * hour_ms, NOW - 2 * hour_ms),
            ("behind", 3 * hour_ms, NOW - 1000),
        ):
            node = NodeInfo(
                nonce=nonce,
                node_id=nonce,
                apps=frozenset(),
                started_ms=0,
                clock_offset_ms=offset_ms,
                beat_ms=heard_ms - offset_ms,
            )
            await session.write(lambda tx, node=node: tx.write_node(node))  # type: ignore[misc]
        await session.write(lambda tx: tx.set_drain("behind", asked=True))
        await maintained(database)
        (left,) = await session.read(lambda tx: tx.read_nodes())
        assert (left.nonce, left.drain_asked) == ("behind", True)

    async def test_an_app_that_fails_keeps_the_others_and_what_is_shared_from_nothing(
        self, database: SqliteDatabase, session: Session
    ) -> None:
        for app in (MAIL, SMS):
            await add(session, [new_row(later=True, app=app)], app)
        await maintained(database, NOW - DAY_MS)  # MAIL, whose name comes first, has had its turn once
        keys = await add(session, [new_row(OLD)])
        await end(session, keys, OLD + 10)
        await set_low(session, NOW)
        await session.write(lambda tx: tx.write_decisions({b"a" * 16: True}, NOW - DAY_MS))
        node = NodeInfo(nonce="gone", node_id="gone", apps=frozenset(), started_ms=0)
        await session.write(lambda tx: tx.write_node(node))
        table = moved_table(MAIL)
        await session.write(lambda tx: tx.cursor.execute(f"DROP TABLE {table}"))  # type: ignore[attr-defined]
        for _ in range(2):
            with pytest.raises(StoreBroken, match=f"{table}|vanish"):
                await maintained(database)
        assert await tables(session) == AHEAD | {DAILY.table(SMS, NOW // DAY_MS - 1)}
        assert not await session.read(lambda tx: tx.read_jobs(SMS, keys))
        assert not await session.read(lambda tx: tx.read_decisions([b"a" * 16]))
        assert not await session.read(lambda tx: tx.read_nodes())

    async def test_one_round_is_short_and_the_next_goes_on(
        self, database: SqliteDatabase, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(upkeep, "SLICES", 2)
        keys = await add(session, [new_row(OLD + n) for n in range(5000)])
        await end(session, keys, OLD + 9000)
        await set_low(session, NOW)
        first = await maintained(database)
        assert (first.rows_pruned, first.dropped) == (2000, ())
        assert (await maintained(database)).rows_pruned == 2000
        assert (await maintained(database)).dropped == (OLD_TABLE,)


async def move(session: Session, job: Job, due_ms: int) -> None:
    def body(tx: Statements) -> None:
        update = msgspec.structs.replace(finished(job), status=Status.PENDING, due_ms=due_ms, finished_ms=None)
        assert not tx.update_jobs(SMS, [update])
        tx.insert_entries(SMS, [(position(job.key, due_ms), job.key)])

    await session.write(body)


def moved(tx: Statements) -> set[tuple[bytes, bytes]]:
    rows = tx._select("SELECT position, id FROM sms_retry_moved_jobs WHERE position >= ?", (start_of(0),))  # type: ignore[attr-defined]
    return set(map(tuple, rows))
