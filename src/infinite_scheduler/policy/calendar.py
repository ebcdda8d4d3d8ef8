"""Moments and delays as people and programs write them, read into exact milliseconds."""

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from math import ceil
from typing import Any, Final
from zoneinfo import ZoneInfo

from infinite_scheduler.errors import InvalidTime
from infinite_scheduler.model import MAX_DUE_MS

Delay = timedelta | str | float
"""A length of time: a timedelta, text such as "90s" or "1h30m", or seconds."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOMENTS: Final = "2025-11-03T22:00:00 (with Z, an offset or no zone), '+90s', 'in 1h30m', 'now' or epoch milliseconds"
_FIXED: Final = "2025-11-03T22:00:00 (with Z, an offset or no zone) or epoch milliseconds"
_DELAYS: Final = "'90s', '5m', '1h30m', '200ms', '2d', '1w', a number of seconds or a timedelta"

# Every readable value is shorter. The limit keeps Python from refusing thousands of digits, and messages short.
_LONGEST: Final = 64

_ISO: Final = re.compile(
    r"(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:[Tt ](?P<minute>[0-9]{2}:[0-9]{2})(?P<second>:[0-9]{2}(?:[.,](?P<fraction>[0-9]{1,9}))?)?"
    r"(?P<zone> ?[Zz]| ?[+-][0-9]{2}(?::?[0-5][0-9])?)?)?"
)
_LEAST_NUMBER: Final = 10**11
"""A smaller number is surely a mistake: seconds, or a date without dashes. As milliseconds it would fire at once."""
_DIGITS: Final = re.compile(r"[0-9]+")
_DELAY_FROM_NOW: Final = re.compile(r"(?:\+|in\s)(?P<delay>.*)", re.IGNORECASE | re.DOTALL)
_SECONDS: Final = re.compile(r"[0-9]+(?:\.[0-9]{1,9})?")
_PART: Final = re.compile(r"\s*([0-9]+)(?:\.([0-9]{1,9}))?\s*(w|d|h|ms|m|s)")
_UNITS_MS: Final = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}


def parse_moment(value: object, *, now_ms: int | None, zone: ZoneInfo) -> int:
    """Read a moment in any accepted form into epoch milliseconds, or raise InvalidTime.

    Accepted are ISO 8601 (`2025-11-03T22:00:00`, with a space instead of the T, with a fraction, with `Z` or an offset;
    a date alone means midnight), `now`, a delay from now (`+90s`, `in 1h30m`), epoch milliseconds as a number or as
    digits, `datetime` and `date`, and `{"date": {"year": ...}, "time": {"hour": ...}}`, which Java programs send.

    A time without a zone is in `zone`. If it falls into a gap when clocks go forward, it is moved forward by the length
    of the gap: 02:30 becomes 03:30. If it occurs twice, it is the first of the two, unless a `datetime` asks for the
    second with `fold=1`.

    A fraction of a millisecond is rounded up, so that nothing is early.

    Without `now_ms`, times relative to now are refused: a text that is stored and read again would mean another moment.
    """
    if type(value) is int and _LEAST_NUMBER <= value <= MAX_DUE_MS:
        return value
    match value:
        case str():
            text = value.strip()
            moment = _from_fixed_text(text, zone) if now_ms is None else _from_text(text, now_ms, zone)
        case int() if not isinstance(value, bool):
            moment = value
        case datetime():
            moment = _from_datetime(value, zone)
        case date():
            moment = _from_datetime(datetime(value.year, value.month, value.day), zone)  # noqa: DTZ001
        case Mapping():
            moment = _from_fields(value, zone)
        case _:
            raise InvalidTime(f"{_shown(value)} is not a time; expected {_FIXED if now_ms is None else _MOMENTS}")
    if isinstance(value, int | str) and 0 <= moment < _LEAST_NUMBER and str(value).strip().isdigit():
        raise InvalidTime(
            f"{_shown(value)} as epoch milliseconds is a time before 1974; expected at least 12 digits: if it is in "
            "seconds, append 000"
        )
    if not 0 <= moment <= MAX_DUE_MS:
        raise InvalidTime(f"the time {_shown(value)} is out of range; expected one in the years 1970 to 9999")
    return moment


def parse_duration(value: object) -> int:
    """Read a length of time into milliseconds, or raise InvalidTime: for requests, policies and settings alike.

    Accepted are `90s`, `5m`, `1h30m`, `200ms`, `2d`, `1w`, a plain number of seconds, and `timedelta`. A fraction of a
    millisecond is rounded up.
    """
    delay: Decimal | int | None = None
    match value:
        case str() if len(value.strip()) <= _LONGEST:
            delay = _from_delay_text(value.strip())
        case timedelta():
            delay = Decimal(value // timedelta(microseconds=1)) / 1000
        case int() | float() if not isinstance(value, bool) and abs(value) <= MAX_DUE_MS:
            delay = Decimal(str(value)) * 1000
    if delay is None:
        raise InvalidTime(f"{_shown(value)} is not a delay; expected {_DELAYS}")
    if delay < 0:
        raise InvalidTime(f"a delay cannot be negative: {_shown(value)}; expected {_DELAYS}")
    if delay > MAX_DUE_MS:
        raise InvalidTime(f"the delay {_shown(value)} is too long; expected less than 8,000 years")
    return ceil(delay)


def _from_fixed_text(text: str, zone: ZoneInfo) -> int:
    if len(text) <= _LONGEST:
        if iso := _ISO.fullmatch(text):
            return _from_iso(iso, zone)
        if _DIGITS.fullmatch(text):
            return int(text)
        if text.lower() == "now" or _DELAY_FROM_NOW.fullmatch(text):
            raise InvalidTime(f"{_shown(text)} is relative to now, which cannot be stored; expected {_FIXED}")
    raise InvalidTime(f"{_shown(text)} is not a time; expected {_FIXED}")


def _from_text(text: str, now_ms: int, zone: ZoneInfo) -> int:
    if len(text) > _LONGEST:
        raise _no_moment(text)
    if text.lower() == "now":
        return now_ms
    if _DIGITS.fullmatch(text):
        return int(text)
    if later := _DELAY_FROM_NOW.fullmatch(text):
        return now_ms + parse_duration(later["delay"])
    if text.startswith("-"):
        raise InvalidTime(f"a delay cannot be negative: {_shown(text)}; expected {_MOMENTS}")
    iso = _ISO.fullmatch(text)
    if iso is None:
        raise _no_moment(text)
    return _from_iso(iso, zone)


def _from_iso(iso: re.Match[str], zone: ZoneInfo) -> int:
    day, minute, second = iso["date"], iso["minute"] or "00:00", (iso["second"] or ":00")[:3]
    nanos = int((iso["fraction"] or "").ljust(9, "0"))
    try:
        local = datetime.fromisoformat(f"{day}T{minute}{second}")
        if iso["zone"]:
            local = local.replace(tzinfo=_offset(iso["zone"].strip()))
    except ValueError as error:
        raise InvalidTime(f"{iso[0]!r} is not a valid time: {error}; expected {_FIXED}") from None
    return _from_datetime(local, zone) + _ceil(nanos, 1_000_000)


def _offset(text: str) -> timezone:
    """The zone that `Z`, `+02`, `+0200` or `+02:00` names."""
    if text in {"Z", "z"}:
        return UTC
    offset = timedelta(hours=int(text[1:3]), minutes=int(text[3:].lstrip(":") or 0))
    return timezone(-offset if text[0] == "-" else offset)


def _from_datetime(value: datetime, zone: ZoneInfo) -> int:
    if value.utcoffset() is not None:
        return _since_epoch(value)
    local = value.replace(tzinfo=zone)
    if not value.fold:
        return _since_epoch(local)
    # fold=0 is the first of two, and moves a time in a gap forward. fold=1 is the second, but would move it back.
    return max(_since_epoch(local.replace(fold=0)), _since_epoch(local))


def _since_epoch(aware: datetime) -> int:
    passed = aware - _EPOCH
    return passed.days * 86_400_000 + passed.seconds * 1_000 + _ceil(passed.microseconds, 1_000)


def _from_fields(value: Mapping[Any, Any], zone: ZoneInfo) -> int:
    """Read a Java LocalDateTime that was serialized field by field."""
    year, month, day = (_field(value, "date", name) for name in ("year", "month", "day"))
    hour, minute = (_field(value, "time", name) for name in ("hour", "minute"))
    second, nano = (_field(value, "time", name, default=0) for name in ("second", "nano"))
    try:
        local = datetime(year, month, day, hour, minute, second)  # noqa: DTZ001
    except (ValueError, OverflowError) as error:
        raise InvalidTime(f"{_shown(value)} is not a valid time: {error}") from None
    if not 0 <= nano < 1_000_000_000:
        raise InvalidTime(f"time.nano is {_shown(nano)}; expected 0 to 999999999")
    return _from_datetime(local, zone) + _ceil(nano, 1_000_000)


def _field(value: Mapping[Any, Any], part: str, name: str, default: int | None = None) -> int:
    fields = value.get(part)
    found = fields.get(name, default) if isinstance(fields, Mapping) else None
    if not isinstance(found, int) or isinstance(found, bool):
        raise InvalidTime(f"{part}.{name} of the time is {_shown(found)}; expected a whole number")
    return found


def _from_delay_text(text: str) -> int | None:
    """Milliseconds, possibly negative; None if it cannot be read."""
    if text.startswith("-"):
        return -1
    return _from_units(f"{text}s" if _SECONDS.fullmatch(text) else text)


def _from_units(text: str) -> int | None:
    """Add up parts like `1h30m`, larger units first; None if it has any other form."""
    nanos = 0
    place = 0
    larger = list(_UNITS_MS)
    while part := _PART.match(text, place):
        whole, fraction, unit = part.groups(default="")
        if unit not in larger:
            return None
        larger = larger[larger.index(unit) + 1 :]
        nanos += int(whole + fraction.ljust(9, "0")) * _UNITS_MS[unit]
        place = part.end()
    return _ceil(nanos, 1_000_000_000) if text and place == len(text) else None


def _ceil(value: int, divisor: int) -> int:
    return -(-value // divisor)


def _no_moment(value: object) -> InvalidTime:
    return InvalidTime(f"{_shown(value)} is not a time; expected {_MOMENTS}")


def _shown(value: object) -> str:
    """The given value, short enough for a message."""
    match value:
        case str():
            return repr(value) if len(value) <= _LONGEST else f"{value[:_LONGEST]!r}..."
        case int() if abs(value) >> 64:
            return f"a number of {value.bit_length()} bits"
        case None | bool() | int() | float() | date() | timedelta():
            return str(value)
        case _:
            return f"a value of type {type(value).__name__}"
