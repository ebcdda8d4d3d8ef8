"""Finds the job that ends its process: jobs in flight at a crash are handed over again, in marked, shrinking windows.

The rules that are named here are those of docs/concepts/line-protocol.md, "Poison jobs".
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from infinite_scheduler.clock import Clock, sleep, wait
from infinite_scheduler.engine.dispatcher import Dispatcher, Flight
from infinite_scheduler.engine.lease import Gate
from infinite_scheduler.engine.owned_shard import OwnedShard
from infinite_scheduler.model import Job
from infinite_scheduler.observe.events import Observer, PoisonFailed, SuspectsFound
from infinite_scheduler.policy.priority import PriorityQueue
from infinite_scheduler.store.marks import Lifted

MANY, FEW, ALONE = 1000, 30, 1
"""The windows in which suspects are handed over: a job whose process ended while it was in one goes into the next.

A size below ALONE marks a job that was alone and still ran: it has survived ALONE - size watches.
"""

SIZES = (MANY, FEW, ALONE)

LIFTED: Lifted = {ALONE: FEW}
"""A job that was marked to be fired alone, and was not, is one of a few again: others may end the process later."""

LOOK_MS, IDLE_MS = 5, 100
"""How often the suspects are checked: while they move, and while nothing happens to them."""

WATCH_MS = 30_000
"""How long a suspect runs alone, if it runs that long; doubled after each death that came later than that."""

LONGEST_SHUT_MS = 10_000
"""How long the gate is shut to let others end; doubled at each further try, up to the time of a watch."""

LEFT_BEHIND_MS = 10_000
"""How long a call that was reported as timed out, but still runs in its thread, can delay a suspect."""

REST = 2
"""After the gate was shut for a suspect, it stays open for this many times as long before it is shut for the next."""

POISON = "ended its process: it was the only job in flight when the process died"

Mark = Callable[[Sequence[Job], int], Awaitable[Collection[bytes]]]
"""Makes durable in which window these jobs are. Returns the keys of the marked ones.

The others come back: if the store does not answer or shards are in doubt, the shards are reloaded.
"""


class Level:
    """The suspects of one window size: those that wait, and those that are marked and in progress."""

    def __init__(self, size: int, apps: Collection[str]) -> None:
        self.size = size
        self.waiting: dict[str, PriorityQueue[Job]] = {app: PriorityQueue() for app in apps}
        self.marked: dict[str, list[Job]] = {app: [] for app in apps}
        self.marked_ms = dict.fromkeys(apps, -IDLE_MS)  # when jobs were last marked

    def wait(self, job: Job) -> None:
        """Queue a suspect."""
        self.waiting[job.app].push(job.priority, job.due_ms, job)

    def free(self, app: str, now_ms: int) -> int:
        """How many jobs of the app may be marked now; none while there is little room, since a mark is a write.

        Of several apps, each has at most half of the window, so that an app whose jobs hang leaves room for the others.

        Rule: window_is_bounded.
        """
        window = self.size if len(self.marked) == 1 else max(1, self.size // 2)
        room = min(window - len(self.marked[app]), self.size - self.under_way)
        return room if room >= window // 4 or now_ms >= self.marked_ms[app] + IDLE_MS else 0

    @property
    def under_way(self) -> int:
        return sum(map(len, self.marked.values()))

    @property
    def idle(self) -> bool:
        return not any(self.marked.values()) and not any(map(len, self.waiting.values()))


class Quarantine:
    """Holds suspects back, and hands over only as many as their windows have room for, each marked first."""

    def __init__(
        self, dispatchers: Mapping[str, Dispatcher], gate: Gate, clock: Clock, mark: Mark, tell: Observer
    ) -> None:
        self._dispatchers = dispatchers
        self._gate = gate
        self._clock = clock
        self._mark = mark
        self._tell = tell
        self._levels = {size: Level(size, dispatchers) for size in SIZES}
        self._stir = asyncio.Event()
        self._alone: Job | None = None  # the gate is shut for this one
        self._watches = 0  # how many watches it has survived before
        self._shut_ms = 0
        self._watched_until_ms = 0
        self._opened_ms = 0
        self._rest_until_ms = 0
        self._in_the_way: list[Flight] = []  # in flight when the gate last opened: until they end, no job can be alone
        self._shut_limit_ms = LONGEST_SHUT_MS

    def quarantine_job(self, job: Job, owned: OwnedShard) -> None:
        """Take a job that may have ended a process.

        Rules: alone_at_death_is_failed, only_alone_is_charged, outlived_is_not_charged.
        """
        size = owned.suspects.get(job.key)
        if size == ALONE and owned.marker_ended:
            self._dispatchers[job.app].fail(job, POISON)
            self._tell(PoisonFailed(app=job.app, job_id=job.id))
            return
        self._levels[_next_size(size)].wait(job)
        self._stir.set()

    def release(self, app: str, count: int) -> None:
        """Note that `count` jobs of an app are not held any more; those that wait here can be dropped."""
        for level in self._levels.values():
            level.waiting[app].outdate(count, self._holds)

    async def run(self) -> None:
        """Keep the windows full; hand over one job alone when they are empty, since most jobs are innocent."""
        nap_ms = LOOK_MS
        while True:
            self._stir.clear()
            if self._alone is not None:
                await self._let_go(self._alone)
            worked = self._gate.open and (await self._roll() or await self._fire_one_alone())
            if all(level.idle for level in self._levels.values()):
                await self._stir.wait()
                continue
            nap_ms = LOOK_MS if worked else min(2 * nap_ms, IDLE_MS)
            await wait(self._clock, self._stir, nap_ms)

    # Many and few

    async def _roll(self) -> bool:
        """Mark and hand over suspects as others end; no level waits for another.

        Rule: window_rolls.
        """
        worked = False
        for size in (MANY, FEW):
            level = self._levels[size]
            for app, marked in level.marked.items():
                level.marked[app] = [job for job in marked if self._under_way(job)]
            batch = self._next_batch(level)
            if batch:
                await self._fire(level, batch)
                worked = True
        return worked

    def _next_batch(self, level: Level) -> list[Job]:
        """Suspects of one app that may be marked now; the apps take turns."""
        now_ms = self._clock.steady_ms()
        for app in list(level.waiting):
            batch = self._batch_of(app, level, level.free(app, now_ms))
            if batch:
                level.waiting[app] = level.waiting.pop(app)  # to the end of the queue
                level.marked_ms[app] = now_ms
                return batch
        return []

    def _batch_of(self, app: str, level: Level, most: int) -> list[Job]:
        waiting, batch = level.waiting[app], list[Job]()
        dispatcher = self._dispatchers[app]
        if dispatcher.closed:
            most = min(most, dispatcher.most)
        now_ms = self._gate.now_ms()
        while len(waiting) and len(batch) < most:
            job = waiting.pop()
            owned = self._owned_shard_of(job)
            if owned is None:
                continue
            if job.due_ms > now_ms:  # a clock was set back
                level.wait(job)
                break
            if owned.may_fire:
                batch.append(job)
            else:
                owned.parked.append(job)
        return batch

    def _owned_shard_of(self, job: Job) -> OwnedShard | None:
        """The owned shard that holds exactly this job, if there is one."""
        owned = self._dispatchers[job.app].owned_shards.get(job.shard)
        return owned if owned is not None and owned.quarantined.get(job.key) is job else None

    def _holds(self, job: Job) -> bool:
        return self._owned_shard_of(job) is not None

    async def _fire(self, level: Level, batch: Sequence[Job]) -> None:
        """Let the batch go to its handler when its marks are durable.

        Rules: marked_before_handed_over, marks_are_durable.
        """
        try:
            marked = await self._mark(batch, level.size)
        except BaseException:
            for job in batch:
                level.wait(job)
            raise
        fired = [job for job in batch if job.key in marked and self._owned_shard_of(job)]
        app = batch[0].app
        level.marked[app] += fired
        for job in fired:
            self._dispatchers[app].queue(job)
        if fired and level.size < MANY:
            self._tell(SuspectsFound(app=app, count=len(fired), batch=level.size))

    def _under_way(self, job: Job) -> bool:
        """Is it still to be handed over or settled, by the owned shard that holds it now?"""
        dispatcher = self._dispatchers[job.app]
        owned = dispatcher.owned_shards.get(job.shard)
        if owned is None:
            return False
        if owned.handed_over.get(job.key) is job:
            return True  # a drain waits for it as well
        return owned.held.get(job.key) is job and not dispatcher.closed and not owned.draining

    # Alone

    async def _fire_one_alone(self) -> bool:
        """Hand over one job with nothing else in flight, from its mark until it has ended or survived a watch.

        Rules: alone_before_marked, alone_until_settled.
        """
        if (
            self._resting()
            or any(map(self._flies, self._in_the_way))
            or any(level.under_way for level in self._levels.values())
        ):
            return False
        for job in self._next_batch(self._levels[ALONE]):
            self._shut_for(job)
            if await self._others_ended():
                await self._accuse(job)
                await self._let_go(job)
            else:
                self._levels[ALONE].wait(job)
                self._open()
            return True
        return False

    def _resting(self) -> bool:
        """Must other jobs have their time first? Not if the gate was shut briefly and shutting it again delays none."""
        if self._clock.steady_ms() >= self._rest_until_ms:
            return False
        was_shut_ms = (self._rest_until_ms - self._opened_ms) // REST
        if was_shut_ms > LONGEST_SHUT_MS or any(dispatcher.flights for dispatcher in self._dispatchers.values()):
            return True
        due = [ms for dispatcher in self._dispatchers.values() if (ms := dispatcher.oldest_waiting_ms()) is not None]
        return bool(due) and min(due) <= self._gate.now_ms() + was_shut_ms

    def _shut_for(self, job: Job) -> None:
        owned = self._owned_shard_of(job)
        self._watches = max(0, ALONE - owned.suspects.get(job.key, ALONE)) if owned else 0
        self._alone = job
        self._shut_ms = self._clock.steady_ms()
        self._gate.held_shut = True

    def _open(self) -> None:
        now_ms = self._clock.steady_ms()
        self._opened_ms = now_ms
        self._rest_until_ms = now_ms + REST * (now_ms - self._shut_ms)
        self._in_the_way = [
            flight for dispatcher in self._dispatchers.values() for flight in dispatcher.flights.values()
        ]
        self._alone = None
        self._gate.held_shut = False
        for dispatcher in self._dispatchers.values():
            dispatcher.stir()

    def _flies(self, flight: Flight) -> bool:
        return self._dispatchers[flight.job.app].flights.get(flight.job.key) is flight

    async def _others_ended(self) -> bool:
        """Wait until nothing is in flight, but not for long, since nothing is handed over meanwhile.

        Rule: wait_to_be_alone_ends.
        """
        dispatchers = self._dispatchers.values()
        while any(dispatcher.flights for dispatcher in dispatchers) or (
            any(dispatcher.busy for dispatcher in dispatchers)
            and self._clock.steady_ms() < self._shut_ms + LEFT_BEHIND_MS
        ):
            if self._clock.steady_ms() >= self._shut_ms + self._shut_limit_ms and any(
                dispatcher.flights for dispatcher in dispatchers
            ):
                self._shut_limit_ms = min(2 * self._shut_limit_ms, WATCH_MS)
                return False
            await sleep(self._clock, LOOK_MS)
        self._shut_limit_ms = LONGEST_SHUT_MS
        return True

    async def _accuse(self, job: Job) -> None:
        """Mark the job as alone, and hand it over.

        Rules: marked_before_handed_over, watch_grows.
        """
        if self._owned_shard_of(job) is None or job.key not in await self._mark([job], ALONE):
            return
        owned, dispatcher = self._owned_shard_of(job), self._dispatchers[job.app]
        may_fire = owned is not None and owned.may_fire and dispatcher.most > 0 and self._gate.lease.valid()
        if may_fire and job.due_ms <= self._gate.now_ms():
            self._watched_until_ms = self._clock.steady_ms() + (WATCH_MS << self._watches)
            dispatcher.fire_alone(job)
            self._tell(SuspectsFound(app=job.app, count=1, batch=ALONE))

    async def _let_go(self, job: Job) -> None:
        """Open the gate as soon as the job can no longer be blamed for what others do.

        Rules: watch_ends, mark_is_replaced_before_gate_opens, mark_of_unfired_is_put_back.
        """
        nap_ms = LOOK_MS
        while not await self._is_cleared(job):
            await sleep(self._clock, nap_ms)
            nap_ms = min(2 * nap_ms, IDLE_MS)
        self._open()

    async def _is_cleared(self, job: Job) -> bool:
        owned = self._dispatchers[job.app].owned_shards.get(job.shard)
        if owned is None:
            return True
        if owned.handed_over.get(job.key) is job:
            outlived = self._clock.steady_ms() >= self._watched_until_ms
            return outlived and job.key in await self._mark([job], ALONE - 1 - self._watches)
        if owned.doubt is not None:
            return False  # a mark without an answer is removed when the shard is reloaded
        if self._owned_shard_of(job) is None:
            return True
        before = ALONE - self._watches if self._watches else FEW
        if job.key not in await self._mark([job], before):
            return False
        self._levels[ALONE].wait(job)
        return True


def _next_size(size: int | None) -> int:
    """The window for a job that was in one of `size` when its process ended.

    Rules: window_narrows_after_death, outlived_is_alone_again.
    """
    if size is None:
        return MANY
    return next((smaller for smaller in SIZES if smaller < size), ALONE)
