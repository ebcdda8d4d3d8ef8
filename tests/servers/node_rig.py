"""A node on a database server, what it has handed over, and what the store says became of it."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from infinite_scheduler import Job, NewJob, Scheduler
from infinite_scheduler.clock import Clock
from infinite_scheduler.model import JobId
from infinite_scheduler.observe.events import Event
from tests.waiting import until_async

APP = "work"


class NodeRig:
    """One node with one app, whose handler notes down each delivery."""

    def __init__(self, url: str, *, clock: Clock | None = None, **settings: Any) -> None:
        self.events: list[Event] = []
        self.deliveries: Counter[tuple[str, int]] = Counter()
        self.early = 0
        node = {"stop_timeout": "5s"} | settings.pop("node", {})
        self.scheduler = Scheduler(
            url, settings={"node": node, **settings}, observers=[self.events.append], clock=clock
        )

        @self.scheduler.app(APP, shards=4)
        async def note(job: Job) -> None:
            self.deliveries[job.id, job.attempt] += 1
            self.early += time.time() * 1000 < job.due_ms

    async def add(self, count: int, delay: str = "0s", **more: Any) -> list[str]:
        """Schedule jobs; the ids of those that were accepted."""
        jobs = [NewJob(data={"n": n}, delay=delay, **more) for n in range(count)]
        return [accepted.id for accepted in await self.scheduler.schedule_many(APP, jobs)]

    async def statuses(self) -> Counter[str]:
        return Counter([str(record.status) async for record in self.scheduler.find_all(APP)])

    async def done(self, ids: Sequence[str]) -> None:
        """Wait until the store says that these jobs, and no others, are done, each handed over once."""
        await until_async(lambda: {job for job, _ in self.deliveries} >= set(ids), "every job is handed over")
        await self.settled(len(ids))
        assert set(self.deliveries) == {(job, 1) for job in ids}
        assert set(self.deliveries.values()) <= {1}, "a job was handed over twice"
        assert not self.early

    async def settled(self, done: int, pending: int = 0) -> None:
        wanted = Counter(done=done, pending=pending)

        found = Counter[str]()

        async def reached() -> bool:
            nonlocal found
            found = await self.statuses()
            return found == wanted

        await until_async(reached, lambda: f"{dict(wanted)}, but the jobs are {dict(found)}", every_s=0.05)

    async def load(self, count: int, delay: str) -> list[str]:
        """Schedule jobs, and wait until a node that has nothing else to do has them in its memory."""
        await until_async(lambda: not self.bytes_held, "the last jobs are forgotten")
        ids = await self.add(count, delay)
        await until_async(lambda: self.bytes_held >= count, "the jobs are loaded")
        return ids

    @property
    def bytes_held(self) -> int:
        return int(self.scheduler.counters.snapshot()["gauges"]["bytes_held"])

    @property
    def shards_owned(self) -> int:
        return int(self.scheduler.counters.snapshot()["node"]["shards_owned"])

    def told(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


async def overdue(ids: Sequence[str], by_s: float = 1) -> None:
    """Wait until the moment of these jobs is past, and a while longer."""
    due_s = max(JobId.parse(job).due_ms for job in ids) / 1000
    await asyncio.sleep(max(0, due_s + by_s - time.time()))
