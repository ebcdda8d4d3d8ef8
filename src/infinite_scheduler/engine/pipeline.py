"""The whole flow of one node: jobs are read ahead from the store, wait on wheels, are handed over, and settled."""

import asyncio
import random
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from typing import Any
from zlib import crc32

import msgspec

from infinite_scheduler.clock import Clock, sleep, wait
from infinite_scheduler.cluster.membership import Membership, WriteVitals, no_vitals
from infinite_scheduler.engine.agreed_clock import AgreedClock
from infinite_scheduler.engine.answerer import RequestPoll
from infinite_scheduler.engine.destination_looks import DestinationLooks
from infinite_scheduler.engine.dispatcher import AppPlan, Dispatcher
from infinite_scheduler.engine.gauges import Gauges
from infinite_scheduler.engine.judge import Judge, describe
from infinite_scheduler.engine.lane import Lane, LaneSettings
from infinite_scheduler.engine.lease import Gate, Lease
from infinite_scheduler.engine.owned_shard import OwnedShard
from infinite_scheduler.engine.quarantine import Quarantine
from infinite_scheduler.engine.settler import Settler
from infinite_scheduler.engine.timed_ownership import TimedOwnership
from infinite_scheduler.engine.window import Window
from infinite_scheduler.errors import SchedulerError
from infinite_scheduler.model import Job, Shard
from infinite_scheduler.observe.events import Maintained, Observer, StillRunning, TaskFailed
from infinite_scheduler.observe.readings import NodeReading
from infinite_scheduler.policy.budget import Budget
from infinite_scheduler.store.base import Store
from infinite_scheduler.store.cluster_state import HeldBack, NodeInfo, View
from infinite_scheduler.store.ownership import Settlement

LONGEST_NAP_MS = 500
"""The wheels are checked at least this often, so that a change of the clock is noticed."""


RESTS = ((75, 10), (16, 4))
"""When this many jobs are due at one check of the wheels, the next check is this many ms later: a batch costs less than
single jobs, here, at the broker and in the store. The short pause begins at about 4,000 jobs per second, the long one
stays from 7,500."""

IDLE_APPS = 20
"""So many apps without jobs may move their lines once per fetch interval; if there are more, each moves less often."""

LONGEST_STEP_MS = 300_000

BUSY_ROWS = 50_000
"""A round of maintenance that pruned this many rows has left more: the next round follows soon."""


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The intervals and limits of one node."""

    lookahead_ms: int = 30_000
    fetch_interval_ms: int = 25_000
    page: int = 1000
    budget_bytes: int = 64 << 20
    lease_ms: int = 10_000
    heartbeat_ms: int = 2_000
    stop_timeout_ms: int = 30_000
    clock_limit_ms: int = 5_000
    upkeep_ms: int = 60_000
    lane: LaneSettings = LaneSettings()


class Engine:
    """One running node.

    store ──scan──▶ Window ──▶ Dispatcher: wheel ──due──▶ ready ──▶ handler ──outcome──▶ Lane: settler ──▶ store
                      ▲          quarantine ◀── suspects                             ▲
                   Budget                                           requests, lines, ownership
    """

    def __init__(  # noqa: PLR0917 - the parts that only scheduler.py puts together
        self,
        store: Store,
        node: NodeInfo,
        apps: Sequence[AppPlan],
        clock: Clock,
        settings: EngineSettings,
        tell: Observer,
        rand: random.Random | None = None,
        vitals: WriteVitals = no_vitals,
    ) -> None:
        self._apps = apps
        self._clock = clock
        self._settings = settings
        self._tell = tell
        self._ownership = TimedOwnership(store.ownership(node, self._poke), clock, tell)
        self._lease = Lease(clock, settings.lease_ms, tell)
        self._agreed_clock = AgreedClock(clock, settings.clock_limit_ms)
        self._gate = Gate(self._lease, self._agreed_clock)
        chance = (rand or random.Random()).random  # noqa: S311 - spreads retries, guards nothing
        self._budget = Budget(settings.budget_bytes)
        self.dispatchers = {p.name: Dispatcher(p, clock, self._gate, Judge(p.retry, chance), tell) for p in apps}
        self._budget.join(*self.dispatchers)
        poll = RequestPoll(clock, settings.lane.request_poll_ms)
        self._lanes = [self._lane(poll) for _ in range(self._ownership.lanes)]
        self._quarantine = Quarantine(self.dispatchers, self._gate, clock, self._mark, tell)
        self.membership = Membership(
            node,
            self._ownership,
            self._lanes,
            self._lease,
            self._agreed_clock,
            clock,
            lease_ms=settings.lease_ms,
            heartbeat_ms=settings.heartbeat_ms,
            drain_timeout_ms=settings.stop_timeout_ms,
            seen=self._seen,
            held_back=self.held_back,
            vitals=vitals,
            tell=tell,
        )
        self._looks = DestinationLooks(tell)
        self._gauges = Gauges(self.dispatchers, self._lanes, self._budget, clock)
        self._alarm = asyncio.Event()
        self._moments: list[tuple[int, str]] = []  # a heap: when the wheel of an app is to be looked at
        self._noted: dict[str, int] = {}  # the earliest of them, by app
        for dispatcher in self.dispatchers.values():
            dispatcher.sink, dispatcher.show_no_more = self._sink, self._show_no_more
            dispatcher.alarm, dispatcher.ask = partial(self._note, dispatcher), partial(self._looks.probe, dispatcher)
            dispatcher.quarantine_job, dispatcher.release = self._quarantine.quarantine_job, self._quarantine.release
        self._tasks: list[asyncio.Task[None]] = []
        self._stopped = False

    def _lane(self, poll: RequestPoll) -> Lane:
        s = self._settings
        windows = {
            app: Window(
                dispatcher,
                self._budget,
                lookahead_ms=s.lookahead_ms,
                fetch_interval_ms=s.fetch_interval_ms,
                longest_step_ms=self._longest_step_ms(app),
                page=s.page,
            )
            for app, dispatcher in self.dispatchers.items()
        }
        return Lane(self._ownership, windows, poll, self._clock, s.lane, self._tell)

    def _longest_step_ms(self, app: str) -> int:
        """With many apps, the lines of those without jobs move in longer steps: each costs a write and a read.

        They differ by up to a half, so that not all move at the same moment.
        """
        fetch_ms = self._settings.fetch_interval_ms
        longest_ms = min(fetch_ms * len(self._apps) // IDLE_APPS, LONGEST_STEP_MS)
        return max(fetch_ms, longest_ms - longest_ms * (crc32(app.encode()) % 256) // 512)

    # Life

    async def start(self) -> None:
        """Start the handlers, then the parts that read, wait and settle, then membership."""
        for plan in self._apps:
            await plan.handler.start()
        for lane in self._lanes:
            self._spawn("lane", lane.run)
        self._spawn("wheels", self._turn_wheels)
        self._spawn("quarantine", self._quarantine.run)
        self._spawn("membership", self.membership.run)
        self._spawn("upkeep", self._upkeep)
        for plan in self._apps:
            self._looks.warn(plan)

    async def stop(self) -> bool:
        """Hand over no more, let calls in flight finish, settle, release. True: all of it succeeded."""
        self.membership.leave()
        clean = await self._released(self._settings.stop_timeout_ms)
        if not clean:
            running = [job for dispatcher in self.dispatchers.values() for job in dispatcher.interrupt()]
            for app, jobs in _by_app(running).items():
                self._tell(StillRunning(app=app, job_ids=[job.id for job in jobs]))
            clean = await self._released(self._settings.heartbeat_ms)
        self._stopped = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._looks.stop()
        if clean:
            await self._leave()
        for dispatcher in self.dispatchers.values():
            dispatcher.outage.stop()
        for plan in self._apps:
            await plan.handler.stop()
        return clean

    async def _released(self, within_ms: int) -> bool:
        deadline_ms = self._clock.steady_ms() + within_ms
        while any(lane.owned_shards.by_shard or lane.taking for lane in self._lanes):
            for lane in self._lanes:
                lane.drain(list(lane.owned_shards.by_shard))  # including those of a take in progress
            if self._clock.steady_ms() >= deadline_ms:
                return False
            await sleep(self._clock, 5)
        return True

    async def _leave(self) -> None:
        try:
            await self._ownership.leave()
        except SchedulerError as error:
            self._tell(TaskFailed(part="leave", error=describe(error)))

    def _spawn(self, name: str, part: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._tasks.append(asyncio.create_task(self._tended(name, part), name=name))

    async def _tended(self, name: str, part: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a part for as long as the node lives: a bug in it must cause lateness, not loss."""
        while True:
            try:
                await part()
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if self._stopped or task is None:
                    raise
                task.uncancel()  # a handler that cancels all tasks must not end the node
                self._tell(TaskFailed(part=name, error="cancelled from outside, not by the node"))
            except Exception as error:  # noqa: BLE001
                self._tell(TaskFailed(part=name, error=describe(error)))
                await sleep(self._clock, LONGEST_NAP_MS)

    # Flow

    async def _turn_wheels(self) -> None:
        """One timer for all wheels: at each due moment the due jobs go to their dispatchers."""
        while True:
            now_ms = self._agreed_clock.now_ms()
            due = 0
            while self._moments and self._moments[0][0] <= now_ms:
                moment_ms, app = heappop(self._moments)
                if self._noted.get(app) == moment_ms:
                    del self._noted[app]
                    due += self._tick(self.dispatchers[app], now_ms)
            rest_ms = next((ms for many, ms in RESTS if due >= many), 0)
            if rest_ms:
                await sleep(self._clock, rest_ms)
                continue
            self._alarm.clear()
            nap_ms = self._agreed_clock.wait_ms(self._moments[0][0]) if self._moments else LONGEST_NAP_MS
            await wait(self._clock, self._alarm, max(0, min(nap_ms, LONGEST_NAP_MS)))

    def _tick(self, dispatcher: Dispatcher, now_ms: int) -> int:
        try:
            return dispatcher.tick(now_ms)
        finally:
            self._note(dispatcher)

    def _note(self, dispatcher: Dispatcher) -> None:
        """Look at the wheel of an app when its next job is due."""
        due_ms = dispatcher.wheel.next_due_ms()
        noted_ms = self._noted.get(dispatcher.app)
        if due_ms is not None and (noted_ms is None or due_ms < noted_ms):
            self._noted[dispatcher.app] = due_ms
            heappush(self._moments, (due_ms, dispatcher.app))
            self._alarm.set()

    def _sink(self, owned: OwnedShard, settlement: Settlement) -> None:
        self._settler_of(owned).add(owned, settlement)

    def _show_no_more(self, owned: OwnedShard, job: Job) -> None:
        self._settler_of(owned).show_no_more(owned, job)

    def _settler_of(self, owned: OwnedShard) -> Settler:
        return self._lanes[owned.shard.number % len(self._lanes)].settler

    async def _mark(self, jobs: Sequence[Job], size: int) -> Collection[bytes]:
        """Mark suspects in their lanes; if a lane's store does not answer, its shards are reloaded."""
        marked: set[bytes] = set()
        for number, lane in enumerate(self._lanes):
            some = [job for job in jobs if job.shard % len(self._lanes) == number]
            with suppress(SchedulerError):
                marked.update(await lane.mark(some, size) if some else ())
        return marked

    def _poke(self, shards: Collection[Shard]) -> None:
        for number in {shard.number % len(self._lanes) for shard in shards}:
            self._lanes[number].poke()

    def _seen(self, view: View) -> None:
        """Act on a look at the cluster: what time it is there, which apps are paused; the gate may have opened."""
        self._agreed_clock.heard(view.clock)
        for app in view.apps:
            dispatcher = self.dispatchers.get(app.name)
            if dispatcher is not None:
                dispatcher.paused = app.paused
                if dispatcher.has_ready:
                    dispatcher.stir()

    async def _upkeep(self) -> None:
        """Run maintenance on one node at a time: the one with the smallest nonce."""
        pause_ms = self._settings.upkeep_ms
        while True:
            await sleep(self._clock, pause_ms)
            pause_ms = self._settings.upkeep_ms
            if not self.membership.leads:
                continue
            try:
                done = await self._ownership.maintain()
            except SchedulerError as error:
                self._tell(TaskFailed(part="maintenance", error=describe(error)))
                continue
            if done.rows_pruned >= BUSY_ROWS:
                pause_ms = self._settings.upkeep_ms // 60
            if done.made or done.dropped or done.rows_pruned:
                self._tell(Maintained(made=done.made, dropped=done.dropped, pruned=done.rows_pruned))

    # For observers

    def held_back(self) -> Mapping[str, HeldBack]:
        """The apps whose destinations take nothing, since when, and why."""
        found = {app: dispatcher.outage.held_back for app, dispatcher in self.dispatchers.items()}
        return {app: held_back for app, held_back in found.items() if held_back is not None}

    def oldest_overdue_ms(self) -> int:
        """The age of the oldest job that is due and not handed over; 0 if there is none."""
        return self._gauges.oldest_overdue_ms()

    def reading(self) -> NodeReading:
        """This node now; what it reads from topics is for others to add."""
        return NodeReading(
            apps=self._gauges.apps(),
            saturation=self.saturation(),
            clock_offset_ms=self.clock_offset_ms(),
            apps_without_node=self.apps_without_node,
            apps_held_back=len(self.held_back()),
        )

    def saturation(self) -> float:
        """How far this node is behind with reading and settling: below 1 it is not."""
        return max(lane.saturation for lane in self._lanes)

    def clock_offset_ms(self) -> int | None:
        """The store's clock minus this machine's; None if the store has no clock."""
        return self._agreed_clock.offset_ms()

    @property
    def apps_without_node(self) -> int:
        return len(self.membership.orphans)

    @property
    def shards_owned(self) -> int:
        return sum(len(lane.owned_shards.by_shard) for lane in self._lanes)

    @property
    def bytes_held(self) -> int:
        return self._budget.used_total


def _by_app(jobs: Collection[Job]) -> Mapping[str, list[Job]]:
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.app, []).append(job)
    return groups
