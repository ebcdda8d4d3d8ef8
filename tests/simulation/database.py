"""The simulated database as the store sees it: sessions whose transactions meet all others between two statements.

The body of a transaction is a plain function, so each one runs in a greenlet: a statement hands control back to the
world, and the body goes on when the answer arrives. A paused process leaves its transactions open, a killed one leaves
them to the server.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import GeneratorType
from typing import Any, TypeVar

from greenlet import GreenletExit, greenlet

from infinite_scheduler.errors import StoreUnavailable
from infinite_scheduler.store.cluster_state import NodeInfo
from infinite_scheduler.store.ownership import Upkeep
from infinite_scheduler.store.sql.statements import Body, Database, Session
from tests.simulation.server import Aborted, Deadlock, Server, State, Transaction, Work
from tests.simulation.statements import Pause, SimStatements
from tests.simulation.world import Process

T = TypeVar("T")

DEADLOCKS = 5
"""A transaction that was chosen as the victim this many times fails."""


class SimDatabase(Database):
    """The server as one process reaches it."""

    kind = "a simulation"
    has_clock = True

    def __init__(self, server: Server, process: Process, *, lanes: int = 2) -> None:
        self.server = server
        self.process = process
        self.lanes = lanes
        self.calls: dict[Call, None] = {}
        self._sessions: dict[str, SimSession] = {}
        process.at_death.append(self._died)
        server.world.at_close.append(self._dispose)

    async def open(self) -> None:
        await self.session("open").read(lambda tx: tx.read_apps())

    async def close(self) -> None:
        """Sessions hold nothing between transactions."""

    def session(self, name: str) -> "SimSession":
        if name not in self._sessions:
            self._sessions[name] = SimSession(self)
        return self._sessions[name]

    async def maintain(self, *, now_ms: int, retention_ms: int, idempotency_ms: int) -> Upkeep:
        return Upkeep()

    def dead(self, nodes: Sequence[NodeInfo]) -> frozenset[str]:
        rng, chance = self.server.world.rng, self.server.weather.knows_dead
        ended = [node.nonce for node in nodes if node.nonce in self.server.nonces]
        return frozenset(nonce for nonce in ended if not self.server.nonces[nonce].alive and rng.random() < chance)

    def live(self, nonce: str) -> None:
        self.server.nonces[nonce] = self.process

    def _died(self) -> None:
        for call in self.calls:
            if call.transaction is not None and call.transaction.state is State.OPEN:
                self.server.abandon(call.transaction, may_commit=call.commit_sent)

    def _dispose(self) -> None:
        for call in self.calls:
            call.dispose()
        self.calls.clear()


class SimSession(Session):
    """One connection: one transaction at a time, in the order of the calls."""

    def __init__(self, database: SimDatabase) -> None:
        self._database = database
        self._queue: deque[Call] = deque()
        self._busy = False

    async def write(self, body: Body[T]) -> T:
        return await self._submit(body, writes=True)

    async def read(self, body: Body[T]) -> T:
        return await self._submit(body, writes=False)

    async def changed(self) -> bool:
        return True

    async def close(self) -> None:
        """Nothing is held between transactions."""

    async def _submit(self, body: Body[T], *, writes: bool) -> T:
        if self._database.server.world.closed:
            raise StoreUnavailable("the world is closed")
        call = Call(self._database, body, writes=writes, ended=self._next)
        self._queue.append(call)
        if not self._busy:
            self._next()
        result: T = await call.future
        return result

    def _next(self) -> None:
        self._busy = bool(self._queue)
        if self._queue:
            self._queue.popleft().begin()


class Call:
    """One transaction from its first statement to the answer, run again after a deadlock."""

    def __init__(self, database: SimDatabase, body: Body[Any], *, writes: bool, ended: Callable[[], None]) -> None:
        self.server = database.server
        self.process = database.process
        self.future = database.process.loop.create_future()
        self.transaction: Transaction | None = None
        self.commit_sent = False
        self._calls = database.calls
        self._body = body
        self._writes = writes
        self._ended = ended
        self._greenlet: greenlet | None = None
        self._deadlocks = 0

    def begin(self) -> None:
        """Hand the body to the thread of the session, which starts a moment later."""
        self._calls[self] = None
        self.server.world.after(self.server.world.rng.random() * 50e-6, partial(self._when_running, self._start))

    def _when_running(self, step: Callable[[], object]) -> None:
        self.process.when_running(step)

    def _start(self) -> None:
        self.transaction = transaction = self.server.begin(self.process)
        self._greenlet = greenlet(self._body)
        self._go_on(SimStatements(transaction))

    def _go_on(self, value: Any = None, error: Exception | None = None) -> None:
        """Run the body up to its next statement, or to its end."""
        assert self._greenlet is not None
        assert self.transaction is not None
        try:
            step = self._greenlet.throw(error) if error is not None else self._greenlet.switch(value)
        except Deadlock:
            self._again()
        except Exception as raised:  # noqa: BLE001 (whatever the body raises belongs to whoever waits)
            if not self.transaction.abandoned:
                self.server.roll_back(self.transaction)
            self._finish(raised, failed=True)
        else:
            if not self._greenlet.dead:
                self._send(partial(self._execute, step))
            elif self._writes:
                self.commit_sent = True
                self._send(partial(self._commit, step))
            else:
                self.server.roll_back(self.transaction)
                self._finish(step)

    def _again(self) -> None:
        assert self.transaction is not None
        self.server.roll_back(self.transaction)
        self._deadlocks += 1
        if self._deadlocks < DEADLOCKS:
            self.server.world.after(self.server.world.rng.random() * 0.02, partial(self._when_running, self._start))
        else:
            self._finish(StoreUnavailable(f"chosen to end a deadlock {DEADLOCKS} times"), failed=True)

    def _send(self, arrive: Callable[[], None]) -> None:
        self.server.world.after(self.server.latency(), arrive)

    def _execute(self, statement: Callable[[], Any]) -> None:
        """A statement arrives at the server."""
        assert self.transaction is not None
        if not self.process.alive:
            return
        if self.transaction.state is not State.OPEN:
            self._answer(error=StoreUnavailable("the server ended the transaction"))
        elif self._hangs(partial(self._execute, statement)):
            pass
        elif self.server.away_for(self.process) or self.server.fails():
            self.server.abandon(self.transaction, may_commit=False)
            self._answer(error=StoreUnavailable("the connection broke in the middle of a transaction"))
        elif isinstance(statement, Pause):
            self.server.world.after(statement.seconds, partial(self._answer, None))
        else:
            try:
                result = statement()
            except Exception as error:  # noqa: BLE001
                self._answer(error=error)
            else:
                if isinstance(result, GeneratorType):
                    self._work(result)
                else:
                    self._answer(result)

    def _hangs(self, arrive: Callable[[], None]) -> bool:
        """While the server is away, half of what is sent is refused; the rest waits until it is back."""
        away = self.server.away_for(self.process)
        if away and self.server.world.rng.random() < 0.5:
            self.server.world.after(away + self.server.latency(), arrive)
            return True
        return False

    def _work(self, work: Work[Any], error: Exception | None = None) -> None:
        """Go on with a statement until it ends or must wait for a lock."""
        transaction = self.transaction
        assert transaction is not None
        if transaction.state is not State.OPEN:
            self._answer(error=StoreUnavailable("the server ended the transaction"))
            return
        try:
            if error is not None:
                work.throw(error)
            else:
                next(work)
        except StopIteration as end:
            self._answer(end.value)
        except Aborted:
            self.server.roll_back(transaction)
            self._answer(error=StoreUnavailable("waited too long for a lock"))
        except Deadlock:
            self.server.roll_back(transaction)
            self._answer(error=Deadlock())
        else:
            transaction.go_on = go_on = partial(self._work, work)
            self.server.world.after(self.server.weather.lock_wait, partial(self._waited, go_on))

    def _waited(self, go_on: Callable[..., None]) -> None:
        if self.transaction is not None and self.transaction.go_on is go_on:
            self.transaction.wake(Aborted())

    def _answer(self, value: Any = None, error: Exception | None = None) -> None:
        """The answer to a statement arrives; a client that does not take it for long loses its transaction."""
        if not self.process.runs:
            self._watch_idle()
        self._when_running(partial(self._go_on, value, error))

    def _watch_idle(self) -> None:
        transaction = self.transaction
        assert transaction is not None

        def end() -> None:
            if self.process.paused and self.process.pause_began <= began:
                self.server.roll_back(transaction)

        began = self.server.world.now
        self.server.world.after(self.server.weather.idle, end)

    def _commit(self, result: Any) -> None:
        """A commit arrives at the server, or gets lost on the way there or back."""
        transaction = self.transaction
        assert transaction is not None
        if not self.process.alive or self._hangs(partial(self._commit, result)):
            return
        if transaction.state is not State.OPEN:
            self._finish(StoreUnavailable("the server ended the transaction"), failed=True)
        elif self.server.away_for(self.process) or self.server.loses_answer():
            self.server.abandon(transaction, may_commit=True)
            noticed = partial(self._finish, StoreUnavailable("no answer to a commit"), failed=True)
            self.server.world.after(self.server.world.rng.random() ** 3, noticed)
        else:
            self.server.commit(transaction)
            self._finish(result)

    def _finish(self, result: Any, *, failed: bool = False) -> None:
        self._calls.pop(self, None)
        if self.process.alive:
            if not self.future.done():
                if failed:
                    self.future.set_exception(result)
                else:
                    self.future.set_result(result)
            self._ended()

    def dispose(self) -> None:
        """Take the suspended body apart; its statements have no effect any more."""
        if self._greenlet is not None and not self._greenlet.dead:
            self._greenlet.throw(GreenletExit)
