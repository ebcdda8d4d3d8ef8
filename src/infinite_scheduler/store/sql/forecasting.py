"""How many jobs are due when: counted as far as a bounded look comes, and estimated beyond it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from infinite_scheduler.errors import InvalidRequest
from infinite_scheduler.model import DAY_MS, MAX_DUE_MS, start_of
from infinite_scheduler.store.ledger import Bucket, Forecast, ForecastQuery, Herd
from infinite_scheduler.store.ownership import Scan
from infinite_scheduler.store.sql.search import pending_from
from infinite_scheduler.store.sql.statements import DueCount, DueCounted, LookAt, Statements
from infinite_scheduler.store.sql.tables import SqlApp

SECOND_MS: Final = 1000

MOST_STEPS: Final = 10_000
"""Of one forecast."""


class AppCount(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted of one app: jobs by the number of a unit of time, from the start of the query."""

    app: str
    units: Mapping[int, int]
    to_ms: int


class Uncounted(msgspec.Struct, frozen=True, kw_only=True):
    """The time in which jobs may be due that were not counted: from `begin_ms`, but for [start_ms, to_ms)."""

    begin_ms: int
    start_ms: int
    to_ms: int

    def length_ms(self, day: int) -> int:
        """How much of a day that is."""
        begin_ms, end_ms = max(day * DAY_MS, min(self.begin_ms, self.to_ms)), (day + 1) * DAY_MS
        counted_ms = min(end_ms, self.to_ms) - max(begin_ms, self.start_ms)
        return end_ms - begin_ms - max(0, counted_ms)


def check_forecast(query: ForecastQuery) -> None:
    """Raise InvalidRequest for a range that cannot be counted."""
    if query.step_ms < SECOND_MS or query.step_ms % SECOND_MS or query.start_ms % SECOND_MS:
        raise InvalidRequest(
            f"a forecast from {query.start_ms} in steps of {query.step_ms} ms cannot be made: use whole seconds"
        )
    if not 0 <= query.start_ms < query.end_ms:
        raise InvalidRequest(
            f"a forecast from {query.start_ms} to {query.end_ms} cannot be made: the end must be after the start"
        )
    if query.end_ms > MAX_DUE_MS + 1:
        raise InvalidRequest(f"a forecast to {query.end_ms} cannot be made: the end must be before the year 10000")
    steps = -(-(query.end_ms - query.start_ms) // query.step_ms)
    if steps > MOST_STEPS:
        raise InvalidRequest(f"a forecast has {steps} steps: ask for at most {MOST_STEPS}")


def forecast(tx: Statements, query: ForecastQuery) -> Forecast:
    """Jobs by steps of time. Whole days are known without a look at any row."""
    waiting = days_of(tx.read_waiting(query.app))
    if query.step_ms % DAY_MS == 0 and query.start_ms % DAY_MS == 0:
        return Forecast(buckets=_by_days(query, waiting), counted_to_ms=query.end_ms)
    apps = _apps_with_jobs(tx, query)
    begins = pending_from(tx, apps)
    counts = [_counted(tx, query, begins.get(app.name, 0), app.name, len(apps)) for app in apps]
    to_ms = min((count.to_ms for count in counts), default=query.end_ms)
    begin_ms = min((begins.get(app.name, 0) for app in apps), default=0)
    uncounted = Uncounted(begin_ms=begin_ms, start_ms=query.start_ms, to_ms=to_ms)
    return Forecast(
        buckets=_by_steps(query, counts, waiting, uncounted), herds=_herds(query, counts, to_ms), counted_to_ms=to_ms
    )


def days_of(waiting: Mapping[str, Mapping[int, int]]) -> Mapping[int, int]:
    """How many jobs of all apps wait for each day."""
    days: dict[int, int] = {}
    for counts in waiting.values():
        for day, jobs in counts.items():
            days[day] = days.get(day, 0) + jobs
    return days


def _by_days(query: ForecastQuery, waiting: Mapping[int, int]) -> Sequence[Bucket]:
    days = query.step_ms // DAY_MS
    return [
        Bucket(start_ms=start, jobs=sum(waiting.get(start // DAY_MS + n, 0) for n in range(days)))
        for start in range(query.start_ms, query.end_ms, query.step_ms)
    ]


def _apps_with_jobs(tx: Statements, query: ForecastQuery) -> Sequence[SqlApp]:
    """The apps that have anything in the range."""
    apps = [app for app in tx.read_apps() if query.app in (None, app.name)]
    start, end = start_of(query.start_ms), start_of(query.end_ms)
    scans = [Scan(app=app.name, shards=frozenset({0}), start=start, end=end, limit=1, room=1) for app in apps]
    empty = tx.apps_without_jobs(scans) if scans else ()
    return [app for app in apps if app.name not in empty]


def _counted(tx: Statements, query: ForecastQuery, begin_ms: int, app: str, apps: int) -> AppCount:
    """Count one app, with its share of the rows that may be looked at: rows first, then what was moved among them."""
    most = max(4, query.most // apps)
    left = most - most // 4  # the rest is for entries
    from_ms = min(max(query.start_ms, begin_ms), query.end_ms)

    def count(at: LookAt, end_ms: int, most: int) -> DueCounted:
        return tx.count_due(
            DueCount(
                at=at,
                app=app,
                start_ms=query.start_ms,
                from_ms=from_ms,
                end_ms=end_ms,
                unit_ms=_unit_ms(query),
                most=max(1, most),
            )
        )

    later = count(LookAt.LATER, query.end_ms, left)
    rows = count(LookAt.ROWS, later.to_ms, left - later.rows)
    if rows.to_ms < later.to_ms:  # all are counted by the same keys
        later = count(LookAt.LATER, rows.to_ms, left)
    moved = count(LookAt.MOVED, rows.to_ms, most - later.rows - rows.rows)
    units: Counter[int] = Counter()
    for counted in (later, rows, moved):
        units.update(counted.units)
    return AppCount(app=app, units=units, to_ms=moved.to_ms)


def _unit_ms(query: ForecastQuery) -> int:
    """What is counted apart: herds are looked for by the second."""
    return query.step_ms if query.herd is None else SECOND_MS


def _herds(query: ForecastQuery, counts: Sequence[AppCount], to_ms: int) -> Sequence[Herd]:
    if query.herd is None:
        return ()
    return [
        Herd(app=count.app, start_ms=start_ms, jobs=jobs)
        for count in counts
        for unit, jobs in sorted(count.units.items())
        if jobs > query.herd and (start_ms := query.start_ms + unit * SECOND_MS) < to_ms
    ]


def _by_steps(
    query: ForecastQuery, counts: Sequence[AppCount], waiting: Mapping[int, int], uncounted: Uncounted
) -> Sequence[Bucket]:
    """The steps up to where was counted, and those after it, in which what is left of a day is spread evenly."""
    unit_ms, to_ms = _unit_ms(query), uncounted.to_ms
    sums: Counter[int] = Counter()
    seen: Counter[int] = Counter()
    for count in counts:
        for unit, jobs in count.units.items():
            start_ms = query.start_ms + unit * unit_ms
            if start_ms < to_ms:
                sums[unit * unit_ms // query.step_ms] += jobs
                seen[start_ms // DAY_MS] += jobs
    left = {day: max(0, jobs - seen[day]) for day, jobs in waiting.items()}
    buckets = []
    for step, start_ms in enumerate(range(query.start_ms, query.end_ms, query.step_ms)):
        end_ms = min(start_ms + query.step_ms, query.end_ms)
        more = _estimate(max(start_ms, to_ms), end_ms, uncounted, left)
        buckets.append(Bucket(start_ms=start_ms, jobs=sums[step] + round(more), estimated=more > 0))
    return buckets


def _estimate(start_ms: int, end_ms: int, uncounted: Uncounted, left: Mapping[int, int]) -> float:
    """How many of the jobs that are left of each day fall into this step, if they are spread evenly."""
    jobs = 0.0
    while start_ms < end_ms:
        day = start_ms // DAY_MS
        until_ms = min(end_ms, (day + 1) * DAY_MS)
        jobs += left.get(day, 0) * (until_ms - start_ms) / uncounted.length_ms(day)
        start_ms = until_ms
    return jobs
