"""Writes the vitals of a node: all apps if there is room for them, else those with the most work, and one sum."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from math import exp
from typing import Final

import msgspec

from infinite_scheduler.clock import Clock
from infinite_scheduler.observe.counters import AppCounts, Counters
from infinite_scheduler.observe.node_vitals import AppVitals, Vitals, encode, topic_vitals, total_of
from infinite_scheduler.observe.readings import AppReading, NodeReading

MOST_BYTES: Final = 8 << 10
"""What a heartbeat may carry."""

MOST_APPS: Final = MOST_BYTES // 16
"""More have no room, as an app takes its name and a count at least."""

TOPIC_BYTES: Final = 2 << 10
"""The part of it that topics may fill."""

SUM_BYTES: Final = 1 << 10
"""What the sum of the other apps takes, as a rule."""

RECENT_MS: Final = 60_000
"""Work counts for about this long when apps are ranked."""

SETTLED: Final = ("done", "failed", "expired", "cancelled")
IDLE: Final = AppReading()


class _LastBeat:
    """An app as it was at the last heartbeat: most of many apps have not changed since."""

    __slots__ = ("changes", "held", "vitals", "weight", "work")

    def __init__(self) -> None:
        self.changes = -1
        self.held = IDLE
        self.vitals = AppVitals()
        self.work = 0
        self.weight = 0.0  # the work of about the last minute

    def note(self, app: AppCounts, held: AppReading, fading: float) -> None:
        """Look at what was counted, and at what the node holds."""
        self.weight *= fading
        if app.changes == self.changes and held is self.held:
            return
        lateness = app.lateness.sparse() if app.changes != self.changes else self.vitals.lateness
        self.changes, self.held = app.changes, held
        counts = app.counts
        settled = sum(counts[what] for what in SETTLED)
        work = counts["handed_over"] + settled + counts["retried"]
        self.weight += work - self.work
        self.work = work
        self.vitals = AppVitals(
            handed_over=counts["handed_over"],
            settled=settled,
            failed=counts["failed"],
            retried=counts["retried"],
            early=counts["early"],
            swept=counts["swept"],
            in_flight=held.in_flight,
            held_bytes=held.held_bytes,
            overdue_ms=held.overdue_ms,
            lateness=lateness,
        )


class VitalsWriter:
    """Puts together what was counted and what can be read off the node, once per heartbeat."""

    def __init__(self, counters: Counters, reading: Callable[[], NodeReading], clock: Clock) -> None:
        self._counters = counters
        self._reading = reading
        self._clock = clock
        self._known: dict[str, _LastBeat] = {}
        self._last_ms = clock.steady_ms()

    def write(self) -> bytes:
        """How the node is doing now, encoded: never more than MOST_BYTES."""
        reading = self._reading()
        now_ms = self._clock.steady_ms()
        fading, self._last_ms = exp((self._last_ms - now_ms) / RECENT_MS), now_ms
        for name, app in self._counters.apps():
            known = self._known.get(name) or self._known.setdefault(name, _LastBeat())
            known.note(app, reading.apps.get(name, IDLE), fading)
        busy = [(name, known) for name, known in self._known.items() if not known.vitals.is_empty]
        busy.sort(key=lambda one: (-one[1].weight, one[0]))
        topics = topic_vitals(reading)
        fitting = _fitting((len(encode(topic)) + 1 for topic in topics), TOPIC_BYTES)
        vitals = Vitals(
            topics=topics[:fitting],
            other_topics=len(topics) - fitting,
            saturation=round(reading.saturation, 3),
        )
        return _encoded(vitals, {name: known.vitals for name, known in busy})


def _encoded(vitals: Vitals, ranked: Mapping[str, AppVitals]) -> bytes:
    """With as many of these apps as there is room for, in this order."""
    names = list(ranked)
    room = MOST_BYTES - len(encode(vitals)) - len('"apps":{},')
    sizes = [len(encode(app)) + len(name) + len('"":,') for name, app in islice(ranked.items(), MOST_APPS)]
    named = _fitting(sizes, room)
    if named < len(names):
        named = _fitting(sizes, room - SUM_BYTES)
    while True:
        encoded = encode(_with_apps(vitals, names, named, ranked))
        if len(encoded) <= MOST_BYTES:
            return encoded
        if not named:  # the buckets of very many apps
            return encode(msgspec.structs.replace(vitals, other_apps=len(names)))
        named -= max(1, named // 8)  # the sum takes more room than was left for it


def _with_apps(vitals: Vitals, names: Sequence[str], named: int, ranked: Mapping[str, AppVitals]) -> Vitals:
    left = names[named:]
    return msgspec.structs.replace(
        vitals,
        apps={name: ranked[name] for name in names[:named]},
        others=total_of(ranked[name] for name in left) if left else None,
        other_apps=len(left),
    )


def _fitting(sizes: Iterable[int], room: int) -> int:
    """How many of these, from the first on, fit."""
    count = 0
    for size in sizes:
        room -= size
        if room < 0:
            break
        count += 1
    return count
