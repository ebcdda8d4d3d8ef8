"""What a person should look at, anywhere in the cluster."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from infinite_scheduler.observe.node_vitals import AppVitals, Vitals
from infinite_scheduler.store.looking import Survey
from infinite_scheduler.views.app import AppState, AppView, app_views
from infinite_scheduler.views.times import span
from infinite_scheduler.views.vitals import living_beats

OTHER_APPS = "other apps"
"""The apps for which a node has no room in what it says of itself."""


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a person should look at."""

    kind: Literal["overdue", "no_node", "held_back", "early", "swept", "topic"]
    about: str  # the app or the topic
    node: str | None  # the node that it is about; null: all
    detail: str


def alarms(survey: Survey, now_ms: int, lease_ms: int, *, overdue_alarm_ms: int) -> Sequence[Alarm]:
    """What is wrong with apps, and what living nodes said of themselves with their last heartbeats."""
    apps = app_views(survey, now_ms, lease_ms)
    paused = {app.app for app in apps if app.paused}
    found = [alarm for app in apps for alarm in _of_app(app)]
    for beat in living_beats(survey, now_ms, lease_ms).values():
        found += _of_node(beat.node, beat.vitals, paused, overdue_alarm_ms)
    return found


def _of_app(app: AppView) -> Iterator[Alarm]:
    if app.state is AppState.NO_NODE:
        detail = f"no running node can hand over the jobs of app {app.app}: start one that has a handler for it"
        yield Alarm(kind="no_node", about=app.app, node=None, detail=detail)
    for held in app.held_back:
        detail = f"node {held.node} holds app {app.app} back since {held.since}: {held.reason}"
        yield Alarm(kind="held_back", about=app.app, node=held.node, detail=detail)


def _of_node(node: str, vitals: Vitals, paused: Collection[str], overdue_alarm_ms: int) -> Iterator[Alarm]:
    """One alarm of each kind, about the app that is worst off, and one for each topic."""
    apps = {**vitals.apps, **({} if vitals.others is None else {OTHER_APPS: vitals.others})}
    handed = {name: app.overdue_ms for name, app in apps.items() if name not in paused}
    late = max(handed, key=handed.__getitem__, default="")
    if late and handed[late] > overdue_alarm_ms:
        why = f"a job of {_app(late)} has been due for {span(handed[late])} on node {node}"
        yield Alarm(kind="overdue", about=late, node=node, detail=f"{why}: infinite-scheduler explain says why")
    early, about = _count(apps, "early")
    if early:
        why = f"{early} jobs were taken back on node {node}, since a clock was set back"
        yield Alarm(kind="early", about=about, node=node, detail=f"{why}: check how clocks are synchronised")
    swept, about = _count(apps, "swept")
    if swept:
        detail = f"the safety net of node {node} found {swept} jobs that were not in memory: please report it"
        yield Alarm(kind="swept", about=about, node=node, detail=detail)
    for topic in vitals.topics:
        if not topic.ready:
            detail = f"topic {topic.topic} is not read by node {node}: infinite-scheduler ingest status says why"
            yield Alarm(kind="topic", about=topic.topic, node=node, detail=detail)


def _count(apps: Mapping[str, AppVitals], what: Literal["early", "swept"]) -> tuple[int, str]:
    """How many in all, and the app that has the most."""
    counts = {name: int(getattr(app, what)) for name, app in apps.items()}
    return sum(counts.values()), max(counts, key=counts.__getitem__, default="")


def _app(name: str) -> str:
    return "one of the other apps" if name == OTHER_APPS else f"app {name}"
