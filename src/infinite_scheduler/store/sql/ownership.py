"""The owner's side of the SQL store: each call is one transaction in the lane of its shards."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

import msgspec

from infinite_scheduler.clock import Clock
from infinite_scheduler.model import Job, Owner, Shard
from infinite_scheduler.store.cluster_state import VITALS_BYTES, HeldBack, NodeInfo, Sample, ShardInfo, View
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
from infinite_scheduler.store.sql.limits import SqlLimits
from infinite_scheduler.store.sql.protocol import owner
from infinite_scheduler.store.sql.request_rows import MANY_SHARDS
from infinite_scheduler.store.sql.statements import Database, Session, Statements

Decided = Callable[[Iterable[tuple[bytes, bool]]], None]


def sample(tx: Statements, clock: Clock) -> Sample | None:
    """Read the database's clock as precisely as possible: not in the first statement, which may begin a transaction."""
    asked_us = clock.steady_us()
    store_ms = tx.now_ms()
    return None if store_ms is None else Sample(store_ms=store_ms, asked_us=asked_us, answered_us=clock.steady_us())


def with_dead(view: View, database: Database) -> View:
    """The view, with what the database knows of processes that have ended."""
    dead, presumed = database.dead(view.nodes), database.presumed_dead(view.nodes)
    return msgspec.structs.replace(view, dead=dead, presumed_dead=presumed)


class SqlOwnership(Ownership, Marks):
    """What one node does to its shards in a SQL database."""

    def __init__(self, database: Database, clock: Clock, limits: SqlLimits, node: NodeInfo, decided: Decided) -> None:
        self.lanes = database.lanes
        self.marks = self
        self._database = database
        self._clock = clock
        self._limits = limits
        self._node = node
        self._decided = decided
        self._beats = database.session("beat")
        self._sessions = [database.session(f"lane-{i}") for i in range(database.lanes)]
        self._seen: tuple[ShardInfo, ...] = ()
        self._seen_version: object = None
        self.mine: frozenset[Shard] = frozenset()

    def _lane(self, shards: Iterable[Shard]) -> Session:
        """The session of the lane that these shards belong to."""
        number = next((shard.number for shard in shards), 0)
        return self._sessions[number % self.lanes]

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
        node = msgspec.structs.replace(
            self._node,
            draining=draining,
            clock_off=clock_off,
            clock_offset_ms=clock_offset_ms,
            held_back=held_back or {},
            vitals=vitals if vitals is None or len(vitals) <= VITALS_BYTES else None,
            beat=self._node.beat + renew,
            beat_ms=self._clock.wall_ms(),
        )

        def body(tx: Statements) -> View:
            if renew:
                tx.write_node(node)
            shards = self._shards(tx)  # before the nodes: the owner of a shard has been a node for longer
            nodes, apps = tuple(tx.read_nodes()), tuple(tx.read_apps())
            return View(shards=shards, nodes=nodes, apps=apps, clock=sample(tx, self._clock))

        self._node = node  # even if the answer is lost: every heartbeat must differ from the one before
        view = await (self._beats.write(body) if renew else self._beats.read(body))
        return with_dead(view, self._database)

    def _shards(self, tx: Statements) -> tuple[ShardInfo, ...]:
        """All shards; of many, lines and lows may be older, as they are read only when an owner has changed."""
        version = tx.ownership_version() if len(self._seen) >= MANY_SHARDS else None
        if version is None or version != self._seen_version:
            self._seen, self._seen_version = tuple(tx.read_shards()), version
        return self._seen

    async def leave(self) -> None:
        await self._beats.write(lambda tx: tx.delete_node(self._node.nonce))

    async def take(self, claims: Sequence[Claim]) -> Sequence[Grant]:
        grants = await self._lane(claim.shard for claim in claims).write(
            lambda tx: owner.take(tx, self._node.nonce, claims)
        )
        self.mine |= {grant.shard for grant in grants}
        return grants

    async def release(self, owners: Mapping[Shard, Owner], low_ms: Mapping[Shard, int], lifted: Lifted) -> None:
        self.mine -= owners.keys()
        await self._lane(owners).write(lambda tx: owner.release(tx, owners, low_ms, lifted))

    async def reload(
        self, owners: Mapping[Shard, Owner], handed_over: Collection[bytes], lifted: Lifted
    ) -> Sequence[Grant]:
        grants = await self._lane(owners).write(lambda tx: owner.reload(tx, owners, handed_over, lifted))
        self.mine -= owners.keys() - {grant.shard for grant in grants}
        return grants

    async def advance(self, steps: Sequence[Step]) -> frozenset[Shard]:
        return await self._lane(step.shard for step in steps).write(lambda tx: owner.advance(tx, steps))

    async def scan(self, scan: Scan) -> Page:
        lane = self._sessions[min(scan.shards) % self.lanes]
        return await lane.read(lambda tx: owner.scan(tx, scan))

    async def apps_without_jobs(self, scans: Sequence[Scan]) -> Collection[str]:
        lane = self._sessions[min(scans[0].shards) % self.lanes]
        return await lane.read(lambda tx: tx.apps_without_jobs(scans))

    async def requests(self, shards: Collection[Shard], *, poked: bool, limit: int) -> Sequence[Request]:
        lane = self._lane(shards)
        if await lane.changed() or poked:
            return await lane.read(lambda tx: tx.read_requests(shards, limit))
        return ()

    async def answer(
        self,
        owners: Mapping[Shard, Owner],
        requests: Sequence[Request],
        handed_over: Collection[bytes],
        room: int,
    ) -> Answers:
        now_ms = self._clock.wall_ms()
        answers = await self._lane(owners).write(
            lambda tx: owner.answer(tx, owners, requests, handed_over, now_ms, room)
        )
        self._decided((decision.request.id, decision.granted) for decision in answers.decisions if decision.claimed)
        return answers

    async def settle(
        self,
        owners: Mapping[Shard, Owner],
        settlements: Sequence[Settlement],
        running: Sequence[Running] = (),
        came_back: Sequence[Job] = (),
    ) -> SettleResult:
        lane, node = self._lane(owners), self._node.node_id

        def body(tx: Statements, *, exclusive: bool) -> SettleResult | None:
            return owner.settle(tx, owners, node, settlements, running, came_back, exclusive=exclusive)

        settled = await lane.write(partial(body, exclusive=False))
        if settled is None:
            settled = await lane.write(partial(body, exclusive=True))
        if settled is None:
            raise AssertionError("a settle under the exclusive lock always ends")
        return settled

    async def mark(self, owners: Mapping[Shard, Owner], jobs: Sequence[Job], size: int) -> frozenset[Shard]:
        return await self._lane(owners).write(lambda tx: owner.mark(tx, owners, jobs, size))

    async def maintain(self) -> Upkeep:
        return await self._database.maintain(
            now_ms=self._clock.wall_ms(),
            retention_ms=self._limits.retention_ms,
            idempotency_ms=self._limits.idempotency_ms,
        )
