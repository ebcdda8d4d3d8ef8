"""What happened between two looks at the cluster."""

from collections.abc import Mapping
from typing import Any

import pytest

from infinite_scheduler.model import Owner, Shard
from infinite_scheduler.store.cluster_state import AppInfo, NodeInfo, ShardInfo, View
from infinite_scheduler.store.looking import Survey
from infinite_scheduler.views.cluster_change import AppChange, ClusterLook, NodeChange, ShardsMoved, changes

LEASE_MS = 10_000
AT_MS = 1_000_000


def node(nonce: str = "n1", **fields: Any) -> NodeInfo:
    values: dict[str, Any] = {"apps": frozenset(), "started_ms": 0, "beat_ms": AT_MS, **fields}
    return NodeInfo(nonce=nonce, node_id=f"node-{nonce}", **values)


def look(*nodes: NodeInfo, owners: Mapping[int, str] | None = None, paused: bool | None = None) -> ClusterLook:
    shards = tuple(
        ShardInfo(shard=Shard("shop", number), owner=Owner(nonce, 1), line_ms=0, low_ms=0)
        for number, nonce in (owners or {}).items()
    )
    apps = () if paused is None else (AppInfo(name="shop", shards=2, paused=paused, created_ms=0),)
    return ClusterLook(survey=Survey(view=View(nodes=nodes, shards=shards, apps=apps), counts={}), at_ms=AT_MS)


@pytest.mark.parametrize(
    ("before", "now", "change"),
    [
        (look(), look(node()), "joined"),
        (look(node(beat_ms=0)), look(node()), "joined"),
        (look(node()), look(), "left"),
        (look(node()), look(node(beat_ms=0)), "left"),
        (look(node()), look(node(drain_asked=True)), "draining"),
        (look(node()), look(node(drain_asked=True, draining=True)), "drained"),
        (look(node(drain_asked=True)), look(node(drain_asked=True, draining=True)), "drained"),
        (look(node(drain_asked=True, draining=True)), look(node()), "resumed"),
    ],
)
def test_a_change_of_a_node_is_told_with_its_name(before: ClusterLook, now: ClusterLook, change: str) -> None:
    (told,) = changes(before, now, LEASE_MS)
    assert isinstance(told, NodeChange)
    assert (told.node, told.nonce, told.change) == ("node-n1", "n1", change)


def test_shards_that_moved_are_summed_up_by_app_and_nodes() -> None:
    both = (node("n1"), node("n2"))
    before = look(*both, owners={0: "n1", 1: "n1", 2: "n1", 3: "n2", 4: ""})
    now = look(*both, owners={0: "n2", 1: "n2", 2: "n1", 3: "", 4: "n3"})
    told = {
        (one.from_node, one.to_node): one.shards
        for one in changes(before, now, LEASE_MS)
        if isinstance(one, ShardsMoved) and one.app == "shop"
    }
    assert told == {("node-n1", "node-n2"): 2, ("node-n2", None): 1, (None, "unknown"): 1}


def test_a_paused_app_is_told_also_if_it_is_new() -> None:
    told = [*changes(look(), look(paused=True), LEASE_MS), *changes(look(paused=True), look(paused=False), LEASE_MS)]
    assert [one.change for one in told if isinstance(one, AppChange)] == ["paused", "resumed"]


def test_without_a_change_nothing_is_told() -> None:
    same = look(node(), owners={0: "n1"}, paused=False)
    assert changes(same, same, LEASE_MS) == []
