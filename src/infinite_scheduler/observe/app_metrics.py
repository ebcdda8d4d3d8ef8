"""The metrics of apps: those of the first hundred by name, and one sum of all others."""

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from prometheus_client.core import Metric as Family

from infinite_scheduler.observe.counters import AppCounts, Counters
from infinite_scheduler.observe.histogram import Histogram
from infinite_scheduler.observe.metric import METRICS, PREFIX
from infinite_scheduler.observe.readings import AppReading, NodeReading

MOST_NAMES: Final = 100
"""An app has some fifty values: with a thousand names, a scrape would be slow, and Prometheus too."""

OTHERS: Final = "(others)"
"""What all apps without a name of their own are called; no app can be called so."""

TOTALS: Final = {
    "jobs_repeated": "repeated",
    "jobs_handed_over": "handed_over",
    "jobs_done": "done",
    "jobs_failed": "failed",
    "jobs_expired": "expired",
    "jobs_cancelled": "cancelled",
    "jobs_retried": "retried",
    "attempts_failed": "attempts_failed",
    "jobs_held_back": "held_back",
    "jobs_early": "early",
    "jobs_swept": "swept",
    "jobs_suspected": "suspects",
    "jobs_poison": "poison",
}
"""By metric: what is counted of an app."""

EXPONENTS: Final = (*range(11), 12, 14, 16, 18, 20, 21)
"""Limits of buckets are these powers of two, in ms: 1 ms to 35 minutes. Values were rounded down, so `<` is exact."""

LIMITS: Final = (*(str((1 << exponent) / 1000) for exponent in EXPONENTS), "+Inf")


class NamedApps:
    """Which apps have a name in metrics: once given, it stays, so that no counter ever goes back."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def choose(self, counters: Counters) -> Collection[str]:
        """Give names to more apps: to all if there is room for all, else to those that have done the most."""
        free = MOST_NAMES - len(self._names)
        if free:
            new = [name for name in counters.names() if name not in self._names]
            if len(new) > free:
                worked = {name: sum(app.counts.values()) for name, app in counters.apps()}
                new = sorted((name for name in new if worked[name]), key=lambda name: (-worked[name], name))[:free]
            self._names.update(new)
        return self._names


class AppMetrics:
    """One look at all apps of a node."""

    def __init__(self, named: NamedApps, counters: Counters, reading: NodeReading, waiting: Mapping[str, int]) -> None:
        self._totals: dict[str, dict[str, float]] = {}  # by metric and name
        self._buckets: dict[str, dict[str, tuple[list[int], float]]] = {}  # counts and sum, by metric and name
        shards = counters.shards_owned()
        self._names = named.choose(counters)
        for app, counted in counters.apps():
            self._count(self._name(app), counted, shards.get(app, 0))
        for app, now in reading.apps.items():
            self._read(self._name(app), now)
        for app, jobs in waiting.items():
            self._add("waiting_jobs", self._name(app), jobs)

    def families(self) -> Iterator[Family]:
        """In the order of the table of metrics."""
        for name, metric in METRICS.items():
            if name in self._totals:
                family = Family(PREFIX + name, metric.meaning, metric.kind)
                for app, value in self._totals[name].items():
                    family.add_sample(metric.full_name, {"app": app}, value)
                yield family
            elif name in self._buckets:
                family = Family(PREFIX + name, metric.meaning, metric.kind)
                for app, (counts, total) in self._buckets[name].items():
                    for limit, count in zip(LIMITS, counts, strict=True):
                        family.add_sample(f"{metric.full_name}_bucket", {"app": app, "le": limit}, count)
                    family.add_sample(f"{metric.full_name}_count", {"app": app}, counts[-1])
                    family.add_sample(f"{metric.full_name}_sum", {"app": app}, total)
                yield family

    def _name(self, app: str) -> str:
        return app if app in self._names else OTHERS

    def _count(self, name: str, app: AppCounts, shards: int) -> None:
        counts = app.counts
        self._add("jobs_accepted", name, counts["accepted"] - counts["repeated"])
        for metric, counted in TOTALS.items():
            self._add(metric, name, counts[counted])
        self._add("destination_away_seconds", name, counts["destination_away_ms"] / 1000)
        self._spread("lateness_seconds", name, app.lateness, app.lateness.total / 1000)
        self._spread("handler_seconds", name, app.took, counts["calls_us"] / 1_000_000)
        self._add("shards_owned", name, shards)
        self._most("destination_away", name, app.away)
        for gauge in ("oldest_overdue_seconds", "jobs_in_flight", "window_jobs", "window_bytes"):
            self._add(gauge, name, 0)

    def _read(self, name: str, now: AppReading) -> None:
        self._most("oldest_overdue_seconds", name, now.overdue_ms / 1000)
        self._add("jobs_in_flight", name, now.in_flight)
        self._add("window_jobs", name, now.held)
        self._add("window_bytes", name, now.held_bytes)

    def _add(self, metric: str, name: str, value: float) -> None:
        values = self._totals.setdefault(metric, {})
        values[name] = values.get(name, 0) + value

    def _most(self, metric: str, name: str, value: float) -> None:
        values = self._totals.setdefault(metric, {})
        values[name] = max(values.get(name, 0), value)

    def _spread(self, metric: str, name: str, histogram: Histogram, total: float) -> None:
        if histogram.count:
            buckets = self._buckets.setdefault(metric, {})
            counts = [*histogram.below(EXPONENTS), histogram.count]
            before, sum_before = buckets.get(name, ([0] * len(counts), 0.0))
            buckets[name] = [a + b for a, b in zip(before, counts, strict=True)], sum_before + total
