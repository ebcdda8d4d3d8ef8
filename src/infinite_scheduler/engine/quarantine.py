"""Finds the job that ends its process: what was in flight when one died is fired in marked batches that get smaller."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from infinite_scheduler.clock import Clock, sleep
from infinite_scheduler.engine.dispatch import Desk
from infinite_scheduler.engine.lease import Gate
from infinite_scheduler.engine.tenure import Tenure
from infinite_scheduler.errors import SchedulerError
from infinite_scheduler.model import Job
from infinite_scheduler.observe.events import Observer, PoisonFailed, SuspectsFound
from infinite_scheduler.policy.priority import PriorityQueue
from infinite_scheduler.store.base import ALONE, FEW, MANY

SIZES = (MANY, FEW, ALONE)

LOOK_MS = 5
"""How often a batch is looked at, whether it has ended."""

IDLE_MS = 100
"""How often suspects that may not fire now, as their app is paused or the clock stepped back, are looked at again."""

LEFT_BEHIND_MS = 10_000
"""How long a function that was reported as timed out, and still runs in its thread, can hold up a suspect."""

POISON = "ended its process: it was the only job in flight when the process died"

Mark = Callable[[Sequence[Job], int], Awaitable[None]]
"""Makes it durable that these jobs are about to be fired in a batch of this size."""


class Quarantine:
    """Holds suspects back and fires one batch of one app at a time, each marked first."""

    def __init__(self, desks: Mapping[str, Desk], gate: Gate, clock: Clock, mark: Mark, tell: Observer) -> None:
        self._desks = desks
        self._gate = gate
        self._clock = clock
        self._mark = mark
        self._tell = tell
        self._waiting: dict[int, dict[str, PriorityQueue[Job]]] = {
            size: {app: PriorityQueue() for app in desks} for size in SIZES
        }
        self._stir = asyncio.Event()

    def detain(self, job: Job, tenure: Tenure) -> None:
        """Take a job that may have ended a process."""
        size = tenure.suspects.get(job.key)
        if size == ALONE and tenure.charged:
            self._desks[job.app].fail(job, POISON)
            self._tell(PoisonFailed(app=job.app, job_id=job.id))
            return
        self._wait(job, _next_size(size))

    def _wait(self, job: Job, size: int) -> None:
        self._waiting[size][job.app].push(job.priority, job.due_ms, job)
        self._stir.set()

    async def run(self) -> None:
        """Fire batch after batch, the largest first: most jobs are innocent."""
        while True:
            self._stir.clear()
            batch, size = self._next_batch() if self._gate.open else ([], 0)
            if batch:
                await self._fire(batch, size)
            elif any(len(queue) for queues in self._waiting.values() for queue in queues.values()):
                await sleep(self._clock, IDLE_MS if self._gate.open else LOOK_MS)
            else:
                await self._stir.wait()

    def _next_batch(self) -> tuple[list[Job], int]:
        """Suspects of one app that may fire now; the apps take turns."""
        for size, queues in self._waiting.items():
            for app in list(queues):
                batch = self._batch_of(app, size)
                if batch:
                    queues[app] = queues.pop(app)  # to the end of the line
                    return batch, size
        return [], 0

    def _batch_of(self, app: str, size: int) -> list[Job]:
        waiting, batch = self._waiting[size][app], list[Job]()
        if self._desks[app].paused:
            return batch
        now_ms = self._clock.wall_ms()
        while len(waiting) and len(batch) < size:
            job = waiting.pop()
            tenure = self._tenure(job)
            if tenure is None:
                continue
            if job.due_ms > now_ms:  # the wall clock stepped back
                self._wait(job, size)
                break
            if tenure.may_fire:
                batch.append(job)
            else:
                tenure.parked.append(job)
        return batch

    def _tenure(self, job: Job) -> Tenure | None:
        """The reign that holds this very job, if any still does."""
        tenure = self._desks[job.app].tenures.get(job.shard)
        return tenure if tenure is not None and tenure.detained.get(job.key) is job else None

    async def _fire(self, batch: Sequence[Job], size: int) -> None:
        if size < MANY:
            self._tell(SuspectsFound(app=batch[0].app, count=len(batch), batch=size))
        if size == ALONE:
            await self._fire_alone(batch[0])
        elif await self._marked(batch, size):
            for job in batch:
                if self._tenure(job):
                    self._desks[job.app].queue(job)
            await self._ended(batch)

    async def _marked(self, batch: Sequence[Job], size: int) -> bool:
        """Make the marks durable; without an answer the shards are loaded again, and the jobs come back."""
        try:
            await self._mark(batch, size)
        except SchedulerError:
            return False
        return True

    async def _fire_alone(self, job: Job) -> None:
        """From its mark until it is settled nothing else is in flight: no job is charged for another's deed."""
        self._gate.held_shut = True
        try:
            patience_ms = self._clock.steady_ms() + LEFT_BEHIND_MS
            while any(desk.flights for desk in self._desks.values()) or (
                any(desk.busy for desk in self._desks.values()) and self._clock.steady_ms() < patience_ms
            ):
                await sleep(self._clock, LOOK_MS)
            if not self._tenure(job) or not await self._marked([job], ALONE):
                return
            tenure = self._tenure(job)
            if tenure is None:
                return
            desk = self._desks[job.app]
            may_fire = tenure.may_fire and not desk.paused and self._gate.lease.valid()
            if may_fire and job.due_ms <= self._clock.wall_ms():
                self._desks[job.app].fire_alone(job)
                await self._ended([job])
            elif await self._marked([job], FEW):  # not fired: it must not be charged with what another one does
                self._wait(job, ALONE)
        finally:
            self._gate.held_shut = False
            for desk in self._desks.values():
                desk.stir()
        await sleep(self._clock, LOOK_MS)  # or the next one would shut the gate before anybody else was let through

    async def _ended(self, batch: Sequence[Job]) -> None:
        while any(self._under_way(job) for job in batch):
            await sleep(self._clock, LOOK_MS)

    def _under_way(self, job: Job) -> bool:
        """Is it still to be handed over or settled, by the reign that holds it now?"""
        desk = self._desks[job.app]
        tenure = desk.tenures.get(job.shard)
        if tenure is None:
            return False
        if tenure.out.get(job.key) is job:
            return True  # a drain, too, waits for it
        return tenure.held.get(job.key) is job and not desk.paused and not tenure.draining


def _next_size(size: int | None) -> int:
    """The batch for a job that was in one of `size` when its process ended."""
    if size is None:
        return SIZES[0]
    return next((smaller for smaller in SIZES if smaller < size), SIZES[-1])
