"""A database in use is not taken for abandoned, whatever its process does to the files: with stores as processes."""

import asyncio
import errno
import fcntl
import os
import shutil
import signal
import sqlite3
import struct
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from infinite_scheduler import Client
from infinite_scheduler.store.sql.sqlite import file_lock, in_use
from infinite_scheduler.store.sql.sqlite.session import ThreadSession
from infinite_scheduler.store.sql.statements import Session
from infinite_scheduler.store.sql.tables import SqlApp
from tests.contract.test_statements import NOW
from tests.integration.sqlite.sqlite_file import BOUND_S, opened, said

pytestmark = pytest.mark.skipif(not file_lock.OFD, reason="needs locks of open file descriptions")

Start = Callable[..., subprocess.Popen[str]]

PROCESS = """
import shutil, sqlite3, time
from infinite_scheduler import Client

def copy():
    for suffix in sys.argv[2].split(","):
        shutil.copy(path + suffix, path + ".copy")

def other_user():
    user = sqlite3.connect(path)
    user.execute("SELECT count(*) FROM scheduler_apps").fetchone()
    return user

def forked():
    pid = os.fork()
    if not pid:
        time.sleep(60)
        os._exit(0)
    return pid

def handles():
    return sum(os.path.realpath(f"/proc/self/fd/{fd}").startswith(path) for fd in os.listdir("/proc/self/fd"))

async def main():
    known = {}
    while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
        what, _, name = line.partition(" ")
        if what == "open":
            known[name] = Client(f"sqlite:///{path}")
            await known[name].__aenter__()
            await known[name].register("mail", 1)
            print("opened", flush=True)
        elif what == "close":
            await known.pop(name).__aexit__(None, None, None)
            print("closed", flush=True)
        elif what == "schedule":
            print((await known[name].schedule("mail", 1, delay="1h")).id, flush=True)
        elif what == "end":
            known.pop(name).close()
            print("ended", flush=True)
        else:
            known[what] = globals()[what]()
            print(known[what], flush=True)

asyncio.run(main())
"""


class Process:
    """A process that does what it is told with one database."""

    def __init__(self, start: Start, path: Path, copies: str = "") -> None:
        self._process = start(PROCESS, path, copies)

    def __call__(self, what: str) -> str:
        assert self._process.stdin
        print(what, file=self._process.stdin, flush=True)
        return said(self._process)

    def ends(self) -> None:
        _, err = self._process.communicate("\n", BOUND_S)
        assert self._process.returncode == 0, err


def in_use_by_others(path: Path) -> tuple[bool, bool]:
    """Would SQLite in this process find the database in use, and the memory that belongs to it?"""
    return _locked(path, *in_use.SHARED), _locked(Path(f"{path}-shm"), *in_use.OPEN)


def _locked(file: Path, start: int, length: int) -> bool:
    wanted = struct.pack("@hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    with file.open("r+b") as opened:
        return bool(struct.unpack("@hhqqi0q", fcntl.fcntl(opened, fcntl.F_GETLK, wanted))[0] != fcntl.F_UNLCK)


def written_ns(path: Path) -> int:
    return path.stat().st_mtime_ns


def log_of(path: Path) -> int:
    return Path(f"{path}-wal").stat().st_ino


@pytest.mark.parametrize("copies", ["", "-wal", "-shm", ",-wal,-shm"])
async def test_commits_of_a_process_that_has_copied_its_database_are_seen_by_others(
    path: Path, start: Start, copies: str
) -> None:
    process = Process(start, path, copies)
    process("open one")
    before = process("schedule one")
    process("copy")
    assert in_use_by_others(path) == (True, True)
    log = log_of(path)
    for _ in range(2):
        async with Client(f"sqlite:///{path}") as client:
            assert (await client.get(before)).status == "pending"
    assert log_of(path) == log, "the log that the process writes to"
    after = process("schedule one")
    async with Client(f"sqlite:///{path}") as client:
        assert (await client.get(after)).status == "pending"
    process.ends()
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_the_last_one_to_close_a_database_removes_its_log(path: Path, start: Start) -> None:
    first, last = Process(start, path), Process(start, path)
    for process in (first, last):
        process("open one")
    assert first("close one") == "closed"
    assert Path(f"{path}-wal").exists()
    assert last("close one") == "closed"
    assert not Path(f"{path}-wal").exists()
    assert (first("handles"), last("handles")) == ("0", "0")


def test_a_store_that_is_closed_leaves_the_locks_of_another_in_its_process(path: Path, start: Start) -> None:
    process = Process(start, path, ",-shm")
    process("open one")
    process("open two")
    process("close one")
    assert in_use_by_others(path) == (True, True)
    process("copy")
    assert in_use_by_others(path) == (True, True)
    process("close two")
    assert not Path(f"{path}-wal").exists()
    assert process("handles") == "0"


def test_a_store_that_is_closed_leaves_the_locks_of_the_programs_own_connections(path: Path, start: Start) -> None:
    process = Process(start, path)
    process("open one")
    process("other_user")
    process("close one")
    assert in_use_by_others(path) == (True, True)
    process("end other_user")
    process("open two")
    process("close two")
    assert process("handles") == "0"
    assert not Path(f"{path}-wal").exists()


def test_a_forked_child_keeps_no_database_in_use(path: Path, start: Start) -> None:
    process = Process(start, path)
    process("open one")
    child = int(process("forked"))
    try:
        process("close one")
        assert not Path(f"{path}-wal").exists()
    finally:
        os.kill(child, signal.SIGKILL)


SLOW_WRITER = """
import shutil

def body(tx):
    tx.insert_app(SqlApp(name="slow", shards=1, paused=False, created_ms=NOW), NOW)
    shutil.copy(path + "-shm", path + ".copy")
    print("amid", flush=True)
    sys.stdin.readline()
    tx.insert_app(SqlApp(name="slower", shards=1, paused=False, created_ms=NOW), NOW)

async def main():
    database = SqliteDatabase(path)
    await database.open()
    await database.session("door").write(body)
    print("committed", flush=True)
    await database.close()

asyncio.run(main())
"""


async def test_no_other_process_writes_amid_a_transaction_that_has_lost_its_lock(
    path: Path, start: Start, session: Session
) -> None:
    writer = start(SLOW_WRITER, path)
    assert said(writer) == "amid"
    info = SqlApp(name="quick", shards=1, paused=False, created_ms=NOW)
    quick = asyncio.ensure_future(session.write(lambda tx: tx.insert_app(info, NOW)))
    await asyncio.wait([quick], timeout=0.3)
    assert not quick.done()
    assert writer.stdin
    print(file=writer.stdin, flush=True)
    assert said(writer) == "committed"
    await quick
    with closing(sqlite3.connect(path)) as database:
        assert {name for (name,) in database.execute("SELECT name FROM scheduler_apps")} >= {"slow", "slower", "quick"}
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


CHECKPOINT = """
async def main():
    database = SqliteDatabase(path)
    await database.open()
    turn = database._turns().checkpointing
    assert turn.take()
    print("amid", flush=True)
    await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""


async def test_no_two_processes_move_the_log_at_the_same_time(path: Path, start: Start, session: Session) -> None:
    other = start(CHECKPOINT, path)
    assert said(other) == "amid"
    info = SqlApp(name="quick", shards=1, paused=False, created_ms=NOW)
    await session.write(lambda tx: tx.insert_app(info, NOW))
    transactions = cast("ThreadSession", session)._transactions
    before = written_ns(path)
    transactions.checkpoint()
    assert written_ns(path) == before
    other.kill()
    other.wait()
    transactions.checkpoint()
    assert written_ns(path) > before


WARNING = "cannot be locked"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES, errno.ENOLCK])
async def test_a_database_that_cannot_be_locked_beside_sqlite_is_said_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(file_lock, "share", refused)
    for _ in range(2):
        await (await opened(path)).close()
    lines = [record.getMessage() for record in caplog.records if WARNING in record.getMessage()]
    assert [line.split()[0] for line in lines] == [str(path), f"{path}-shm"]
    assert all(os.strerror(number) in line for line in lines)


async def test_a_turn_that_cannot_be_taken_is_said_once_and_writing_goes_on(
    path: Path, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    turn = f"{path}-nodes/write"
    os.remove(turn)  # noqa: PTH107
    os.mkdir(turn)  # noqa: PTH102
    for name in ("one", "two"):
        info = SqlApp(name=name, shards=1, paused=False, created_ms=NOW)
        await session.write(lambda tx, info=info: tx.insert_app(info, NOW))  # type: ignore[misc]
    (line,) = [record.getMessage() for record in caplog.records if WARNING in record.getMessage()]
    assert turn in line


async def test_a_file_that_is_gone_is_not_told_as_one_that_cannot_be_locked(
    path: Path, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    in_use.InUse(str(path.with_name("gone.db"))).give_up()
    shutil.rmtree(f"{path}-nodes")
    await session.write(lambda _: None)
    assert WARNING not in caplog.text
