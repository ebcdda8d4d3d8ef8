"""Operations on apps, nodes and shards: what operators look at, hold back and let go on."""

from collections.abc import Sequence

import msgspec

from infinite_scheduler.api.api_context import ApiContext
from infinite_scheduler.api.audit import audited
from infinite_scheduler.api.operation import ApiRequest, EventAnswer, Operation, Subject
from infinite_scheduler.api.overview import ClusterOverview
from infinite_scheduler.errors import NotSupported, StoreUnavailable, UnknownApp, UnknownNode
from infinite_scheduler.store.ledger import Role
from infinite_scheduler.views.app import AppView, PauseView, app_views
from infinite_scheduler.views.node import DrainView, NodeView, node_views
from infinite_scheduler.views.shard import ShardView, shard_views


class AppList(msgspec.Struct, frozen=True, kw_only=True):
    """The apps that the store knows."""

    apps: Sequence[AppView]


class NodeList(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes that the store knows."""

    nodes: Sequence[NodeView]


class ShardList(msgspec.Struct, frozen=True, kw_only=True):
    """The shards of all apps."""

    shards: Sequence[ShardView]


async def show_overview(api: ApiContext, request: ApiRequest) -> ClusterOverview:
    """The cluster at a glance."""
    del request
    return await api.streams.board.look(api)


async def follow_events(api: ApiContext, request: ApiRequest) -> EventAnswer:
    """An overview each second, until somebody goes."""
    del request
    return EventAnswer(api.streams.events(api))


async def list_apps(api: ApiContext, request: ApiRequest) -> AppList:
    """All apps."""
    del request
    return AppList(apps=await _apps(api))


async def show_app(api: ApiContext, request: ApiRequest) -> AppView:
    """One app."""
    name, apps = request.path["app"], await _apps(api)
    found = next((app for app in apps if app.app == name), None)
    if found is None:
        raise UnknownApp(name, [app.app for app in apps])
    return found


async def _apps(api: ApiContext) -> Sequence[AppView]:
    return app_views(await api.client.survey(), api.now_ms, api.lease_ms)


async def pause_app(api: ApiContext, request: ApiRequest) -> PauseView:
    """Stop handing over jobs of an app."""
    name = request.path["app"]
    async with audited(api, request.actor, "pause app", name):
        await api.client.pause(name)
    return PauseView(app=name, paused=True)


async def resume_app(api: ApiContext, request: ApiRequest) -> PauseView:
    """Hand over the jobs of an app again."""
    name = request.path["app"]
    async with audited(api, request.actor, "resume app", name):
        await api.client.resume(name)
    return PauseView(app=name, paused=False)


async def list_nodes(api: ApiContext, request: ApiRequest) -> NodeList:
    """All nodes."""
    del request
    return NodeList(nodes=node_views(await api.client.survey(), api.now_ms, api.lease_ms))


async def drain_node(api: ApiContext, request: ApiRequest) -> DrainView:
    """Ask a node to give up its shards."""
    name = request.path["node"]
    async with audited(api, request.actor, "drain node", name):
        count = await api.client.drain_node(name)
    return await _drained(api, name, count, asked=True)


async def resume_node(api: ApiContext, request: ApiRequest) -> DrainView:
    """Let a node take shards again."""
    name = request.path["node"]
    async with audited(api, request.actor, "resume node", name):
        count = await api.client.resume_node(name)
    return await _drained(api, name, count, asked=False)


async def _drained(api: ApiContext, name: str, count: int, *, asked: bool) -> DrainView:
    nodes = node_views(await api.client.survey(), api.now_ms, api.lease_ms)
    owned = sum(node.shards for node in nodes if node.node == name)
    return DrainView(node=name, drain_asked=asked, nodes=count, shards=owned)


async def list_shards(api: ApiContext, request: ApiRequest) -> ShardList:
    """All shards."""
    del request
    return ShardList(shards=shard_views(await api.client.survey(), api.now_ms, api.lease_ms))


CLUSTER_OPERATIONS = (
    Operation(
        name="showOverview",
        subject=Subject.CLUSTER,
        method="GET",
        path="/v1/overview",
        summary="The cluster at a glance: apps, what waits, nodes. Read from the store once a second at most.",
        role=Role.READ,
        call=show_overview,
        answer=ClusterOverview,
        errors=(StoreUnavailable,),
    ),
    Operation(
        name="followEvents",
        subject=Subject.CLUSTER,
        method="GET",
        path="/v1/events",
        summary=(
            "Follow the cluster by server-sent events: `overview` once a second, as /v1/overview has it, and what "
            "happened since the one before: `node`, `shards`, `app`, `attempt_failed`, `dead_letters`, and `left_out` "
            "with the count of those that were too many; `away` with a reason while the store does not answer; `end` "
            "with a reason when the server stops or the token is not valid any more, `dropped` with a reason if events "
            "are not read in time."
        ),
        role=Role.READ,
        call=follow_events,
        answer=str,
        answer_type="text/event-stream",
    ),
    Operation(
        name="listApps",
        subject=Subject.APPS,
        method="GET",
        path="/v1/apps",
        summary="List the apps, with their nodes and the outcomes of their jobs.",
        role=Role.READ,
        call=list_apps,
        answer=AppList,
        errors=(StoreUnavailable,),
    ),
    Operation(
        name="showApp",
        subject=Subject.APPS,
        method="GET",
        path="/v1/apps/{app}",
        summary="Show one app.",
        role=Role.READ,
        call=show_app,
        answer=AppView,
        errors=(UnknownApp, StoreUnavailable),
    ),
    Operation(
        name="pauseApp",
        subject=Subject.APPS,
        method="POST",
        path="/v1/apps/{app}/pause",
        summary="Stop handing over jobs of an app, on all nodes, until it is resumed; jobs are still accepted.",
        role=Role.OPERATE,
        call=pause_app,
        optional_body=True,
        answer=PauseView,
        errors=(UnknownApp, StoreUnavailable),
    ),
    Operation(
        name="resumeApp",
        subject=Subject.APPS,
        method="POST",
        path="/v1/apps/{app}/resume",
        summary="Hand over the jobs of a paused app again, including those that have become due meanwhile.",
        role=Role.OPERATE,
        call=resume_app,
        optional_body=True,
        answer=PauseView,
        errors=(UnknownApp, StoreUnavailable),
    ),
    Operation(
        name="listNodes",
        subject=Subject.NODES,
        method="GET",
        path="/v1/nodes",
        summary="List the nodes, whether they are alive, what they own, and how far their clocks are off.",
        role=Role.READ,
        call=list_nodes,
        answer=NodeList,
        errors=(StoreUnavailable,),
    ),
    Operation(
        name="drainNode",
        subject=Subject.NODES,
        method="POST",
        path="/v1/nodes/{node}/drain",
        summary="Ask a node to release its shards and to take none, until it is resumed or restarted.",
        role=Role.OPERATE,
        call=drain_node,
        optional_body=True,
        answer=DrainView,
        errors=(UnknownNode, NotSupported, StoreUnavailable),
    ),
    Operation(
        name="resumeNode",
        subject=Subject.NODES,
        method="POST",
        path="/v1/nodes/{node}/resume",
        summary="Let a drained node take shards again.",
        role=Role.OPERATE,
        call=resume_node,
        optional_body=True,
        answer=DrainView,
        errors=(UnknownNode, NotSupported, StoreUnavailable),
    ),
    Operation(
        name="listShards",
        subject=Subject.NODES,
        method="GET",
        path="/v1/shards",
        summary="List the shards: who owns them, and how far their owners have come.",
        role=Role.READ,
        call=list_shards,
        answer=ShardList,
        errors=(StoreUnavailable,),
    ),
)
