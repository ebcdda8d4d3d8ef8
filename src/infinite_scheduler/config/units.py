"""Sizes and numbers as people write them, and how durations are written back."""

import re
from datetime import timedelta
from decimal import Decimal
from typing import Final

_MILLISECONDS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_BYTES: Final = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "GB": 10**9, "MB": 10**6, "kB": 10**3, "B": 1}

_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?", re.ASCII)
_SIZE: Final = re.compile(rf"(\d+(?:\.\d+)?) ?({'|'.join(_BYTES)})?", re.ASCII)


def format_duration(value: timedelta) -> str:
    """Write a length of time as in a configuration file, to the millisecond."""
    left, parts = value // timedelta(milliseconds=1), []
    for unit, size in _MILLISECONDS.items():
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def parse_size(value: object) -> int:
    """Read a size of at least one byte: "64MiB", "1MB", or a number of bytes."""
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
    """Read a number, also as text, as all are in the environment; None if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        return None
    number = Decimal(str(value))
    return number if number.is_finite() else None
