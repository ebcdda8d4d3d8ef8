"""Everything a node does to its shards: one step at a time, applied to memory before the next begins.

The rules that are named here are those of docs/concepts/line-protocol.md.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice

import msgspec

from infinite_scheduler.clock import Clock, wait
from infinite_scheduler.engine.answerer import Answerer, RequestPoll
from infinite_scheduler.engine.judge import describe
from infinite_scheduler.engine.owned_shards import OwnedShards
from infinite_scheduler.engine.quarantine import LIFTED
from infinite_scheduler.engine.settler import AT_MOST, Settler
from infinite_scheduler.engine.store_outage import StoreOutage
from infinite_scheduler.engine.sweep import Sweep
from infinite_scheduler.engine.window import Window
from infinite_scheduler.errors import SchedulerError
from infinite_scheduler.model import Job, Owner, Shard
from infinite_scheduler.observe.events import DrainCalledOff, Observer, Reloaded, ShardsReleased, TaskFailed
from infinite_scheduler.store.ownership import Claim, Ownership, Page, Scan, Step

SATURATED = 2 * AT_MOST
"""With this many outcomes to settle, the lane is behind."""

BACK_OFF_MS = (50, 1000)
"""The first and the longest wait for a store that does not answer."""


SHARDS_AT_ONCE = 256
"""Shards that one step locks: a server has room for some thousands of locks, and others wait for them."""


MANY_WINDOWS = 8
"""From this many apps on, it is worth a statement to find out which have nothing to read."""

SCANS_AT_ONCE = 128
"""At most this many apps are named in one such statement."""

EMPTY = Page(jobs=(), next=None)


class LaneSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The intervals and limits of a lane."""

    request_poll_ms: int = 50
    sweep_ms: int = 60_000
    shown_ms: int = 1000
    answer_at_most: int = 1000  # jobs named by requests per transaction; payloads are read as far as there is room


class Lane:
    """Runs the shards of one lane: answers requests, moves lines, reads pages, settles outcomes, releases.

    Rules: settle_in_lane, answer_in_lane.
    """

    def __init__(
        self,
        ownership: Ownership,
        windows: Mapping[str, Window],
        poll: RequestPoll,
        clock: Clock,
        settings: LaneSettings,
        tell: Observer,
    ) -> None:
        self._ownership = ownership
        self._windows = windows
        self._clock = clock
        self._tell = tell
        self._stir = asyncio.Event()
        self._commands: deque[tuple[Callable[[], Awaitable[None]], asyncio.Future[None] | None]] = deque()
        self._turns = 0
        self._outage = StoreOutage(clock, tell)
        self.taking = False  # claimed shards may arrive at any moment
        self.owned_shards = OwnedShards(windows, self._outage, clock, tell, marks=ownership.marks is not None)
        self.settler = Settler(
            ownership, self.owned_shards, clock, tell, shown_ms=settings.shown_ms, wake=self._stir.set
        )
        self._answerer = Answerer(
            ownership, self.owned_shards, poll, at_most=settings.answer_at_most, wake=self._stir.set
        )
        self._sweep = Sweep(ownership, windows.values(), clock, settings.sweep_ms, tell)

    # What others ask of the lane or tell it

    def owners(self) -> Mapping[Shard, Owner]:
        """The shards held, each with its owner and epoch; the same mapping until a shard comes or goes."""
        return self.owned_shards.owners()

    def unsettled(self) -> Collection[Shard]:
        """Shards with suspects about to be handed over: on another node that would take longer, in smaller windows."""
        closed = {app for app, window in self._windows.items() if window.dispatcher.closed}
        owned_shards = self.owned_shards.by_shard
        return {shard for shard, owned in owned_shards.items() if owned.has_suspects and shard.app not in closed}

    @property
    def saturation(self) -> float:
        """How far this lane is behind: below 1 it is not. During a store outage it counts as not behind."""
        if self._outage.ongoing:
            return 0.0
        return max(self.settler.kept / SATURATED, float(any(window.behind for window in self._windows.values())))

    def poke(self) -> None:
        """Note that requests may be waiting."""
        self._answerer.poke()

    def take(self, claims: Sequence[Claim]) -> None:
        """Own these shards, as far as possible, at the lane's next step; the call does not wait for it."""
        self.taking = True
        for start in range(0, len(claims), SHARDS_AT_ONCE):
            some = claims[start : start + SHARDS_AT_ONCE]
            self._commands.append((partial(self._take, some), None))
        self._commands.append((self._all_taken, None))
        self._stir.set()

    async def mark(self, jobs: Sequence[Job], size: int) -> Collection[bytes]:
        """Make durable in which window of suspects these jobs are. Returns the keys of the marked ones."""
        marked: set[bytes] = set()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._commands.append((lambda: self._mark(jobs, size, marked), done))
        self._stir.set()
        await done
        return marked

    def drain(self, shards: Collection[Shard], *, for_ms: int | None = None) -> None:
        """Hand over no more of these shards, and release them when nothing is in flight; call it off after a while."""
        until_ms = None if for_ms is None else self._clock.steady_ms() + for_ms
        self.owned_shards.drain(shards, until_ms)
        self._stir.set()

    def doubt(self, shards: Iterable[Shard], why: str) -> None:
        """Check in the store what is owned of these before anything more is handed over or written."""
        self.owned_shards.doubt(shards, why)
        self._stir.set()

    # The lane's own run

    async def run(self) -> None:
        """Run the steps for as long as the node lives; wait while the store does not answer."""
        pause_ms = BACK_OFF_MS[0]
        while True:
            self._stir.clear()
            try:
                worked = await self._turn()
            except SchedulerError as error:
                self._outage.begin(error, self.settler.kept)
                pause_ms = await self._back_off(pause_ms)
                continue
            except Exception as error:  # noqa: BLE001 - a bug in one step must cause lateness, not loss
                self._tell(TaskFailed(part="lane", error=describe(error)))
                self.owned_shards.doubt(list(self.owned_shards.by_shard), "a step of the lane failed")
                pause_ms = await self._back_off(pause_ms)
                continue
            if not self.owned_shards.by_shard:
                self._outage.end()  # a node that owns nothing has nothing to write
            if not self._outage.ongoing:
                pause_ms = BACK_OFF_MS[0]
            if not worked and not self._commands:
                await wait(self._clock, self._stir, self._idle_ms())

    async def _turn(self) -> bool:
        """Run every step that is due, once."""
        worked = await self._obey()
        for step in (
            self._reload,
            self.settler.step,
            self._answerer.step,
            self._release,
            self._scan,
            self._advance,
            self._sweep.step,
        ):
            worked |= await step()
        return worked

    async def _back_off(self, pause_ms: int) -> int:
        """Wait this long, whatever wakes the lane; the next time twice as long."""
        await wait(self._clock, asyncio.Event(), pause_ms)
        return min(2 * pause_ms, BACK_OFF_MS[1])

    def _idle_ms(self) -> int:
        """Time until the next step is due."""
        wall_ms = self._clock.wall_ms()
        waits = [self._answerer.due_in_ms(), self._sweep.due_in_ms()]
        waits.extend(window.due_in_ms(wall_ms) for window in self._windows.values())
        settle_in_ms = self.settler.due_in_ms()
        if settle_in_ms is not None:
            waits.append(settle_in_ms)
        return max(1, min(waits))

    # Steps

    async def _obey(self) -> bool:
        """Do one thing that was asked for."""
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

    async def _take(self, claims: Sequence[Claim]) -> None:
        self.owned_shards.enter(await self.owned_shards.written((), self._ownership.take(claims)))

    async def _all_taken(self) -> None:
        self.taking = False

    async def _mark(self, jobs: Sequence[Job], size: int, marked: set[bytes]) -> None:
        owned_shards = self.owned_shards.by_shard
        known = [
            job
            for job in jobs
            if (owned := owned_shards.get(Shard(job.app, job.shard)))
            and (owned.held.get(job.key) or owned.handed_over.get(job.key)) is job
        ]
        owners = self.owned_shards.owners_of(Shard(job.app, job.shard) for job in known)
        marks = self._ownership.marks
        if owners and marks is not None:
            lost = await self.owned_shards.written(owners, marks.mark(owners, known, size))
            written = owners.keys() - lost
            marked.update(job.key for job in known if Shard(job.app, job.shard) in written)
            self.owned_shards.lose(lost)

    async def _reload(self) -> bool:
        """Wait for open transactions in the store, see what is still owned, and continue from there.

        Rules: reload_waits_for_lock, reload_keeps_handed_over, lapse_reloads.
        """
        doubted = dict(islice(self.owned_shards.doubted.items(), SHARDS_AT_ONCE))
        if not doubted:
            return False
        owners = {shard: owned.owner for shard, owned in doubted.items()}
        handed_over = {key for owned in doubted.values() for key in owned.handed_over}
        grants = {g.shard: g for g in await self._ownership.reload(owners, handed_over, LIFTED)}
        why = next(iter(doubted.values())).doubt or ""
        for shard, owned in doubted.items():
            if self.owned_shards.doubted.get(shard) is owned and shard in grants:
                self.owned_shards.reload(grants[shard])
        self._tell(Reloaded(shards=list(grants), why=why))
        self.owned_shards.lose(doubted.keys() - grants.keys())
        self._answerer.poke()
        return True

    async def _release(self) -> bool:
        """Release what is drained, or call it off if it takes too long, but never during a release.

        Rules: drain_waits_for_settles, drain_is_called_off_in_lane.
        """
        draining = [owned for owned in self.owned_shards.draining.values() if owned.doubt is None]
        empty = [owned for owned in draining if not owned.handed_over and not owned.came_back][:SHARDS_AT_ONCE]
        late = [
            owned
            for owned in draining
            if owned.handed_over
            and owned.drain_until_ms is not None
            and owned.drain_until_ms <= self._clock.steady_ms()
        ]
        for owned in late:
            self.owned_shards.call_off_drain(owned)
        if late:
            self._tell(DrainCalledOff(shards=[owned.shard for owned in late]))
        if not empty:
            return bool(late)
        now_ms = self._clock.wall_ms()
        owners = {owned.shard: owned.owner for owned in empty}
        low_ms = {owned.shard: self._windows[owned.shard.app].low_of(owned, now_ms) for owned in empty}
        await self.owned_shards.written(owners, self._ownership.release(owners, low_ms, LIFTED))
        for owned in empty:
            self.owned_shards.leave(owned)
        self._tell(ShardsReleased(shards=list(owners)))
        return True

    async def _scan(self) -> bool:
        """Read one page of one app; the apps take turns. If many are to be read, those without jobs are found first."""
        windows = self.owned_shards.active()
        worked = len(windows) >= MANY_WINDOWS and await self._find_empty(windows)
        if worked:
            windows = [window for window in windows if not window.may_be_empty]
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
        return worked

    async def _find_empty(self, windows: Iterable[Window]) -> bool:
        """Count the ranges as read in which some of many apps have nothing, as scans of them would find."""
        scans: dict[str, Scan] = {}
        now_ms = self._clock.wall_ms()
        for window in windows:
            if window.may_be_empty and (scan := window.next_scan(now_ms)) is not None:
                scans[window.app] = scan
                if len(scans) == SCANS_AT_ONCE:
                    break
        if len(scans) < MANY_WINDOWS:
            return False
        for app, scan in scans.items():
            self._windows[app].begin(scan)
        empty: Collection[str] | None = None
        try:
            empty = await self._ownership.apps_without_jobs(list(scans.values()))
        finally:
            for app, scan in scans.items():
                window = self._windows[app]
                if app in (empty or ()):
                    window.scanned(scan, EMPTY)
                else:
                    window.unread(scan, scan.start)
                    window.may_be_empty = empty is None  # without an answer nothing is known
        return bool(empty)

    async def _advance(self) -> bool:
        """Move the lines that should move; what they passed is scanned in a later step, so after the commit.

        Rule: line_moves_before_scan.
        """
        now_ms = self._clock.wall_ms()
        steps: dict[str, list[Step]] = {}
        every: list[Step] = []
        for app, window in self._windows.items():
            if some := window.next_steps(now_ms):
                steps[app] = some
                every += some
                if len(every) >= SHARDS_AT_ONCE:
                    break
        if not every:
            return False
        owners = {step.shard: step.owner for step in every}
        lost = await self.owned_shards.written(owners, self._ownership.advance(every))
        for app, some in steps.items():
            self._windows[app].stepped(step for step in some if step.shard not in lost)
        self.owned_shards.lose(lost)
        return True
