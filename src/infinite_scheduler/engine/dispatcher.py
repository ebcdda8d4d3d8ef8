"""Where the due jobs of one app wait for their handler and are handed over.

The rules that are named here are those of docs/concepts/line-protocol.md.
"""

import asyncio
from collections.abc import Callable, Sequence
from copy import copy

import msgspec

from infinite_scheduler.clock import Clock
from infinite_scheduler.engine.destination_outage import DestinationOutage
from infinite_scheduler.engine.judge import Judge, interrupted
from infinite_scheduler.engine.lease import Gate
from infinite_scheduler.engine.owned_shard import OwnedShard
from infinite_scheduler.engine.wheel import Wheel
from infinite_scheduler.errors import DestinationAway
from infinite_scheduler.handlers.base import Handler
from infinite_scheduler.model import Expired, Failed, Job, Outcome, Status, key_text
from infinite_scheduler.observe.events import AttemptFailed, CallsEnded, Early, HandedOver, JobsHeldBack, Observer
from infinite_scheduler.policy.misfire import Misfire
from infinite_scheduler.policy.priority import PriorityQueue
from infinite_scheduler.policy.retry import RetryPolicy
from infinite_scheduler.store.ownership import Running, Settlement

AT_ONCE = 64
"""Calls of handlers begun between two checks of the gate and the clock: well under a millisecond."""

CANCELLED = "the call was cancelled, by its handler or by other code of this program"


class AppPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How the jobs of one app are handed over."""

    name: str
    handler: Handler
    retry: RetryPolicy
    misfire: Misfire
    misfire_threshold_ms: int = 60_000
    concurrency: int = 20


class Flight(msgspec.Struct, gc=False):
    """A delivery in progress."""

    job: Job
    owned: OwnedShard
    started_ms: int
    marked: bool
    outages: int  # of the destination that had ended when it began
    size: int | None = None  # of the window in which it was when its process ended
    alone: bool = False  # handed over by the quarantine, with nothing else in flight
    shown: bool = False  # people see it as running


Sink = Callable[[OwnedShard, Settlement], None]
"""Takes the end of a delivery, to be made durable."""

ShowNoMore = Callable[[OwnedShard, Job], None]
"""Takes a job that was shown as running and came back without an outcome."""

QuarantineJob = Callable[[Job, OwnedShard], None]
"""Takes a job that may have ended a process, to be handed over with care."""

Release = Callable[[str, int], None]
"""Is told that a number of jobs of an app are not held any more; some of them may be in quarantine."""


class Dispatcher:
    """One app's due jobs on their way to the handler: by priority, then due time, within the app's concurrency."""

    def __init__(self, plan: AppPlan, clock: Clock, gate: Gate, judge: Judge, tell: Observer) -> None:
        self.app = plan.name
        self.wheel: Wheel[Job] = Wheel()
        self.owned_shards: dict[int, OwnedShard] = {}
        self.flights: dict[bytes, Flight] = {}
        self.paused = False
        self.outage = DestinationOutage(plan.name, clock, tell, self.stir)
        self.sink: Sink = _unwired
        self.show_no_more: ShowNoMore = _unwired
        self.ask: Callable[[], None] = _unwired  # has the destination probed without a job
        self.quarantine_job: QuarantineJob = _unwired
        self.release: Release = _unwired
        self._plan = plan
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._gate = gate
        self._judge = judge
        self._tell = tell
        self._ready: PriorityQueue[Job] = PriorityQueue()
        self._free = plan.concurrency
        self._begun = 0
        self._calls: dict[int, asyncio.Task[None]] = {}  # calls of the handler in progress, in the order of their start
        self._not_begun: dict[int, Sequence[Job]] = {}  # their jobs, until their first step
        self._stirred = False
        self._came_back = 0  # jobs, since that was last reported
        self._lateness: list[int] = []  # of jobs that are on their way to their handler, until that is reported
        self._took_us: list[int] = []  # of calls that have ended, until that is reported
        self._interrupting = False
        self.alarm: Callable[[], None] = _nothing  # called when the wheel's next moment may be earlier

    # Jobs come in

    def receive(self, job: Job, owned: OwnedShard) -> None:
        """Hold a job until it is due."""
        if job.due_ms <= owned.suspect_until_ms or job.key in owned.suspects:
            owned.quarantined[job.key] = job
            self.quarantine_job(job, owned)
        elif job.due_ms <= self._gate.now_ms():
            self.queue(job)
        else:
            next_ms = self.wheel.next_due_ms()
            self.wheel.add(job.due_ms, job.key, job)
            if next_ms is None or job.due_ms < next_ms:
                self.alarm()

    def tick(self, now_ms: int) -> int:
        """Queue the jobs that are due by now for the handler. Returns how many they are.

        Rule: fires_when_due.
        """
        due = self.wheel.pop_due(now_ms)
        for job in due:
            self._ready.push(job.priority, job.due_ms, job)
        self.fill()
        return len(due)

    def queue(self, job: Job) -> None:
        """Queue a due job for its turn."""
        self._ready.push(job.priority, job.due_ms, job)
        self.stir()

    def resume(self, owned: OwnedShard) -> None:
        """Hand over the jobs of a shard again."""
        parked, owned.parked = owned.parked, []
        for job in parked:
            if owned.held.get(job.key) is job:
                self.receive(job, owned)

    def last_after(self, job: Job, share: int) -> Job | None:
        """Give up the job that would be handed over last, if that is after this one.

        Of a lower priority, `share` ready jobs stay; while it has fewer, an overdue job of it goes before the last job
        of the higher ones.
        """
        latest_ms = self.wheel.latest_due_ms()
        if latest_ms is not None and latest_ms > job.due_ms:
            popped = self.wheel.pop_latest()
            return popped[1] if popped else None
        by, due_ms = job.priority, job.due_ms
        owed = self._ready.waiting(by) < share and due_ms <= self._gate.now_ms()
        while (last := self._ready.drop_last(by, share, owed=owed)) is not None:
            if not self._holds(last):
                continue
            if last.priority is not by or last.due_ms > due_ms:
                return last
            self._ready.push(by, last.due_ms, last)
            return None
        return None

    def dropped(self, count: int) -> None:
        """Note that `count` jobs that waited here, not on the wheel, are not held by any owned shard any more.

        They are dropped now: while the app is paused or at its concurrency limit, they would never reach their turn.
        """
        self._ready.outdate(count, self._holds)
        self.release(self.app, count)

    def _holds(self, job: Job) -> bool:
        """Is exactly this job held by an owned shard?"""
        owned = self.owned_shards.get(job.shard)
        return owned is not None and owned.held.get(job.key) is job

    def oldest_waiting_ms(self) -> int | None:
        """The due moment of the oldest job that waits here, or an earlier one."""
        moments = [ms for ms in (self._ready.peek_due_ms(), self.wheel.next_due_ms()) if ms is not None]
        return min(moments, default=None)

    # Jobs go out

    @property
    def closed(self) -> bool:
        """Does it hand over nothing but probes: is the app paused, or its destination away?"""
        return self.paused or self.outage.ongoing

    @property
    def most(self) -> int:
        """How many jobs the next call may have: one that probes a destination that was away; none while it is."""
        if self.paused:
            return 0
        if self.outage.ongoing:
            return int(self.outage.may_probe)
        return self._plan.handler.batch

    @property
    def has_ready(self) -> bool:
        """Are there due jobs that are not handed over?"""
        return bool(len(self._ready))

    def stir(self) -> None:
        """Look for work soon, once for all calls until then."""
        if not self._stirred:
            self._stirred = True
            self._loop.call_soon(self.fill)

    def fill(self) -> None:
        """Hand over ready jobs, as far as the concurrency allows."""
        self._stirred = False
        if self._not_begun:
            self._recall()
        lateness = self._lateness
        if lateness and not self._not_begun:  # so all of them have had their last look
            self._lateness = []
            self._tell(HandedOver(app=self.app, lateness_ms=lateness))
            lateness = self._lateness
        if self._took_us:
            took_us, self._took_us = self._took_us, []
            self._tell(CallsEnded(app=self.app, took_us=took_us))
        if self._came_back:
            count, self._came_back = self._came_back, 0
            self._tell(JobsHeldBack(app=self.app, count=count))
        while self._free > 0 and len(self._ready) and (most := self.most) and self._gate.open:
            now_ms = self._gate.now_ms()
            for _ in range(1 if self.outage.ongoing else min(self._free, AT_ONCE)):
                batch = self._next_batch(now_ms, most)
                if not batch:
                    break
                lateness += [now_ms - job.due_ms for job in batch]
                self._start(batch)
        if lateness:
            self.stir()
        if self.outage.ongoing and self.lacks_probe:
            self.ask()

    @property
    def lacks_probe(self) -> bool:
        """Is it time to probe the destination, and nothing there to do it with: not due, not in flight, not parked?"""
        if not self.outage.may_probe or self.has_ready or self.flights:
            return False
        return not any(owned.quarantined or owned.parked for owned in self.owned_shards.values())

    async def look(self) -> None:
        """Probe the destination without a job."""
        await self.outage.look(self._plan.handler.ready)

    def _next_batch(self, now_ms: int, most: int) -> list[Job]:
        batch: list[Job] = []
        tried: list[Job] = []  # jobs that have probed the destination before
        probes = self.outage.ongoing
        while len(batch) < most and len(self._ready):
            job = self._ready.pop()
            owned = self.owned_shards.get(job.shard)
            if owned is None or owned.held.get(job.key) is not job:
                continue  # cancelled, moved, displaced or lost since it was queued
            if probes and self.outage.has_tried(job):
                tried.append(job)
            elif not owned.may_fire:
                owned.parked.append(job)
            elif job.due_ms > now_ms:  # a clock was set back
                self.wheel.add(job.due_ms, job.key, job)
                self.alarm()
            elif not self._expire(job, owned, now_ms):
                self._launch(job, owned, now_ms)
                batch.append(job)
        if tried:
            self._queue_tried(tried, others=bool(batch))
        return batch

    def _queue_tried(self, jobs: Sequence[Job], *, others: bool) -> None:
        """Queue jobs again that have probed the destination before; if there are no others, they may probe again."""
        for job in jobs:
            self._ready.push(job.priority, job.due_ms, job)
        if not others:
            self.outage.try_all_again()

    def _expire(self, job: Job, owned: OwnedShard, now_ms: int) -> bool:
        """Settle a job without handing it over: it is too late by the app's policy."""
        reason = self._plan.misfire.decide(
            due_ms=job.due_ms,
            accepted_ms=job.created_ms,
            now_ms=now_ms,
            threshold_ms=self._plan.misfire_threshold_ms,
        )
        if reason is None:
            return False
        self._launch(job, owned, now_ms)
        self.report(job, Expired(reason))
        return True

    def fail(self, job: Job, reason: str) -> None:
        """Settle a job as failed without handing it over."""
        self._launch(job, self.owned_shards[job.shard], self._clock.wall_ms())
        self.report(job, Failed(reason))

    def fire_alone(self, job: Job) -> None:
        """Hand this job over now, though the gate is shut for all others."""
        now_ms = self._gate.now_ms()
        owned = self.owned_shards[job.shard]
        if not self._expire(job, owned, now_ms):
            self._launch(job, owned, now_ms)
            self.flights[job.key].alone = True
            self._start([job])
            self._lateness.append(now_ms - job.due_ms)
            self.stir()

    def _start(self, batch: Sequence[Job]) -> None:
        if self.outage.ongoing:
            self.outage.probe(batch[0])
        self._free -= 1
        number = self._begun = self._begun + 1
        self._not_begun[number] = batch
        self._calls[number] = self._loop.create_task(self._deliver(batch, number), name=self.app)

    def _launch(self, job: Job, owned: OwnedShard, now_ms: int) -> None:
        """Mark the job as handed over: from now on it cannot be cancelled."""
        key = job.key
        del owned.held[key]
        owned.handed_over[key] = job
        marked = owned.quarantined.pop(key, None) is not None
        size = owned.suspects.pop(key, None) if marked else None
        self.flights[key] = Flight(job, owned, now_ms, marked, self.outage.ended, size)

    async def _deliver(self, batch: Sequence[Job], number: int) -> None:
        del self._not_begun[number]
        began_us = self._clock.steady_us()
        try:
            batch = self._last_look(batch)
            if batch:
                await self._plan.handler.handle(batch, self.report)
        except BaseException as error:  # an adapter that breaks its promise must not lose jobs
            self._ended_by(error, batch)
            if not isinstance(error, Exception | asyncio.CancelledError):
                raise
        else:
            for job in batch:
                if job.key in self.flights:  # or a copy of it that came back and is handed over again
                    self.report(job, RuntimeError("the handler ended without reporting this job"))
        finally:  # as `_end_call`, written out: this is the path of every job
            if batch:
                self._took_us.append(self._clock.steady_us() - began_us)
            self._free += 1
            del self._calls[number]
            self.stir()

    def _end_call(self, number: int) -> None:
        self._free += 1
        del self._calls[number]
        self.stir()

    def _recall(self) -> None:
        """Hand over again what a task was to hand over that was cancelled before its first step: no code of it has run.

        A handler that cancels all tasks does that. A job that was to be alone is left to the quarantine.
        """
        for number in [number for number in self._not_begun if self._calls[number].done()]:
            batch = self._not_begun.pop(number)
            self._end_call(number)
            for job in batch:
                flight = self._taken_back(job)
                if flight and not flight.alone:
                    self.queue(job)

    def _last_look(self, batch: Sequence[Job]) -> Sequence[Job]:
        """The jobs that may still be handed over: other tasks may have run, or a clock was set back.

        No handler was called yet, so the others can be taken back.

        Rules: lapse_stops_firing, fires_when_due.
        """
        if not self._gate.lease.valid():
            for job in batch:
                self._park(self._taken_back(job))
            return ()
        now_ms = self._gate.now_ms()
        for job in batch:
            if job.due_ms > now_ms:
                return self._without_early(batch, now_ms)
        return batch

    def _without_early(self, batch: Sequence[Job], now_ms: int) -> Sequence[Job]:
        """Take those back that are not due by now."""
        early = [job for job in batch if job.due_ms > now_ms]
        for job in early:
            self._wait_again(self._taken_back(job))
        self._tell(Early(app=self.app, count=len(early)))
        return [job for job in batch if job.due_ms <= now_ms]

    def _ended_by(self, error: BaseException, batch: Sequence[Job]) -> None:
        """Report the remaining jobs with this error; they are retried at once if the node had to stop.

        A call that was cancelled otherwise has failed: it cannot be told whether the handler cancelled itself, and one
        that does so each time must come to an end.
        """
        for job in batch:
            match error:
                case asyncio.CancelledError() if self._interrupting:
                    self._interrupted(job)
                case asyncio.CancelledError():
                    self.report(job, RuntimeError(CANCELLED))
                case Exception():
                    self.report(job, error)
                case _:
                    self.report(job, RuntimeError(f"the handler raised {type(error).__name__}"))

    def _taken_back(self, job: Job) -> Flight | None:
        """Undo a hand-over that did not take place; None if it has ended, or the shard is not owned any more."""
        self.outage.call_off(job)
        flight = self.flights.get(job.key)
        if flight is None or flight.job is not job:
            return None
        del self.flights[job.key]
        self._lateness.remove(flight.started_ms - job.due_ms)
        owned = flight.owned
        if owned.handed_over.pop(job.key, None) is None:
            return None
        owned.held[job.key] = job
        if flight.marked:
            owned.quarantined[job.key] = job
        if flight.size is not None:
            owned.suspects[job.key] = flight.size
        if flight.shown:
            self.show_no_more(owned, job)
        return flight

    def _park(self, flight: Flight | None) -> None:
        """Hold a job that was taken back until its shard is reloaded."""
        if flight:
            flight.owned.parked.append(flight.job)

    def _wait_again(self, flight: Flight | None) -> None:
        """Hold a job that was taken back until its moment; one that was alone goes back to the quarantine."""
        if flight and not flight.alone:
            self.wheel.add(flight.job.due_ms, flight.job.key, flight.job)
            self.alarm()

    def report(self, job: Job, outcome: Outcome | BaseException) -> None:
        """Take the end of a delivery; a second report of the same one is ignored."""
        flight = self.flights.get(job.key)
        if flight is None or flight.job is not job:
            return
        del self.flights[job.key]
        if isinstance(outcome, DestinationAway):
            self.outage.away(job, outcome, flight.outages)
            self._hold_back(flight)
            return
        if self.outage.ongoing:
            self.outage.answered(job, outcome)
        settlement = self._judge.settlement(
            job,
            outcome,
            started_ms=flight.started_ms,
            finished_ms=self._clock.wall_ms(),
            marked=flight.marked,
            shown=flight.shown,
        )
        if settlement.error is not None and settlement.status is not Status.EXPIRED:
            self._tell(
                AttemptFailed(
                    app=self.app,
                    job_id=key_text(job.key),
                    attempt=job.attempt,
                    error=settlement.error,
                    request_id=job.request_id,
                    next_due_ms=settlement.due_ms if settlement.status is Status.PENDING else None,
                    cause=outcome if isinstance(outcome, BaseException) else None,
                )
            )
        self.sink(flight.owned, settlement)

    def _hold_back(self, flight: Flight) -> None:
        """Undo a hand-over that the destination did not take: the job waits again, as the same attempt.

        A copy of it waits: a second report, and the end of the call that it came with, are about the old one. One that
        was alone is known to the quarantine by identity, which hands it over again.
        """
        job, owned = flight.job, flight.owned
        if flight.alone and owned.doubt is not None:
            self._settle_again(flight, "its destination was away")  # or its mark would stay and charge it with a death
            return
        if owned.handed_over.pop(job.key, None) is None:
            return  # the shard was lost: its new owner hands the job over
        self._came_back += 1
        if flight.shown:
            self.show_no_more(owned, job)
        job = job if flight.alone else copy(job)
        owned.held[job.key] = job
        if flight.marked:
            owned.quarantined[job.key] = job
        if not flight.alone:
            self.queue(job)

    def _interrupted(self, job: Job) -> None:
        flight = self.flights.get(job.key)
        if flight is not None and flight.job is job:
            del self.flights[job.key]
            self._settle_again(flight, "the node was stopped before the handler ended")

    def _settle_again(self, flight: Flight, why: str) -> None:
        now_ms = self._clock.wall_ms()
        self.sink(
            flight.owned,
            interrupted(flight.job, why, started_ms=flight.started_ms, finished_ms=now_ms, marked=flight.marked),
        )

    def long_running(self, since_ms: int, sound: Callable[[OwnedShard], bool]) -> list[Running]:
        """Deliveries of sound shards that began before `since_ms` and have not been shown yet."""
        found = [f for f in self.flights.values() if not f.shown and f.started_ms <= since_ms and sound(f.owned)]
        for flight in found:
            flight.shown = True
        return [Running(job=f.job, started_ms=f.started_ms) for f in found]

    @property
    def busy(self) -> bool:
        """Is a handler working on anything, even on jobs that are already reported?"""
        return bool(self._calls)

    def interrupt(self) -> Sequence[Job]:
        """Cancel what can be cancelled: the node must stop. Returns the jobs whose handlers go on, unsettled."""
        running = [job for job in self._plan.handler.unfinished() if job.key in self.flights]
        for job in running:
            del self.flights[job.key]
        self._interrupting = True
        for call in self._calls.values():
            call.cancel()
        self.stir()
        return running


def _unwired(*_: object) -> None:
    raise AssertionError("the engine must connect this object before it is used")


def _nothing() -> None:
    return
