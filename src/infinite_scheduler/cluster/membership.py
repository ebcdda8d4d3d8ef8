"""Which nodes are alive, and so which shards this one takes, keeps or gives up."""

import asyncio
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from infinite_scheduler.clock import Clock, wait
from infinite_scheduler.cluster.plan import Planner, ShardKey
from infinite_scheduler.cluster.watch import Watch
from infinite_scheduler.errors import SchedulerError
from infinite_scheduler.model import Owner, Shard
from infinite_scheduler.observe.events import (
    AppServed,
    ClockBack,
    ClockOff,
    DrainAsked,
    DrainLifted,
    Observer,
    OrphanApp,
    TaskFailed,
)
from infinite_scheduler.store.cluster_state import HeldBack, NodeInfo, ShardInfo, View
from infinite_scheduler.store.ownership import Claim, Ownership

LOOKS = 4
"""Looks per heartbeat. A node's silence counts from the look that saw its last sign of life, so more looks mean less
delay for the jobs of a killed node: at most the lease and the time between two looks."""

LOOKS_ALONE = 2
"""Looks per heartbeat of a node without others: for one that joins, and for what operators ask of it."""

DRAIN_MS = 5000
"""A planned move that does not finish in this time is called off..."""

DRAIN_AGAIN_MS = 30_000
"""...and tried again after this."""

Goal = Mapping[ShardKey, str | None]

WriteVitals = Callable[[], bytes | None]
"""Says how this node is doing, for people; None: nothing."""


def no_vitals() -> bytes | None:
    """Say nothing."""
    return None


class ShardHolder(Protocol):
    """The part of a lane that holds its shards."""

    taking: bool
    """Have shards been claimed that are not held yet?"""

    def owners(self) -> Mapping[Shard, Owner]:
        """The shards held, each with its owner and epoch; another mapping when a shard has come or gone."""
        ...

    def unsettled(self) -> Collection[Shard]:
        """Those that still have jobs to resolve that a former owner left behind when it crashed."""
        ...

    def take(self, claims: Sequence[Claim]) -> None:
        """Begin to own these shards, as far as possible; it may have to wait for locks."""
        ...

    def drain(self, shards: Collection[Shard], *, for_ms: int | None = None) -> None: ...

    def doubt(self, shards: Collection[Shard], why: str) -> None: ...


class Renewal(Protocol):
    """The lease that heartbeats renew."""

    def asked(self) -> None: ...

    def answered(self) -> None: ...

    def renewed(self, asked_ms: int) -> bool: ...

    def missed(self, error: Exception) -> None: ...


class Reference(Protocol):
    """The store's clock compared with this machine's."""

    off: bool
    """Do they differ too much for this node to own anything?"""

    def offset_ms(self) -> int | None: ...


class Membership:
    """Sends heartbeats, watches those of other nodes, and follows the plan."""

    def __init__(  # noqa: PLR0913 - it connects all of them
        self,
        node: NodeInfo,
        ownership: Ownership,
        holders: Sequence[ShardHolder],
        lease: Renewal,
        reference: Reference,
        clock: Clock,
        *,
        lease_ms: int,
        heartbeat_ms: int,
        drain_timeout_ms: int,
        seen: Callable[[View], None],
        held_back: Callable[[], Mapping[str, HeldBack]],
        vitals: WriteVitals = no_vitals,
        tell: Observer,
    ) -> None:
        self._seen = seen  # is told of every view before it is acted on
        self._held_back = held_back  # the apps, and why
        self._vitals = vitals
        self._vitals_fail = False
        self._node = node
        self._ownership = ownership
        self._holders = holders
        self._lease = lease
        self._reference = reference
        self._clock = clock
        self._heartbeat_ms = heartbeat_ms
        self._drain_timeout_ms = drain_timeout_ms  # how long a requested drain waits for handlers
        self._tell = tell
        self._planner, self._heirs = Planner(), Planner()
        self._watch = Watch(node, clock, lease_ms=lease_ms, heartbeat_ms=heartbeat_ms)
        self._renewed_ms: int | None = None
        self._settled: tuple[tuple[object, ...], object] | None = None  # what was known when there was nothing to do
        self._not_before_ms: dict[Shard, int] = {}  # when a drain may be retried, as long as the shard stays
        self._stir = asyncio.Event()
        self._asked = False  # an operator has asked this node to drain
        self._off = False  # its clock differs too much from the store's
        self.leaving = False
        self.orphans: frozenset[str] = frozenset()  # apps that no node can run
        self.leads = False  # smallest nonce of the nodes with a right clock: it does what only one node should do

    async def run(self) -> None:
        """Look several times per heartbeat; a store that does not answer is asked again."""
        while True:
            self._stir.clear()
            try:
                await self.look()
            except SchedulerError as error:
                self._lease.missed(error)
                self._watch.interrupt()
            await wait(self._clock, self._stir, self._pause_ms())

    def _pause_ms(self) -> float:
        """Time until the next look: a part of a heartbeat, or less if a lease ends before."""
        looks = LOOKS if self._watch.others else LOOKS_ALONE
        return min(ms for ms in (self._heartbeat_ms / looks, *self._watch.leases_end_ms()) if ms > 0)

    def leave(self) -> None:
        """Take no more shards: the node is about to stop."""
        self.leaving = True
        self._say_soon()

    @property
    def _withdrawn(self) -> bool:
        """Does this node give up what it owns?"""
        return self.leaving or self._asked or self._off

    def _say_soon(self) -> None:
        """Tell the other nodes at once what has changed here: their plan depends on it."""
        self._renewed_ms = None
        self._stir.set()

    async def look(self) -> None:
        """Look at the cluster once, and act on it."""
        asked_ms = self._clock.steady_ms()
        renew = self._renewed_ms is None or asked_ms - self._renewed_ms >= self._heartbeat_ms
        held = [holder.owners() for holder in self._holders]  # taken before the view, so never newer than it
        self._lease.asked()
        view = await self._ownership.beat(
            renew=renew,
            draining=self._withdrawn,
            clock_off=self._off,
            clock_offset_ms=self._reference.offset_ms(),
            held_back=self._held_back(),
            vitals=self._vitals_now() if renew else None,
        )
        self._lease.answered()
        if renew:
            self._renewed_ms = asked_ms
            if self._lease.renewed(asked_ms):
                for holder in self._holders:
                    holder.doubt(list(holder.owners()), "the lease had lapsed")
        alive = self._watch.look(view)
        self._seen(view)
        self._heed(view)
        sound = [nonce for nonce, node in alive.items() if not node.clock_off]
        self.leads = not self._off and self._node.nonce == min(sound, default=None)
        self._follow_once(view, alive, held)
        self._alarm(view, alive)

    def _vitals_now(self) -> bytes | None:
        """How this node is doing. An error in that costs it no lease: it is reported once, until it is over."""
        try:
            vitals = self._vitals()
        except Exception as error:  # noqa: BLE001
            if not self._vitals_fail:
                self._vitals_fail = True
                self._tell(TaskFailed(part="vitals", error=repr(error)))
            return None
        self._vitals_fail = False
        return vitals

    def _heed(self, view: View) -> None:
        """Withdraw or continue, as the operator and the clock demand."""
        before = self._withdrawn
        asked = any(node.drain_asked for node in view.nodes if node.nonce == self._node.nonce)
        if asked is not self._asked:
            self._asked = asked
            self._tell(DrainAsked() if asked else DrainLifted())
        if self._reference.off is not self._off:
            self._off = self._reference.off
            offset_ms = self._reference.offset_ms() or 0
            self._tell(ClockOff(offset_ms=offset_ms) if self._off else ClockBack(offset_ms=offset_ms))
        if self._withdrawn is not before:
            self._say_soon()
            if before:
                self._not_before_ms.clear()
                for holder in self._holders:
                    holder.drain(list(holder.owners()), for_ms=0)  # call off what cannot end at once

    def _follow_once(self, view: View, alive: Mapping[str, NodeInfo], held: Sequence[Mapping[Shard, Owner]]) -> None:
        """Follow the plan, unless all is as it was when there was nothing to do: the view of many shards is long."""
        seen = (view.shards, *held)
        before = self._settled
        if before is not None and all(map(operator.is_, seen, before[0])) and before[1] == self._known(view, alive):
            return
        self._settled = (seen, self._known(view, alive)) if self._follow(view, alive, held) else None

    def _known(self, view: View, alive: Mapping[str, NodeInfo]) -> object:
        """What the plan depends on besides the shards."""
        nodes = {nonce: (node.apps, self._gives_up(nonce, node)) for nonce, node in alive.items()}
        watch = self._watch
        return nodes, view.dead, watch.silent(), watch.new(), watch.unproven(view, alive), self._withdrawn, self.leaving

    def _follow(self, view: View, alive: Mapping[str, NodeInfo], held: Sequence[Mapping[Shard, Owner]]) -> bool:
        """Take and give up what the plan says. True: there was nothing to do, and nothing is under way."""
        shards = {info.shard: info for info in view.shards}
        goal = self._goal(view, alive)
        kept = {shard for holder in self._holders for shard in holder.owners()}
        self._not_before_ms = {s: ms for s, ms in self._not_before_ms.items() if s in kept}
        settled = True
        for number, holder in enumerate(self._holders):
            mine = {s: info for s, info in shards.items() if s.number % len(self._holders) == number}
            settled &= not self._check(holder, mine, held[number])
            if self.leaving:
                continue
            settled &= not self._give_up(holder, goal)
            claims = self._claims(holder, mine, goal, alive, view.dead)
            settled &= not claims and not holder.taking
            if claims and not holder.taking:
                holder.take(claims)
        return settled

    def _goal(self, view: View, alive: Mapping[str, NodeInfo]) -> Goal:
        """Which node should own what. What a silent node leaves behind goes to nodes that can know that it is silent.

        A node that began to watch less than a lease ago takes nothing from it yet; the plan gives it its part later.
        """
        known = alive.keys() - self._watch.unproven(view, alive)
        nodes = {nonce: alive[nonce].apps for nonce in known}
        owners = {(i.shard.app, i.shard.number): i.owner.nonce if i.owner.nonce in alive else None for i in view.shards}
        leaving = frozenset(nonce for nonce in known if self._gives_up(nonce, alive[nonce]))
        goal = self._planner.plan(nodes, owners, leaving)
        silent = self._watch.silent() - view.dead
        new = self._watch.new() & known
        if not silent or not new:
            return goal
        heirs = self._heirs.plan(nodes, owners, leaving | new)
        left = [(i.shard.app, i.shard.number) for i in view.shards if i.owner.nonce in silent]
        return {**goal, **{key: heirs[key] for key in left if heirs[key] is not None}}

    def _check(self, holder: ShardHolder, shards: Mapping[Shard, ShardInfo], held: Mapping[Shard, Owner]) -> bool:
        """Check under the lock the shards that, according to the store, another node owns, before doing more with them.

        Shards come and go while the store is asked: what it says may be too old for a shard that was taken meanwhile.
        Returns whether there are any.
        """
        strange = [
            s
            for s, owner in holder.owners().items()
            if held.get(s) == owner and s in shards and shards[s].owner != owner
        ]
        if strange:
            holder.doubt(strange, "the store names another owner")
        return bool(strange)

    def _give_up(self, holder: ShardHolder, goal: Goal) -> bool:
        """Drain what the plan gives to other nodes, or everything. Returns whether there is anything to give up."""
        now_ms = self._clock.steady_ms()
        at_home = {None, self._node.nonce}
        leaving = [s for s in holder.owners() if self._withdrawn or goal.get((s.app, s.number)) not in at_home]
        moving = [s for s in leaving if self._off or self._not_before_ms.get(s, 0) <= now_ms]
        for_ms: int | None = DRAIN_MS
        if self._withdrawn:
            for_ms = None if self._off else self._drain_timeout_ms
        elif moving:
            unsettled = holder.unsettled()  # what a crash left behind is resolved before a shard moves
            moving = [s for s in moving if s not in unsettled]
        if moving:
            self._not_before_ms.update((s, now_ms + (for_ms or 0) + DRAIN_AGAIN_MS) for s in moving)
            holder.drain(moving, for_ms=for_ms)
        return bool(leaving)

    def _claims(
        self,
        holder: ShardHolder,
        shards: Mapping[Shard, ShardInfo],
        goal: Goal,
        alive: Mapping[str, NodeInfo],
        dead: Collection[str],
    ) -> list[Claim]:
        """Shards that this node should own and no live node does, or that have its own nonce after a lost answer."""
        held = holder.owners()
        claims = []
        for shard, info in shards.items():
            owner = info.owner.nonce
            if shard in held or shard.app not in self._node.apps:
                continue
            if owner == self._node.nonce:
                claims.append(Claim(shard=shard, seen=info.owner))
            elif goal.get((shard.app, shard.number)) == self._node.nonce and owner not in alive:
                claims.append(Claim(shard=shard, seen=info.owner, beat=self._watch.beat(owner), dead=owner in dead))
        return claims

    def _alarm(self, view: View, alive: Mapping[str, NodeInfo]) -> None:
        """Report the apps that no node can run: once when that begins, and once when it ends."""
        if self.leaving:
            return
        able = {app for nonce, node in alive.items() if not self._gives_up(nonce, node) for app in node.apps}
        orphans = frozenset(app.name for app in view.apps) - able
        for app in sorted(orphans - self.orphans):
            self._tell(OrphanApp(app=app))
        for app in sorted(self.orphans - orphans):
            self._tell(AppServed(app=app))
        self.orphans = orphans

    def _gives_up(self, nonce: str, node: NodeInfo) -> bool:
        """Is this node about to own nothing? About itself it knows more than the store."""
        return self._withdrawn if nonce == self._node.nonce else node.draining
