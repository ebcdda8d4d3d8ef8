"""What becomes of the errors of SQLite."""

# ruff: noqa: ASYNC240 - these tests look at files and processes, and nothing else runs in their loops

import asyncio
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from infinite_scheduler import Scheduler
from infinite_scheduler.errors import StoreBroken, StoreMismatch, StoreUnavailable
from infinite_scheduler.store.sql.schema import VERSION
from infinite_scheduler.store.sql.sqlite import session as sqlite_session
from infinite_scheduler.store.sql.sqlite.database import SqliteDatabase
from infinite_scheduler.store.sql.sqlite.sqlite_errors import in_doubt
from infinite_scheduler.store.sql.statements import Session, Statements
from tests.contract.test_statements import NOW, SMS, add, keys_of, new_row
from tests.integration.sqlite.sqlite_file import BOUND_S, opened, registered, said
from tests.listing import jobs_in


class TestErrors:
    async def test_a_missing_folder_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(StoreBroken, match=f"no folder {tmp_path}/nowhere"):
            await opened(tmp_path / "nowhere" / "jobs.db")

    async def test_a_file_is_no_folder(self, path: Path) -> None:
        path.write_text("notes")
        with pytest.raises(StoreBroken, match=f"{path} is not a folder"):
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
        with pytest.raises(StoreMismatch, match=rf"version 99.*up to {VERSION}.*upgrade"):
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
        assert len(await session.read(lambda tx: jobs_in(tx, SMS))) == 1
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
    await session.write(lambda tx: tx.insert_app(SqlApp(name=SMS, shards=4, paused=False, created_ms=NOW), NOW))
    (key,) = await add(session, [new_row()])
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    try:
        await add(session, [new_row(NOW + n, payload=b'"' + b"x" * 2000 + b'"') for n in range(1000)])
    except SchedulerError as error:
        print(type(error).__name__, flush=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    (more,) = await add(session, [new_row(NOW + 1)])
    found = await session.read(lambda tx: jobs_in(tx, SMS))
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

    def test_a_commit_that_found_no_space_has_certainly_not_taken_place(self) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        told = in_doubt(error, "jobs.db")
        assert isinstance(told, StoreBroken)
        assert str(told).endswith("nothing was committed")

    async def test_a_lock_that_is_held_too_long_makes_the_store_unavailable(
        self, session: Session, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sqlite_session, "LOCK_WAIT_S", 0.05)
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
