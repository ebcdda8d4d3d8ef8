"""What is special to SQLite: its file, its errors, several processes on it, proof of life, and retention."""

# ruff: noqa: ASYNC230, ASYNC240 - these tests look at files and processes, and nothing else runs in their loops

import asyncio
import fcntl
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from infinite_scheduler import Scheduler
from infinite_scheduler.errors import ConfigError, InvalidRequest, StoreBroken, StoreMismatch, StoreUnavailable
from infinite_scheduler.model import DAY_MS, Attempt, Job, JobId, Owner, Shard, Status, position, start_of
from infinite_scheduler.store.base import AppInfo, NodeInfo, Query, Request, ShardInfo, Upkeep
from infinite_scheduler.store.sql import upkeep
from infinite_scheduler.store.sql.sqlite import checkpoint as sqlite_checkpoint
from infinite_scheduler.store.sql.sqlite import session as sqlite_session
from infinite_scheduler.store.sql.sqlite import turns as sqlite_turns
from infinite_scheduler.store.sql.sqlite.database import SqliteDatabase, path_of
from infinite_scheduler.store.sql.sqlite.dialect import SqliteDialect
from infinite_scheduler.store.sql.sqlite.liveness import LockFolder
from infinite_scheduler.store.sql.statements import Session, Statements
from infinite_scheduler.store.sql.tables import DAILY, moved_table
from tests.contract.test_statements import (
    MAIL,
    NOW,
    SMS,
    add,
    finished,
    keys_of,
    new_row,
    scan_all_rows,
    scan_of,
    settle,
)

WEEK_MS = 7 * DAY_MS
BOUND_S = 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def database(path: Path) -> AsyncIterator[SqliteDatabase]:
    database = await opened(path)
    yield database
    await database.close()


@pytest.fixture
async def session(database: SqliteDatabase) -> Session:
    return await registered(database)


async def opened(path: Path | str) -> SqliteDatabase:
    database = SqliteDatabase(path)
    await database.open()
    return database


async def registered(database: SqliteDatabase) -> Session:
    session = database.session("door")
    for app in (SMS, MAIL):
        info = AppInfo(name=app, shards=4, paused=False, created_ms=NOW)
        await session.write(lambda tx, info=info: tx.insert_app(info, NOW))  # type: ignore[misc]
    return session


def in_process(code: str, *arguments: object, **options: object) -> subprocess.Popen[str]:
    """Run Python code in a process of its own; it says a line when it is ready."""
    command = [sys.executable, "-c", PRELUDE + code, *map(str, arguments)]
    return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.PIPE, text=True, **options
    )


PRELUDE = """
import asyncio, os, sys
from tests.contract.test_statements import *
from infinite_scheduler.errors import SchedulerError
from infinite_scheduler.store.sql.sqlite.database import SqliteDatabase
path = sys.argv[1]
"""


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start processes that do not outlive the test."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    started: list[subprocess.Popen[str]] = []

    def begin(code: str, *arguments: object, **options: object) -> subprocess.Popen[str]:
        started.append(in_process(code, *arguments, **options))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    """The next line of a process."""
    assert process.stdout
    line = process.stdout.readline()
    if not line and process.wait() and process.stderr:
        raise AssertionError(process.stderr.read())
    return line.strip()


class TestUrl:
    @pytest.mark.parametrize(
        ("url", "wanted"),
        [
            ("sqlite:///jobs.db", "jobs.db"),
            ("sqlite:///data/jobs.db", "data/jobs.db"),
            ("sqlite:////var/jobs.db", "/var/jobs.db"),
            ("sqlite:///:memory:", ":memory:"),
        ],
    )
    def test_a_url_names_a_file(self, url: str, wanted: str) -> None:
        assert path_of(url) == wanted

    @pytest.mark.parametrize(
        "url", ["sqlite://", "sqlite:///", "sqlite:jobs.db", "sqlite://jobs.db", "mysql:///jobs.db"]
    )
    def test_a_url_without_a_file_is_refused_with_an_example(self, url: str) -> None:
        with pytest.raises(ConfigError, match=r"sqlite:///jobs\.db"):
            path_of(url)

    def test_unknown_options_are_refused_by_name(self) -> None:
        with pytest.raises(ConfigError, match="timeout"):
            path_of("sqlite:///jobs.db?timeout=5")


class TestTables:
    async def test_an_operator_reads_jobs_without_knowing_how_they_are_stored(
        self, session: Session, path: Path
    ) -> None:
        row = new_row(NOW + 123, scheduled_ms=NOW - 1)
        await add(session, [row])
        await settle(session, [row.key])
        with sqlite3.connect(path) as shell:
            shell.row_factory = sqlite3.Row
            seen = shell.execute(
                "SELECT * FROM sms_retry_scheduled_jobs_20261116 ORDER BY scheduled_time DESC LIMIT 10"
            ).fetchall()
        shell.close()
        (read,) = seen
        record = (await session.read(lambda tx: tx.read_jobs(SMS, [row.key])))[0]
        assert read["job_id"] == record.id
        assert read["scheduled_time"] == "2026-11-15 23:59:59.999"
        assert read["due_time"] == "2026-11-16 00:00:00.123"
        assert (read["created_at"], read["finished_at"]) == ("2026-11-16 00:00:00.000", "2026-11-16 00:00:00.005")
        assert (read["status"], read["job_data"], read["attempt"]) == ("done", '{"to":"+49"}', 1)

    async def test_readable_columns_take_no_space_and_no_index(self, session: Session, path: Path) -> None:
        await add(session, [new_row()])
        shell = sqlite3.connect(path)
        hidden = {
            row[1] for row in shell.execute("PRAGMA table_xinfo(sms_retry_scheduled_jobs_20261116)") if row[6] == 2
        }
        indexes = shell.execute("PRAGMA index_list(sms_retry_scheduled_jobs_20261116)").fetchall()
        shell.close()
        assert hidden == {"job_id", "scheduled_time", "due_time", "created_at", "finished_at"}
        assert [row[3] for row in indexes] == ["pk"]

    async def test_a_table_made_or_dropped_by_another_process_is_noticed(self, session: Session, path: Path) -> None:
        assert not await session.read(lambda tx: tx.read_jobs(SMS, [new_row().key]))
        other = await opened(path)
        (key,) = await add(other.session("door"), [new_row()])
        assert keys_of(await session.read(lambda tx: tx.read_jobs(SMS, [key]))) == [key]
        shell = sqlite3.connect(path)
        shell.execute("DROP TABLE sms_retry_scheduled_jobs_20261116")
        shell.close()
        assert not await session.read(lambda tx: tx.read_jobs(SMS, [key]))
        (key,) = await add(session, [new_row()])
        assert keys_of(await other.session("lane-0").read(lambda tx: tx.read_jobs(SMS, [key]))) == [key]
        await other.close()

    async def test_a_table_whose_making_was_undone_hides_no_other(self, session: Session, path: Path) -> None:
        def undone(tx: Statements) -> None:
            tx.insert_jobs(SMS, [row])
            assert tx.read_jobs(SMS, [row.key])
            raise LookupError

        row = new_row()
        with pytest.raises(LookupError):
            await session.write(undone)
        other = await opened(path)
        (key,) = await add(other.session("door"), [new_row(NOW + DAY_MS)])
        await other.close()
        assert [job.key for job in await scan_all_rows(session, scan_of())] == [key]

    async def test_tables_of_others_are_left_alone(self, session: Session, path: Path) -> None:
        shell = sqlite3.connect(path)
        for name in ("20269999", "2026111", "backup"):
            shell.execute(f"CREATE TABLE sms_retry_scheduled_jobs_{name} (id INTEGER)")
        shell.close()
        keys = await add(session, [new_row()])
        assert [job.key for job in await scan_all_rows(session, scan_of())] == keys

    async def test_an_app_whose_tables_sqlite_would_refuse_is_refused_clearly(self, session: Session) -> None:
        info = AppInfo(name="sqlite", shards=1, paused=False, created_ms=NOW)
        with pytest.raises(InvalidRequest, match="sqlite_"):
            await session.write(lambda tx: tx.insert_app(info, NOW))


class TestErrors:
    async def test_a_missing_folder_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(StoreBroken, match=f"no folder {tmp_path}/nowhere"):
            await opened(tmp_path / "nowhere" / "jobs.db")

    async def test_a_file_is_no_folder(self, path: Path) -> None:
        path.write_text("notes")
        with pytest.raises(StoreBroken, match=f"{path} is no folder"):
            await opened(path / "jobs.db")

    async def test_a_folder_is_no_database(self, tmp_path: Path) -> None:
        with pytest.raises(StoreBroken, match="is a folder"):
            await opened(tmp_path)

    async def test_a_file_that_is_no_database_is_left_as_it_is(self, path: Path) -> None:
        path.write_bytes(b"these are my notes, not a database\n" * 50)
        with pytest.raises(StoreBroken, match="not a SQLite database"):
            await opened(path)
        assert path.read_bytes().startswith(b"these are my notes")

    async def test_a_damaged_database_is_said_to_be_so(self, database: SqliteDatabase, path: Path) -> None:
        session = await registered(database)
        await add(session, [new_row(NOW + n) for n in range(2000)])
        await database.close()
        content = bytearray(path.read_bytes())
        content[8192:] = b"\x99" * (len(content) - 8192)
        path.write_bytes(content)
        damaged = SqliteDatabase(path)
        with pytest.raises(StoreBroken, match="is damaged"):
            await damaged.open()
        await damaged.close()

    @pytest.mark.parametrize("read_only", ["file", "folder"])
    async def test_a_read_only_file_or_folder_is_said_to_be_so(
        self, read_only: str, start: Callable[..., subprocess.Popen[str]]
    ) -> None:
        code = """
if os.geteuid() == 0:  # root may write everywhere
    os.setgid(65534); os.setuid(65534)
async def main():
    try:
        await SqliteDatabase(path).open()
    except Exception as error:
        print(type(error).__name__, error, flush=True)
asyncio.run(main())
"""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "jobs.db"
            await (await opened(path)).close()
            Path(folder).chmod(0o777 if read_only == "file" else 0o555)
            path.chmod(0o444 if read_only == "file" else 0o666)
            line = said(start(code, path))
            Path(folder).chmod(0o755)
        assert line.startswith("StoreBroken")
        assert "write access" in line or "may this user write" in line

    async def test_a_newer_schema_is_refused_with_both_versions(self, path: Path) -> None:
        await (await opened(path)).close()
        shell = sqlite3.connect(path)
        shell.execute("UPDATE scheduler_schema SET version = 99")
        shell.commit()
        shell.close()
        with pytest.raises(StoreMismatch, match=r"version 99.*up to 2.*upgrade"):
            await opened(path)

    async def test_a_full_disk_is_said_to_be_so_and_the_store_works_on_after(
        self, session: Session, path: Path
    ) -> None:
        await add(session, [new_row()])

        def limit(pages: int) -> Callable[[Statements], None]:
            def body(tx: Statements) -> None:
                tx._cursor.execute(f"PRAGMA max_page_count = {pages}")  # type: ignore[attr-defined]

            return body

        await session.read(limit(1))  # SQLite takes it as: not one page more than there are
        with pytest.raises(StoreBroken, match="no space left"):
            await add(session, [new_row(NOW + n, payload=b'"' + b"x" * 2000 + b'"') for n in range(200)])
        await session.read(limit(1_000_000))
        assert len(await session.read(lambda tx: tx.find_jobs(SMS, Query(), None, 1000))) == 1
        await add(session, [new_row()])

    async def test_a_file_that_may_not_grow_fails_cleanly_and_works_on_after(
        self, path: Path, start: Callable[..., subprocess.Popen[str]]
    ) -> None:
        code = """
import resource
async def main():
    database = SqliteDatabase(path)
    await database.open()
    session = database.session("door")
    await session.write(lambda tx: tx.insert_app(AppInfo(name=SMS, shards=4, paused=False, created_ms=NOW), NOW))
    (key,) = await add(session, [new_row()])
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    try:
        await add(session, [new_row(NOW + n, payload=b'"' + b"x" * 2000 + b'"') for n in range(1000)])
    except SchedulerError as error:
        print(type(error).__name__, flush=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    (more,) = await add(session, [new_row(NOW + 1)])
    found = await session.read(lambda tx: tx.find_jobs(SMS, Query(), None, 5000))
    print([record.job.key for record in found] == [key, more], flush=True)
    await database.close()
asyncio.run(main())
"""
        process = start(code, path)
        assert said(process) in {"StoreBroken", "StoreUnavailable"}
        assert said(process) == "True"

    async def test_a_commit_that_fails_is_in_doubt(self, session: Session) -> None:
        def body(tx: Statements) -> None:
            cursor = tx._cursor  # type: ignore[attr-defined]
            cursor.execute("PRAGMA defer_foreign_keys = ON")
            cursor.execute("CREATE TABLE IF NOT EXISTS parent (id INTEGER PRIMARY KEY)")
            cursor.execute(
                "CREATE TABLE IF NOT EXISTS child (id INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED)"
            )
            cursor.execute("INSERT INTO child VALUES (1)")

        await session.read(lambda tx: tx.read_apps())
        await foreign_keys(session)
        with pytest.raises(StoreUnavailable, match="unknown whether"):
            await session.write(body)
        await add(session, [new_row()])

    async def test_a_lock_that_is_held_too_long_makes_the_store_unavailable(
        self, session: Session, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sqlite_session, "PATIENCE_S", 0.05)
        shell = sqlite3.connect(path, isolation_level=None)
        shell.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match=r"another process has held the write lock.*sqlite3 shell"):
            await add(session, [new_row()])
        await session.read(lambda tx: tx.read_apps())  # readers are not held up
        shell.execute("ROLLBACK")
        shell.close()
        await add(session, [new_row()])

    @pytest.mark.parametrize("how", ["deleted", "replaced", "moved away"])
    async def test_a_file_that_is_gone_takes_nothing_more(
        self, session: Session, database: SqliteDatabase, path: Path, how: str
    ) -> None:
        (before,) = await add(session, [new_row()])
        if how == "deleted":
            path.unlink()
        else:
            path.rename(path.with_name("away"))
        if how == "replaced":
            path.write_bytes(b"")
        for reader in (session, database.session("reader")):
            with pytest.raises(StoreBroken, match="was deleted or replaced while in use"):
                await reader.read(lambda tx: tx.read_apps())
        with pytest.raises(StoreBroken, match="was deleted or replaced while in use"):
            await add(session, [new_row()])
        if how == "moved away":
            path.with_name("away").rename(path)
            (after,) = await add(session, [new_row()])
            assert keys_of(await session.read(lambda tx: tx.read_jobs(SMS, [before, after]))) == sorted([before, after])

    async def test_who_closes_a_file_that_was_replaced_harms_nothing_of_the_new_one(self, path: Path) -> None:
        old = await opened(path)
        await add(await registered(old), [new_row()])
        for file in path.parent.glob("jobs.db*"):
            if file.is_file():
                file.unlink()
        new = await opened(path)
        (key,) = await add(await registered(new), [new_row()])
        await old.close()
        elsewhere = await opened(path)
        assert keys_of(await elsewhere.session("door").read(lambda tx: tx.read_jobs(SMS, [key]))) == [key]
        await elsewhere.close()
        await new.close()

    async def test_a_node_whose_file_is_gone_accepts_nothing_and_stops_firing(self, path: Path) -> None:
        paces = {"node.heartbeat": "100ms", "node.lease": "500ms", "node.stop_timeout": 0}
        scheduler = Scheduler(f"sqlite:///{path}", settings=paces)
        fired: list[object] = []
        scheduler.app("mail", shards=1)(lambda job: fired.append(job.data))
        await scheduler.start()
        first = await scheduler.schedule("mail", 1, delay=0)
        await scheduler.wait(first.id, timeout=BOUND_S)
        await scheduler.schedule("mail", 2, delay="1500ms")
        path.unlink()
        with pytest.raises(StoreBroken, match="was deleted or replaced while in use"):
            await scheduler.schedule("mail", 3, delay=0)
        await asyncio.sleep(2)  # the moment of the second job has passed, and the lease long before it
        assert fired == [1]
        assert not await scheduler.stop()

    async def test_a_closed_store_says_so(self, path: Path) -> None:
        database = await opened(path)
        session = database.session("door")
        await database.close()
        await database.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            await session.read(lambda tx: tx.read_apps())
        with pytest.raises(StoreUnavailable, match="not open"):
            database.session("door")


async def foreign_keys(session: Session) -> None:
    """Turn foreign keys on, outside of a transaction: the one way to make a commit of SQLite fail."""
    transactions = session._transactions  # type: ignore[attr-defined]
    await session._worker.do(lambda: transactions._connection.execute("PRAGMA foreign_keys = ON"))  # type: ignore[attr-defined]


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
        monkeypatch.setattr(sqlite_turns, "COURTESY_S", 30)
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

    async def test_a_process_that_does_not_use_its_turn_holds_nobody_up_for_long(
        self, session: Session, path: Path
    ) -> None:
        with Path(f"{path}-nodes", "turn").open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            async with asyncio.timeout(BOUND_S):
                await add(session, [row := new_row()])
        assert len(await session.read(lambda tx: tx.read_jobs(SMS, [row.key]))) == 1

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


class TestProcesses:
    async def test_several_processes_make_the_schema_at_once(
        self, path: Path, start: Callable[..., subprocess.Popen[str]]
    ) -> None:
        code = """
async def main():
    database = SqliteDatabase(path)
    print("ready", flush=True); sys.stdin.readline()
    await database.open()
    session = database.session("door")
    await session.write(lambda tx: tx.insert_app(AppInfo(name=SMS, shards=4, paused=False, created_ms=NOW), NOW))
    await add(session, [new_row() for _ in range(10)])
    await database.close()
    print("done", flush=True)
asyncio.run(main())
"""
        processes = [start(code, path) for _ in range(5)]
        for process in processes:
            assert said(process) == "ready"
        for process in processes:
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
        assert [said(process) for process in processes] == ["done"] * 5
        database = await opened(path)
        found = await database.session("reader").read(lambda tx: tx.find_jobs(SMS, Query(), None, 1000))
        assert len(found) == 50
        await database.close()

    async def test_two_processes_that_write_all_the_time_both_get_on(
        self, path: Path, start: Callable[..., subprocess.Popen[str]]
    ) -> None:
        await registered(database := await opened(path))
        await database.close()
        code = """
async def main():
    database = SqliteDatabase(path)
    await database.open()
    session = database.session("door")
    print("ready", flush=True); sys.stdin.readline()
    for _ in range(100):
        await add(session, [new_row(NOW + n) for n in range(50)])
    await database.close()
    print("done", flush=True)
asyncio.run(main())
"""
        processes = [start(code, path) for _ in range(2)]
        for process in processes:
            said(process)
        for process in processes:
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
        assert [said(process) for process in processes] == ["done"] * 2
        shell = sqlite3.connect(path)
        (count,) = shell.execute("SELECT COUNT(*) FROM sms_retry_scheduled_jobs_20261116").fetchone()
        shell.close()
        assert count == 10_000

    async def test_a_process_killed_in_a_transaction_leaves_nothing_of_it(
        self, path: Path, start: Callable[..., subprocess.Popen[str]]
    ) -> None:
        await registered(database := await opened(path))
        code = """
async def main():
    database = SqliteDatabase(path)
    await database.open()
    session = database.session("door")
    (key,) = await add(session, [new_row()])
    def body(tx):
        tx.insert_jobs(SMS, [new_row(NOW + n) for n in range(5000)])
        print(key.hex(), flush=True); sys.stdin.readline()
    await session.write(body)
asyncio.run(main())
"""
        process = start(code, path)
        kept = bytes.fromhex(said(process))
        process.send_signal(signal.SIGKILL)
        process.wait()
        session = database.session("door")
        await add(session, [new_row(NOW + DAY_MS)])  # the lock went with the process
        found = await session.read(lambda tx: tx.find_jobs(SMS, Query(to_ms=NOW + DAY_MS), None, 10_000))
        assert keys_of(found) == [kept]
        await database.close()


class TestLife:
    """A lock on a file proves that a process lives; a free one that it is dead."""

    CODE = """
database = SqliteDatabase(path)
database.live("other")
if len(sys.argv) > 2:
    child = os.fork()
    if child == 0:
        sys.stdin.read(); os._exit(0)
print("ready", flush=True); sys.stdin.readline()
"""

    @pytest.fixture
    def nodes(self) -> list[NodeInfo]:
        return [NodeInfo(nonce=n, node_id=n, apps=frozenset(), started_ms=0) for n in ("mine", "other", "unknown")]

    async def test_a_node_is_dead_when_its_process_ended_and_not_before(
        self, database: SqliteDatabase, nodes: list[NodeInfo], path: Path, start: Callable[..., subprocess.Popen[str]]
    ) -> None:
        process = start(self.CODE, path)
        said(process)
        assert database.dead(nodes) == frozenset()
        process.kill()
        process.wait()
        assert database.dead(nodes) == {"other"}
        assert database.dead(nodes) == {"other"}

    async def test_a_node_is_dead_even_if_a_forked_child_of_it_lives(
        self, database: SqliteDatabase, nodes: list[NodeInfo], path: Path, start: Callable[..., subprocess.Popen[str]]
    ) -> None:
        process = start(self.CODE, path, "fork")
        said(process)
        assert database.dead(nodes) == frozenset()
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert database.dead(nodes) == {"other"}

    async def test_a_node_of_this_process_is_never_dead(
        self, database: SqliteDatabase, nodes: list[NodeInfo], path: Path, start: Callable[..., subprocess.Popen[str]]
    ) -> None:
        database.live("mine")
        second = SqliteDatabase(path)
        second.live("other")
        for asked in (database, second):
            assert asked.dead(nodes) == frozenset()
        code = """
from infinite_scheduler.store.sql.sqlite.liveness import LockFolder
print(len(LockFolder(Path(f"{path}-nodes")).free(["mine", "other"])), flush=True)
"""
        assert said(start(code, path)) == "0"  # and the locks are still there: asking did not give them up
        for nonce in ("mine", "other"):
            LockFolder(Path(f"{path}-nodes")).drop(nonce)

    async def test_a_node_that_left_gives_its_lock_up_at_close_and_one_that_owns_keeps_it(self, path: Path) -> None:
        database = await opened(path)
        session = await registered(database)
        for nonce in ("gone", "owner"):
            database.live(nonce)
        owned = ShardInfo(shard=Shard(SMS, 0), owner=Owner("owner", 1), line_ms=NOW, low_ms=NOW)
        await session.write(lambda tx: tx.write_shards([owned]))
        await database.close()
        assert lock_files(path) == {"owner.lock"}
        LockFolder(Path(f"{path}-nodes")).drop("owner")

    async def test_lock_files_that_nobody_needs_are_swept(
        self, database: SqliteDatabase, session: Session, path: Path, start: Callable[..., subprocess.Popen[str]]
    ) -> None:
        database.live("mine")
        process = start(self.CODE, path)
        said(process)
        process.kill()
        process.wait()
        await session.write(
            lambda tx: tx.write_node(NodeInfo(nonce="other", node_id="", apps=frozenset(), started_ms=0))
        )
        await maintained(database, now_ms=0)
        assert lock_files(path) == {"mine.lock", "other.lock"}
        await session.write(lambda tx: tx.delete_node("other"))
        await maintained(database)
        assert lock_files(path) == {"mine.lock"}
        LockFolder(Path(f"{path}-nodes")).drop("mine")


def lock_files(path: Path) -> set[str]:
    return {file.name for file in Path(f"{path}-nodes").glob("*.lock")}


async def maintained(database: SqliteDatabase, now_ms: int = NOW) -> Upkeep:
    return await database.maintain(now_ms=now_ms, retention_ms=WEEK_MS, idempotency_ms=DAY_MS)


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
    async def test_tables_are_made_ahead(self, database: SqliteDatabase, session: Session) -> None:
        made = (await maintained(database)).tables_made
        assert set(made) == AHEAD | {name.replace(SMS, MAIL) for name in AHEAD}
        assert (await maintained(database)).tables_made == ()

    async def test_a_day_that_ended_longer_than_the_retention_ago_is_dropped(
        self, database: SqliteDatabase, session: Session
    ) -> None:
        keys = await add(session, [new_row(OLD + n, shard=n % 4) for n in range(2500)])
        await end(session, keys, OLD + 5000)
        await set_low(session, NOW)
        done = await maintained(database)
        assert done.tables_dropped == (OLD_TABLE,)
        assert done.rows_pruned == 2500
        assert await tables(session) == AHEAD
        assert not await session.read(lambda tx: tx.read_jobs(SMS, keys))

    async def test_a_day_within_the_retention_is_kept(self, database: SqliteDatabase, session: Session) -> None:
        keys = await add(session, [new_row(NOW - WEEK_MS)])
        await end(session, keys, NOW - WEEK_MS)
        await set_low(session, NOW)
        assert (await maintained(database)).tables_dropped == ()
        assert keys_of(await session.read(lambda tx: tx.read_jobs(SMS, keys))) == keys

    async def test_a_pending_job_is_never_deleted_nor_its_table(
        self, database: SqliteDatabase, session: Session
    ) -> None:
        keys = sorted(await add(session, [new_row(OLD + n) for n in range(9)]))
        await end(session, [key for n, key in enumerate(keys) if n != 4], OLD + 10)
        await set_low(session, NOW)  # even if low were wrong
        assert (await maintained(database)).tables_dropped == ()
        assert keys_of(await session.read(lambda tx: tx.read_jobs(SMS, keys))) == [keys[4]]

    async def test_a_moved_job_that_is_pending_keeps_its_row(self, database: SqliteDatabase, session: Session) -> None:
        keys = await add(session, [new_row(OLD), new_row(OLD + 1)])
        (record,) = await session.read(lambda tx: tx.read_jobs(SMS, keys[:1]))
        await move(session, record.job, NOW + 90 * DAY_MS)
        await end(session, keys[1:], OLD + 10)
        await set_low(session, NOW)
        assert (await maintained(database)).tables_dropped == ()
        (kept,) = await session.read(lambda tx: tx.read_jobs(SMS, keys))
        assert (kept.job.key, kept.job.due_ms) == (keys[0], NOW + 90 * DAY_MS)

    async def test_a_day_is_kept_while_one_shard_is_not_settled_up_to_its_end(
        self, database: SqliteDatabase, session: Session
    ) -> None:
        keys = await add(session, [new_row(OLD)])
        await end(session, keys, OLD + 10)
        await set_low(session, NOW)
        await set_low(session, OLD + DAY_MS - 1, [2])
        assert (await maintained(database)).tables_dropped == ()
        assert keys_of(await session.read(lambda tx: tx.read_jobs(SMS, keys))) == keys
        await set_low(session, OLD + DAY_MS, [2])
        assert (await maintained(database)).tables_dropped == (OLD_TABLE,)

    async def test_a_job_that_ended_lately_is_kept_for_the_retention_whatever_its_day(
        self, database: SqliteDatabase, session: Session
    ) -> None:
        late, early = await add(session, [new_row(OLD), new_row(OLD + 1)])
        await end(session, [early], OLD + 10)
        await end(session, [late], NOW - DAY_MS, Status.FAILED)
        await set_low(session, NOW)
        await maintained(database)
        assert keys_of(await session.read(lambda tx: tx.read_jobs(SMS, [late, early]))) == [late]
        assert (await maintained(database, NOW + WEEK_MS)).tables_dropped == (OLD_TABLE,)

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

    async def test_old_verdicts_go_and_requests_stay(self, database: SqliteDatabase, session: Session) -> None:
        wake = Request(id=b"w" * 16, shard=Shard(SMS, 0), change=None, keys=(new_row().key,))
        await session.write(lambda tx: tx.insert_requests([wake]))
        await session.write(lambda tx: tx.write_verdicts({b"a" * 16: True}, NOW - DAY_MS))
        await session.write(lambda tx: tx.write_verdicts({b"b" * 16: True}, NOW - 1000))
        await maintained(database)
        assert await session.read(lambda tx: tx.read_verdicts([b"a" * 16, b"b" * 16])) == {b"b" * 16: True}
        assert await session.read(lambda tx: tx.read_requests([wake.shard])) == [wake]

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
        await maintained(database, NOW - DAY_MS)  # MAIL, whose name comes first, has had its turn once
        keys = await add(session, [new_row(OLD)])
        await end(session, keys, OLD + 10)
        await set_low(session, NOW)
        await session.write(lambda tx: tx.write_verdicts({b"a" * 16: True}, NOW - DAY_MS))
        node = NodeInfo(nonce="gone", node_id="gone", apps=frozenset(), started_ms=0)
        await session.write(lambda tx: tx.write_node(node))
        table = moved_table(MAIL)
        await session.write(lambda tx: tx.cursor.execute(f"DROP TABLE {table}"))  # type: ignore[attr-defined]
        for _ in range(2):
            with pytest.raises(StoreBroken, match=f"{table}|vanish"):
                await maintained(database)
        assert await tables(session) == AHEAD | {DAILY.table(SMS, NOW // DAY_MS - 1)}
        assert not await session.read(lambda tx: tx.read_jobs(SMS, keys))
        assert not await session.read(lambda tx: tx.read_verdicts([b"a" * 16]))
        assert not await session.read(lambda tx: tx.read_nodes())

    async def test_one_round_is_short_and_the_next_goes_on(
        self, database: SqliteDatabase, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(upkeep, "SLICES", 2)
        keys = await add(session, [new_row(OLD + n) for n in range(5000)])
        await end(session, keys, OLD + 9000)
        await set_low(session, NOW)
        first = await maintained(database)
        assert (first.rows_pruned, first.tables_dropped) == (2000, ())
        assert (await maintained(database)).rows_pruned == 2000
        assert (await maintained(database)).tables_dropped == (OLD_TABLE,)


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


async def move(session: Session, job: Job, due_ms: int) -> None:
    def body(tx: Statements) -> None:
        update = msgspec.structs.replace(finished(job), status=Status.PENDING, due_ms=due_ms, finished_ms=None)
        assert not tx.update_jobs(SMS, [update])
        tx.insert_entries(SMS, [(position(job.key, due_ms), job.key)])

    await session.write(body)


def moved(tx: Statements) -> set[tuple[bytes, bytes]]:
    rows = tx._select("SELECT position, id FROM sms_retry_moved_jobs WHERE position >= ?", (start_of(0),))  # type: ignore[attr-defined]
    return set(map(tuple, rows))
