"""How many jobs are due when: counted as far as a bounded look comes, and estimated beyond it."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from infinite_scheduler.errors import InvalidRequest
from infinite_scheduler.model import DAY_MS, start_of
from infinite_scheduler.store.ledger import Bucket, Forecast, ForecastQuery, Herd
from infinite_scheduler.store.ownership import Scan
from infinite_scheduler.store.sql.statements import DueCount, LookAt, Statements

SECOND_MS: Final = 1000

FEW_FIRST: Final = (LookAt.MOVED, LookAt.LATER, LookAt.ROWS)
"""Each is counted only as far as those before it."""


class AppCount(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted of one app: jobs by the number of a unit of time, from the start of the query."""

    app: str
    units: Mapping[int, int]
    to_ms: int


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


def forecast(tx: Statements, query: ForecastQuery) -> Forecast:
    """Jobs by steps of time. Whole days are known without a look at any row."""
    waiting = days_of(tx.read_waiting(query.app))
    if query.step_ms % DAY_MS == 0 and query.start_ms % DAY_MS == 0:
        return Forecast(buckets=_by_days(query, waiting), counted_to_ms=query.end_ms)
    counts = [_counted(tx, query, app, len(apps)) for apps in [_apps_with_jobs(tx, query)] for app in apps]
    to_ms = min((count.to_ms for count in counts), default=query.end_ms)
    return Forecast(
        buckets=_by_steps(query, counts, waiting, to_ms), herds=_herds(query, counts, to_ms), counted_to_ms=to_ms
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


def _apps_with_jobs(tx: Statements, query: ForecastQuery) -> Sequence[str]:
    """The apps that have anything in the range."""
    names = [app.name for app in tx.read_apps() if query.app in (None, app.name)]
    start, end = start_of(query.start_ms), start_of(query.end_ms)
    scans = [Scan(app=app, shards=frozenset({0}), start=start, end=end, limit=1, room=1) for app in names]
    empty = tx.empty(scans) if scans else ()
    return [name for name in names if name not in empty]


def _counted(tx: Statements, query: ForecastQuery, app: str, apps: int) -> AppCount:
    """Count one app, with its share of the rows that may be looked at."""
    left, to_ms = query.most // apps, query.end_ms
    unit_ms = _unit_ms(query)
    units: dict[int, int] = {}
    for at in FEW_FIRST:
        wanted = DueCount(at=at, app=app, start_ms=query.start_ms, end_ms=to_ms, unit_ms=unit_ms, most=max(1, left))
        counted = tx.count_due(wanted)
        left, to_ms = left - counted.rows, counted.to_ms
        for unit, jobs in counted.units.items():
            units[unit] = units.get(unit, 0) + jobs
    return AppCount(app=app, units=units, to_ms=to_ms)


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
    query: ForecastQuery, counts: Sequence[AppCount], waiting: Mapping[int, int], to_ms: int
) -> Sequence[Bucket]:
    """The steps up to where was counted, and those after it, in which what is left of a day is spread evenly."""
    unit_ms = _unit_ms(query)
    sums: dict[int, int] = {}
    seen: dict[int, int] = {}
    for count in counts:
        for unit, jobs in count.units.items():
            start_ms = query.start_ms + unit * unit_ms
            if start_ms < to_ms:
                step = unit * unit_ms // query.step_ms
                sums[step] = sums.get(step, 0) + jobs
                seen[start_ms // DAY_MS] = seen.get(start_ms // DAY_MS, 0) + jobs
    left = {day: max(0, jobs - seen.get(day, 0)) for day, jobs in waiting.items()}
    buckets = []
    for step, start_ms in enumerate(range(query.start_ms, query.end_ms, query.step_ms)):
        end_ms = min(start_ms + query.step_ms, query.end_ms)
        more = _estimate(max(start_ms, to_ms), end_ms, to_ms, left)
        buckets.append(Bucket(start_ms=start_ms, jobs=sums.get(step, 0) + round(more), estimated=more > 0))
    return buckets


def _estimate(start_ms: int, end_ms: int, to_ms: int, left: Mapping[int, int]) -> float:
    """How many of the jobs that are left of each day fall into this step, if they are spread evenly."""
    jobs = 0.0
    while start_ms < end_ms:
        day = start_ms // DAY_MS
        day_end_ms = (day + 1) * DAY_MS
        rest_ms = day_end_ms - max(day * DAY_MS, to_ms)
        jobs += left.get(day, 0) * (min(end_ms, day_end_ms) - start_ms) / rest_ms
        start_ms = day_end_ms
    return jobs
