"""An app as people see it: is it handed over, by which nodes, and how many jobs went which way?"""

import enum
from collections.abc import Mapping, Sequence

import msgspec

from infinite_scheduler.store.cluster_state import AppInfo
from infinite_scheduler.store.looking import Survey
from infinite_scheduler.views.node import WORKING, NodeState, node_states
from infinite_scheduler.views.times import IsoTime, iso


class AppState(enum.StrEnum):
    """Whether jobs of an app are handed over."""

    RUNNING = "running"
    PAUSED = "paused"
    HELD_BACK = "held back"
    NO_NODE = "no node"


class HeldBackView(msgspec.Struct, frozen=True, kw_only=True):
    """A node that holds an app back, since what its handler hands over to takes nothing."""

    node: str
    since: IsoTime
    reason: str


class HeldBackAppView(HeldBackView, frozen=True, kw_only=True):
    """An app that a node holds back, with its name: for lists that are not grouped by app."""

    app: str


class AppView(msgspec.Struct, frozen=True, kw_only=True):
    """One app."""

    app: str
    paused: bool
    shards: int
    shards_owned: int
    nodes: tuple[str, ...]  # that run it and do not hold back
    held_back: tuple[HeldBackView, ...]  # by these nodes
    created_at: IsoTime
    counts: Mapping[str, int]  # accepted, done, failed, expired, cancelled, retried: since the retention

    @property
    def state(self) -> AppState:
        """Whether its jobs are handed over."""
        if self.paused:
            return AppState.PAUSED
        if self.held_back:
            return AppState.HELD_BACK
        return AppState.RUNNING if self.nodes else AppState.NO_NODE


class PauseView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an operator who pauses or resumes an app."""

    app: str
    paused: bool


def app_views(survey: Survey, now_ms: int, lease_ms: int) -> Sequence[AppView]:
    """The apps that the store knows."""
    states = node_states(survey.view, now_ms, lease_ms)
    return [_app_view(app, survey, states) for app in survey.view.apps]


def held_back_views(apps: Sequence[AppView]) -> Sequence[HeldBackAppView]:
    """What nodes hold back of these apps."""
    return [
        HeldBackAppView(app=app.app, node=held.node, since=held.since, reason=held.reason)
        for app in apps
        for held in app.held_back
    ]


def _app_view(app: AppInfo, survey: Survey, states: Mapping[str, NodeState]) -> AppView:
    view = survey.view
    nodes = [node for node in view.nodes if app.name in node.apps and states[node.nonce] in WORKING]
    return AppView(
        app=app.name,
        paused=app.paused,
        shards=app.shards,
        shards_owned=sum(info.shard.app == app.name and not info.released for info in view.shards),
        nodes=tuple(sorted(node.node_id for node in nodes)),
        held_back=tuple(
            HeldBackView(node=node.node_id, since=iso(held.since_ms), reason=held.reason)
            for node in nodes
            if (held := node.held_back.get(app.name)) is not None
        ),
        created_at=iso(app.created_ms),
        counts=dict(survey.counts.get(app.name, {})),
    )
