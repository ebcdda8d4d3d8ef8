"""A shard as people see it: who owns it, and how far its owner has come."""

from collections.abc import Mapping, Sequence

import msgspec

from infinite_scheduler.store.cluster_state import NodeInfo, ShardInfo
from infinite_scheduler.store.looking import Survey
from infinite_scheduler.views.node import NodeState, node_states


class OwnerView(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of a shard; `state` is None if the store has no row of that node."""

    node: str
    nonce: str
    epoch: int
    state: NodeState | None


class ShardView(msgspec.Struct, frozen=True, kw_only=True):
    """One slice of an app; `owner` is None while no node owns it."""

    app: str
    shard: int
    owner: OwnerView | None
    line_ms: int  # before it the owner decides
    low_ms: int  # before it all is settled


def shard_views(survey: Survey, now_ms: int, lease_ms: int) -> Sequence[ShardView]:
    """The shards that the store knows."""
    view = survey.view
    nodes = {node.nonce: node for node in view.nodes}
    states = node_states(view, now_ms, lease_ms)
    return [shard_view(info, nodes, states) for info in view.shards]


def shard_view(info: ShardInfo, nodes: Mapping[str, NodeInfo], states: Mapping[str, NodeState]) -> ShardView:
    """One shard; nodes and their states are given by nonce."""
    return ShardView(
        app=info.shard.app,
        shard=info.shard.number,
        owner=None if info.released else _owner_view(info, nodes, states),
        line_ms=info.line_ms,
        low_ms=info.low_ms,
    )


def _owner_view(info: ShardInfo, nodes: Mapping[str, NodeInfo], states: Mapping[str, NodeState]) -> OwnerView:
    nonce, epoch = info.owner
    node = nodes.get(nonce)
    return OwnerView(node=node.node_id if node else "unknown", nonce=nonce, epoch=epoch, state=states.get(nonce))
