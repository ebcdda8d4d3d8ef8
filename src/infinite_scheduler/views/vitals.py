"""How the whole cluster is doing, as people see it: the vitals of all living nodes, added up."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from infinite_scheduler.observe.histogram import Histogram
from infinite_scheduler.observe.node_vitals import AppVitals, Vitals, decode, total_of
from infinite_scheduler.store.looking import Survey
from infinite_scheduler.views.node import LIVING, node_states

KEPT_MS: Final = 60_000
"""Rates and lateness are those of about this long."""


class LatenessView(msgspec.Struct, frozen=True, kw_only=True):
    """How late jobs were handed over; a value is never too small, and at most a half too large."""

    jobs: int
    p50_ms: int
    p99_ms: int
    max_ms: int


class WorkView(msgspec.Struct, frozen=True, kw_only=True):
    """What one app, several or all of them do: gauges of now, and what happened recently.

    Rates are per second; they and lateness are None until two heartbeats of a node can be compared.
    """

    in_flight: int
    held_bytes: int
    overdue_ms: int  # of the oldest job that is due and not handed over
    early: int  # since the nodes have started
    swept: int
    handed_over_rate: float | None
    settled_rate: float | None
    failed_rate: float | None
    retried_rate: float | None
    lateness: LatenessView | None


class TopicWorkView(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as the nodes that read it see it."""

    topic: str
    group: str
    nodes: tuple[str, ...]  # that read it
    unready: tuple[str, ...]  # those of them that cannot at the moment
    lag: int | None  # None: no node knows it


class NodeWorkView(msgspec.Struct, frozen=True, kw_only=True):
    """One node, with all of its apps."""

    node: str
    nonce: str
    saturation: float
    work: WorkView


class ClusterWorkView(msgspec.Struct, frozen=True, kw_only=True):
    """All living nodes; `others` is the sum of apps that some node had no room to name."""

    total: WorkView
    apps: Mapping[str, WorkView]
    others: WorkView | None
    nodes: tuple[NodeWorkView, ...]
    topics: tuple[TopicWorkView, ...]


class Beat(NamedTuple):
    """What a node said with one heartbeat, and when, by its own clock."""

    node: str
    at_ms: int
    vitals: Vitals


Beats = Mapping[str, Beat]
"""By nonce."""


class WorkHistory:
    """Remembers what nodes have said during the last minute, so that one look shows rates.

    A door keeps one, and gives it each survey that it makes anyway.
    """

    def __init__(self) -> None:
        self._past: dict[str, deque[Beat]] = {}

    def add(self, survey: Survey, now_ms: int, lease_ms: int) -> ClusterWorkView:
        """Take in a survey. Returns how the cluster is doing."""
        beats = living_beats(survey, now_ms, lease_ms)
        past = {nonce: self._past.get(nonce, deque()) for nonce in beats}
        for nonce, beat in beats.items():
            kept = past[nonce]
            if not kept or kept[-1].at_ms < beat.at_ms:
                kept.append(beat)
            while beat.at_ms - kept[0].at_ms > KEPT_MS:
                kept.popleft()
        self._past = past
        return cluster_work(beats, {nonce: kept[0] for nonce, kept in past.items()})


def living_beats(survey: Survey, now_ms: int, lease_ms: int) -> Beats:
    """What each node that lives has said with its last heartbeat."""
    states = node_states(survey.view, now_ms, lease_ms)
    said = ((node, decode(node.vitals)) for node in survey.view.nodes if states[node.nonce] in LIVING)
    return {node.nonce: Beat(node.node_id, node.beat_ms, vitals) for node, vitals in said if vitals is not None}


def cluster_work(now: Beats, before: Beats) -> ClusterWorkView:
    """All nodes added up; `before` has earlier heartbeats of some of them."""
    spans = {nonce: _Span(beat, before.get(nonce, beat)) for nonce, beat in now.items()}
    names = sorted({name for beat in now.values() for name in beat.vitals.apps})
    others = [_Part(s, s.now.vitals.others, s.before.vitals.others) for s in spans.values()]
    return ClusterWorkView(
        total=_work([_Part(s, s.now.vitals.total, s.before.vitals.total) for s in spans.values()]),
        apps={name: _work([span.app(name) for span in spans.values()]) for name in names},
        others=_work(others) if any(part.now is not None for part in others) else None,
        nodes=tuple(_node(nonce, span) for nonce, span in spans.items()),
        topics=tuple(_topics(now.values())),
    )


class _Span(NamedTuple):
    """Two heartbeats of one node; the same one twice if only one is known."""

    now: Beat
    before: Beat

    @property
    def seconds(self) -> float:
        return (self.now.at_ms - self.before.at_ms) / 1000

    def app(self, name: str) -> "_Part":
        """One app; if it was among the others before, what it did since is not known."""
        past = self.before.vitals
        new = AppVitals() if past.others is None else None
        return _Part(self, self.now.vitals.apps.get(name), past.apps.get(name, new))


class _Part(NamedTuple):
    """What one node says of one app, now and before; None: nothing."""

    span: _Span
    now: AppVitals | None
    before: AppVitals | None


def _work(parts: Sequence[_Part]) -> WorkView:
    total = total_of(part.now for part in parts if part.now is not None)
    known = [
        (part.now, part.before, part.span.seconds)
        for part in parts
        if part.now is not None and part.before is not None and part.span.seconds > 0
    ]

    def rate(count: Callable[[AppVitals], int]) -> float | None:
        if not known:
            return None
        return round(sum(max(0, count(n) - count(b)) / seconds for n, b, seconds in known), 3)

    return WorkView(
        in_flight=total.in_flight,
        held_bytes=total.held_bytes,
        overdue_ms=total.overdue_ms,
        early=total.early,
        swept=total.swept,
        handed_over_rate=rate(lambda app: app.handed_over),
        settled_rate=rate(lambda app: app.settled),
        failed_rate=rate(lambda app: app.failed),
        retried_rate=rate(lambda app: app.retried),
        lateness=_lateness((n, b) for n, b, _ in known) if known else None,
    )


def _lateness(pairs: Iterable[tuple[AppVitals, AppVitals]]) -> LatenessView:
    """Of the jobs that were handed over between two heartbeats."""
    buckets: dict[int, int] = {}
    for now, before in pairs:
        for bucket, count in now.lateness.items():
            buckets[bucket] = buckets.get(bucket, 0) + max(0, count - before.lateness.get(bucket, 0))
    histogram = Histogram.of(buckets)
    return LatenessView(
        jobs=histogram.count,
        p50_ms=histogram.quantile(0.5),
        p99_ms=histogram.quantile(0.99),
        max_ms=histogram.largest,
    )


def _node(nonce: str, span: _Span) -> NodeWorkView:
    vitals = span.now.vitals
    part = _Part(span, vitals.total, span.before.vitals.total)
    return NodeWorkView(node=span.now.node, nonce=nonce, saturation=vitals.saturation, work=_work([part]))


def _topics(beats: Iterable[Beat]) -> Iterable[TopicWorkView]:
    readers: dict[tuple[str, str], list[tuple[str, bool, int | None]]] = {}
    for beat in beats:
        for one in beat.vitals.topics:
            readers.setdefault((one.topic, one.group), []).append((beat.node, one.ready, one.lag))
    for (topic, group), some in sorted(readers.items()):
        known = [lag for _, _, lag in some if lag is not None]
        yield TopicWorkView(
            topic=topic,
            group=group,
            nodes=tuple(sorted(node for node, _, _ in some)),
            unready=tuple(sorted(node for node, ready, _ in some if not ready)),
            lag=sum(known) if known else None,
        )
