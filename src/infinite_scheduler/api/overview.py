"""The whole cluster in one value, read from the store once a second for all who look."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from infinite_scheduler.api.api_context import ApiContext
from infinite_scheduler.store.abilities import Ability
from infinite_scheduler.views.app import AppState, app_views
from infinite_scheduler.views.cluster_change import ClusterLook
from infinite_scheduler.views.node import NodeState, node_views
from infinite_scheduler.views.times import IsoTime, iso

EVERY_MS: Final = 1000
"""How old an overview may be."""


class AppOverview(msgspec.Struct, frozen=True, kw_only=True):
    """One app at a glance."""

    app: str
    state: AppState
    waiting: int | None  # null: this kind of store does not know
    shards: int
    shards_owned: int
    nodes: Sequence[str]
    counts: Mapping[str, int]


class ClusterOverview(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster at one moment."""

    at: IsoTime
    apps: Sequence[AppOverview]
    nodes: Mapping[NodeState, int]  # how many nodes are in which state
    waiting: int | None
    backlog: int  # jobs that wait for a commit in the process that answers


class SeenCluster(NamedTuple):
    """An overview, the look at the store that it was made from, and when that was, by the steady clock."""

    overview: ClusterOverview
    look: ClusterLook
    steady_ms: int


class OverviewBoard:
    """Keeps the last overview; whoever asks for a newer one while it is being read waits for the same."""

    def __init__(self, every_ms: int = EVERY_MS) -> None:
        self.every_ms = every_ms
        self._seen: SeenCluster | None = None
        self._reading = asyncio.Lock()

    async def look(self, api: ApiContext) -> ClusterOverview:
        """An overview that is at most a second old."""
        return (await self.read(api)).overview

    async def read(self, api: ApiContext) -> SeenCluster:
        """The overview with the look that it was made from."""
        async with self._reading:
            now_ms = api.clock.steady_ms()
            if self._seen is None or now_ms - self._seen.steady_ms >= self.every_ms:
                look = ClusterLook(survey=await api.client.survey(), at_ms=api.now_ms)
                self._seen = SeenCluster(await _overview(api, look), look, now_ms)
            return self._seen


async def _overview(api: ApiContext, look: ClusterLook) -> ClusterOverview:
    """Besides the survey, read the counter of what waits."""
    waiting: dict[str, int] | None = None
    if Ability.WAITING in api.client.abilities:
        waiting = {app: sum(days.values()) for app, days in (await api.client.ledger.waiting()).items()}
    apps = [
        AppOverview(
            app=app.app,
            state=app.state,
            waiting=None if waiting is None else waiting.get(app.app, 0),
            shards=app.shards,
            shards_owned=app.shards_owned,
            nodes=app.nodes,
            counts=app.counts,
        )
        for app in app_views(look.survey, look.at_ms, api.lease_ms)
    ]
    return ClusterOverview(
        at=iso(look.at_ms),
        apps=apps,
        nodes=Counter(node.state for node in node_views(look.survey, look.at_ms, api.lease_ms)),
        waiting=None if waiting is None else sum(waiting.values()),
        backlog=api.client.backlog.jobs,
    )
