"""A real node in a simulated process: the engine over the SQL store over the simulated database."""

import asyncio
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from infinite_scheduler.clock import sleep
from infinite_scheduler.engine.dispatcher import AppPlan
from infinite_scheduler.engine.lane import LaneSettings
from infinite_scheduler.engine.pipeline import Engine, EngineSettings
from infinite_scheduler.errors import SchedulerError
from infinite_scheduler.handlers.base import Handler, Report
from infinite_scheduler.model import Done, Failed, Job, Outcome, Retry
from infinite_scheduler.observe import events
from infinite_scheduler.policy.misfire import FireNow
from infinite_scheduler.policy.retry import RetryPolicy
from infinite_scheduler.store.cluster_state import NodeInfo
from infinite_scheduler.store.sql.store import SqlStore
from tests.simulation.database import SimDatabase
from tests.simulation.history import History
from tests.simulation.server import Server
from tests.simulation.world import Process

LEASE_MS = 2000

SETTINGS = EngineSettings(
    lookahead_ms=3000,
    fetch_interval_ms=2000,
    lease_ms=LEASE_MS,
    heartbeat_ms=400,
    stop_timeout_ms=4000,
    lane=LaneSettings(request_poll_ms=100, answer_at_most=3),
)
"""Small paces, so that little virtual time sees much."""

RETRY = RetryPolicy(delays=("100ms", "700ms", "2500ms"), jitter=0.0, max_attempts=6, floor=0)

TOLD = (
    events.ShardsTaken,
    events.ShardsReleased,
    events.ShardsLost,
    events.Reloaded,
    events.Swept,
    events.Early,
    events.LeaseLapsed,
    events.LeaseRenewed,
    events.DrainCalledOff,
    events.PoisonFailed,
    events.TaskFailed,
)
"""What nodes tell that is kept in the history."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a job when it is handed over; carried as its payload."""

    ends: tuple[str, ...] = ("done",)  # of each attempt; the last one repeats: done, retry, past, error, fail, die
    takes_ms: int = 0

    def payload(self) -> bytes:
        return msgspec.json.encode(self)


class ScriptedHandler(Handler):
    """Does with each job what its plan says, and leaves evidence."""

    def __init__(self, process: Process, history: History, batch: int = 1) -> None:
        self.batch = batch
        self._process = process
        self._history = history

    async def handle(self, jobs: Sequence[Job], report: Report) -> None:
        plans = [msgspec.json.decode(job.payload, type=Plan) for job in jobs]
        for job in jobs:
            wall_ms = self._process.wall_ms()
            self._tell("handed over", job, attempt=job.attempt, due=job.due_ms, wall=wall_ms)
        try:
            takes_ms = max(plan.takes_ms for plan in plans)
            if takes_ms:
                await sleep(self._process.clock, takes_ms)
        except asyncio.CancelledError:
            for job in jobs:
                self._tell("returned", job, attempt=job.attempt, outcome="retry")
            raise
        for job, plan in zip(jobs, plans, strict=True):
            end = plan.ends[min(job.attempt, len(plan.ends)) - 1]
            if end == "die":
                self._history.add("killed", self._process.name)
                self._process.kill()
                await asyncio.Event().wait()
            self._tell("returned", job, attempt=job.attempt, outcome=HEARD[end])
            report(job, self._outcome(end))

    def _outcome(self, end: str) -> Outcome | BaseException:
        match end:
            case "done":
                return Done()
            case "retry":
                return Retry(after=timedelta(milliseconds=900))
            case "past":
                now = datetime.fromtimestamp(self._process.wall_ms() / 1000, UTC)
                return Retry(at=now - timedelta(seconds=5))
            case "error":
                return RuntimeError("the handler failed")
            case "fail":
                return Failed("the handler gave up")
            case _:
                raise ValueError(end)

    def _tell(self, what: str, job: Job, **facts: Any) -> None:
        self._history.add(what, self._process.name, job.key.hex(), **facts)


HEARD = {"done": "done", "retry": "retry", "past": "retry", "error": "retry", "fail": "failed"}


class SimNode:
    """One node process."""

    def __init__(
        self, server: Server, process: Process, history: History, apps: Collection[str], *, lanes: int, budget: int
    ) -> None:
        self.process = process
        self.apps = apps
        self.store = SqlStore(SimDatabase(server, process, lanes=lanes), process.clock)
        self.engine: Engine | None = None
        self._history = history
        self._settings = msgspec.structs.replace(SETTINGS, budget_bytes=budget)
        self._batch = server.world.rng.choice((1, 1, 3))
        self._nonce = f"{server.world.rng.getrandbits(32):08x}"

    def start(self) -> None:
        self._history.add("joined", self.process.name, nonce=self._nonce)
        self.process.spawn(self._start())

    async def _start(self) -> None:
        """As the wiring of a real node does; a store that is away is waited for."""
        while True:
            try:
                await self.store.open()
                for app in self.apps:
                    await self.store.register(app)
                break
            except SchedulerError:
                await sleep(self.process.clock, 300)
        clock = self.process.clock
        info = NodeInfo(
            nonce=self._nonce, node_id=self.process.name, apps=frozenset(self.apps), started_ms=clock.wall_ms()
        )
        handler = ScriptedHandler(self.process, self._history, self._batch)
        plans = [AppPlan(name=app, handler=handler, retry=RETRY, misfire=FireNow()) for app in self.apps]
        self.engine = Engine(self.store, info, plans, clock, self._settings, self._heard)
        await self.engine.start()

    def leave(self) -> None:
        """Stop in good order, then end."""
        if self.engine is not None and self.process.runs:
            self.process.spawn(self._leave(self.engine))

    async def _leave(self, engine: Engine) -> None:
        self._history.add("leaving", self.process.name)
        clean = await engine.stop()
        await self.store.close()
        self._history.add("left" if clean else "killed", self.process.name)
        self.process.kill()

    def _heard(self, event: events.Event) -> None:
        if isinstance(event, TOLD):
            facts = {name: str(value) for name, value in msgspec.structs.asdict(event).items()}
            self._history.add("observed", self.process.name, event=type(event).__name__, **facts)
