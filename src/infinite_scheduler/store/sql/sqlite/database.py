"""SQLite for the SQL store: one file, one writing connection per process."""

import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Final, cast
from urllib.parse import quote

from infinite_scheduler.errors import ConfigError, SchedulerError, StoreBroken, StoreUnavailable
from infinite_scheduler.secrets import masked
from infinite_scheduler.store.cluster_state import NodeInfo
from infinite_scheduler.store.ownership import Upkeep
from infinite_scheduler.store.sql.database_thread import DatabaseThread, share_the_interpreter
from infinite_scheduler.store.sql.schema import VERSION, migrate, version_of
from infinite_scheduler.store.sql.sqlite.checkpoint import Checkpointer
from infinite_scheduler.store.sql.sqlite.dialect import SqliteDialect
from infinite_scheduler.store.sql.sqlite.in_use import InUse
from infinite_scheduler.store.sql.sqlite.liveness import LockFolder
from infinite_scheduler.store.sql.sqlite.session import ALONE, InlineSession, ThreadSession, Transactions
from infinite_scheduler.store.sql.sqlite.turns import Turns
from infinite_scheduler.store.sql.statements import Body, Database, Session
from infinite_scheduler.store.sql.upkeep import Maintainer
from infinite_scheduler.store.sql.upkeep_rows import UpkeepRows

MEMORY: Final = ":memory:"
LANE: Final = "lane"
READER: Final = "reader"
LOOKS: Final = "looks"
READING: Final = frozenset({READER, LOOKS})
OLDEST: Final = (3, 35, 0)

CACHED_STATEMENTS: Final = 512
CACHE_KIB: Final = 32 * 1024
LONGEST_LOG: Final = 100_000
"""Pages (400 MB) after which a commit checkpoints anyway, in case the checkpointer does not get through."""


class SqliteDatabase(Database):
    """One SQLite file, or `:memory:` for a store that ends with its process.

    One connection in one thread does everything that writes, including inserts: SQLite has one writer at a time, and
    two connections of one process would only block each other. What people look at has a connection of its own, so that
    it never blocks the lane, and looks that may take long have another. With `inline`, everything happens in the
    caller's thread.
    """

    kind = "SQLite"
    has_clock = False  # it is the machine's
    lanes = 1

    def __init__(self, path: str | Path, *, inline: bool = False) -> None:
        self._path = MEMORY if str(path) == MEMORY else os.path.realpath(path)
        self._inline = inline
        self._process = os.urandom(8).hex()
        self._folder = Path(f"{self._path}-nodes")
        self._locks = None if self._path == MEMORY else LockFolder(self._folder)
        self._nonces: set[str] = set()
        self._open: dict[str, tuple[DatabaseThread | None, Transactions]] = {}
        self._checkpointer: Checkpointer | None = None
        self._in_use: InUse | None = None

    async def open(self) -> None:
        if not self._inline:
            share_the_interpreter()
        try:
            await self._connect(LANE)
            if not self._inline and self._path != MEMORY:
                self._in_use = InUse(self._path)
                await self._connect(READER)
                await self._connect(LOOKS)
                self._checkpoint_beside()
        except BaseException:
            await self.close()
            raise

    def _checkpoint_beside(self) -> None:
        worker, transactions = self._open[LANE]
        if worker is not None:
            finish = partial(_finish_log, worker, transactions)
            self._checkpointer = Checkpointer(
                self._path, partial(connect, self._path), finish, self._turns().checkpointing
            )
            transactions.committed, transactions.failed = self._checkpointer.committed, self._checkpointer.failed

    def _turns(self) -> Turns:
        """The turns of one more connection."""
        return ALONE if self._path == MEMORY or self._inline else Turns.of_processes(self._folder)

    async def _connect(self, name: str) -> None:
        if self._inline:
            self._open[name] = None, self._transactions(name)
            return
        worker = DatabaseThread(f"sqlite-{name}")
        try:
            self._open[name] = worker, await worker.do(lambda: self._transactions(name))
        except BaseException:
            worker.stop()
            raise

    def _transactions(self, name: str) -> Transactions:
        """Open a connection; the first one brings the schema up to date."""
        check_location(self._path)
        if self._locks:
            self._locks.make()
        connection = connect(self._path)
        dialect = SqliteDialect()
        cursor = connection.cursor()
        statements = UpkeepRows(cursor, dialect, self._process)
        transactions = Transactions(connection, statements, self._path, self._turns() if name == LANE else ALONE)
        try:
            transactions.prepare(_READING if name in READING else _WRITING)
            # A reader must not have to wait for the write lock.
            if name not in READING:
                self.found = transactions.read(lambda _: version_of(cursor, dialect))
                if self.found < VERSION:
                    transactions.write(lambda _: migrate(cursor, dialect))
        except BaseException:
            connection.close()
            raise
        return transactions

    async def close(self) -> None:
        with suppress(SchedulerError):  # if the database does not answer, the locks go with the process
            await self._leave()
        for name in reversed(list(self._open)):
            worker, transactions = self._open.pop(name)
            if worker is None:
                transactions.close()
            else:
                await worker.do(partial(self._disconnect, name, transactions))
                worker.stop()
                worker.join()

    def _disconnect(self, name: str, transactions: Transactions) -> None:
        """Close a connection; the lane's is the last."""
        if name == LANE and self._checkpointer:
            self._checkpointer.close()
            self._checkpointer = None
        if name == LANE and self._in_use:
            self._in_use.give_up()
        transactions.close()
        if name == LANE and self._in_use:
            self._in_use.close()
            self._in_use = None

    async def _leave(self) -> None:
        """Release the locks of nodes that have left. One that still owns shards keeps its lock until the process ends.

        A handler that outlived its time-out may still be running: until it ends, its node must not count as dead.
        """
        if self._locks and self._open and self._nonces:
            named = cast("Body[frozenset[str]]", UpkeepRows.known_nonces)
            for nonce in self._nonces - await self.session("leave").read(named):
                self._locks.drop(nonce)

    def session(self, name: str) -> Session:
        opened = self._open.get(name) or self._open.get(LANE)
        if opened is None:
            raise StoreUnavailable("the store is not open")
        worker, transactions = opened
        return InlineSession(transactions) if worker is None else ThreadSession(worker, transactions)

    async def maintain(self, *, now_ms: int, retention_ms: int, idempotency_ms: int) -> Upkeep:
        maintainer = Maintainer(
            self.session("upkeep"),
            self.session(READER),
            now_ms=now_ms,
            retention_ms=retention_ms,
            idempotency_ms=idempotency_ms,
        )
        try:
            return await maintainer.run()
        finally:
            if self._locks:
                self._locks.sweep(await maintainer.nonces())

    def dead(self, nodes: Sequence[NodeInfo]) -> frozenset[str]:
        return self._unlocked(nodes) if self._locks and self._locks.lasting else frozenset()

    def presumed_dead(self, nodes: Sequence[NodeInfo]) -> frozenset[str]:
        return self._unlocked(nodes) if self._locks and not self._locks.lasting else frozenset()

    def _unlocked(self, nodes: Sequence[NodeInfo]) -> frozenset[str]:
        return self._locks.free(node.nonce for node in nodes) if self._locks else frozenset()

    def live(self, nonce: str) -> None:
        if self._locks:
            self._locks.hold(nonce)
            self._nonces.add(nonce)


def _finish_log(worker: DatabaseThread, transactions: Transactions, done: Callable[[], None]) -> None:
    """Let the lane finish the log."""

    def step() -> None:
        transactions.checkpoint()
        done()

    worker.post(step)


_WRITING: Final = {
    "journal_mode": "WAL",
    "synchronous": "FULL",  # a commit is on disk when it returns
    "cache_size": f"-{CACHE_KIB}",
    "temp_store": "MEMORY",
    "wal_autocheckpoint": str(LONGEST_LOG),
}
_READING: Final = {"query_only": "ON", "temp_store": "MEMORY"}


def connect(path: str) -> sqlite3.Connection:
    """A connection that begins and ends its transactions only when told, and never waits by itself."""
    uri = path if path == MEMORY else f"file:{quote(path)}"
    try:
        return sqlite3.connect(
            uri,
            uri=path != MEMORY,
            timeout=0,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=CACHED_STATEMENTS,
        )
    except sqlite3.Error as error:
        raise StoreBroken(f"the database {path} cannot be opened ({error})") from error


def check_location(path: str) -> None:
    """Refuse what SQLite would refuse with less clear messages."""
    if sqlite3.sqlite_version_info < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise StoreBroken(f"SQLite {needed} or newer is needed, but this Python has {sqlite3.sqlite_version}")
    if path == MEMORY:
        return
    folder = Path(path).parent
    if not os.access(folder, os.F_OK):
        raise StoreBroken(
            f"the database {path} cannot be created: there is no folder {folder}; create it, or use another path"
        )
    if not os.access(f"{folder}/.", os.F_OK):
        raise StoreBroken(f"the database {path} cannot be created: {folder} is not a folder, or cannot be entered")
    if os.access(path, os.F_OK) and not os.access(path, os.W_OK):  # SQLite would open it, and fail at the first write
        raise StoreBroken(f"the database {path} cannot be written: give this user write access to the file")
    if os.access(f"{path}/.", os.F_OK):
        raise StoreBroken(f"{path} is a folder: name a file for the database")


def glance(path: str) -> sqlite3.Connection:
    """A connection that reads and creates no files: read-only mode is not enough, since SQLite creates its log."""
    location = os.path.realpath(path)
    log, index = (os.access(f"{location}{suffix}", os.F_OK) for suffix in ("-wal", "-shm"))
    if log and not index:
        raise sqlite3.OperationalError("the log cannot be read without creating a file")
    unlogged = "" if log else "&immutable=1"
    return sqlite3.connect(f"file:{quote(location)}?mode=ro{unlogged}", uri=True, timeout=0)


def is_store(path: str) -> bool | None:
    """Could this file be a store of ours? None: it is empty, so a store may be in creation.

    A file that cannot be read is left to the error of opening it.
    """
    try:
        with closing(glance(path)) as connection:
            names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    except sqlite3.Error:
        return True
    return "scheduler_schema" in names if names else None


def path_of(url: str) -> str:
    """The file in a URL: `sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite:///:memory:`."""
    rest = url.removeprefix("sqlite:")
    location, _, options = rest.partition("?")
    if options:
        raise ConfigError(
            f"store URL {masked(url)!r} has options; SQLite takes none here: leave out what follows the '?'"
        )
    if rest == url or not location.startswith("///"):
        raise ConfigError(
            f"store URL {masked(url)!r} is not a SQLite URL; use sqlite:///jobs.db or sqlite:////var/lib/jobs.db"
        )
    path = location.removeprefix("///")
    if not path:
        raise ConfigError(f"store URL {masked(url)!r} does not name a file; use a URL such as sqlite:///jobs.db")
    return path
