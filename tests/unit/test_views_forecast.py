"""How many jobs are due when, as people ask for it and see it."""

import pytest

from infinite_scheduler.model import DAY_MS
from infinite_scheduler.store.ledger import Bucket, Forecast, Herd
from infinite_scheduler.views.forecast import HOUR_MS, MINUTE_MS, Zoom, forecast_query, forecast_view

MIDNIGHT = 1_893_456_000_000  # 2030-01-01
NOW = MIDNIGHT + 5 * HOUR_MS + 123_456


@pytest.mark.parametrize(
    ("zoom", "start_ms", "length_ms", "step_ms", "herd"),
    [
        (Zoom.DAYS, MIDNIGHT, 30 * DAY_MS, DAY_MS, None),
        (Zoom.HOURS, MIDNIGHT, DAY_MS, HOUR_MS, 5000),
        (Zoom.MINUTES, MIDNIGHT + 5 * HOUR_MS, HOUR_MS, MINUTE_MS, 5000),
    ],
)
def test_days_the_hours_of_a_day_and_the_minutes_of_an_hour_can_be_asked_for(
    zoom: Zoom, start_ms: int, length_ms: int, step_ms: int, herd: int | None
) -> None:
    query = forecast_query(zoom, NOW, days=30, app="sms", most=7, herd=5000)
    assert (query.start_ms, query.end_ms - query.start_ms, query.step_ms) == (start_ms, length_ms, step_ms)
    assert (query.app, query.most, query.herd) == ("sms", 7, herd)


def test_a_forecast_shows_times_in_utc_and_what_is_estimated() -> None:
    query = forecast_query(Zoom.HOURS, NOW, days=1, app=None, most=7, herd=1)
    found = Forecast(
        buckets=[Bucket(start_ms=MIDNIGHT, jobs=3), Bucket(start_ms=MIDNIGHT + HOUR_MS, jobs=2, estimated=True)],
        herds=[Herd(app="sms", start_ms=MIDNIGHT + 1000, jobs=2)],
        counted_to_ms=MIDNIGHT + HOUR_MS,
    )
    view = forecast_view(query, found)
    assert [(b.start, b.jobs, b.estimated) for b in view.buckets] == [
        ("2030-01-01T00:00:00.000Z", 3, False),
        ("2030-01-01T01:00:00.000Z", 2, True),
    ]
    assert [(h.app, h.start, h.jobs) for h in view.herds] == [("sms", "2030-01-01T00:00:01.000Z", 2)]
    assert (view.step_ms, view.counted_to) == (HOUR_MS, "2030-01-01T01:00:00.000Z")
