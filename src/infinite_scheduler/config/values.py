"""What a single setting may contain; each refusal says what is expected."""

import builtins
import difflib
import json
import re
import zoneinfo
from collections.abc import Iterable, Mapping
from datetime import timedelta
from decimal import Decimal
from inspect import isclass
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator
from pydantic_core import PydanticCustomError

from infinite_scheduler.config.units import format_duration, parse_number, parse_size
from infinite_scheduler.errors import InvalidTime
from infinite_scheduler.kafka import names
from infinite_scheduler.model import APP_NAME
from infinite_scheduler.policy.calendar import parse_duration
from infinite_scheduler.secrets import without_secrets
from infinite_scheduler.store import find_scheme, shown_url

_FUNCTION: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_NODE_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*:\S+")
_FILLED: Final = re.compile(r".*\S.*")
_GROUP: Final = re.compile(r"(?=.*\S).{1,255}")
_ROOT_PATH: Final = re.compile(r"(?:/[A-Za-z0-9._~-]+)*")
_TOKEN_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_TOKEN: Final = re.compile(r"[!-~]{16,256}")
_BROKER: Final = re.compile(r"(?:[A-Za-z_]+://)?(?:\[[0-9A-Fa-f:.]+\]|[^\s,:/\[\]]+)(?::(\d{1,5}))?")


def whole(low: int, high: int | None = None) -> BeforeValidator:
    """A whole number within bounds."""

    def check(value: object) -> int:
        number = parse_number(value)
        if number is None or number != int(number) or number < low or (high is not None and number > high):
            raise ValueError(f"expected a whole number {_bounds(low, high)}")
        return int(number)

    return BeforeValidator(check)


def real(low: float, high: float | None = None) -> BeforeValidator:
    """A number within bounds."""

    def check(value: object) -> float:
        number = parse_number(value)
        if number is None or number < Decimal(low) or (high is not None and number > Decimal(high)):
            raise ValueError(f"expected a number {_bounds(low, high)}")
        return float(number)

    return BeforeValidator(check)


def _bounds(low: float, high: float | None) -> str:
    return f"of {low} or more" if high is None else f"from {low} to {high}"


def _matching(pattern: re.Pattern[str], expected: str) -> AfterValidator:
    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise ValueError(f"expected {expected}")
        return value

    return AfterValidator(check)


def read_duration(value: object) -> timedelta:
    """Read a length of time; the error is in the words of a setting."""
    try:
        return timedelta(milliseconds=parse_duration(value))
    except InvalidTime:
        expected = 'a duration of zero or more, such as "30s", "5m", "1h30m", "200ms", "2d", or a number of seconds'
        raise ValueError(f"expected {expected}") from None


def _some_time(value: timedelta) -> timedelta:
    if value < timedelta(milliseconds=1):  # the engine counts in milliseconds
        raise ValueError('expected a duration of 1ms or more, such as "30s"')
    return value


def _not_empty(delays: tuple[timedelta, ...]) -> tuple[timedelta, ...]:
    if not delays:
        raise ValueError('expected a list of at least one duration, such as ["10s", "1m"]')
    return delays


def _known_zone(name: str) -> str:
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        hint = did_you_mean(name, zoneinfo.available_timezones())
        raise ValueError(f'expected an IANA time zone, such as "UTC" or "Europe/Berlin"{hint}') from None
    return name


def _known_exception(name: str) -> str:
    known = [word for word, found in vars(builtins).items() if isclass(found) and issubclass(found, Exception)]
    if name not in known and not _FUNCTION.fullmatch(name):
        hint = did_you_mean(name, known)
        raise ValueError(f'expected a built-in exception, such as "OSError", or "module:Class"{hint}')
    return name


def _known_value(value: object) -> object:
    if not (value in ("generic", "data") if isinstance(value, str) else isinstance(value, Mapping)):
        raise ValueError('expected "generic", "data" or a table such as { text = "{message}" }')
    return value


def _reachable(servers: str) -> str:
    """The brokers without spaces between them."""
    brokers = [broker.strip() for broker in servers.split(",")]
    for broker in brokers:
        found = _BROKER.fullmatch(broker)
        if found is None or not 0 < int(found[1] or 9092) < 65536:
            raise ValueError('expected "HOST:PORT", or several with commas between them')
    return ",".join(brokers)


def _flat(properties: object) -> object:
    """Undo what TOML makes of a dotted name without quotes: a table in a table."""
    if not isinstance(properties, Mapping):
        return properties
    flat: dict[Any, Any] = {}
    for name, value in properties.items():
        inner = _flat(value)
        if isinstance(inner, Mapping):
            flat |= {f"{name}.{rest}": deeper for rest, deeper in inner.items()}
        else:
            flat[name] = inner
    return flat


def _plain(value: object) -> object:
    if isinstance(value, str | int | float):
        return value
    raise ValueError("expected a text, a number, true or false")


def _no_topic(value: object) -> object:
    return None if value == "" else value


def _known_misfire(word: object) -> object:
    if word not in ("fire_now", "skip"):
        raise ValueError('expected "fire_now", "skip" or { expire_after = "10m" }')
    return word


def _readable_url(url: str) -> str:
    scheme = find_scheme(url)
    if scheme is not None:
        scheme.check(url)
    return url


def _small_letters(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _capitals(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


Duration = Annotated[timedelta, BeforeValidator(read_duration)]
PositiveDuration = Annotated[Duration, AfterValidator(_some_time)]
Delays = Annotated[tuple[Duration, ...], AfterValidator(_not_empty)]
Size = Annotated[int, BeforeValidator(parse_size)]
FilledText = Annotated[str, _matching(_FILLED, "a text that is not empty")]
StoreUrl = Annotated[
    str,
    _matching(_URL, 'a store URL, such as "sqlite:///scheduler.db" or "postgresql://USER:PASSWORD@HOST/DATABASE"'),
    AfterValidator(_readable_url),
]
NodeId = Annotated[str, _matching(_NODE_ID, "1 to 64 letters, digits, dots, colons, dashes or underscores")]
Zone = Annotated[str, AfterValidator(_known_zone)]
LogLevel = Annotated[Literal["debug", "info", "warning", "error", "critical"], BeforeValidator(_small_letters)]
AppName = Annotated[
    str,
    _matching(APP_NAME, "an app name: a lower-case letter, then up to 31 lower-case letters, digits or underscores"),
]
Function = Annotated[str, _matching(_FUNCTION, '"module:name", such as "shop.jobs:send"')]
ExceptionName = Annotated[str, AfterValidator(_known_exception)]
Topic = Annotated[str, _matching(names.TOPIC, names.EXPECTED)]
GroupId = Annotated[str, _matching(_GROUP, "the name of a consumer group: 1 to 255 characters")]
TopicOrNone = Annotated[Topic | None, BeforeValidator(_no_topic)]
Servers = Annotated[str, AfterValidator(_reachable)]
SecurityProtocol = Annotated[Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"], BeforeValidator(_capitals)]
SaslMechanism = Annotated[
    Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER"], BeforeValidator(_capitals)
]
Properties = Annotated[
    dict[
        Annotated[str, _matching(_FILLED, 'the dotted name of a property, such as "socket.timeout.ms"')],
        Annotated[str | int | float | bool, BeforeValidator(_plain)],
    ],
    BeforeValidator(_flat),
]
RootPath = Annotated[str, _matching(_ROOT_PATH, 'a path without a slash at its end, such as "/scheduler"')]
TokenName = Annotated[str, _matching(_TOKEN_NAME, "1 to 64 letters, digits, dots, dashes or underscores")]
TokenText = Annotated[
    str, _matching(_TOKEN, "16 to 256 characters without spaces, such as `openssl rand -hex 32` prints")
]
MessageValue = Annotated[Literal["generic", "data"] | dict[str, Any], BeforeValidator(_known_value)]
MisfireWord = Annotated[Literal["fire_now", "skip"], BeforeValidator(_known_misfire)]


def does_not_fit(field: str | tuple[str | int, ...], value: object, expected: str) -> PydanticCustomError:
    """The error for settings that contradict each other, reported for the one that most likely has to change."""
    path = (field,) if isinstance(field, str) else field
    return PydanticCustomError("does_not_fit", "{expected}", {"path": path, "value": value, "expected": expected})


def show(value: object) -> str:
    """A value as in a configuration file, shortened, without a password."""
    if isinstance(value, timedelta):
        value = format_duration(value)
    elif isinstance(value, tuple | list):
        return f"[{', '.join(show(item) for item in value)}]"
    elif isinstance(value, str):
        value = shown_url(value)
    text = without_secrets(json.dumps(value, ensure_ascii=False, default=str), shown_url)
    return text if len(text) <= 100 else f"{text[:97]}..."


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a message that offers the known word nearest to this one."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
