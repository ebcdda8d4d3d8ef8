"""Transactions interleaved by hand: one stops before a named statement, others work meanwhile, then it goes on.

The database is a parameter. On the simulated one a transaction that stops gives way to the world; on a real one each
transaction has a thread and a connection of its own, and one that waits for a lock is known by its silence.
"""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar, cast

from infinite_scheduler.store.sql.statements import Body, Database, Session, Statements
from tests.simulation.altered import Passing
from tests.simulation.database import SimDatabase
from tests.simulation.server import Server, Weather
from tests.simulation.statements import SimStatements
from tests.simulation.world import World

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

LONGEST_S = 30.0
"""A transaction that may go on and does not end within this waits for ever."""


class Cue:
    """Where a transaction stops, whether it has come there, and whether it may go on."""

    def __init__(self, statement: str | None) -> None:
        self.statement = statement
        self.reached = False
        self.given = False


class Stopping(Passing):
    """A transaction that stops before the first statement of a name."""

    def __init__(self, tx: Statements, cue: Cue, stop: Callable[[Statements, Cue], None]) -> None:
        super().__init__(tx)
        self._cue = cue
        self._stop = stop

    def __getattr__(self, name: str) -> Any:
        statement = getattr(self.tx, name)
        if name != self._cue.statement or self._cue.reached:
            return statement

        def stopped(*args: Any, **kwargs: Any) -> Any:
            self._stop(self.tx, self._cue)
            return statement(*args, **kwargs)

        return stopped


class Ending(Protocol[T_co]):
    """A task or a future."""

    def done(self) -> bool: ...

    def result(self) -> T_co: ...


class Act(Generic[T_co]):
    """One transaction under way."""

    def __init__(self, stage: "Stage", cue: Cue, ending: Ending[T_co]) -> None:
        self._stage = stage
        self._cue = cue
        self._ending = ending

    @property
    def ended(self) -> bool:
        return self._ending.done()

    def result(self) -> T_co:
        """Let it go on to its end."""
        self._stage.give(self._cue)
        if not self._stage.until(self._ending.done, LONGEST_S):
            raise AssertionError("a transaction waits for ever")
        return self._ending.result()


class Stage(ABC):
    """A database, and transactions on it that go on when they are told to."""

    patience_s: float
    """A transaction that neither ends nor stops for this long waits for a lock."""

    def begin(self, body: Body[T], *, stops_before: str | None = None) -> Act[T]:
        """Start a transaction on a connection of its own; returns when it has stopped, has ended, or waits."""
        return self._begin(body, stops_before, writes=True)

    def do(self, body: Body[T]) -> T:
        """Run a transaction that nothing stands in the way of."""
        return self._begin(body, None, writes=True).result()

    def look(self, body: Body[T]) -> T:
        """Run a transaction that only reads."""
        return self._begin(body, None, writes=False).result()

    def _begin(self, body: Body[T], stops_before: str | None, *, writes: bool) -> Act[T]:
        cue = Cue(stops_before)

        def stoppable(tx: Statements) -> T:
            return body(cast("Statements", Stopping(tx, cue, self.stop)))

        act = Act(self, cue, self.start(stoppable, writes=writes))
        if stops_before is None:
            self.rest(act)
        elif not self.until(lambda: cue.reached or act.ended, LONGEST_S) or not cue.reached:
            raise AssertionError(f"a transaction never came to {stops_before}")
        return act

    def rest(self, act: Act[object]) -> None:
        """Let a transaction work until it has ended, or waits for a lock."""
        self.until(lambda: act.ended, self.patience_s)

    @abstractmethod
    def start(self, body: Body[T], *, writes: bool) -> Ending[T]:
        """Start a transaction on a connection that no other one uses."""

    @abstractmethod
    def stop(self, tx: Statements, cue: Cue) -> None:
        """Called by a transaction that has come to its cue: wait there until it may go on."""

    @abstractmethod
    def give(self, cue: Cue) -> None:
        """Let a transaction pass its cue."""

    @abstractmethod
    def until(self, holds: Callable[[], bool], longest_s: float) -> bool:
        """Let the transactions work until something holds, for so long at most; says whether it does."""

    @abstractmethod
    def close(self) -> None: ...


class SimStage(Stage):
    """The simulated database, with nothing left to chance."""

    patience_s = 1.0

    def __init__(self) -> None:
        self._world = World(1, stall=0.0)
        self._server = Server(self._world, Weather(unfair=0.0, lock_wait=10 * LONGEST_S))
        self._server.strict = False  # without its rule a body writes shard rows that it has not locked

    def start(self, body: Body[T], *, writes: bool) -> Ending[T]:
        process = self._world.process(f"p{len(self._world.processes)}")
        return process.spawn(run(SimDatabase(self._server, process).session("any"), body, writes=writes))

    def stop(self, tx: Statements, cue: Cue) -> None:
        assert isinstance(tx, SimStatements)
        cue.reached = True
        while not cue.given:
            tx.hold(0.01)

    def give(self, cue: Cue) -> None:
        cue.given = True

    def until(self, holds: Callable[[], bool], longest_s: float) -> bool:
        return self._world.run(longest_s, holds)

    def close(self) -> None:
        self._world.close()


class ThreadStage(Stage):
    """A real database; `connect` makes one as a process of its own would have it, `most` are used at once.

    Taking a slow transaction for one that waits only changes the order, and promises hold in every order. To see one
    broken without its rule, give it more patience.
    """

    def __init__(self, connect: Callable[[], Database], *, most: int = 3, patience_s: float = 0.1) -> None:
        self.patience_s = patience_s
        self._changed = threading.Condition()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stage")
        self._thread.start()
        # Opened before anything begins: opening may have to wait for a lock, too.
        self._databases = [connect() for _ in range(most)]
        for database in self._databases:
            self._submit(database.open()).result()
        self._free = deque(self._databases)

    def _submit(self, work: Coroutine[Any, Any, T]) -> Ending[T]:
        ending = asyncio.run_coroutine_threadsafe(work, self._loop)
        ending.add_done_callback(lambda _: self._stir())
        return ending

    def _stir(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def start(self, body: Body[T], *, writes: bool) -> Ending[T]:
        database = self._free.popleft()

        async def play() -> T:
            try:
                return await run(database.session("any"), body, writes=writes)
            finally:
                self._free.append(database)

        return self._submit(play())

    def stop(self, tx: Statements, cue: Cue) -> None:
        with self._changed:
            cue.reached = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: cue.given or self._closed)

    def give(self, cue: Cue) -> None:
        with self._changed:
            cue.given = True
            self._changed.notify_all()

    def until(self, holds: Callable[[], bool], longest_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(holds, longest_s)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for database in self._databases:
            self._submit(database.close()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def run(session: Session, body: Body[T], *, writes: bool) -> T:
    return await (session.write(body) if writes else session.read(body))
