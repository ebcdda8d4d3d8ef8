"""Counts what happens: plain integers, one pass per event, nothing per job."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from threading import Lock
from typing import Any, Final, NamedTuple

from infinite_scheduler.model import Shard
from infinite_scheduler.observe.events import (
    AppHeldBack,
    AppResumed,
    AttemptFailed,
    CallsEnded,
    DeadLettersSent,
    DrainCalledOff,
    Early,
    Event,
    HandedOver,
    HeartbeatFailing,
    JobsAccepted,
    JobsCancelled,
    JobsHeldBack,
    JobsSettled,
    LeaseLapsed,
    Maintained,
    MessagesTaken,
    PoisonFailed,
    Reloaded,
    ShardsLost,
    ShardsReleased,
    ShardsTaken,
    StillRunning,
    StoreAway,
    StoreBack,
    StoreCalled,
    SuspectsFound,
    Swept,
    TaskFailed,
)
from infinite_scheduler.observe.histogram import Histogram

APP_COUNTS: Final = (
    "accepted",
    "repeated",  # accepted before with the same idempotency key
    "handed_over",
    "done",
    "failed",
    "expired",
    "cancelled",
    "retried",
    "attempts_failed",
    "held_back",  # jobs that came back, since their destination took nothing
    "destination_away",
    "destination_away_ms",
    "early",  # taken back before the hand-over, as a clock was set back
    "swept",  # stays 0
    "suspects",
    "poison",
    "still_running",
    "calls",  # of its handler, that have ended
    "calls_us",
)
NODE_COUNTS: Final = (
    "shards_taken",
    "shards_taken_unclean",
    "shards_released",
    "shards_lost",
    "dropped",  # outcomes of lost shards
    "reloads",
    "drains_called_off",
    "store_away",
    "store_away_ms",
    "heartbeat_outages",
    "lapses",
    "tables_made",
    "tables_dropped",
    "pruned",
    "tasks_failed",
)
TOPIC_COUNTS: Final = (
    "messages_received",
    "messages_processed",
    "messages_failed",
    "messages_sent_to_dlq",
    "duplicates_skipped",
)

Reading = int | float | None
Gauge = Callable[[], Reading | Mapping[str, Reading]]
"""Reads a value, or one per name, when asked; None means unknown."""


class AppCounts:
    """The counters of one app, by the names of APP_COUNTS."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(APP_COUNTS, 0))
        self.lateness = Histogram()  # of jobs, in ms
        self.took = Histogram()  # of calls of the handler, in ms
        self.away = False
        self.changes = 0  # how often something of it was counted


class NodeFigures(NamedTuple):
    """What is counted besides apps, at one moment."""

    node: Mapping[str, int]  # by the names of NODE_COUNTS
    topics: Mapping[str, Mapping[str, int]]  # by topic and the names of TOPIC_COUNTS
    store: Mapping[str, tuple[int, int]]  # calls and their µs, by operation
    store_is_away: bool


class Counters:
    """An observer that counts, per app where that makes sense; safe to call from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._apps: dict[str, AppCounts] = {}
        self._node: Counter[str] = Counter(dict.fromkeys(NODE_COUNTS, 0))
        self._topics: dict[str, Counter[str]] = {}
        self._store: dict[str, tuple[int, int]] = {}  # calls and their µs, by operation
        self._owned: set[Shard] = set()
        self._away = False
        self._gauges: dict[str, Gauge] = {}
        self._counted: Mapping[type[Event], Callable[[Any], None]] = {
            JobsAccepted: self._accepted,
            HandedOver: self._handed_over,
            CallsEnded: self._calls_ended,
            JobsSettled: self._settled,
            JobsCancelled: self._per_app("cancelled"),
            AttemptFailed: self._per_app("attempts_failed"),
            JobsHeldBack: self._per_app("held_back"),
            AppHeldBack: self._held_back,
            AppResumed: self._resumed,
            Early: self._per_app("early"),
            Swept: self._per_app("swept"),
            SuspectsFound: self._per_app("suspects"),
            PoisonFailed: self._per_app("poison"),
            StillRunning: self._still_running,
            ShardsTaken: self._taken,
            ShardsReleased: self._released,
            ShardsLost: self._lost,
            Reloaded: self._per_node("reloads"),
            DrainCalledOff: self._per_node("drains_called_off"),
            StoreAway: self._store_away,
            StoreBack: self._store_back,
            StoreCalled: self._store_called,
            HeartbeatFailing: self._per_node("heartbeat_outages"),
            LeaseLapsed: self._per_node("lapses"),
            Maintained: self._maintained,
            MessagesTaken: self._messages_taken,
            DeadLettersSent: self._letters_sent,
            TaskFailed: self._per_node("tasks_failed"),
        }

    def __call__(self, event: Event) -> None:
        """Count it."""
        count = self._counted.get(type(event))
        if count is not None:
            with self._lock:
                count(event)

    def gauge(self, name: str, read: Gauge) -> None:
        """Show under this name what `read` returns when the counters are read."""
        self._gauges[name] = read

    def snapshot(self) -> dict[str, Any]:
        """Everything as plain data: `apps` and `topics` by name, calls of the `store` by name, `node`, `gauges`."""
        with self._lock:
            owned = Counter(shard.app for shard in self._owned)
            apps = {
                name: {
                    **app.counts,
                    "shards_owned": owned[name],
                    "destination_is_away": app.away,
                    "lateness": _figures_ms(app.lateness),
                    "took": _figures_ms(app.took),
                }
                for name, app in sorted(self._apps.items())
            }
            topics = {name: dict(counts) for name, counts in sorted(self._topics.items())}
            store = {name: {"calls": calls, "us": us} for name, (calls, us) in sorted(self._store.items())}
            node = {**self._node, "shards_owned": len(self._owned), "store_is_away": self._away}
        gauges = {name: _read(gauge) for name, gauge in self._gauges.items()}
        return {"apps": apps, "topics": topics, "store": store, "node": node, "gauges": gauges}

    def figures(self) -> NodeFigures:
        """What is counted besides apps: a copy."""
        with self._lock:
            topics = {name: dict(counts) for name, counts in self._topics.items()}
            return NodeFigures(dict(self._node), topics, dict(self._store), self._away)

    def shards_owned(self) -> Mapping[str, int]:
        """How many shards this node owns, by app."""
        with self._lock:
            return Counter(shard.app for shard in self._owned)

    def names(self) -> Collection[str]:
        """The apps of which anything is counted."""
        with self._lock:
            return list(self._apps)

    def apps(self) -> Iterator[tuple[str, AppCounts]]:
        """Each app in turn, to be read before the next is asked for: until then nothing is counted."""
        for name in self.names():
            with self._lock:
                yield name, self._apps[name]

    def _app(self, name: str) -> AppCounts:
        app = self._apps.get(name)
        if app is None:
            app = self._apps[name] = AppCounts()
        app.changes += 1
        return app

    def _per_app(self, name: str) -> Callable[[Any], None]:
        """Add the event's `count`, or 1, to its app."""

        def count(event: Any) -> None:
            self._app(event.app).counts[name] += getattr(event, "count", 1)

        return count

    def _per_node(self, name: str) -> Callable[[Any], None]:
        """Add one per shard of the event, or 1."""

        def count(event: Any) -> None:
            self._node[name] += len(getattr(event, "shards", "1"))

        return count

    def _accepted(self, event: JobsAccepted) -> None:
        counts = self._app(event.app).counts
        counts["accepted"] += event.count
        counts["repeated"] += event.repeated

    def _handed_over(self, event: HandedOver) -> None:
        app = self._app(event.app)
        app.counts["handed_over"] += len(event.lateness_ms)
        app.lateness.add(event.lateness_ms)

    def _calls_ended(self, event: CallsEnded) -> None:
        app = self._app(event.app)
        app.counts["calls"] += len(event.took_us)
        app.counts["calls_us"] += sum(event.took_us)
        app.took.add([us // 1000 for us in event.took_us])

    def _settled(self, event: JobsSettled) -> None:
        self._app(event.app).counts.update(event.counts)

    def _held_back(self, event: AppHeldBack) -> None:
        app = self._app(event.app)
        app.counts["destination_away"] += not app.away  # reported again if the reason changes
        app.away = True

    def _resumed(self, event: AppResumed) -> None:
        app = self._app(event.app)
        app.counts["destination_away_ms"] += event.held_back_ms
        app.away = False

    def _taken(self, event: ShardsTaken) -> None:
        self._owned.update(event.shards)
        for shard in event.shards:
            self._app(shard.app)
        self._node["shards_taken"] += len(event.shards)
        self._node["shards_taken_unclean"] += event.unclean

    def _released(self, event: ShardsReleased) -> None:
        self._owned.difference_update(event.shards)
        self._node["shards_released"] += len(event.shards)

    def _lost(self, event: ShardsLost) -> None:
        self._owned.difference_update(event.shards)
        self._node["shards_lost"] += len(event.shards)
        self._node["dropped"] += event.dropped

    def _store_away(self, event: StoreAway) -> None:
        del event
        self._node["store_away"] += not self._away  # reported again while the outage lasts
        self._away = True

    def _store_back(self, event: StoreBack) -> None:
        self._away = False
        self._node["store_away_ms"] += event.away_ms

    def _store_called(self, event: StoreCalled) -> None:
        calls, us = self._store.get(event.operation, (0, 0))
        self._store[event.operation] = calls + 1, us + event.took_us

    def _maintained(self, event: Maintained) -> None:
        self._node["tables_made"] += len(event.made)
        self._node["tables_dropped"] += len(event.dropped)
        self._node["pruned"] += event.pruned

    def _topic(self, name: str) -> Counter[str]:
        return self._topics.setdefault(name, Counter(dict.fromkeys(TOPIC_COUNTS, 0)))

    def _messages_taken(self, event: MessagesTaken) -> None:
        counts = self._topic(event.topic)
        counts["messages_received"] += event.received
        counts["messages_processed"] += event.accepted
        counts["messages_failed"] += event.failed
        counts["duplicates_skipped"] += event.repeated

    def _letters_sent(self, event: DeadLettersSent) -> None:
        self._topic(event.topic)["messages_sent_to_dlq"] += event.count

    def _still_running(self, event: StillRunning) -> None:
        self._app(event.app).counts["still_running"] += len(event.job_ids)


def _figures_ms(histogram: Histogram) -> dict[str, int]:
    """The figures for people."""
    return {
        "count": histogram.count,
        "total_ms": histogram.total,
        "p50_ms": histogram.quantile(0.5),
        "p99_ms": histogram.quantile(0.99),
        "max_ms": histogram.largest,
    }


def _read(gauge: Gauge) -> Reading | Mapping[str, Reading]:
    try:
        return gauge()
    except Exception:  # noqa: BLE001 - one broken gauge must not hide the others
        return None
