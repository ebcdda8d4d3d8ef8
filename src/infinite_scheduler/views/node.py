"""A node as people see it: does it live, what does it run, how much does it own?"""

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from infinite_scheduler.store.cluster_state import NodeInfo, View
from infinite_scheduler.store.looking import Survey
from infinite_scheduler.views.times import IsoTime, iso


class NodeState(enum.StrEnum):
    """The state of a node, seen from outside."""

    ALIVE = "alive"
    LEAVING = "leaving"
    DRAINING = "draining"
    DRAINED = "drained"
    CLOCK_OFF = "clock off"
    SILENT = "silent"
    DEAD = "dead"


LIVING: Final = (NodeState.ALIVE, NodeState.LEAVING, NodeState.DRAINING, NodeState.DRAINED, NodeState.CLOCK_OFF)
"""The states of nodes that are alive."""

WORKING: Final = (NodeState.ALIVE, NodeState.LEAVING)
"""The states of nodes that are alive and take shards."""


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the cluster."""

    node: str
    nonce: str
    state: NodeState
    apps: tuple[str, ...]
    held_back: tuple[str, ...]  # apps whose destinations take nothing
    shards: int  # how many it owns
    started_at: IsoTime
    beat_at: IsoTime  # by the node's own clock
    silent_ms: int
    drain_asked: bool
    clock_offset_ms: int | None  # the store's clock less its own; None: not compared


class DrainView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an operator who drains or resumes the nodes of one name."""

    node: str
    drain_asked: bool
    nodes: int  # how many have this name
    shards: int  # how many these still own


def node_views(survey: Survey, now_ms: int, lease_ms: int) -> Sequence[NodeView]:
    """The nodes that the store knows."""
    view = survey.view
    owned = Counter(info.owner.nonce for info in view.shards)
    return [_node_view(node, view, owned[node.nonce], now_ms, lease_ms) for node in view.nodes]


def _node_view(node: NodeInfo, view: View, shards: int, now_ms: int, lease_ms: int) -> NodeView:
    return NodeView(
        node=node.node_id,
        nonce=node.nonce,
        state=node_state(node, view, now_ms, lease_ms),
        apps=tuple(sorted(node.apps)),
        held_back=tuple(sorted(node.held_back)),
        shards=shards,
        started_at=iso(node.started_ms),
        beat_at=iso(node.beat_ms),
        silent_ms=silence_ms(node, view, now_ms),
        drain_asked=node.drain_asked,
        clock_offset_ms=node.clock_offset_ms,
    )


def node_states(view: View, now_ms: int, lease_ms: int) -> Mapping[str, NodeState]:
    """Whether each node is alive, by its nonce."""
    return {node.nonce: node_state(node, view, now_ms, lease_ms) for node in view.nodes}


def node_state(node: NodeInfo, view: View, now_ms: int, lease_ms: int) -> NodeState:
    """Whether a node is alive, as far as one look can tell."""
    if node.nonce in view.dead:
        return NodeState.DEAD
    if silence_ms(node, view, now_ms) > lease_ms:
        return NodeState.DEAD if node.nonce in view.presumed_dead else NodeState.SILENT
    if node.clock_off:
        return NodeState.CLOCK_OFF
    if node.drain_asked:
        owns = any(info.owner.nonce == node.nonce for info in view.shards)
        return NodeState.DRAINING if owns or not node.draining else NodeState.DRAINED
    return NodeState.LEAVING if node.draining else NodeState.ALIVE


def silence_ms(node: NodeInfo, view: View, now_ms: int) -> int:
    """How long ago its last heartbeat was: by the store's clock, if it has one and the node has compared."""
    if view.clock is None or node.clock_offset_ms is None:
        return max(0, now_ms - node.beat_ms)
    return max(0, view.clock.store_ms - (node.beat_ms + node.clock_offset_ms))
