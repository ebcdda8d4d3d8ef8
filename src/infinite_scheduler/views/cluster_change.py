"""What happened in the cluster between two looks at it, as people see it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec

from infinite_scheduler.model import Shard
from infinite_scheduler.store.looking import Survey
from infinite_scheduler.views.node import LIVING, NodeState, node_states
from infinite_scheduler.views.times import IsoTime, iso

DRAINS: Final = (NodeState.DRAINING, NodeState.DRAINED)


class NodeChange(msgspec.Struct, frozen=True, kw_only=True):
    """A node joined, left, gives up its shards, has given them up, or takes shards again.

    `state` is None if the store has forgotten the node, as it does when a node stops in good order.
    """

    at: IsoTime
    node: str
    nonce: str
    change: Literal["joined", "left", "draining", "drained", "resumed"]
    state: NodeState | None


class ShardsMoved(msgspec.Struct, frozen=True, kw_only=True):
    """Shards of an app have another owner; None: no node."""

    at: IsoTime
    app: str
    shards: int  # how many
    from_node: str | None
    to_node: str | None


class AppChange(msgspec.Struct, frozen=True, kw_only=True):
    """An operator paused or resumed an app."""

    at: IsoTime
    app: str
    change: Literal["paused", "resumed"]


ClusterChange = NodeChange | ShardsMoved | AppChange


class ClusterLook(msgspec.Struct, frozen=True, kw_only=True):
    """A survey, and when it was made."""

    survey: Survey
    at_ms: int


def changes(before: ClusterLook, now: ClusterLook, lease_ms: int) -> Sequence[ClusterChange]:
    """What happened between two looks: apps, nodes, shards."""
    return [*_apps(before, now), *_nodes(before, now, lease_ms), *_shards(before, now)]


def _apps(before: ClusterLook, now: ClusterLook) -> Iterator[AppChange]:
    paused = {app.name: app.paused for app in before.survey.view.apps}
    for app in now.survey.view.apps:
        if app.paused != paused.get(app.name, False):
            yield AppChange(at=iso(now.at_ms), app=app.name, change="paused" if app.paused else "resumed")


def _nodes(before: ClusterLook, now: ClusterLook, lease_ms: int) -> Iterator[NodeChange]:
    was = node_states(before.survey.view, before.at_ms, lease_ms)
    states = node_states(now.survey.view, now.at_ms, lease_ms)
    names = _names(before) | _names(now)
    for nonce, name in names.items():
        change = _node_change(was.get(nonce), states.get(nonce))
        if change is not None:
            yield NodeChange(at=iso(now.at_ms), node=name, nonce=nonce, change=change, state=states.get(nonce))


def _node_change(
    was: NodeState | None, state: NodeState | None
) -> Literal["joined", "left", "draining", "drained", "resumed"] | None:
    lived, lives = was in LIVING, state in LIVING
    if lived != lives:
        return "joined" if lives else "left"
    if not lives or was == state:
        return None
    if state in DRAINS:
        return "drained" if state is NodeState.DRAINED else "draining"
    return "resumed" if was in DRAINS else None


def _shards(before: ClusterLook, now: ClusterLook) -> Iterator[ShardsMoved]:
    """One summary for each app and pair of nodes. A shard that is taken again by the same process has not moved."""
    owners, names = _owners(before), _names(before) | _names(now)
    moved: Counter[tuple[str, str, str]] = Counter()
    for shard, nonce in _owners(now).items():
        was = owners.get(shard, "")
        if nonce != was:
            moved[shard.app, was, nonce] += 1
    for (app, was, nonce), count in moved.items():
        yield ShardsMoved(
            at=iso(now.at_ms), app=app, shards=count, from_node=_named(was, names), to_node=_named(nonce, names)
        )


def _owners(look: ClusterLook) -> Mapping[Shard, str]:
    return {info.shard: info.owner.nonce for info in look.survey.view.shards}


def _names(look: ClusterLook) -> dict[str, str]:
    return {node.nonce: node.node_id for node in look.survey.view.nodes}


def _named(nonce: str, names: Mapping[str, str]) -> str | None:
    return names.get(nonce, "unknown") if nonce else None
