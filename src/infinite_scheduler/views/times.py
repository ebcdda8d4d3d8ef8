"""Times and durations as people read them."""

from datetime import datetime, timedelta
from typing import Annotated, Final

import msgspec

from infinite_scheduler.model import datetime_of

IsoTime = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"})]
"""A time in UTC, to the millisecond: 2030-01-31T09:00:00.000Z."""

_UNITS: Final = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))


def iso(ms: int) -> IsoTime:
    """The time in UTC, to the millisecond."""
    return datetime_of(ms).strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03}Z"


def iso_or_none(ms: int | None) -> IsoTime | None:
    """The time in UTC, if there is one."""
    return None if ms is None else iso(ms)


def ms_of(text: IsoTime) -> int:
    """The milliseconds since the epoch that `iso` made this text of."""
    return (datetime.fromisoformat(text) - datetime_of(0)) // timedelta(milliseconds=1)


def span(ms: int) -> str:
    """A length of time in its two largest units, rounded: "4m 10s", "3s", "120ms"."""
    if ms < 1000:
        return f"{ms}ms"
    ms = round(ms, -3)
    parts: list[tuple[int, str]] = []
    for unit, size in _UNITS:
        count, ms = divmod(ms, size)
        if count or parts:
            parts.append((count, unit))
    return " ".join(f"{count}{unit}" for count, unit in parts[:2] if count)


def relative(ms: int, now_ms: int) -> str:
    """How far away a time is: "in 4m 10s", "3s ago", "now"."""
    if ms == now_ms:
        return "now"
    return f"in {span(ms - now_ms)}" if ms > now_ms else f"{span(now_ms - ms)} ago"


def when(ms: int, now_ms: int) -> str:
    """The time, and how far away it is."""
    return f"{iso(ms)} ({relative(ms, now_ms)})"
