"""What the tests of a store's promises use: processes on the same data, nodes that own shards, and their clock."""

import asyncio
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final, TypeVar

import pytest
import pytest_asyncio

from infinite_scheduler.clock import Clock
from infinite_scheduler.model import Accepted, Change, Job, JobRecord, JobSpec, Owner, Shard, Status, start_of
from infinite_scheduler.store.abilities import Abilities, Ability
from infinite_scheduler.store.accepting import Decision
from infinite_scheduler.store.base import Store
from infinite_scheduler.store.cluster_state import NodeInfo, ShardInfo
from infinite_scheduler.store.ownership import Answers, Claim, Grant, Request, Scan, Settlement, SettleResult, Step
from infinite_scheduler.testing.manual_clock import ManualClock

F = TypeVar("F", bound=Callable[..., Any])

APP: Final = "mail"
SHARD: Final = Shard(APP, 0)
"""The app that most tests use; it has this one shard."""

PAGE: Final = 1000
ROOM: Final = 8 << 20
"""How many jobs, and how many bytes of them, are read at a time."""

MANY, FEW, ALONE = 1000, 30, 1
LIFTED: Final = {ALONE: FEW}
"""Sizes of windows in which suspects are fired, and which of them is lifted. A store does not care what they mean."""

TIMEOUT_S: Final = 10.0
"""How long, in real time, to wait for something that must happen by itself."""


class Promises(ABC):
    """The base of the contract: how a store is created, and the bench of one test."""

    needs: ClassVar[frozenset[Ability]] = frozenset()
    """The promises of this class are those of stores with these abilities; `@needing` adds some for one test."""

    @abstractmethod
    def make_store(self, clock: Clock) -> Store:
        """A store that is not open yet, over the data of this test: for one more process."""

    def make_node_store(self, clock: Clock) -> Store:
        """The store that nodes work on; another one where `make_store` only speaks for it."""
        return self.make_store(clock)

    @pytest_asyncio.fixture
    async def bench(self, request: pytest.FixtureRequest) -> AsyncIterator["Bench"]:
        """A store with an app; everything that was opened is closed, and nothing may be left behind."""
        threads = set(threading.enumerate())
        tasks = _others()
        bench = Bench(self.make_store, self.make_node_store)
        bench.skip_unless_able(_needed(request))
        bench.store = await bench.process()
        await bench.store.register(APP, 1)
        yield bench
        await bench.close()
        assert _others() == tasks, "a task was left behind"
        assert set(threading.enumerate()) <= threads, "a thread was left behind"


class Bench:
    """One test's data, seen by one process or by several."""

    store: Store

    def __init__(self, make_store: Callable[[Clock], Store], make_node_store: Callable[[Clock], Store]) -> None:
        self.clock = ManualClock()
        self._make_store = make_store
        self._make_node_store = make_node_store
        self._stores: list[Store] = []

    @property
    def abilities(self) -> Abilities:
        """What the store declares that it can do."""
        return self.store.abilities

    def skip_unless_able(self, needed: frozenset[Ability]) -> None:
        """Leave a test out that is about what the store declares that it cannot do."""
        able = self._make_store(self.clock).abilities
        if missing := needed - able.can:
            pytest.skip(f"a store in {able.store} declares that it has not: {', '.join(sorted(missing))}")

    @property
    def now(self) -> int:
        return self.clock.wall_ms()

    async def process(self) -> Store:
        """One more process on the same data."""
        return await self._opened(self._make_store(self.clock))

    async def _opened(self, store: Store) -> Store:
        await store.open()
        self._stores.append(store)
        return store

    async def node_store(self) -> Store:
        """The store of this process as nodes use it."""
        if Ability.OWNERSHIP in self.abilities:
            return self.store
        return await self._opened(self._make_node_store(self.clock))

    async def close(self) -> None:
        for store in self._stores:
            await store.close()

    def spec(self, in_ms: int = 60_000, *, app: str = APP, **fields: Any) -> JobSpec:
        """A job that is due this many ms from now."""
        return JobSpec(app=app, scheduled_ms=self.now + in_ms, **{"payload": b'{"a":1}', **fields})

    async def add(self, *in_ms: int, **fields: Any) -> list[Accepted]:
        """Accept one job per delay."""
        specs = [self.spec(delay, **fields) for delay in in_ms]
        if Ability.WHOLE_BATCHES in self.abilities:
            return list(await self.store.add(specs))
        return [(await self.store.add([spec]))[0] for spec in specs]

    async def accepted(self, app: str = APP) -> int:
        """How many jobs the store has accepted."""
        return counts((await self.store.survey()).counts, app).get("accepted", 0)

    async def job(self, accepted: Accepted) -> Job:
        """The job as the store has it."""
        return (await self.record(accepted)).job

    async def record(self, accepted: Accepted) -> JobRecord:
        record = await self.store.get(accepted.key)
        assert record is not None
        return record

    async def shard(self, shard: Shard = SHARD) -> ShardInfo:
        """The shard row as every process sees it."""
        view = (await self.store.survey()).view
        return next(info for info in view.shards if info.shard == shard)

    async def node(
        self, name: str = "n1", *, store: Store | None = None, apps: Collection[str] = (APP,)
    ) -> "ContractNode":
        """A node that has sent its first heartbeat."""
        able = store is not None and Ability.OWNERSHIP in store.abilities
        node = ContractNode(self, store if store and able else await self.node_store(), name, frozenset(apps))
        await node.ownership.beat()
        return node

    async def owner(
        self, name: str = "n1", *, store: Store | None = None, line_in_ms: int | None = None
    ) -> "ContractNode":
        """A node that owns the one shard; its line is where it was, or this far ahead of now."""
        node = await self.node(name, store=store)
        await node.take(SHARD)
        if line_in_ms is not None:
            await node.advance(self.now + line_in_ms)
        return node

    def change(self, change: Change, accepted: Accepted, *, store: Store | None = None, **options: Any) -> "ChangeTask":
        """Request a change, and go on without waiting for the decision."""
        return asyncio.create_task(self.changed(change, accepted.key, store=store, **options))

    async def changed(self, change: Change, key: bytes, *, store: Store | None = None, **options: Any) -> Decision:
        """Request a change, and wait for the decision."""
        return await (store or self.store).change(change, key, **{"timeout_ms": 15_000, **options})

    async def passing(self, ms: int) -> None:
        """Let time pass slowly, so that tasks and threads can follow."""
        for _ in range(ms):
            self.clock.advance(1)
            for _ in range(20):
                await asyncio.sleep(0)

    async def decided(self, asking: "ChangeTask") -> Decision:
        """The decision of an owner that has decided; the wall clock stands still meanwhile.

        An owner in this process tells it at once, unless it was faster than the answer to the one who asked: then, as
        for one behind the store, the store is asked for it every now and then.
        """
        while not asking.done():
            await self.passing(1)
            self.clock.step_wall(-1)
        return await asking

    async def decision(self, asking: "ChangeTask") -> Decision:
        """The decision on a request that is decided, or about to be given up."""

        async def watch() -> Decision:
            while not asking.done():
                await self.passing(1)
            return await asking

        return await asyncio.wait_for(watch(), TIMEOUT_S)


ChangeTask = asyncio.Task[Decision]


class ContractNode:
    """A node by hand: each call is one that its lane would make."""

    def __init__(self, bench: Bench, store: Store, name: str, apps: frozenset[str]) -> None:
        nonce = f"{name}-{os.urandom(4).hex()}"
        self.info = NodeInfo(nonce=nonce, node_id=name, apps=apps, started_ms=bench.now)
        self.pokes: list[Shard] = []
        self.ownership = store.ownership(self.info, self.pokes.extend)
        self.owners: dict[Shard, Owner] = {}
        self._bench = bench

    async def claims(self, *shards: Shard, beat: int | None = None, dead: bool | None = None) -> list[Claim]:
        """What a node would claim that sees the shards as they are now, and their owner dead or at this heartbeat."""
        view = await self.ownership.beat(renew=False)
        seen = {info.shard: info.owner for info in view.shards}
        return [Claim(shard=s, seen=seen[s], beat=beat, dead=beat is None if dead is None else dead) for s in shards]

    async def take(self, *shards: Shard) -> list[Grant]:
        """Own these shards."""
        grants = await self.take_as_seen(await self.claims(*shards))
        assert {grant.shard for grant in grants} == set(shards)
        return grants

    async def take_as_seen(self, claims: Sequence[Claim]) -> list[Grant]:
        """Own the shards that are still as they were seen."""
        grants: list[Grant] = []
        for lane in range(self.ownership.lanes):
            mine = [claim for claim in claims if claim.shard.number % self.ownership.lanes == lane]
            grants += await self.ownership.take(mine) if mine else ()
        self.owners.update((grant.shard, grant.owner) for grant in grants)
        return grants

    async def release(self, low_ms: int | None = None) -> None:
        low = self._bench.now if low_ms is None else low_ms
        await self.ownership.release(self.owners, dict.fromkeys(self.owners, low), LIFTED)

    async def advance(self, line_ms: int, low_ms: int | None = None, shard: Shard = SHARD) -> frozenset[Shard]:
        low = self._bench.now if low_ms is None else low_ms
        step = Step(shard=shard, owner=self.owners[shard], line_ms=line_ms, low_ms=low)
        return await self.ownership.advance([step])

    async def scan(self, start_ms: int | None = None, end_ms: int | None = None, **options: Any) -> list[Job]:
        """All jobs of a range, page after page; by default of all time."""
        return [job for page in await self.pages(start_ms, end_ms, **options) for job in page]

    async def pages(self, start_ms: int | None = None, end_ms: int | None = None, **options: Any) -> list[list[Job]]:
        scan = Scan(
            start=start_of(start_ms or 0),
            end=start_of((1 << 48) - 1 if end_ms is None else end_ms),
            **{"app": APP, "shards": frozenset({0}), "limit": PAGE, "room": ROOM, **options},
        )
        pages = []
        while True:
            page = await self.ownership.scan(scan)
            pages.append(list(page.jobs))
            if page.next is None:
                return pages
            assert page.next > scan.start, "a page goes on"
            scan = Scan(**{name: getattr(scan, name) for name in scan.__struct_fields__} | {"start": page.next})

    async def requests(self, shard: Shard = SHARD) -> Sequence[Request]:
        return await self.ownership.requests([shard], poked=True, limit=PAGE)

    async def asked(self, change: Change | None = None) -> Sequence[Request]:
        """The requests, as soon as there is one."""

        async def look() -> Sequence[Request]:
            while True:
                found = [q for q in await self.requests() if change in (None, q.change)]
                if found:
                    return found
                await asyncio.sleep(0)

        return await asyncio.wait_for(look(), TIMEOUT_S)

    async def answer(
        self, requests: Sequence[Request], handed_over: Collection[bytes] = (), *, room: int = ROOM
    ) -> Answers:
        return await self.ownership.answer(self.owners, requests, handed_over, room)

    async def mark(self, jobs: Sequence[Job], size: int) -> frozenset[Shard]:
        assert self.ownership.marks is not None
        return await self.ownership.marks.mark(self.owners, jobs, size)

    async def settle(self, *settlements: Settlement, **options: Any) -> SettleResult:
        return await self.ownership.settle(self.owners, settlements, **options)

    def ended(self, job: Job, status: Status = Status.DONE, **fields: Any) -> Settlement:
        """A delivery that began and ended now."""
        now = self._bench.now
        return Settlement(job=job, status=status, **{"started_ms": now, "finished_ms": now, **fields})


def needing(*abilities: Ability) -> Callable[[F], F]:
    """A promise that only stores with these abilities make."""

    def mark(test: F) -> F:
        test.needs = frozenset(abilities)  # type: ignore[attr-defined]
        return test

    return mark


def _needed(request: pytest.FixtureRequest) -> frozenset[Ability]:
    own: frozenset[Ability] = getattr(request.function, "needs", frozenset())
    home = next(kind for kind in request.cls.__mro__ if request.function.__name__ in vars(kind))
    return own | getattr(home, "needs", frozenset())


def _others() -> set[asyncio.Task[Any]]:
    """All tasks but this one."""
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


@contextmanager
def refused(kind: type[Exception], *words: str) -> Iterator[None]:
    """The body raises this error, and its text contains these words."""
    try:
        yield
    except kind as error:
        text = str(error)
        missing = [word for word in words if word not in text]
        assert not missing, f"{text!r} does not say {missing}"
    else:
        raise AssertionError(f"{kind.__name__} was not raised")


def keys(jobs: Sequence[Job | Accepted]) -> list[bytes]:
    """The keys, in order."""
    return [job.key for job in jobs]


def counts(found: Mapping[str, Mapping[str, int]], app: str = APP) -> dict[str, int]:
    """The counts of an app that are not 0."""
    return {what: n for what, n in found.get(app, {}).items() if n}
