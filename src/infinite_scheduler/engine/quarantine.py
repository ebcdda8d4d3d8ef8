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

POISON = "ended its process: it was the only job in flight when the process died"

Mark = Callable[[Sequence[Job], int], Awaitable[None]]
"""Makes it durable that these jobs are about to be fired in a batch of this size."""


class Quarantine:
    """Holds suspects back and fires one batch of them at a time, each marked first."""

    def __init__(self, desks: Mapping[str, Desk], gate: Gate, clock: Clock, mark: Mark, tell: Observer) -> None:
        self._desks = desks
        self._gate = gate
        self._clock = clock
        self._mark = mark
        self._tell = tell
        self._waiting: dict[int, PriorityQueue[Job]] = {size: PriorityQueue() for size in SIZES}
        self._stir = asyncio.Event()

    def detain(self, job: Job, tenure: Tenure) -> None:
        """Take a job that may have ended a process."""
        size = tenure.suspects.get(job.key)
        if size == ALONE and tenure.charged:
            self._desks[job.app].fail(job, POISON)
            self._tell(PoisonFailed(app=job.app, job_id=job.id))
            return
        self._waiting[_next_size(size)].push(job.priority, job.due_ms, job)
        self._stir.set()

    async def run(self) -> None:
        """Fire batch after batch, the largest first: most jobs are innocent."""
        while True:
            size = next((size for size in SIZES if len(self._waiting[size])), None)
            if size is None:
                self._stir.clear()
                await self._stir.wait()
                continue
            while not self._gate.open:
                await sleep(self._clock, LOOK_MS)
            await self._fire(self._next_batch(size), size)

    def _next_batch(self, size: int) -> list[Job]:
        waiting, batch = self._waiting[size], list[Job]()
        while len(waiting) and len(batch) < size:
            job = waiting.pop()
            tenure = self._tenure(job)
            if tenure is None:
                continue
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
        if not batch:
            return
        if size < SIZES[0]:
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
            while any(desk.busy for desk in self._desks.values()):
                await sleep(self._clock, LOOK_MS)
            if not await self._marked([job], ALONE):
                return
            tenure = self._tenure(job)
            if tenure is not None and tenure.may_fire and self._gate.lease.valid():
                self._desks[job.app].fire_alone(job)
                await self._ended([job])
        finally:
            self._gate.held_shut = False
            for desk in self._desks.values():
                desk.stir()

    async def _ended(self, batch: Sequence[Job]) -> None:
        while any(self._under_way(job) for job in batch):
            await sleep(self._clock, LOOK_MS)

    def _under_way(self, job: Job) -> bool:
        """Is it still to be handed over or settled, by the reign that holds it now?"""
        tenure = self._desks[job.app].tenures.get(job.shard)
        if tenure is None or tenure.draining:
            return False
        return tenure.held.get(job.key) is job or tenure.out.get(job.key) is job


def _next_size(size: int | None) -> int:
    """The batch for a job that was in one of `size` when its process ended."""
    if size is None:
        return SIZES[0]
    return next((smaller for smaller in SIZES if smaller < size), SIZES[-1])
