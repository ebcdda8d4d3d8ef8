"""The owner's side of any store, with a clock beside it: observers learn how long each call took."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager

from infinite_scheduler.clock import Clock
from infinite_scheduler.model import Job, Owner, Shard
from infinite_scheduler.observe.events import Observer
from infinite_scheduler.observe.store_time import store_time
from infinite_scheduler.store.cluster_state import HeldBack, View
from infinite_scheduler.store.marks import Lifted, Marks
from infinite_scheduler.store.ownership import (
    Answers,
    Claim,
    Grant,
    Ownership,
    Page,
    Request,
    Running,
    Scan,
    Settlement,
    SettleResult,
    Step,
    Upkeep,
)


class TimedOwnership(Ownership, Marks):
    """Passes every call on; the name of a call is the name of the operation."""

    def __init__(self, inner: Ownership, clock: Clock, tell: Observer) -> None:
        self.lanes = inner.lanes
        self.marks = None if inner.marks is None else self
        self._inner = inner
        self._inner_marks = inner.marks
        self._clock = clock
        self._tell = tell

    def _timed(self, operation: str) -> AbstractContextManager[None]:
        return store_time(operation, self._clock, self._tell)

    async def beat(
        self,
        *,
        renew: bool = True,
        draining: bool = False,
        clock_off: bool = False,
        clock_offset_ms: int | None = None,
        held_back: Mapping[str, HeldBack] | None = None,
        vitals: bytes | None = None,
    ) -> View:
        with self._timed("beat"):
            return await self._inner.beat(
                renew=renew,
                draining=draining,
                clock_off=clock_off,
                clock_offset_ms=clock_offset_ms,
                held_back=held_back,
                vitals=vitals,
            )

    async def leave(self) -> None:
        with self._timed("leave"):
            await self._inner.leave()

    async def take(self, claims: Sequence[Claim]) -> Sequence[Grant]:
        with self._timed("take"):
            return await self._inner.take(claims)

    async def release(self, owners: Mapping[Shard, Owner], low_ms: Mapping[Shard, int], lifted: Lifted) -> None:
        with self._timed("release"):
            await self._inner.release(owners, low_ms, lifted)

    async def reload(
        self, owners: Mapping[Shard, Owner], handed_over: Collection[bytes], lifted: Lifted
    ) -> Sequence[Grant]:
        with self._timed("reload"):
            return await self._inner.reload(owners, handed_over, lifted)

    async def advance(self, steps: Sequence[Step]) -> frozenset[Shard]:
        with self._timed("advance"):
            return await self._inner.advance(steps)

    async def scan(self, scan: Scan) -> Page:
        with self._timed("scan"):
            return await self._inner.scan(scan)

    async def apps_without_jobs(self, scans: Sequence[Scan]) -> Collection[str]:
        with self._timed("apps_without_jobs"):
            return await self._inner.apps_without_jobs(scans)

    async def requests(self, shards: Collection[Shard], *, poked: bool, limit: int) -> Sequence[Request]:
        with self._timed("requests"):
            return await self._inner.requests(shards, poked=poked, limit=limit)

    async def answer(
        self,
        owners: Mapping[Shard, Owner],
        requests: Sequence[Request],
        handed_over: Collection[bytes],
        room: int,
    ) -> Answers:
        with self._timed("answer"):
            return await self._inner.answer(owners, requests, handed_over, room)

    async def settle(
        self,
        owners: Mapping[Shard, Owner],
        settlements: Sequence[Settlement],
        running: Sequence[Running] = (),
        came_back: Sequence[Job] = (),
    ) -> SettleResult:
        with self._timed("settle"):
            return await self._inner.settle(owners, settlements, running, came_back)

    async def mark(self, owners: Mapping[Shard, Owner], jobs: Sequence[Job], size: int) -> frozenset[Shard]:
        if self._inner_marks is None:
            raise AssertionError("this store cannot mark suspects")
        with self._timed("mark"):
            return await self._inner_marks.mark(owners, jobs, size)

    async def maintain(self) -> Upkeep:
        with self._timed("maintain"):
            return await self._inner.maintain()
