"""Which nodes live, and so which shards this one takes, keeps or gives up."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from infinite_scheduler.clock import Clock, wait
from infinite_scheduler.cluster.plan import plan
from infinite_scheduler.errors import SchedulerError
from infinite_scheduler.model import Owner, Shard
from infinite_scheduler.observe.events import Observer, OrphanApp
from infinite_scheduler.store.base import Claim, NodeInfo, Ownership, ShardInfo, View

DRAIN_MS = 5000
"""A planned move that cannot finish in this time is called off..."""

DRAIN_AGAIN_MS = 30_000
"""...and tried again after this."""


class Keeper(Protocol):
    """Who holds the shards of one lane."""

    def owners(self) -> Mapping[Shard, Owner]:
        """The shards held, each with the reign under which it is held."""
        ...

    async def take(self, claims: Sequence[Claim]) -> None: ...

    def drain(self, shards: Collection[Shard], *, for_ms: int | None = None) -> None: ...

    def doubt(self, shards: Collection[Shard], why: str) -> None: ...


class Renewal(Protocol):
    """The lease that a heartbeat renews."""

    def renewed(self, asked_ms: int) -> bool: ...


class Membership:
    """Gives signs of life, watches those of others, and follows the plan."""

    def __init__(  # noqa: PLR0913 - it stands between all of them
        self,
        node: NodeInfo,
        ownership: Ownership,
        keepers: Sequence[Keeper],
        lease: Renewal,
        clock: Clock,
        *,
        lease_ms: int,
        heartbeat_ms: int,
        seen: Callable[[View], None],
        tell: Observer,
    ) -> None:
        self._seen = seen  # hears of every view before anything follows from it
        self._node = node
        self._ownership = ownership
        self._keepers = keepers
        self._lease = lease
        self._clock = clock
        self._lease_ms = lease_ms
        self._heartbeat_ms = heartbeat_ms
        self._tell = tell
        self._beats: dict[str, tuple[int, int]] = {}  # nonce → the heartbeat seen last, and when it was first seen
        self._looked_ms: int | None = None
        self._renewed_ms: int | None = None
        self._not_before_ms: dict[Shard, int] = {}  # when a drain may be tried again
        self._stir = asyncio.Event()
        self.leaving = False
        self.leads = False  # of the nodes that live it has the smallest nonce, so it does what one node should do

    async def run(self) -> None:
        """Look twice in every heartbeat; a store that is away is asked again."""
        while True:
            self._stir.clear()
            try:
                await self.look()
            except SchedulerError:
                self._looked_ms = None  # silence of the store says nothing about the others
            await wait(self._clock, self._stir, self._heartbeat_ms / 2)

    def leave(self) -> None:
        """Take nothing any more: the node is about to stop."""
        self.leaving = True
        self._stir.set()

    async def look(self) -> None:
        """One look at the cluster, and what follows from it."""
        asked_ms = self._clock.steady_ms()
        renew = self._renewed_ms is None or asked_ms - self._renewed_ms >= self._heartbeat_ms
        view = await self._ownership.beat(renew=renew, draining=self.leaving)
        if renew:
            self._renewed_ms = asked_ms
            if self._lease.renewed(asked_ms):
                for keeper in self._keepers:
                    keeper.doubt(list(keeper.owners()), "the lease had lapsed")
        alive = self._alive(view)
        self._seen(view)
        self.leads = min(alive) == self._node.nonce
        await self._follow(view, alive)

    def _alive(self, view: View) -> dict[str, NodeInfo]:
        """Nodes whose heartbeat has changed within the lease, by this node's own clock, while the store answered."""
        now_ms = self._clock.steady_ms()
        if self._looked_ms is None or now_ms - self._looked_ms > self._lease_ms / 2:
            self._beats = {nonce: (beat, now_ms) for nonce, (beat, _) in self._beats.items()}
        self._looked_ms = now_ms
        alive = {}
        for node in view.nodes:
            beat, since_ms = self._beats.get(node.nonce, (-1, now_ms))
            if beat != node.beat:
                since_ms = now_ms
            self._beats[node.nonce] = node.beat, since_ms
            if node.nonce == self._node.nonce or (node.nonce not in view.dead and now_ms - since_ms < self._lease_ms):
                alive[node.nonce] = node
        self._beats = {node.nonce: self._beats[node.nonce] for node in view.nodes}
        alive.setdefault(self._node.nonce, self._node)
        return alive

    async def _follow(self, view: View, alive: Mapping[str, NodeInfo]) -> None:
        shards = {info.shard: info for info in view.shards}
        goal = plan(
            {nonce: node.apps for nonce, node in alive.items()},
            {(s.app, s.number): info.owner.nonce if info.owner.nonce in alive else None for s, info in shards.items()},
            draining=frozenset(nonce for nonce, node in alive.items() if node.draining),
        )
        self._alarm(view, alive)
        for number, keeper in enumerate(self._keepers):
            mine = {s: info for s, info in shards.items() if s.number % len(self._keepers) == number}
            self._check(keeper, mine)
            self._give_up(keeper, goal)
            claims = self._claims(keeper, mine, goal, alive, view.dead)
            if claims and not self.leaving:
                await keeper.take(claims)

    def _check(self, keeper: Keeper, shards: Mapping[Shard, ShardInfo]) -> None:
        """What the store says another node owns is checked under the lock before anything more is done to it."""
        strange = [s for s, owner in keeper.owners().items() if s in shards and shards[s].owner != owner]
        if strange:
            keeper.doubt(strange, "the store names another owner")

    def _give_up(self, keeper: Keeper, goal: Mapping[tuple[str, int], str | None]) -> None:
        """Drain what the plan gives to others."""
        now_ms = self._clock.steady_ms()
        moving = [
            s
            for s in keeper.owners()
            if goal.get((s.app, s.number)) not in (None, self._node.nonce) and self._not_before_ms.get(s, 0) <= now_ms
        ]
        if moving and not self.leaving:
            self._not_before_ms.update((s, now_ms + DRAIN_AGAIN_MS) for s in moving)
            keeper.drain(moving, for_ms=DRAIN_MS)

    def _claims(
        self,
        keeper: Keeper,
        shards: Mapping[Shard, ShardInfo],
        goal: Mapping[tuple[str, int], str | None],
        alive: Mapping[str, NodeInfo],
        dead: Collection[str],
    ) -> list[Claim]:
        """Shards that this node should own and nobody alive does, or that bear its own nonce after a lost answer."""
        held = keeper.owners()
        claims = []
        for shard, info in shards.items():
            owner = info.owner.nonce
            if shard in held or shard.app not in self._node.apps:
                continue
            if owner == self._node.nonce:
                claims.append(Claim(shard=shard, seen=info.owner))
            elif goal.get((shard.app, shard.number)) == self._node.nonce and owner not in alive:
                beat = self._beats[owner][0] if owner in self._beats else None
                claims.append(Claim(shard=shard, seen=info.owner, beat=beat, dead=owner in dead))
        return claims

    def _alarm(self, view: View, alive: Mapping[str, NodeInfo]) -> None:
        able = {app for node in alive.values() for app in node.apps}
        for app in view.apps:
            if app.name not in able:
                self._tell(OrphanApp(app=app.name))
