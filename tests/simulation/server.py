"""A database server in memory: tables, transactions at READ COMMITTED, row locks and shard locks."""

import enum
from bisect import bisect_left, insort
from collections.abc import Callable, Generator, Hashable, Iterator
from typing import Any, TypeVar

import msgspec

from tests.simulation.locks import Locker, Locks
from tests.simulation.world import Process, World

T = TypeVar("T")

Work = Generator[None, None, T]
"""A statement as the server executes it; it yields when it must wait for a lock, and goes on when it has it."""

TABLES = (
    "shards", "jobs", "entries", "requests", "verdicts", "keys", "attempts", "marks", "counts", "apps", "nodes",
    "places", "letters",
)  # fmt: skip
ORDERED = frozenset({"jobs", "entries"})
"""Tables that are scanned in order; the first part of their key is the app."""


class Weather(msgspec.Struct, frozen=True, kw_only=True):
    """What a server and the network to it are like; times in seconds, chances from 0 to 1, faults with a budget."""

    latency: float = 0.001  # a statement takes up to this
    slow: float = 0.0  # chance of a statement or commit that takes long
    slow_for: tuple[float, float] = (0.05, 1.0)
    lost: float = 0.0  # chance that the answer to a commit is lost
    lost_budget: int = 0
    doubt_for: float = 1.5  # a transaction without a client ends after up to this
    error: float = 0.0  # chance of an error in the middle of a transaction
    error_budget: int = 0
    unfair: float = 0.1  # chance that a lock is not granted in the order of the queue
    idle: float = 2.0  # a transaction whose client says nothing for this long is rolled back
    lock_wait: float = 4.0  # a statement that waits longer for a lock fails
    knows_dead: float = 0.0  # chance that a dead process is proven to be dead
    heavy: float = 0.0  # chance that the rows of a statement are too large to be read together
    waits_for_inserts: bool = (
        False  # a write meets a row that is not committed yet and waits (InnoDB), or does not see it
    )


CALM = Weather()


class Deadlock(Exception):
    """The transaction was chosen to end, so that others can go on."""


class Aborted(Exception):
    """The server ended the transaction."""


class State(enum.Enum):
    """Where a transaction stands."""

    OPEN = "open"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"


class Change(msgspec.Struct, frozen=True, gc=False):
    """One row that a commit wrote; None: there was none, or is none any more."""

    table: str
    key: Any
    before: Any
    after: Any


Listener = Callable[[str, "list[Change]"], None]
"""Hears of each commit that changed something: by which process, and what."""


class Server:
    """The tables that all processes share."""

    def __init__(self, world: World, weather: Weather = CALM) -> None:
        self.world = world
        self.weather = weather
        self.lost_budget = weather.lost_budget
        self.error_budget = weather.error_budget
        self.locks = Locks(world.rng, weather.unfair)
        self.tables: dict[str, dict[Any, Any]] = {name: {} for name in TABLES}
        self.order: dict[tuple[str, str], list[Any]] = {}
        self.open: dict[Transaction, None] = {}
        self.listeners: list[Listener] = []
        self.nonces: dict[str, Process] = {}
        self.letter_room: int | None = None  # the largest message that it takes
        self.strict = True  # a shard row may only be written under its exclusive lock
        self._away_until: dict[Process | None, float] = {}

    def calm(self) -> None:
        """From now on nothing goes wrong and nothing takes long."""
        self.weather = msgspec.structs.replace(CALM, waits_for_inserts=self.weather.waits_for_inserts)
        self._away_until.clear()

    def latency(self) -> float:
        """How long the next statement takes to arrive."""
        luck = self.world.rng.random()
        if luck < self.weather.slow:
            return self.world.rng.uniform(*self.weather.slow_for)
        return luck * self.weather.latency

    def go_away(self, seconds: float, process: Process | None = None) -> None:
        """Do not answer for a while: one process, or all."""
        self._away_until[process] = max(self.world.now + seconds, self._away_until.get(process, 0.0))

    def away_for(self, process: Process) -> float:
        """How much longer this process gets no answer."""
        if not self._away_until:
            return 0.0
        until = max(self._away_until.get(process, 0.0), self._away_until.get(None, 0.0))
        return max(0.0, until - self.world.now)

    def loses_answer(self) -> bool:
        """Is the answer to this commit lost?"""
        if self.lost_budget and self.world.rng.random() < self.weather.lost:
            self.lost_budget -= 1
            return True
        return False

    def fails(self) -> bool:
        """Does this statement fail?"""
        if self.error_budget and self.world.rng.random() < self.weather.error:
            self.error_budget -= 1
            return True
        return False

    def begin(self, process: Process) -> "Transaction":
        transaction = Transaction(self, process)
        self.open[transaction] = None
        return transaction

    def commit(self, transaction: "Transaction") -> None:
        """Make its writes visible and end it."""
        changes = []
        for table, key, after in transaction.log:
            rows = self.tables[table]
            before = rows.get(key)
            if before == after:
                continue
            changes.append(Change(table, key, before, after))
            if after is None:
                del rows[key]
            else:
                rows[key] = after
            if table in ORDERED and (before is None or after is None):
                self._index(table, key, present=after is not None)
        if changes:
            for listener in self.listeners:
                listener(transaction.process.name, changes)
        self._end(transaction, State.COMMITTED)

    def _index(self, table: str, key: Any, *, present: bool) -> None:
        order = self.order.setdefault((table, key[0]), [])
        if present:
            insort(order, key)
        else:
            del order[bisect_left(order, key)]

    def roll_back(self, transaction: "Transaction") -> None:
        if transaction.state is State.OPEN:
            self._end(transaction, State.ROLLED_BACK)

    def _end(self, transaction: "Transaction", state: State) -> None:
        transaction.state = state
        del self.open[transaction]
        self.locks.release(transaction)

    def abandon(self, transaction: "Transaction", *, may_commit: bool) -> None:
        """Its client is gone: it stays open with its locks for a while, then it is rolled back, or maybe committed."""

        def end() -> None:
            if transaction.state is State.OPEN:
                if commits:
                    self.commit(transaction)
                else:
                    self.roll_back(transaction)

        transaction.abandoned = True
        commits = may_commit and self.world.rng.random() < 0.5
        self.world.after(self.world.rng.random() ** 2 * self.weather.doubt_for, end)

    def dump(self) -> dict[str, dict[Any, Any]]:
        """All tables as they are committed."""
        return {name: dict(rows) for name, rows in self.tables.items()}


class Transaction(Locker):
    """An open transaction: what it wrote, what it has locked."""

    def __init__(self, server: Server, process: Process) -> None:
        super().__init__()
        self.server = server
        self.process = process
        self.writes: dict[str, dict[Any, Any]] = {}
        self.log: list[tuple[str, Any, Any]] = []  # the same in the order in which it was written
        self.state = State.OPEN
        self.abandoned = False  # its client is gone, the server ends it some time
        self.go_on: Callable[[Exception | None], None] | None = None  # while it waits for a lock

    def granted(self) -> None:
        self.wake(None)

    def wake(self, error: Exception | None) -> None:
        """Go on with the statement that waits, or let it fail."""
        go_on, self.go_on = self.go_on, None
        if go_on is not None:
            self.server.world.after(0.0, lambda: go_on(error))

    def get(self, table: str, key: Any) -> Any:
        """A row as this transaction sees it now: its own write, or what is committed."""
        writes = self.writes.get(table)
        if writes is not None and key in writes:
            return writes[key]
        return self.server.tables[table].get(key)

    def rows(self, table: str) -> dict[Any, Any]:
        """All rows of a table as this transaction sees them now."""
        writes = self.writes.get(table)
        if not writes:
            return self.server.tables[table]
        return {key: row for key, row in (self.server.tables[table] | writes).items() if row is not None}

    def between(self, table: str, app: str, start: bytes, end: bytes) -> Iterator[Any]:
        """Keys of an ordered table from `start` up to `end`, as this transaction sees them now."""
        writes = self.writes.get(table)
        if writes:
            order = sorted(key for key in self.rows(table) if key[0] == app)
        else:
            order = self.server.order.get((table, app), [])
        for index in range(bisect_left(order, (app, start)), len(order)):
            if order[index][1] >= end:
                return
            yield order[index]

    def lock(self, name: Hashable, *, exclusive: bool) -> Work[None]:
        """Wait until the lock can be had; it is held to the end of the transaction."""
        if self.server.locks.request(self, name, exclusive=exclusive):
            return
        circle = self.server.locks.circle(self)
        if circle:
            victim = self.server.world.rng.choice(circle)
            if victim is self:
                raise Deadlock
            assert isinstance(victim, Transaction)
            victim.wake(Deadlock())
        yield

    def put(self, table: str, key: Any, row: Any) -> Work[None]:
        """Insert or replace a row; None deletes it."""
        yield from self.lock((table, key), exclusive=True)
        self._write(table, key, row)

    def _write(self, table: str, key: Any, row: Any) -> None:
        self.writes.setdefault(table, {})[key] = row
        self.log.append((table, key, row))

    def insert(self, table: str, key: Any, row: Any) -> Work[bool]:
        """Insert a row unless its key is there; waits for whoever is about to insert or delete it."""
        name = (table, key)
        had = name in self.held
        yield from self.lock(name, exclusive=True)
        if self.get(table, key) is not None:
            if not had:
                self.server.locks.release(self, name)
            return False
        self._write(table, key, row)
        return True

    def change(self, table: str, key: Any, to: Callable[[Any], Any]) -> Work[bool]:
        """Replace a row by what `to` makes of it, or do nothing if that is the row itself.

        Looks first, as databases do; a row that another transaction writes is waited for, then looked at again.
        """
        row = self.get(table, key)
        if row is None and not (self.server.weather.waits_for_inserts and self._inserting(table, key)):
            return False
        if row is not None and to(row) is row:
            return False
        yield from self.lock((table, key), exclusive=True)
        row = self.get(table, key)
        if row is None or (after := to(row)) is row:
            return False
        self._write(table, key, after)
        return True

    def _inserting(self, table: str, key: Any) -> bool:
        return any(other is not self and other.writes.get(table, {}).get(key) is not None for other in self.server.open)
