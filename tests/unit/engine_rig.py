"""Nodes on one database and one manual clock, in one event loop: they can be cut off, crash, join and leave."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

import msgspec
import pytest

from infinite_scheduler.engine.dispatcher import AppPlan, Dispatcher
from infinite_scheduler.engine.lane import Lane
from infinite_scheduler.engine.owned_shard import OwnedShard
from infinite_scheduler.engine.pipeline import Engine, EngineSettings
from infinite_scheduler.errors import StoreUnavailable
from infinite_scheduler.handlers.base import Handler, Report
from infinite_scheduler.handlers.python import PythonHandler
from infinite_scheduler.model import Accepted, Change, Job, JobRecord, JobSpec, Priority, Status
from infinite_scheduler.observe import events
from infinite_scheduler.policy.misfire import FireNow, Misfire
from infinite_scheduler.policy.retry import RetryPolicy
from infinite_scheduler.store.accepting import Decision
from infinite_scheduler.store.cluster_state import NodeInfo
from infinite_scheduler.store.looking import Query
from infinite_scheduler.store.ownership import Upkeep
from infinite_scheduler.store.sql.sqlite.database import SqliteDatabase
from infinite_scheduler.store.sql.statements import Body, Database, Session
from infinite_scheduler.store.sql.store import SqlStore
from infinite_scheduler.testing import ManualClock
from infinite_scheduler.testing.pump import Pump
from tests.waiting import words_of

T = TypeVar("T")

APP = "mail"
SHARDS = 4

ALARMS = (events.Swept, events.Early, events.TaskFailed)
"""What a node must never tell, unless a test provokes it."""


class FaultyDatabase(Database):
    """One node's connection to the database that all nodes of a test share; it can be cut."""

    kind = "a rig"
    has_clock = False
    lanes = 1

    def __init__(self, inner: Database, dead: set[str], presumed_dead: set[str]) -> None:
        self.away = False  # nothing gets through
        self.loses_answers = False  # everything gets through, and no answer comes back
        self.writes = 0
        self.store_ms: Callable[[], int] | None = None  # the store's clock, if it has one
        self.lanes_go_on = asyncio.Event()  # while it is not set, writes of lanes wait as for a lock
        self.lanes_go_on.set()
        self._inner = inner
        self._dead = dead
        self._presumed_dead = presumed_dead

    async def open(self) -> None:
        """The rig has opened it."""

    async def close(self) -> None:
        """The rig closes it."""

    def session(self, name: str) -> Session:
        return FaultySession(self, self._inner.session(name), waits=name.startswith("lane"))

    async def maintain(self, *, now_ms: int, retention_ms: int, idempotency_ms: int) -> Upkeep:
        self.check()
        return await self._inner.maintain(now_ms=now_ms, retention_ms=retention_ms, idempotency_ms=idempotency_ms)

    def dead(self, nodes: Sequence[NodeInfo]) -> frozenset[str]:
        return frozenset(node.nonce for node in nodes if node.nonce in self._dead)

    def presumed_dead(self, nodes: Sequence[NodeInfo]) -> frozenset[str]:
        return frozenset(node.nonce for node in nodes if node.nonce in self._presumed_dead)

    def live(self, nonce: str) -> None:
        """The rig says who is dead."""

    def check(self) -> None:
        if self.away:
            raise StoreUnavailable("the wire is cut")


class FaultySession(Session):
    def __init__(self, wire: FaultyDatabase, inner: Session, *, waits: bool) -> None:
        self._wire = wire
        self._inner = inner
        self._waits = waits

    async def write(self, body: Body[T]) -> T:
        await asyncio.sleep(0)  # as with any real connection, others go on meanwhile
        if self._waits:
            await self._wire.lanes_go_on.wait()
        self._wire.check()
        self._wire.writes += 1
        result = await self._inner.write(self._timed(body))
        await asyncio.sleep(0)
        if self._wire.loses_answers:
            raise StoreUnavailable("the answer is lost")
        self._wire.check()
        return result

    async def read(self, body: Body[T]) -> T:
        await asyncio.sleep(0)
        self._wire.check()
        return await self._inner.read(self._timed(body))

    def _timed(self, body: Body[T]) -> Body[T]:
        """The same, in a database with the clock of the wire."""
        store_ms = self._wire.store_ms
        if store_ms is None:
            return body

        def timed(tx: Any) -> T:
            tx.now_ms = store_ms
            try:
                return body(tx)
            finally:
                del tx.now_ms

        return timed

    async def changed(self) -> bool:
        self._wire.check()
        return True

    async def close(self) -> None:
        """The rig closes the database."""


def empty_database() -> Database:
    """What the nodes of a rig share; tests on servers put another in its place."""
    return SqliteDatabase(":memory:", inline=True)


class Delivery(NamedTuple):
    node: str
    job: Job
    at_ms: int


class Recorded(Handler):
    """A handler whose calls are written down."""

    def __init__(self, rig: "EngineRig", node: str, inner: Handler) -> None:
        self.batch = inner.batch
        self.running = 0
        self.most = 0
        self.sizes: list[int] = []
        self._rig = rig
        self._node = node
        self._inner = inner

    async def start(self) -> None:
        await self._inner.start()

    async def stop(self) -> None:
        await self._inner.stop()

    async def ready(self) -> None:
        await self._inner.ready()

    async def handle(self, jobs: Sequence[Job], report: Report) -> None:
        now_ms = self._rig.clock.wall_ms()
        self._rig.deliveries.extend(Delivery(self._node, job, now_ms) for job in jobs)
        self._rig.early.extend(job.id for job in jobs if job.due_ms > now_ms)
        self.sizes.append(len(jobs))
        self.running += 1
        self.most = max(self.most, self.running)
        call = object()
        self._rig.pump.begin(call)
        try:
            await self._inner.handle(jobs, report)
        finally:
            self.running -= 1
            self._rig.pump.end(call)

    def unfinished(self) -> Sequence[Job]:
        return self._inner.unfinished()


async def nothing(job: Any) -> None:
    """A handler that is done at once."""
    del job


class EngineNode:
    """One engine, as if it were a process of its own."""

    def __init__(self, rig: "EngineRig", name: str, settings: EngineSettings) -> None:
        self.name = name
        self.nonce = f"{name}-{len(rig.nodes):04}"
        self.wire = FaultyDatabase(rig.database, rig.dead, rig.presumed_dead)
        self.store = SqlStore(self.wire, rig.clock)
        self.told: list[events.Event] = []
        self.plans: list[AppPlan] = []
        self.engine: Engine
        self.alive = False
        self._rig = rig
        self._settings = settings

    def app(
        self,
        name: str = APP,
        function: Callable[[Any], Any] = nothing,
        *,
        handler: Handler | None = None,
        batch: int | None = None,
        timeout_ms: int | None = None,
        retry: RetryPolicy | None = None,
        misfire: Misfire | None = None,
        concurrency: int = 20,
    ) -> "EngineNode":
        inner = handler or PythonHandler(
            function, batch=batch, timeout_ms=timeout_ms, concurrency=concurrency, clock=self._rig.clock
        )
        self.plans.append(
            AppPlan(
                name=name,
                handler=Recorded(self._rig, self.name, inner),
                retry=retry or RetryPolicy(jitter=0),
                misfire=misfire or FireNow(),
                concurrency=concurrency,
            )
        )
        return self

    async def start(self) -> "EngineNode":
        await self.store.open()
        for plan in self.plans:
            await self.store.register(plan.name, self._rig.shards)
        info = NodeInfo(
            nonce=self.nonce,
            node_id=self.name,
            apps=frozenset(plan.name for plan in self.plans),
            started_ms=self._rig.clock.wall_ms(),
        )
        self.engine = Engine(
            self.store, info, self.plans, self._rig.clock, self._settings, self.told.append, random.Random(1)
        )
        self.alive = True
        await self.engine.start()
        await self._rig.pump.rest()
        return self

    async def stop(self) -> bool:
        self.alive = False
        clean = await self._rig.pump.run(self.engine.stop(), 300_000)
        await self.store.close()
        return clean

    async def crash(self, *, proven: bool = True) -> None:
        """End as by kill -9: nothing more is written, nothing is cleaned up. A proven death is known to all at once."""
        self.alive = False
        self.wire.away = True
        if proven:
            self._rig.dead.add(self.nonce)
        self.engine._stopped = True
        self.engine._gate.held_shut = True  # a place that is free now is not taken any more
        tasks = [
            *self.engine._tasks,
            *self.engine._looks.tasks.values(),
            *(task for dispatcher in self.engine.dispatchers.values() for task in dispatcher._calls.values()),
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.store.close()

    # What it knows and tells

    @property
    def lane(self) -> Lane:
        return self.engine._lanes[0]

    @property
    def owned_shards(self) -> Sequence[OwnedShard]:
        return list(self.lane.owned_shards.by_shard.values())

    def handler(self, app: str = APP) -> Recorded:
        handler = next(plan.handler for plan in self.plans if plan.name == app)
        assert isinstance(handler, Recorded)
        return handler

    def told_of(self, kind: type[T]) -> list[T]:
        return [event for event in self.told if isinstance(event, kind)]


class EngineRig:
    """Engines over one database, by one manual clock, and what they have handed over."""

    def __init__(self, *, patience_s: float = 0.0, shards: int = SHARDS, **settings: Any) -> None:
        self.clock = ManualClock()
        self.pump = Pump(self.clock, patience_s)
        self.database = empty_database()
        self.dead: set[str] = set()
        self.presumed_dead: set[str] = set()
        self.nodes: list[EngineNode] = []
        self.deliveries: list[Delivery] = []
        self.early: list[str] = []
        self.alarms_expected: tuple[type[events.Event], ...] = ()
        self.shards = shards
        self.settings = EngineSettings(**settings)
        self.client = SqlStore(FaultyDatabase(self.database, self.dead, self.presumed_dead), self.clock)

    def node(self, name: str = "n1", **settings: Any) -> EngineNode:
        node = EngineNode(self, name, msgspec.structs.replace(self.settings, **settings))
        self.nodes.append(node)
        return node

    async def open(self) -> None:
        await self.database.open()
        await self.client.open()
        await self.client.register(APP, self.shards)

    async def close(self) -> None:
        for node in self.nodes:
            if node.alive:
                await node.crash()
        await self.client.close()
        await self.database.close()
        assert not self.early, "handed over before its moment"
        alarms = [e for node in self.nodes for e in node.told if isinstance(e, ALARMS)]
        assert not [e for e in alarms if not isinstance(e, self.alarms_expected)]

    # Time

    @property
    def now(self) -> int:
        return self.clock.wall_ms()

    async def advance(self, ms: int) -> None:
        await self.pump.advance(ms)

    async def run(self, work: Awaitable[T], within_ms: int = 60_000) -> T:
        return await self.pump.run(work, within_ms)

    async def until(self, condition: Callable[[], Any], within_ms: int = 60_000) -> None:
        """Let time pass until something holds."""
        until_ms = self.clock.steady_ms() + within_ms
        await self.pump.rest()
        while not condition():
            assert self.clock.step(until_ms), f"not within {within_ms} ms: {words_of(condition)}"
            await self.pump.rest()

    # Jobs

    async def add(
        self, *in_ms: int, app: str = APP, priority: Priority = Priority.NORMAL, **fields: Any
    ) -> list[Accepted]:
        """Jobs from another process, which pokes nobody: one for each delay."""
        specs = [
            JobSpec(app=app, scheduled_ms=self.now + ms, priority=priority, **{"payload": b"{}", **fields})
            for ms in in_ms
        ]
        return list(await self.client.add(specs))

    async def spread(self, in_ms: Iterable[int], **fields: Any) -> list[Accepted]:
        """Jobs that come one by one, so that they go round the shards."""
        return [a for ms in in_ms for a in await self.add(ms, **fields)]

    async def record(self, accepted: Accepted, app: str = APP) -> JobRecord:
        record = await self.client.get(accepted.key, app=app)
        assert record is not None
        return record

    async def statuses(self, accepted: Iterable[Accepted], app: str = APP) -> Counter[Status]:
        return Counter([(await self.record(a, app)).status for a in accepted])

    async def pending(self) -> int:
        return len((await self.client.find(Query(status=Status.PENDING, limit=200_000))).records)

    def change(self, change: Change, accepted: Accepted, **options: Any) -> "asyncio.Task[Decision]":
        """Ask for a change from another process."""
        return asyncio.ensure_future(
            self.client.change(change, accepted.key, app=APP, **{"timeout_ms": 15_000, **options})
        )

    def delivered(self, app: str = APP) -> list[bytes]:
        return [d.job.key for d in self.deliveries if d.job.app == app]

    def times(self) -> Counter[bytes]:
        return Counter(d.job.key for d in self.deliveries)


def set_back_once(world: EngineRig, ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the wall clock back after the next hand-over has begun, and before its handler is called."""
    start = Dispatcher._start
    world.alarms_expected = (events.Early,)

    def stepped(self: Dispatcher, batch: Sequence[Job]) -> None:
        start(self, batch)
        world.clock.step_wall(-ms)
        monkeypatch.setattr(Dispatcher, "_start", start)

    monkeypatch.setattr(Dispatcher, "_start", stepped)


@asynccontextmanager
async def rig(**options: Any) -> AsyncIterator[EngineRig]:
    """A rig that is opened and closed; at the end nothing was early and no alarm was raised."""
    world = EngineRig(**options)
    await world.open()
    try:
        yield world
    finally:
        await world.close()
