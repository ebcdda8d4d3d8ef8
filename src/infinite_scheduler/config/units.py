"""Durations, sizes and numbers as people write them."""

import re
from datetime import timedelta
from decimal import Decimal
from typing import Final

_MICROSECONDS: Final = {"d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1_000}
_BYTES: Final = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "GB": 10**9, "MB": 10**6, "kB": 10**3, "B": 1}

_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?", re.ASCII)
_DURATION: Final = re.compile(
    "".join(rf"(?:(?P<{unit}>\d+(?:\.\d+)?){unit}(?![a-z]) ?)?" for unit in _MICROSECONDS), re.ASCII
)
_SIZE: Final = re.compile(rf"(\d+(?:\.\d+)?) ?({'|'.join(_BYTES)})?", re.ASCII)


def parse_duration(value: object) -> timedelta:
    """Read a length of time: "1h30m", "200ms", or a number of seconds."""
    micros = _microseconds(value)
    if micros is None or micros < 0:
        raise ValueError(
            'expected a duration of zero or more, such as "30s", "5m", "1h30m", "200ms", "2d", or a number of seconds'
        )
    try:
        return timedelta(microseconds=round(micros))
    except (ArithmeticError, ValueError):
        raise ValueError(f"expected a duration of at most {timedelta.max.days} days") from None


def format_duration(value: timedelta) -> str:
    """Write a length of time as `parse_duration` reads it."""
    left, parts = value // timedelta(microseconds=1), []
    for unit, micros in _MICROSECONDS.items():
        count, left = divmod(left, micros)
        if unit == "ms" and left:
            parts.append(f"{count}.{left:03}ms")
        elif count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def parse_size(value: object) -> int:
    """Read a size of one byte or more: "64MiB", "1MB", or a number of bytes."""
    size = None
    if isinstance(value, str) and (found := _SIZE.fullmatch(value.strip())):
        size = Decimal(found[1]) * _BYTES[found[2] or "B"]
    elif isinstance(value, int):
        size = parse_number(value)
    if size is None or size < 1 or size != int(size):
        raise ValueError('expected a size of one byte or more, such as "64MiB", "1MB", or a number of bytes')
    return int(size)


def format_size(value: int) -> str:
    """Write a size as `parse_size` reads it."""
    return next(f"{value // factor}{unit}" for unit, factor in _BYTES.items() if value % factor == 0)


def parse_number(value: object) -> Decimal | None:
    """Read a number, also one that is spelt as text, as all are in the environment; None if it is no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        return None
    number = Decimal(str(value))
    return number if number.is_finite() else None


def _microseconds(value: object) -> Decimal | None:
    if isinstance(value, timedelta):
        return Decimal(value // timedelta(microseconds=1))
    if (seconds := parse_number(value)) is not None:
        return seconds * 1_000_000
    if isinstance(value, str) and (found := _DURATION.fullmatch(value.strip())) and any(found.groups()):
        return sum((Decimal(count) * _MICROSECONDS[unit] for unit, count in found.groupdict("0").items()), Decimal())
    return None
