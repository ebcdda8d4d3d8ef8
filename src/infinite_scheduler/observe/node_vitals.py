"""Vitals: what only a node knows of itself, as it is written with its heartbeat, at most 8 KiB of JSON.

Counts are those since the node has started; whoever looks twice can take the difference. Names are short, as each
heartbeat carries them for every app. A node of another version may know more or fewer fields: unknown ones are skipped,
missing ones have their defaults.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from infinite_scheduler.observe.readings import NodeReading


class AppVitals(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One app on one node, or the sum of several."""

    handed_over: int = msgspec.field(default=0, name="h")
    settled: int = msgspec.field(default=0, name="s")  # done, failed, expired or cancelled
    failed: int = msgspec.field(default=0, name="f")
    retried: int = msgspec.field(default=0, name="r")
    early: int = msgspec.field(default=0, name="e")
    swept: int = msgspec.field(default=0, name="w")
    in_flight: int = msgspec.field(default=0, name="n")
    held_bytes: int = msgspec.field(default=0, name="b")
    overdue_ms: int = msgspec.field(default=0, name="o")  # of the oldest job that is due and not handed over
    lateness: Mapping[int, int] = msgspec.field(default_factory=dict, name="l")  # ms: `Histogram.sparse`

    @property
    def is_empty(self) -> bool:
        return self == _EMPTY


class TopicVitals(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One topic that brings jobs to a node."""

    topic: str = msgspec.field(name="t")
    group: str = msgspec.field(name="g")
    ready: bool = msgspec.field(default=False, name="r")
    lag: int | None = msgspec.field(default=None, name="l")  # of the partitions that this node reads; None: not known


class Vitals(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one node is doing. Apps that have done nothing are left out."""

    apps: Mapping[str, AppVitals] = {}
    others: AppVitals | None = None  # the sum of the apps for which there was no room
    other_apps: int = 0  # how many these are
    topics: Sequence[TopicVitals] = ()
    other_topics: int = 0  # for which there was no room
    saturation: float = 0.0  # how far the node is behind with reading and settling: below 1 it is not

    @property
    def total(self) -> AppVitals:
        """All apps of the node."""
        return total_of(self.apps.values() if self.others is None else [*self.apps.values(), self.others])


_EMPTY = AppVitals()
_COUNTS = ("handed_over", "settled", "failed", "retried", "early", "swept", "in_flight", "held_bytes")

encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Vitals).decode


def decode(vitals: bytes | None) -> Vitals | None:
    """What a node has written; None if that is nothing, or cannot be read by this version."""
    try:
        return None if vitals is None else _decode(vitals)
    except (msgspec.DecodeError, RecursionError):
        return None


def total_of(several: Iterable[AppVitals]) -> AppVitals:
    """The sum of several; of what is overdue, the oldest."""
    sums = dict.fromkeys(_COUNTS, 0)
    overdue_ms, lateness = 0, dict[int, int]()
    for app in several:
        for name in _COUNTS:
            sums[name] += getattr(app, name)
        overdue_ms = max(overdue_ms, app.overdue_ms)
        for bucket, count in app.lateness.items():
            lateness[bucket] = lateness.get(bucket, 0) + count
    return AppVitals(overdue_ms=overdue_ms, lateness=lateness, **sums)


def topic_vitals(reading: NodeReading) -> list[TopicVitals]:
    """The topics of a node; those that need a look come first."""
    topics = [
        TopicVitals(topic=one.topic, group=one.group, ready=one.ready, lag=_sum_known(one.lag.values()))
        for one in reading.topics
    ]
    return sorted(topics, key=lambda one: (one.ready, -(one.lag or 0)))


def _sum_known(lags: Iterable[int | None]) -> int | None:
    known = [lag for lag in lags if lag is not None]
    return sum(known) if known else None
