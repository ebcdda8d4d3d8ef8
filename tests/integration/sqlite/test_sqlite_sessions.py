"""Sessions of SQLite: who reads and writes beside whom, and who writes next."""

# ruff: noqa: ASYNC230, ASYNC240 - these tests look at files and processes, and nothing else runs in their loops

import asyncio
import fcntl
import shutil
import sqlite3
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from infinite_scheduler.errors import StoreBroken
from infinite_scheduler.model import DAY_MS, JobId
from infinite_scheduler.store.sql.sqlite import checkpoint as sqlite_checkpoint
from infinite_scheduler.store.sql.sqlite import turns as sqlite_turns
from infinite_scheduler.store.sql.sqlite.database import SqliteDatabase
from infinite_scheduler.store.sql.sqlite.dialect import SqliteDialect
from infinite_scheduler.store.sql.statements import Session, Statements
from tests.contract.test_statements import NOW, SMS, add, keys_of, new_row, scan_of
from tests.integration.sqlite.sqlite_file import BOUND_S, opened, registered


class TestSessions:
    async def test_a_listing_does_not_hold_up_the_lane(self, database: SqliteDatabase, session: Session) -> None:
        listing, go_on = threading.Event(), threading.Event()

        def body(tx: Statements) -> Sequence[object]:
            before = tx.read_apps()
            listing.set()
            assert go_on.wait(30)
            return [before, tx.read_jobs(SMS, [row.key])]

        row = new_row()
        reading = asyncio.create_task(database.session("reader").read(body))
        await asyncio.to_thread(listing.wait)
        await add(session, [row])
        go_on.set()
        assert (await reading)[1] == []  # one snapshot, from before

    async def test_a_session_serves_several_event_loops(self, session: Session) -> None:
        rows = [new_row() for _ in range(8)]
        threads = [threading.Thread(target=asyncio.run, args=(add(session, [row]),)) for row in rows]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert len(await session.read(lambda tx: tx.read_jobs(SMS, [row.key for row in rows]))) == 8

    async def test_a_caller_that_stops_waiting_leaves_the_session_working(self, session: Session) -> None:
        begun, go_on = threading.Event(), threading.Event()
        row, never = new_row(), new_row()

        def slow(tx: Statements) -> None:
            begun.set()
            assert go_on.wait(30)
            tx.insert_jobs(SMS, [row])

        first = asyncio.create_task(session.write(slow))
        await asyncio.to_thread(begun.wait)
        second = asyncio.create_task(add(session, [never]))
        await asyncio.sleep(0)
        first.cancel()
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        go_on.set()
        found = await session.read(lambda tx: tx.read_jobs(SMS, [row.key, never.key]))
        assert keys_of(found) == [row.key]  # what had begun ends, what had not begun is left out

    async def test_only_another_process_changes_the_store(self, session: Session, path: Path) -> None:
        await session.changed()
        await add(session, [new_row()])
        assert not await session.changed()
        other = await opened(path)
        assert not await session.changed()
        await add(other.session("door"), [new_row()])
        assert await session.changed()
        assert not await session.changed()
        await other.close()

    async def test_each_session_asks_for_itself_whether_the_store_changed(
        self, database: SqliteDatabase, session: Session, path: Path
    ) -> None:
        lanes = [database.session("lane-0"), database.session("lane-0")]
        for lane in lanes:
            await lane.changed()
        other = await opened(path)
        await add(other.session("door"), [new_row()])
        await other.close()
        assert [await lane.changed() for lane in lanes] == [True, True]

    async def test_the_log_starts_over_under_steady_load(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in (("FRAMES", 100), ("LEAST", 1)):
            monkeypatch.setattr(sqlite_checkpoint, name, value)
        database = await opened(path)
        session = await registered(database)
        began, times, n = time.monotonic(), 0, 0
        while times <= 2:
            assert time.monotonic() - began < BOUND_S, f"it did {times} times"
            n += 1
            await add(session, [new_row(NOW + (n * 37 + m * 997) % DAY_MS, payload=b"1" * 400) for m in range(100)])
            with Path(f"{path}-wal").open("rb") as log:
                times = int.from_bytes(log.read(16)[12:], "big")  # as SQLite counts
        await database.close()

    async def test_on_a_small_disk_the_log_leaves_space_for_the_database(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Disk:
            f_frsize = 4096

            @property
            def f_bavail(self) -> int:
                """What 2 MB less the log leave."""
                return 512 - Path(f"{path}-wal").stat().st_size // self.f_frsize

        monkeypatch.setattr("os.statvfs", lambda _: Disk())
        moving, checkpoint = threading.Lock(), sqlite_checkpoint.checkpoint

        def moved(connection: sqlite3.Connection) -> int | None:
            with moving:
                return checkpoint(connection)

        monkeypatch.setattr(sqlite_checkpoint, "checkpoint", moved)
        database = await opened(path)
        session = await registered(database)
        for n in range(500):
            await add(session, [new_row(NOW + 20 * n + i) for i in range(20)])
            with moving:
                pass  # a slow disk has its time
        assert Path(f"{path}-wal").stat().st_size < 4 << 20  # with space for all of it, it would be 10 MB
        await database.close()

    async def test_a_refused_commit_has_the_log_moved(self, session: Session, path: Path) -> None:
        before = path.stat().st_size
        await session.read(lambda tx: tx._cursor.execute("PRAGMA max_page_count = 1"))  # type: ignore[attr-defined]
        with pytest.raises(StoreBroken, match="no space left"):
            await add(session, [new_row(NOW + n, payload=b'"' + b"x" * 2000 + b'"') for n in range(200)])
        async with asyncio.timeout(BOUND_S):
            while path.stat().st_size == before:  # noqa: ASYNC110 - in a thread of its own
                await asyncio.sleep(0.01)

    async def test_no_thread_or_file_is_left_after_close(self, path: Path) -> None:
        before = set(threading.enumerate())
        database = await opened(path)
        await add(await registered(database), [new_row()])
        await database.close()
        assert set(threading.enumerate()) <= before
        assert not Path(f"{path}-wal").exists()


class TestTurns:
    async def test_who_waits_for_the_lock_is_not_overtaken(
        self, session: Session, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sqlite_turns, "TURN_WAIT_S", 30)
        other = await opened(path)
        shell = sqlite3.connect(path, isolation_level=None)
        order: list[str] = []
        for _ in range(10):
            shell.execute("BEGIN IMMEDIATE")
            first = asyncio.create_task(session.write(lambda _: order.append("first")))
            while not is_taken(path):  # noqa: ASYNC110 - another thread takes it
                await asyncio.sleep(0.001)
            second = asyncio.create_task(other.session("door").write(lambda _: order.append("second")))
            await asyncio.sleep(0.002)
            shell.execute("ROLLBACK")
            await asyncio.gather(first, second)
        shell.close()
        await other.close()
        assert order == ["first", "second"] * 10

    @pytest.mark.parametrize("file", ["turn", "write", "checkpoint"])
    async def test_a_process_that_does_not_use_its_turn_holds_nobody_up_for_long(
        self, session: Session, path: Path, file: str
    ) -> None:
        with Path(f"{path}-nodes", file).open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            async with asyncio.timeout(BOUND_S):
                await add(session, [row := new_row()])
        assert len(await session.read(lambda tx: tx.read_jobs(SMS, [row.key]))) == 1

    @pytest.mark.parametrize(("file", "transactions"), [("turn", 150), ("write", 20)])
    async def test_a_process_that_is_stuck_in_its_turn_is_not_waited_for_by_every_transaction(
        self, session: Session, path: Path, file: str, transactions: int
    ) -> None:
        with Path(f"{path}-nodes", file).open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            async with asyncio.timeout(10):  # a wait for each would take 15 s and 20 s
                for _ in range(transactions):
                    await session.write(lambda _: None)

    def test_a_turn_that_was_waited_for_in_vain_is_taken_again_when_it_is_free(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        turn = sqlite_turns.FileTurn(path, 0.01)
        with path.open("w") as stuck:
            fcntl.flock(stuck, fcntl.LOCK_EX)
            assert not turn.take()
            turn.give_back()
        assert turn.take()
        with path.open("w") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        turn.give_back()
        with path.open("w") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            monkeypatch.setattr(sqlite_turns, "pause", other.close)
            assert turn.take(), "it is waited for again"
        turn.give_back()

    @pytest.mark.parametrize(("next_wait", "waited"), [(1_000_000, [True, False, False]), (0, [True, True, True])])
    def test_a_process_that_is_stuck_is_waited_for_again_after_a_while(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, next_wait: int, waited: list[bool]
    ) -> None:
        pauses: list[None] = []
        found: list[bool] = []
        monkeypatch.setattr(sqlite_turns, "NEXT_WAIT", next_wait)
        monkeypatch.setattr(sqlite_turns, "pause", lambda: pauses.append(None))
        turn = sqlite_turns.FileTurn(path, 0.01)
        with path.open("w") as stuck:
            fcntl.flock(stuck, fcntl.LOCK_EX)
            for _ in waited:
                assert not turn.take()
                turn.give_back()
                found.append(bool(pauses))
                pauses.clear()
        assert found == waited

    async def test_without_the_file_of_turns_writing_goes_on(self, session: Session, path: Path) -> None:
        shutil.rmtree(f"{path}-nodes")
        await add(session, [row := new_row()])
        assert len(await session.read(lambda tx: tx.read_jobs(SMS, [row.key]))) == 1


def is_taken(path: Path) -> bool:
    with Path(f"{path}-nodes", "turn").open("w") as turn:
        try:
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


async def test_a_page_of_a_few_shards_looks_further_in_one_statement(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many nodes most rows belong to others: a page would otherwise take a statement for each part of it."""
    keys = await add(session, [new_row(NOW + n, shard=n % 4) for n in range(5000)])
    pages: list[str] = []
    read = SqliteDialect.read_page

    def counted(self: SqliteDialect, *args: Any) -> Any:
        pages.append(args[1])
        return read(self, *args)

    monkeypatch.setattr(SqliteDialect, "read_page", counted)
    found, _ = await session.read(lambda tx: tx.scan_rows(scan_of(shards=frozenset({1}), limit=1000)))
    assert [job.key for job in found] == [key for key in keys if JobId(key).shard == 1][:1000]
    assert len(pages) == len(set(pages)), "one statement a table"
