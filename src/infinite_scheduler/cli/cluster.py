"""Commands about apps and nodes."""

from collections import Counter
from typing import Any

from infinite_scheduler.cli.explain import NodeState, node_state
from infinite_scheduler.cli.session import Session
from infinite_scheduler.cli.times import iso, relative
from infinite_scheduler.store.base import AppInfo, NodeInfo, Survey

SHOWN_COUNTS = ("accepted", "done", "failed", "expired", "cancelled", "retried")


async def list_nodes(session: Session) -> None:
    """Print the nodes that the store knows."""
    survey = await session.client.survey()
    owned = Counter(info.owner.nonce for info in survey.view.shards)
    nodes = [_node_data(session, survey, node, owned[node.nonce]) for node in survey.view.nodes]
    if session.out.as_json:
        for node in nodes:
            session.out.record(node)
        return
    if not nodes:
        session.out.note("no node runs: start one with infinite-scheduler serve")
        return
    now_ms = session.now_ms
    session.out.table(
        ("node", "state", "apps", "shards", "started", "last sign of life"),
        [
            (
                data["node"],
                data["state"],
                ", ".join(data["apps"]),
                data["shards"],
                relative(node.started_ms, now_ms),
                relative(node.beat_ms, now_ms),
            )
            for node, data in zip(survey.view.nodes, nodes, strict=True)
        ],
        whole=("node", "state"),
    )


def _node_data(session: Session, survey: Survey, node: NodeInfo, shards: int) -> dict[str, Any]:
    return {
        "node": node.node_id,
        "nonce": node.nonce,
        "state": node_state(node, survey.view, session.now_ms, session.lease_ms),
        "apps": sorted(node.apps),
        "shards": shards,
        "started_at": iso(node.started_ms),
        "beat_at": iso(node.beat_ms),
    }


async def list_apps(session: Session) -> None:
    """Print the apps that the store knows."""
    survey = await session.client.survey()
    apps = [_app_data(session, survey, app) for app in survey.view.apps]
    if session.out.as_json:
        for app in apps:
            session.out.record(app)
        return
    if not apps:
        session.out.note("no apps yet: start a node whose configuration names some")
        return
    session.out.table(
        ("app", "state", "shards", "nodes", *SHOWN_COUNTS),
        [
            (
                app["app"],
                "paused" if app["paused"] else "running" if app["nodes"] else "no node",
                f"{app['shards_owned']}/{app['shards']}",
                ", ".join(app["nodes"]),
                *(f"{app['counts'].get(name, 0):,}" for name in SHOWN_COUNTS),
            )
            for app in apps
        ],
        whole=("app", "state", "shards", *SHOWN_COUNTS),
        spare=("retried", "expired", "cancelled", "nodes"),
    )


def _app_data(session: Session, survey: Survey, app: AppInfo) -> dict[str, Any]:
    view = survey.view
    nodes = [
        node.node_id
        for node in view.nodes
        if app.name in node.apps
        and node_state(node, view, session.now_ms, session.lease_ms) in (NodeState.ALIVE, NodeState.LEAVING)
    ]
    return {
        "app": app.name,
        "paused": app.paused,
        "shards": app.shards,
        "shards_owned": sum(info.shard.app == app.name and not info.released for info in view.shards),
        "nodes": sorted(nodes),
        "created_at": iso(app.created_ms),
        "counts": dict(survey.counts.get(app.name, {})),
    }


async def pause_app(session: Session, app: str) -> None:
    """Hand over no jobs of an app until it is resumed."""
    await session.client.pause(app)
    await _print_pause(session, app, "paused")


async def resume_app(session: Session, app: str) -> None:
    """Hand over the jobs of an app again."""
    await session.client.resume(app)
    await _print_pause(session, app, "resumed")


async def _print_pause(session: Session, app: str, what: str) -> None:
    if session.out.as_json:
        session.out.record({"app": app, "paused": what == "paused"})
    else:
        session.out.say(f"{what} {app}; nodes follow within a heartbeat")
