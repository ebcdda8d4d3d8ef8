"""Commands about apps and nodes."""

from collections.abc import Sequence

from infinite_scheduler.cli.store_session import StoreSession
from infinite_scheduler.clock import SystemClock, sleep
from infinite_scheduler.errors import Unavailable
from infinite_scheduler.views.app import AppView, HeldBackAppView, PauseView, app_views, held_back_views
from infinite_scheduler.views.node import LIVING, DrainView, node_state, node_views
from infinite_scheduler.views.times import ms_of, relative, span

NONCE_SHOWN = 6
LOOK_MS = 250
"""How often to check a drain that is waited for."""

HOLDS_BACK = 1

SHOWN_COUNTS = ("accepted", "done", "failed", "expired", "cancelled", "retried")


async def list_nodes(session: StoreSession) -> None:
    """Print the nodes of the store."""
    survey = await session.client.survey()
    now_ms = session.now_ms
    nodes = node_views(survey, now_ms, session.lease_ms)
    if session.out.as_json:
        for node in nodes:
            session.out.record(node)
        return
    if not nodes:
        session.out.note("no node is running: start one with infinite-scheduler serve")
        return
    session.out.table(
        ("node", "nonce", "state", "apps", "shards", "started", "last heartbeat", "clock"),
        [
            (
                node.node,
                node.nonce[:NONCE_SHOWN],
                node.state,
                ", ".join(f"{app} (held back)" if app in node.held_back else app for app in node.apps),
                node.shards,
                relative(ms_of(node.started_at), now_ms),
                f"{span(node.silent_ms)} ago",
                _offset(node.clock_offset_ms),
            )
            for node in nodes
        ],
        whole=("node", "state", "clock"),
        spare=("nonce", "started", "apps"),
    )


def _offset(offset_ms: int | None) -> str | None:
    """How far a node's clock is ahead of the store's, or behind it."""
    if offset_ms is None:
        return None
    return f"{-offset_ms:+}ms" if abs(offset_ms) < 1000 else f"{-offset_ms / 1000:+.1f}s"


async def drain_node(session: StoreSession, node_id: str, *, wait: bool) -> None:
    """Ask a node to give up its shards; wait until it has."""
    count = await session.client.drain_node(node_id)
    if not session.out.as_json:
        session.out.say(f"{_named(node_id, count)} gives up its shards and takes none; it follows within a heartbeat")
    left = await _drained(session, node_id) if wait else await _shards_of(session, node_id)
    if session.out.as_json:
        session.out.record(DrainView(node=node_id, drain_asked=True, nodes=count, shards=left))
    elif wait:
        session.out.say(f"{node_id} owns no shards any more")


async def resume_node(session: StoreSession, node_id: str) -> None:
    """Let a node take shards again."""
    count = await session.client.resume_node(node_id)
    if session.out.as_json:
        left = await _shards_of(session, node_id)
        session.out.record(DrainView(node=node_id, drain_asked=False, nodes=count, shards=left))
    else:
        session.out.say(f"{_named(node_id, count)} takes shards again; it follows within a heartbeat")


def _named(node_id: str, count: int) -> str:
    return node_id if count == 1 else f"each of the {count} nodes {node_id}"


async def _drained(session: StoreSession, node_id: str) -> int:
    """Wait until the nodes of this name own nothing, and report the progress whenever it changes."""
    told = None
    while left := await _shards_of(session, node_id, must_live=True):
        if left != told and not session.out.as_json:
            session.out.note(f"{node_id} owns {left} shards; a shard moves when its jobs in flight have ended")
        told = left
        await sleep(SystemClock(), LOOK_MS)
    return 0


async def _shards_of(session: StoreSession, node_id: str, *, must_live: bool = False) -> int:
    """How many shards the nodes of this name own."""
    survey = await session.client.survey()
    view, now_ms = survey.view, session.now_ms
    nodes = [node for node in view.nodes if node.node_id == node_id]
    nonces = {node.nonce for node in nodes}
    owned = sum(info.owner.nonce in nonces for info in view.shards)
    if must_live and owned and not any(node_state(node, view, now_ms, session.lease_ms) in LIVING for node in nodes):
        raise Unavailable(
            f"node {node_id} is not alive any more and owns {owned} shards: another node takes them over, if one runs"
        )
    return owned


async def list_apps(session: StoreSession) -> int:
    """Print the apps of the store; 1 if a node holds one of them back."""
    apps = app_views(await session.client.survey(), session.now_ms, session.lease_ms)
    held_back = held_back_views(apps)
    if session.out.as_json:
        for app in apps:
            session.out.record(app)
    elif apps:
        _print_apps(session, apps)
        say_what_is_held_back(session, held_back)
    else:
        session.out.note("no apps yet: start a node whose configuration names some")
    return HOLDS_BACK if held_back else 0


def _print_apps(session: StoreSession, apps: Sequence[AppView]) -> None:
    session.out.table(
        ("app", "state", "shards", "nodes", *SHOWN_COUNTS),
        [
            (
                app.app,
                app.state,
                f"{app.shards_owned}/{app.shards}",
                ", ".join(app.nodes),
                *(f"{app.counts.get(name, 0):,}" for name in SHOWN_COUNTS),
            )
            for app in apps
        ],
        whole=("app", "state", "shards", *SHOWN_COUNTS),
        spare=("retried", "expired", "cancelled", "nodes"),
    )


def say_what_is_held_back(session: StoreSession, held_back: Sequence[HeldBackAppView]) -> None:
    """Print for each app, and each node that holds it back, since when and why."""
    for held in held_back:
        since = relative(ms_of(held.since), session.now_ms)
        session.out.say(
            f"Held back: {held.app}, by node {held.node}, since {held.since}, {since}: {held.reason}",
            style="bold red",
        )


async def pause_app(session: StoreSession, app: str) -> None:
    """Stop handing over jobs of an app until it is resumed."""
    await session.client.pause(app)
    await _print_pause(session, app, "paused")


async def resume_app(session: StoreSession, app: str) -> None:
    """Hand over the jobs of an app again."""
    await session.client.resume(app)
    await _print_pause(session, app, "resumed")


async def _print_pause(session: StoreSession, app: str, what: str) -> None:
    if session.out.as_json:
        session.out.record(PauseView(app=app, paused=what == "paused"))
    else:
        session.out.say(f"{what} {app}; nodes follow within a heartbeat")


async def recount_apps(session: StoreSession, app: str | None) -> None:
    """Count anew how many jobs of an app wait, or of each app."""
    apps = [app] if app else [one.name for one in (await session.client.survey()).view.apps]
    for name in apps:
        await _recount(session, name)


async def _recount(session: StoreSession, app: str) -> None:
    again = await session.client.ledger.recount(app)
    if session.out.as_json:
        session.out.record(again)
    elif again.before == again.counted:
        session.out.say(f"{again.counted:,} jobs of {app} wait, as the counter said")
    else:
        session.out.say(f"{again.counted:,} jobs of {app} wait; the counter said {again.before:,}, and is corrected")
