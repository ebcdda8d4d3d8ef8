"""Which nodes are alive, judged by the heartbeats that this node has seen."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from infinite_scheduler.clock import Clock
from infinite_scheduler.store.cluster_state import NodeInfo, View

SIGNS = 2
"""Heartbeats that must be missing before a process that seems to have ended counts as dead."""


@dataclass(slots=True)
class _Life:
    """What is known of a node."""

    beat: int
    """Its last known heartbeat..."""

    since_ms: int
    """...and when that was first seen."""

    met_ms: int
    """When the node was first seen."""

    proven: bool = False
    """Has its heartbeat been seen to change?"""

    silent: bool = False
    """Did it count as dead at the last look?"""


class Watch:
    """Remembers when each node's heartbeat last changed, by this node's own clock."""

    def __init__(self, own: NodeInfo, clock: Clock, *, lease_ms: int, heartbeat_ms: int) -> None:
        self._own = own
        self._clock = clock
        self._lease_ms = lease_ms
        self._heartbeat_ms = heartbeat_ms
        self._lives: dict[str, _Life] = {}  # by nonce
        self._looked_ms: int | None = None

    def interrupt(self) -> None:
        """The store did not answer: silence in this time says nothing about the other nodes."""
        self._looked_ms = None

    def look(self, view: View) -> dict[str, NodeInfo]:
        """The nodes whose heartbeat has changed within the lease, while the store answered; always with this one."""
        now_ms = self._clock.steady_ms()
        if self._looked_ms is None or now_ms - self._looked_ms > self._lease_ms / 2:
            for life in self._lives.values():
                if not life.silent:  # a node that was silent before still is
                    life.since_ms = now_ms
        self._looked_ms = now_ms
        self._lives = {node.nonce: self._seen(node, now_ms) for node in view.nodes}
        for nonce, life in self._lives.items():
            over = nonce in view.dead or now_ms - life.since_ms >= self._patience_ms(nonce in view.presumed_dead)
            life.silent = over and nonce != self._own.nonce
        alive = {node.nonce: node for node in view.nodes if not self._lives[node.nonce].silent}
        alive.setdefault(self._own.nonce, self._own)
        return alive

    def _patience_ms(self, presumed_dead: bool) -> int:
        """How long a heartbeat may stay the same: two that are missing suffice if the process seems to have ended."""
        return min(SIGNS * self._heartbeat_ms, self._lease_ms) if presumed_dead else self._lease_ms

    def _seen(self, node: NodeInfo, now_ms: int) -> _Life:
        life = self._lives.get(node.nonce)
        if life is None:
            return _Life(node.beat, now_ms, now_ms)
        if life.beat != node.beat:
            life.beat, life.since_ms, life.proven = node.beat, now_ms, True
        return life

    def beat(self, nonce: str) -> int | None:
        """The last known heartbeat of a node."""
        return self._lives[nonce].beat if nonce in self._lives else None

    @property
    def others(self) -> bool:
        """Were there other nodes at the last look, dead or alive?"""
        return any(nonce != self._own.nonce for nonce in self._lives)

    def silent(self) -> set[str]:
        """The nodes that count as dead."""
        return {nonce for nonce, life in self._lives.items() if life.silent}

    def new(self) -> set[str]:
        """The other nodes that were not there one lease ago, and so cannot know yet which nodes are dead."""
        since_ms = self._clock.steady_ms() - self._lease_ms
        return {nonce for nonce, life in self._lives.items() if life.met_ms > since_ms} - {self._own.nonce}

    def unproven(self, view: View, alive: Mapping[str, NodeInfo]) -> set[str]:
        """Nodes of which only an old heartbeat is known: long dead ones, for a node that has just started.

        Nothing is planned for such a node until its heartbeat changes: other nodes, which know that it is dead, give up
        shards for some live node to take. A node that owns something may be alive. A node with its first heartbeat has
        just started as well, or died soon after: it has the time of two heartbeats to show which.
        """
        owners = {info.owner.nonce for info in view.shards}
        young_ms = self._clock.steady_ms() - 2 * self._heartbeat_ms
        others = ((nonce, self._lives[nonce]) for nonce in alive.keys() - owners - {self._own.nonce})
        return {nonce for nonce, life in others if not life.proven and (life.beat > 1 or life.met_ms <= young_ms)}

    def leases_end_ms(self) -> Iterator[int]:
        """In how many ms the lease of each node ends; negative if it has ended."""
        now_ms = self._clock.steady_ms()
        return (life.since_ms + self._lease_ms - now_ms for life in self._lives.values())
