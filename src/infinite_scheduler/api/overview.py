"""The whole cluster in one value, read from the store once a second for all who look."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from infinite_scheduler.api.api_context import ApiContext
from infinite_scheduler.store.abilities import Ability
from infinite_scheduler.views.app import AppState, app_views
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


class OverviewBoard:
    """Keeps the last overview; whoever asks for a newer one while it is being read waits for the same."""

    def __init__(self) -> None:
        self._seen: ClusterOverview | None = None
        self._seen_ms = 0
        self._reading = asyncio.Lock()

    async def look(self, api: ApiContext) -> ClusterOverview:
        """An overview that is at most a second old."""
        async with self._reading:
            now_ms = api.clock.steady_ms()
            if self._seen is None or now_ms - self._seen_ms >= EVERY_MS:
                self._seen = await read_overview(api)
                self._seen_ms = now_ms
            return self._seen


async def read_overview(api: ApiContext) -> ClusterOverview:
    """Read the store: one survey, and the counter of what waits."""
    survey, now_ms = await api.client.survey(), api.now_ms
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
        for app in app_views(survey, now_ms, api.lease_ms)
    ]
    return ClusterOverview(
        at=iso(now_ms),
        apps=apps,
        nodes=Counter(node.state for node in node_views(survey, now_ms, api.lease_ms)),
        waiting=None if waiting is None else sum(waiting.values()),
        backlog=api.client.backlog.jobs,
    )
