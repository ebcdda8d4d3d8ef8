"""How many jobs are due when, as people see it."""

import enum
from collections.abc import Sequence

import msgspec

from infinite_scheduler.model import DAY_MS
from infinite_scheduler.store.ledger import Forecast, ForecastQuery
from infinite_scheduler.views.times import IsoTime, iso

HOUR_MS = 3_600_000
MINUTE_MS = 60_000


class Zoom(enum.StrEnum):
    """How closely to look: at days, at the hours of a day, or at the minutes of an hour."""

    DAYS = "days"
    HOURS = "hours"
    MINUTES = "minutes"


STEPS_MS = {Zoom.DAYS: DAY_MS, Zoom.HOURS: HOUR_MS, Zoom.MINUTES: MINUTE_MS}
LENGTHS_MS = {Zoom.HOURS: DAY_MS, Zoom.MINUTES: HOUR_MS}


class BucketView(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs are due in one step of time."""

    start: IsoTime
    jobs: int
    estimated: bool


class HerdView(msgspec.Struct, frozen=True, kw_only=True):
    """A second in which very many jobs of an app are due."""

    app: str
    start: IsoTime
    jobs: int


class ForecastView(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs are due when."""

    step_ms: int
    buckets: Sequence[BucketView]
    herds: Sequence[HerdView]
    counted_to: IsoTime


def forecast_query(zoom: Zoom, at_ms: int, *, days: int, app: str | None, most: int, herd: int | None) -> ForecastQuery:
    """What to ask for: `days` from the day of a moment, or the hours of that day, or the minutes of that hour."""
    length_ms = LENGTHS_MS.get(zoom, days * DAY_MS)
    start_ms = at_ms - at_ms % (HOUR_MS if zoom is Zoom.MINUTES else DAY_MS)
    return ForecastQuery(
        start_ms=start_ms,
        end_ms=start_ms + length_ms,
        step_ms=STEPS_MS[zoom],
        app=app,
        most=most,
        herd=None if zoom is Zoom.DAYS else herd,
    )


def forecast_view(query: ForecastQuery, found: Forecast) -> ForecastView:
    """The answer as people see it."""
    return ForecastView(
        step_ms=query.step_ms,
        buckets=[BucketView(start=iso(b.start_ms), jobs=b.jobs, estimated=b.estimated) for b in found.buckets],
        herds=[HerdView(app=herd.app, start=iso(herd.start_ms), jobs=herd.jobs) for herd in found.herds],
        counted_to=iso(found.counted_to_ms),
    )
