"""Several processes on one file of SQLite, and how they prove that they live."""

import fcntl
import signal
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from infinite_scheduler.model import DAY_MS, Owner, Shard
from infinite_scheduler.store.cluster_state import NodeInfo, ShardInfo
from infinite_scheduler.store.sql.sqlite import file_lock
from infinite_scheduler.store.sql.sqlite.database import SqliteDatabase
from infinite_scheduler.store.sql.sqlite.liveness import LockFolder
from infinite_scheduler.store.sql.statements import Session
from tests.contract.test_statements import NOW, SMS, add, keys_of, new_row
from tests.integration.sqlite.sqlite_file import maintained, opened, registered, said
from tests.listing import jobs_in


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
    await session.write(lambda tx: tx.insert_app(SqlApp(name=SMS, shards=4, paused=False, created_ms=NOW), NOW))
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
        found = await database.session("reader").read(lambda tx: jobs_in(tx, SMS))
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
        found = await session.read(lambda tx: jobs_in(tx, SMS, to_ms=NOW + DAY_MS))
        assert keys_of(found) == [kept]
        await database.close()

    async def test_a_forked_child_does_not_keep_its_parents_turn(
        self, path: Path, start: Callable[..., subprocess.Popen[str]]
    ) -> None:
        code = """
from infinite_scheduler.store.sql.sqlite.turns import FileTurn
begun, begins = os.pipe()
with FileTurn(Path(path), 1):
    child = os.fork()
    if child == 0:
        os.write(begins, b"."); sys.stdin.read(); os._exit(0)
os.read(begun, 1)
print("ready", flush=True); sys.stdin.readline()
"""
        said(start(code, path))
        with path.open() as turn:
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)


class TestLife:
    """A lock on a file proves that a process lives; a free one that it is dead."""

    CODE = """
database = SqliteDatabase(path)
database.live("other")
if len(sys.argv) > 2:
    begun, begins = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(begins, b"."); sys.stdin.read(); os._exit(0)
    os.read(begun, 1)
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

    async def test_a_forked_child_has_none_of_its_parents_locks_and_gives_none_up(
        self, database: SqliteDatabase, nodes: list[NodeInfo], path: Path, start: Callable[..., subprocess.Popen[str]]
    ) -> None:
        code = """
from infinite_scheduler.store.sql.sqlite import liveness
database = SqliteDatabase(path)
database.live("other")
child = os.fork()
if child == 0:
    mine = dict(liveness._held)
    liveness.LockFolder(Path(f"{path}-nodes")).drop("other")
    os._exit(len(mine))
_, status = os.waitpid(child, 0)
print(status, flush=True); sys.stdin.readline()
"""
        assert said(start(code, path)) == "0"
        assert lock_files(path) == {"other.lock"}
        assert database.dead(nodes) == frozenset()

    async def test_a_node_is_not_dead_because_it_has_read_its_lock_file(
        self, database: SqliteDatabase, nodes: list[NodeInfo], path: Path, start: Callable[..., subprocess.Popen[str]]
    ) -> None:
        code = """
SqliteDatabase(path).live("other")
Path(f"{path}-nodes", "other.lock").read_bytes()
print("ready", flush=True); sys.stdin.readline()
"""
        process = start(code, path)
        said(process)
        assert database.dead(nodes) == frozenset()
        process.kill()
        process.wait()
        assert database.dead(nodes) == {"other"}

    async def test_without_ofd_locks_a_free_lock_is_a_presumption_and_no_proof(
        self,
        database: SqliteDatabase,
        nodes: list[NodeInfo],
        path: Path,
        start: Callable[..., subprocess.Popen[str]],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(file_lock, "OFD", False)
        process = start(self.CODE, path)
        said(process)
        assert database.presumed_dead(nodes) == frozenset()
        process.kill()
        process.wait()
        assert database.dead(nodes) == frozenset()
        assert database.presumed_dead(nodes) == {"other"}

    @pytest.mark.parametrize("ofd", [file_lock.OFD, False], ids=["as the system can", "without OFD locks"])
    async def test_a_node_of_this_process_is_never_dead(
        self,
        database: SqliteDatabase,
        nodes: list[NodeInfo],
        path: Path,
        start: Callable[..., subprocess.Popen[str]],
        monkeypatch: pytest.MonkeyPatch,
        ofd: bool,
    ) -> None:
        monkeypatch.setattr(file_lock, "OFD", ofd)
        database.live("mine")
        second = SqliteDatabase(path)
        second.live("other")
        for asked in (database, second):
            assert asked.dead(nodes) | asked.presumed_dead(nodes) == frozenset()
        code = """
from infinite_scheduler.store.sql.sqlite.liveness import LockFolder
print(len(LockFolder(Path(f"{path}-nodes")).free(["mine", "other"])), flush=True)
"""
        assert said(start(code, path)) == "0"  # and the locks are still there: asking did not give them up
        for nonce in ("mine", "other"):
            LockFolder(Path(f"{path}-nodes")).drop(nonce)

    def test_a_lock_file_is_locked_before_others_can_see_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder, lock = LockFolder(tmp_path / "nodes"), file_lock.lock
        seen: list[set[str]] = []

        def watched(handle: int) -> None:
            seen.append({path.name for path in (tmp_path / "nodes").glob("*.lock")})
            lock(handle)

        monkeypatch.setattr(file_lock, "lock", watched)
        folder.hold("mine")
        assert seen == [set()], "whoever sees a lock file that is free takes its node for dead"
        folder.drop("mine")

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
