"""Metrics for Prometheus: one collector over what is counted anyway, and its text.

Nothing is done per job: all numbers are put together when somebody asks for them.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Final, NamedTuple, TypeVar

import msgspec
from prometheus_client import ProcessCollector
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from infinite_scheduler.observe.app_metrics import AppMetrics, NamedApps
from infinite_scheduler.observe.counters import TOPIC_COUNTS, Counters
from infinite_scheduler.observe.http_requests import HttpRequests
from infinite_scheduler.observe.metric import METRICS, PREFIX
from infinite_scheduler.observe.readings import NodeReading

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

NODE_TOTALS: Final = {
    "store_outages": ("store_away", 1),
    "store_away_seconds": ("store_away_ms", 1000),
    "heartbeat_outages": ("heartbeat_outages", 1),
    "lease_lapses": ("lapses", 1),
    "shards_taken": ("shards_taken", 1),
    "shards_taken_unclean": ("shards_taken_unclean", 1),
    "shards_lost": ("shards_lost", 1),
    "outcomes_dropped": ("dropped", 1),
    "shard_reloads": ("reloads", 1),
    "tasks_failed": ("tasks_failed", 1),
}
"""By metric: what is counted of a node, and how many of it are one."""


Labels = TypeVar("Labels", bound=tuple[str, ...])
"""The values of the labels of a metric, in their order."""


class MetricsSources(msgspec.Struct, frozen=True, kw_only=True):
    """Where the numbers come from; all are read in the event loop of the node."""

    counters: Counters
    node: str
    version: str
    reading: Callable[[], NodeReading] = NodeReading
    http: HttpRequests | None = None  # None: this process has no HTTP door
    waiting: Callable[[], Mapping[str, int]] | None = None  # jobs by app, as last read from the store


class PrometheusMetrics(Collector):
    """All metrics of one process. A program with a registry of its own may register it there."""

    def __init__(self, sources: MetricsSources) -> None:
        self._sources = sources
        self._named = NamedApps()
        self._process = ProcessCollector(namespace=PREFIX.rstrip("_"), registry=None)

    async def exposition(self) -> tuple[bytes, str]:
        """The answer to a scrape, and its content type.

        The text is written in a thread, as it may take some 10 ms, for which hand-overs must not wait.
        """
        return await asyncio.to_thread(self._text, self._look()), CONTENT_TYPE

    def collect(self) -> Iterator[Family]:
        """The families, for a registry; to be called in the event loop of the node."""
        yield from self._families(self._look())

    def _text(self, look: "_Look") -> bytes:
        return exposition_text(self._families(look))

    def _look(self) -> "_Look":
        """Read what only the event loop may read."""
        sources = self._sources
        http = None if sources.http is None else sources.http.copy()
        return _Look(sources.reading(), {} if sources.waiting is None else dict(sources.waiting()), http)

    def _families(self, look: "_Look") -> Iterator[Family]:
        sources = self._sources
        figures = sources.counters.figures()
        families = chain(
            [_family("node_info", {(sources.node, sources.version): 1})],
            AppMetrics(self._named, sources.counters, look.reading, look.waiting).families(),
            _store(figures.store),
            _node(figures.node, look.reading, is_away=figures.store_is_away),
            _ingest(figures.topics, look.reading),
            _http(look.http),
            self._process.collect(),
        )
        return (family for family in families if family.samples)


class _Look(NamedTuple):
    """What was read in the event loop."""

    reading: NodeReading
    waiting: Mapping[str, int]
    http: HttpRequests | None


def _family(name: str, values: Mapping[Labels, float]) -> Family:
    """The values of a counter or a gauge, by their labels."""
    metric = METRICS[name]
    family = Family(PREFIX + name, metric.meaning, metric.kind)
    for labels, value in values.items():
        family.add_sample(metric.full_name, dict(zip(metric.labels, labels, strict=True)), value)
    return family


def _summary(name: str, values: Mapping[Labels, tuple[int, int]]) -> Family:
    """Counts and sums of µs, by their labels."""
    metric = METRICS[name]
    family = Family(PREFIX + name, metric.meaning, metric.kind)
    for labels, (count, total_us) in values.items():
        named = dict(zip(metric.labels, labels, strict=True))
        family.add_sample(f"{metric.full_name}_count", named, count)
        family.add_sample(f"{metric.full_name}_sum", named, total_us / 1_000_000)
    return family


def _store(calls: Mapping[str, tuple[int, int]]) -> Iterator[Family]:
    yield _summary("store_seconds", {(operation,): counted for operation, counted in calls.items()})


def _node(counts: Mapping[str, int], reading: NodeReading, *, is_away: bool) -> Iterator[Family]:
    for name, (counted, of) in NODE_TOTALS.items():
        yield _family(name, {(): counts[counted] / of})
    yield _family("saturation", {(): reading.saturation})
    yield _family("store_away", {(): is_away})
    offset_ms = reading.clock_offset_ms
    yield _family("store_clock_offset_seconds", {} if offset_ms is None else {(): offset_ms / 1000})
    yield _family("apps_without_node", {(): reading.apps_without_node})


def _ingest(counts: Mapping[str, Mapping[str, int]], reading: NodeReading) -> Iterator[Family]:
    for name in TOPIC_COUNTS:
        yield _family(f"ingest_{name}", {(topic,): counted[name] for topic, counted in counts.items()})
    topics = reading.topics
    yield _family("ingest_ready", {(one.group, one.topic): one.ready for one in topics})
    yield _family("ingest_idempotency_keys", {(one.group, one.topic): one.keys for one in topics})
    lags = {
        (one.group, str(partition), one.topic): lag
        for one in topics
        for partition, lag in one.lag.items()
        if lag is not None
    }
    yield _family("ingest_lag", lags)


def _http(requests: HttpRequests | None) -> Iterator[Family]:
    if requests is not None:
        yield _family(
            "http_requests", {(m, route, str(status)): n for (m, route, status), n in requests.counts.items()}
        )
        yield _summary("http_request_seconds", requests.took)
        yield _family("http_streams_dropped", {(): requests.streams_dropped})


def exposition_text(families: Iterable[Family]) -> bytes:
    """As prometheus-client writes it, in a fifth of the time: that checks every name of every sample."""
    lines: list[str] = []
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        lines.append(f"# HELP {name} {_escaped(family.documentation)}\n# TYPE {name} {family.type}\n")
        for sample in family.samples:
            labels = ",".join([f'{label}="{_escaped(value)}"' for label, value in sample.labels.items()])
            lines.append(f"{sample.name}{f'{{{labels}}}' if labels else ''} {float(sample.value)}\n")
    return "".join(lines).encode()


def _escaped(text: str) -> str:
    if "\\" in text or '"' in text or "\n" in text:
        return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return text
