"""Where everything happens that a node does to its shards: one step at a time, its effect in memory before the next.

The rules that are named in brackets are those of docs/concepts/line-protocol.md.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from infinite_scheduler.clock import Clock, wait
from infinite_scheduler.engine.settle import describe, unrecordable
from infinite_scheduler.engine.sweep import Sweep
from infinite_scheduler.engine.tenure import Tenure
from infinite_scheduler.engine.window import Window
from infinite_scheduler.errors import SchedulerError
from infinite_scheduler.model import Job, Owner, Shard, Status
from infinite_scheduler.observe.events import (
    DrainCalledOff,
    Observer,
    Reloaded,
    Settled,
    ShardsLost,
    ShardsReleased,
    ShardsTaken,
    StoreAway,
    StoreBack,
    TaskFailed,
)
from infinite_scheduler.store.base import NAMED, Answers, Claim, Grant, Ownership, Request, Running, Settlement, named
from infinite_scheduler.store.base import Settled as Recorded

T = TypeVar("T")

SETTLE_AT_ONCE = 500
SETTLE_AT_MOST = 1000
SETTLE_LINGER_MS = 3
"""Outcomes are made durable in batches: of this size, or when the first has waited this long."""

BACK_OFF_MS = (50, 1000)
"""The first and the longest wait for a store that is away."""


class LaneSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The paces of a lane."""

    request_poll_ms: int = 50
    sweep_ms: int = 60_000
    shown_ms: int = 1000
    answer_at_most: int = NAMED  # jobs named by requests in one transaction; payloads are read as far as there is room


class Lane:
    """Runs the shards of one lane: answers requests, moves lines, reads pages, settles outcomes, releases [2]."""

    def __init__(
        self, ownership: Ownership, windows: Mapping[str, Window], clock: Clock, settings: LaneSettings, tell: Observer
    ) -> None:
        self.tenures: dict[Shard, Tenure] = {}
        self.taking = False  # shards may come at any moment
        self._ownership = ownership
        self._windows = windows
        self._clock = clock
        self._settings = settings
        self._tell = tell
        self._outcomes: deque[tuple[Tenure, Settlement]] = deque()
        self._first_outcome_ms = 0
        self._settle_at_most = SETTLE_AT_MOST
        self._commands: deque[tuple[Callable[[], Awaitable[None]], asyncio.Future[None] | None]] = deque()
        self._stir = asyncio.Event()
        self._poked = False
        self._served: set[Shard] = set()  # those whose requests filled a page: first come the others
        self._next_poll_ms = 0
        self._shown_next_ms = 0
        self._away_since_ms: int | None = None
        self._sweep = Sweep(ownership, clock, settings.sweep_ms, tell)
        self._turns = 0

    # What others ask of the lane or tell it

    def owners(self) -> Mapping[Shard, Owner]:
        """The shards held, each with the reign under which it is held."""
        return {shard: tenure.owner for shard, tenure in self.tenures.items()}

    def unsettled(self) -> Collection[Shard]:
        """Those with suspects that are about to fire: elsewhere they would fire in smaller windows, for nothing."""
        paused = {app for app, window in self._windows.items() if window.desk.paused}
        return {shard for shard, tenure in self.tenures.items() if tenure.detained and shard.app not in paused}

    def poke(self) -> None:
        """Requests may wait."""
        self._poked = True
        self._stir.set()

    def sink(self, tenure: Tenure, settlement: Settlement) -> None:
        """A delivery has ended; make it durable soon."""
        if not self._outcomes:
            self._first_outcome_ms = self._clock.steady_ms()
            self._stir.set()
        elif len(self._outcomes) == SETTLE_AT_ONCE:
            self._stir.set()
        self._outcomes.append((tenure, settlement))

    def take(self, claims: Sequence[Claim]) -> None:
        """Own these shards, as far as they can be had, when the lane comes to it; nobody waits for that."""
        self.taking = True
        self._commands.append((lambda: self._take(claims), None))
        self._stir.set()

    async def mark(self, jobs: Sequence[Job], size: int) -> Collection[bytes]:
        """Make it durable in which window of suspects these jobs are. Returns the keys of those that are marked."""
        marked: set[bytes] = set()
        await self._do(lambda: self._mark(jobs, size, marked))
        return marked

    def drain(self, shards: Collection[Shard], *, for_ms: int | None = None) -> None:
        """Hand over no more of these shards, release them when nothing is in flight, or call it off after a while."""
        until_ms = None if for_ms is None else self._clock.steady_ms() + for_ms
        for shard in shards:
            tenure = self.tenures.get(shard)
            if tenure is not None:
                tenure.draining = True
                tenure.drain_until_ms = until_ms
        self._stir.set()

    def doubt(self, shards: Iterable[Shard], why: str) -> None:
        """Check in the store what is owned of these before anything more is fired or written [10]."""
        for shard in shards:
            tenure = self.tenures.get(shard)
            if tenure is not None:
                tenure.doubt = why
                self._windows[shard.app].forget(tenure)
        self._stir.set()

    async def _do(self, command: Callable[[], Awaitable[None]]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._commands.append((command, done))
        self._stir.set()
        await done

    # The lane's own run

    async def run(self) -> None:
        """Turn after turn, for as long as the node lives; a store that is away is waited for."""
        pause_ms = BACK_OFF_MS[0]
        while True:
            self._stir.clear()
            try:
                worked = await self._turn()
            except SchedulerError as error:
                self._store_away(error)
                await wait(self._clock, asyncio.Event(), pause_ms)
                pause_ms = min(2 * pause_ms, BACK_OFF_MS[1])
                continue
            except Exception as error:  # noqa: BLE001 - a bug in one step must become lateness, not loss
                self._tell(TaskFailed(part="lane", error=describe(error)))
                self.doubt(list(self.tenures), "a step of the lane failed")
                await wait(self._clock, asyncio.Event(), pause_ms)
                pause_ms = min(2 * pause_ms, BACK_OFF_MS[1])
                continue
            if not self.tenures:
                self._store_back()  # who owns nothing has nothing to write
            if self._away_since_ms is None:
                pause_ms = BACK_OFF_MS[0]
            if not worked and not self._commands:
                await wait(self._clock, self._stir, self._idle_ms())

    async def _turn(self) -> bool:
        """Every step that is due, once."""
        worked = await self._obey()
        for step in (self._reload, self._settle, self._answer, self._release, self._scan, self._advance, self._swept):
            worked |= await step()
        return worked

    async def _obey(self) -> bool:
        if not self._commands:
            return False
        command, done = self._commands.popleft()
        try:
            await command()
        except BaseException as error:
            if done is not None and not done.done():
                done.set_exception(error)
            raise
        if done is not None and not done.done():
            done.set_result(None)
        return True

    def _idle_ms(self) -> int:
        now_ms, wall_ms = self._clock.steady_ms(), self._clock.wall_ms()
        waits = [self._next_poll_ms - now_ms if self.tenures else 1000, self._sweep.due_in_ms()]
        waits.extend(window.due_in_ms(wall_ms) for window in self._windows.values() if window.tenures)
        if self._outcomes:
            waits.append(self._first_outcome_ms + SETTLE_LINGER_MS - now_ms)
        return max(1, min(waits))

    # Steps

    async def _take(self, claims: Sequence[Claim]) -> None:
        try:
            self._took(await self._written((), self._ownership.take(claims)))
        finally:
            self.taking = False

    def _took(self, grants: Sequence[Grant]) -> None:
        for grant in grants:
            former = self.tenures.get(grant.shard)
            if former is not None:
                self._forget(former)
            tenure = Tenure(grant, careful_ms=self._clock.wall_ms() if grant.unclean else -1)
            self.tenures[grant.shard] = tenure
            self._windows[grant.shard.app].enter(tenure)
        if grants:
            unclean = sum(grant.unclean for grant in grants)
            self._tell(ShardsTaken(shards=[grant.shard for grant in grants], unclean=unclean))

    async def _mark(self, jobs: Sequence[Job], size: int, marked: set[bytes]) -> None:
        known = [
            job
            for job in jobs
            if (t := self.tenures.get(Shard(job.app, job.shard))) and (t.held.get(job.key) or t.out.get(job.key)) is job
        ]
        owners = self._owners(Shard(job.app, job.shard) for job in known)
        if owners:
            lost = await self._written(owners, self._ownership.mark(owners, known, size))
            written = owners.keys() - lost
            marked.update(job.key for job in known if Shard(job.app, job.shard) in written)
            self._lose(lost)

    async def _reload(self) -> bool:
        """Wait for what is still open in the store, see what is still owned, begin again from there [10]."""
        doubted = {shard: tenure for shard, tenure in self.tenures.items() if tenure.doubt is not None}
        if not doubted:
            return False
        owners = {shard: tenure.owner for shard, tenure in doubted.items()}
        handed_over = {key for tenure in doubted.values() for key in tenure.out}
        grants = {g.shard: g for g in await self._ownership.reload(owners, handed_over)}
        why = next(iter(doubted.values())).doubt or ""
        for shard, tenure in doubted.items():
            if shard in grants:
                self._windows[shard.app].forget(tenure)  # with what a step under way has brought since the doubt
                tenure.load(grants[shard])
        self._tell(Reloaded(shards=list(grants), why=why))
        self._lose(doubted.keys() - grants.keys())
        self._poked = True
        return True

    async def _settle(self) -> bool:
        """Make outcomes durable, fenced; what the handlers want again goes back onto the wheel [5, 8, 11]."""
        running = self._long_running()
        waited_ms = self._clock.steady_ms() - self._first_outcome_ms
        if not running and (
            not self._outcomes or (len(self._outcomes) < SETTLE_AT_ONCE and waited_ms < SETTLE_LINGER_MS)
        ):
            return False
        batch = self._due_outcomes()
        owners = self._owners([t.shard for t, _ in batch] + [Shard(r.job.app, r.job.shard) for r in running])
        if not owners:
            return False
        try:
            recorded = await self._written(owners, self._ownership.settle(owners, [s for _, s in batch], running))
        except SchedulerError:
            self._outcomes.extendleft(reversed(batch))
            raise
        except Exception as error:
            self._outcomes.extendleft(reversed(self._narrowed(batch, error)))
            raise
        if not self._outcomes:
            self._settle_at_most = SETTLE_AT_MOST
        self._settled(batch, recorded)
        return True

    def _narrowed(
        self, batch: Sequence[tuple[Tenure, Settlement]], error: Exception
    ) -> Sequence[tuple[Tenure, Settlement]]:
        """One of these outcomes cannot be recorded: they go one by one, and the one that fails alone fails its job."""
        self._settle_at_most = 1
        if len(batch) > 1:
            return batch
        return [(tenure, unrecordable(settlement, error)) for tenure, settlement in batch]

    def _due_outcomes(self) -> list[tuple[Tenure, Settlement]]:
        """The next outcomes of shards that are owned without doubt; those of lost shards are dropped."""
        batch, kept, dropped = list[tuple[Tenure, Settlement]](), deque[tuple[Tenure, Settlement]](), 0
        while self._outcomes and len(batch) < self._settle_at_most:
            tenure, settlement = self._outcomes.popleft()
            if self.tenures.get(tenure.shard) is not tenure:
                dropped += 1
            elif tenure.doubt is not None:
                kept.append((tenure, settlement))
            else:
                batch.append((tenure, settlement))
        self._outcomes.extendleft(reversed(kept))
        if dropped:
            self._tell(ShardsLost(shards=(), dropped=dropped))
        return batch

    def _settled(self, batch: Sequence[tuple[Tenure, Settlement]], recorded: Recorded) -> None:
        counts: dict[str, dict[str, int]] = {}
        sizes: dict[str, int] = {}
        again = []
        for tenure, s in batch:
            if tenure.shard in recorded.lost:
                continue
            app = s.job.app
            if tenure.out.pop(s.job.key, None) is not None:
                sizes[app] = sizes.get(app, 0) + s.job.size
            if tenure.shard in recorded.missed:
                continue
            what = "retried" if s.status is Status.PENDING else s.status.value
            per_app = counts.setdefault(app, {})
            per_app[what] = per_app.get(what, 0) + 1
            if s.status is Status.PENDING:
                again.append(msgspec.structs.replace(s.job, due_ms=s.due_ms, attempt=s.job.attempt + 1))
        for app, size in sizes.items():
            self._windows[app].done_with(size)
        for job in again:
            self._put(job)
        for shard, low_ms in recorded.low_ms.items():
            self.tenures[shard].low_ms = low_ms
        for app, per_app in counts.items():
            self._tell(Settled(app=app, counts=per_app))
        self._lose(recorded.lost)
        self.doubt(recorded.missed, "a job was not as this node remembered it")
        if self._outcomes:
            self._first_outcome_ms = self._clock.steady_ms()

    def _long_running(self) -> list[Running]:
        """Deliveries that take long are shown to people, in batches."""
        if self._clock.steady_ms() < self._shown_next_ms:
            return []
        self._shown_next_ms = self._clock.steady_ms() + self._settings.shown_ms
        since_ms = self._clock.wall_ms() - self._settings.shown_ms
        mine = (r for window in self._windows.values() for r in window.desk.long_running(since_ms))
        return [r for r in mine if self._sound(Shard(r.job.app, r.job.shard))]

    def _sound(self, shard: Shard) -> bool:
        tenure = self.tenures.get(shard)
        return tenure is not None and tenure.doubt is None

    async def _answer(self) -> bool:
        """Look for requests when poked, when a shard is new, or when it is time to [6, 7]."""
        sound = [t for t in self.tenures.values() if t.doubt is None]
        poked = self._poked or any(not t.greeted for t in sound)
        if not sound or (not poked and self._clock.steady_ms() < self._next_poll_ms):
            return False
        self._poked = False
        self._next_poll_ms = self._clock.steady_ms() + self._settings.request_poll_ms
        most = self._settings.answer_at_most
        asked = [t for t in sound if t.shard not in self._served] or sound
        try:
            requests = await self._ownership.requests([t.shard for t in asked], poked=poked, limit=most)
            if requests:
                await self._decide(requests)
        except BaseException:
            self._poked = True
            raise
        if named(requests) >= most:
            self._served.update(request.shard for request in requests)
            self._poked = True
            return True
        for tenure in asked:
            tenure.greeted = True
        if len(asked) < len(sound):
            self._poked = True  # now for those that were passed over
        self._served.clear()
        return bool(requests) or self._poked

    async def _decide(self, requests: Sequence[Request]) -> None:
        """Take the jobs in question off the wheel, decide in the store, then let memory follow [7]."""
        owners = self._owners(request.shard for request in requests)
        requests = [request for request in requests if request.shard in owners]
        handed_over: set[bytes] = set()
        off: dict[bytes, Job] = {}
        for request in requests:
            if request.change is None:
                continue
            tenure, (key,) = self.tenures[request.shard], request.keys
            if key in tenure.out:
                handed_over.add(key)
            elif (job := self._windows[request.shard.app].take_off(key, tenure)) is not None:
                off[key] = job
        answers = await self._written(owners, self._ownership.answer(owners, requests, handed_over))
        self._follow(answers, handed_over, off)

    def _follow(self, answers: Answers, handed_over: Collection[bytes], off: dict[bytes, Job]) -> None:
        for shard, low_ms in answers.low_ms.items():
            self.tenures[shard].low_ms = low_ms
        stands: dict[bytes, Job | None] = dict(off)
        for ruling in answers.rulings:
            if ruling.claimed:
                stands[ruling.request.keys[0]] = ruling.job
        for key, job in stands.items():
            if job is not None and key not in handed_over:
                self._put(job)
        for job in answers.woken:
            if job.key not in stands:
                self._put(job)
        for shard, place in answers.left:
            self.tenures[shard].rejoin(place)
        self._lose(answers.lost)

    def _put(self, job: Job) -> None:
        """Hold a job if it is due before the line; after it the scan will find it."""
        tenure = self.tenures.get(Shard(job.app, job.shard))
        if tenure is not None and job.due_ms < tenure.line_ms:
            self._windows[job.app].put(job)

    async def _release(self) -> bool:
        """Release what is drained, or call it off if it takes too long: never while a release is under way."""
        draining = [t for t in self.tenures.values() if t.draining and t.doubt is None]
        empty = [t for t in draining if not t.out]
        late = [
            t
            for t in draining
            if t.out and t.drain_until_ms is not None and t.drain_until_ms <= self._clock.steady_ms()
        ]
        for tenure in late:
            tenure.draining = False
            self._windows[tenure.shard.app].desk.resume(tenure)
        if late:
            self._tell(DrainCalledOff(shards=[t.shard for t in late]))
        if not empty:
            return bool(late)
        now_ms = self._clock.wall_ms()
        owners = {t.shard: t.owner for t in empty}
        low_ms = {t.shard: self._windows[t.shard.app].low_of(t, now_ms) for t in empty}
        await self._written(owners, self._ownership.release(owners, low_ms))
        for tenure in empty:
            self._forget(tenure)
        self._tell(ShardsReleased(shards=list(owners)))
        return True

    async def _scan(self) -> bool:
        """Read one page of one app, in turn [5]."""
        windows = list(self._windows.values())
        self._turns += 1
        for i in range(len(windows)):
            window = windows[(self._turns + i) % len(windows)]
            scan = window.next_scan(self._clock.wall_ms())
            if scan is None:
                continue
            window.begin(scan)
            try:
                page = await self._ownership.scan(scan)
            except BaseException:
                window.unread(scan, scan.start)
                raise
            window.scanned(scan, page)
            return True
        return False

    async def _advance(self) -> bool:
        """Move the lines that should move; what they passed is scanned in a later step, so after the commit [4]."""
        now_ms = self._clock.wall_ms()
        steps = {app: window.next_steps(now_ms) for app, window in self._windows.items()}
        every = [step for some in steps.values() for step in some]
        if not every:
            return False
        owners = {step.shard: step.owner for step in every}
        lost = await self._written(owners, self._ownership.advance(every))
        for app, some in steps.items():
            if some:
                self._windows[app].stepped(step for step in some if step.shard not in lost)
        self._lose(lost)
        return True

    async def _swept(self) -> bool:
        return await self._sweep.step(self._windows)

    # Ownership in memory

    def _owners(self, shards: Iterable[Shard]) -> dict[Shard, Owner]:
        """The reigns over these shards, as far as there is no doubt about them."""
        return {shard: self.tenures[shard].owner for shard in shards if self._sound(shard)}

    async def _written(self, owners: Collection[Shard], call: Awaitable[T]) -> T:
        """The result of a write; without one it is not known what was written, so its shards are in doubt [10]."""
        try:
            result = await call
        except BaseException:
            self.doubt(owners, "a write to the store had no answer")
            raise
        self._store_back()
        return result

    def _lose(self, shards: Collection[Shard]) -> None:
        """Other nodes own these shards now."""
        dropped = 0
        lost = [self.tenures[shard] for shard in shards if shard in self.tenures]
        for tenure in lost:
            dropped += len(tenure.out)
            self._forget(tenure)
        if lost:
            self._tell(ShardsLost(shards=[t.shard for t in lost], dropped=dropped))

    def _forget(self, tenure: Tenure) -> None:
        self._windows[tenure.shard.app].leave(tenure)
        if self.tenures.get(tenure.shard) is tenure:
            del self.tenures[tenure.shard]

    def _store_away(self, error: Exception) -> None:
        if self._away_since_ms is None:
            self._away_since_ms = self._clock.steady_ms()
            self._tell(StoreAway(error=describe(error), kept=len(self._outcomes)))

    def _store_back(self) -> None:
        """It has taken a write: that it can be read says little, as a full disk can be."""
        if self._away_since_ms is not None:
            self._tell(StoreBack(away_ms=self._clock.steady_ms() - self._away_since_ms))
            self._away_since_ms = None
