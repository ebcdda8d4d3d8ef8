"""Requests to schedule a job, checked and turned into what a store accepts."""

import difflib
import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any, Final
from zoneinfo import ZoneInfo

import msgspec

from infinite_scheduler.errors import InvalidPayload, InvalidRequest, InvalidTime
from infinite_scheduler.ingest.payload import MAX_PAYLOAD, as_bytes, encode_data, read_payload
from infinite_scheduler.model import MAX_DUE_MS, JobSpec, Priority, check_app_name
from infinite_scheduler.policy.calendar import parse_duration, parse_moment

MAX_TEXT: Final = 200
MAX_TAGS: Final = 16
MAX_TAG: Final = 64

# Control characters break log lines, and PostgreSQL cannot store NUL; half of a surrogate pair is not valid UTF-8.
_UNFIT: Final = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_PRIORITIES: Final = {priority.name.lower(): priority for priority in Priority}
_FIELDS: Final = ("at", "data", "priority", "idempotency_key", "request_id", "job_name", "group", "tags")

_encode_sorted: Final = msgspec.json.Encoder(order="sorted").encode
_decode_line: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def make_spec(  # noqa: PLR0913 - one parameter for each field of a job
    app: str,
    *,
    scheduled_ms: int,
    absolute: bool,
    data: Any = None,
    payload: bytes | None = None,
    priority: str | Priority = Priority.NORMAL,
    idempotency_key: str | None = None,
    request_id: str | None = None,
    job_name: str | None = None,
    group: str | None = None,
    tags: Sequence[str] = (),
    max_payload: int = MAX_PAYLOAD,
    check: Callable[[Any], None] | None = None,
) -> JobSpec:
    """A job as a store accepts it, or an `InvalidRequest` that says what to change.

    Either `data`, which is encoded as JSON and must decode to equal data, or `payload`, which is JSON already and kept
    byte for byte. `absolute` says whether the caller gave a time or a delay: a delay that is repeated with the same
    idempotency key leads to another time, but is still the same request. `check` may refuse the data.
    """
    check_app_name(app)
    if type(scheduled_ms) is not int or not 0 <= scheduled_ms <= MAX_DUE_MS:
        raise InvalidTime(f"the time {_shown(scheduled_ms)} is out of range: use one in the years 1970 to 9999")
    if payload is None:
        payload = encode_data(data, max_payload)
        data = (
            None if check is None and idempotency_key is None else read_payload(payload, max_payload)
        )  # as JSON has it
    elif data is None:
        payload = as_bytes(payload)
        data = read_payload(payload, max_payload)
    else:
        raise InvalidPayload("data and payload are both given: leave one of them out")
    if check is not None:
        check(data)
    if idempotency_key == "":
        raise InvalidRequest(
            "idempotency_key is empty: leave it out, or use the same text for all repeats of the request"
        )
    return JobSpec(
        app=app,
        scheduled_ms=scheduled_ms,
        payload=payload,
        priority=_priority(priority),
        idempotency_key=None if idempotency_key is None else _text("idempotency_key", idempotency_key),
        digest=b"" if idempotency_key is None else digest(data, scheduled_ms if absolute else None),
        request_id=None if request_id is None else _text("request_id", request_id),
        job_name=None if job_name is None else _text("job_name", job_name),
        group=None if group is None else _text("group", group),
        tags=_tags(tags) if tags != () else (),
    )


def due_time(at: object, delay: object, *, now_ms: int, zone: ZoneInfo) -> tuple[int, bool]:
    """The moment that was asked for, as a time or as a delay from now, and whether it was given as a time."""
    if (at is None) == (delay is None):
        raise InvalidTime("give either a time (at) or a delay, not both")
    if delay is not None:
        return now_ms + parse_duration(delay), False
    relative = isinstance(at, str) and at.strip().lower().startswith(("+", "in ", "now"))
    return parse_moment(at, now_ms=now_ms, zone=zone), not relative


def digest(data: Any, scheduled_ms: int | None) -> bytes:
    """What must be equal when an idempotency key is used again: the data, and the time if one was given."""
    moment = b"" if scheduled_ms is None else b"at" + scheduled_ms.to_bytes(8, "big")
    return hashlib.blake2b(_encode_sorted(data), digest_size=16, person=moment).digest()  # independent of formatting


def parse_line(line: bytes | str, *, app: str, now_ms: int, zone: ZoneInfo, max_payload: int = MAX_PAYLOAD) -> JobSpec:
    """Read one line of a file of jobs: a JSON object with `at`, `data` and the optional fields of a job.

    The bytes of `data` are kept as they are in the line.
    """
    fields = _fields(line)
    for name in fields:
        if name not in _FIELDS:
            raise InvalidRequest(f"unknown field {name!a:.60}: {_nearest(name)}")
    payload = bytes(fields.pop("data", b"null"))
    values = {name: value for name, raw in fields.items() if (value := _value(name, raw)) is not None}
    at = values.pop("at", None)
    if at is None:
        raise InvalidTime('the field \'at\' is missing: say when, such as "2030-01-31T09:00:00Z" or "in 5m"')
    return make_spec(
        app,
        scheduled_ms=parse_moment(at, now_ms=now_ms, zone=zone),
        absolute=not isinstance(at, str) or at.lstrip()[:1].isdigit(),  # "in 5m", "+90s" and "now" begin otherwise
        payload=payload,
        max_payload=max_payload,
        **values,
    )


def _fields(line: bytes | str) -> dict[str, msgspec.Raw]:
    try:
        return _decode_line(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidRequest(f"the line cannot be read: {error}; use one JSON object per line") from None


def _value(name: str, raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidRequest(f"the field {name!r} cannot be read: {error}") from None


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name[:MAX_TEXT], _FIELDS, n=1)
    return f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(_FIELDS)}"


def _priority(value: object) -> Priority:
    if isinstance(value, Priority):
        return value
    found = _PRIORITIES.get(value.lower()) if isinstance(value, str) else None
    if found is None:
        raise InvalidRequest(f"priority {_shown(value)} is unknown: use {', '.join(map(repr, _PRIORITIES))}")
    return found


def _text(name: str, value: object, limit: int = MAX_TEXT) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} is {_shown(value)}: use a text")
    if len(value) > limit:
        raise InvalidRequest(f"{name} has {len(value)} characters: use at most {limit}")
    if not (value.isascii() and value.isprintable()) and _UNFIT.search(value):
        raise InvalidRequest(f"{name} {_shown(value)} has a character that cannot be stored: use printable text")
    return value if type(value) is str else str.__str__(value)


def _tags(tags: object) -> tuple[str, ...]:
    if not isinstance(tags, list | tuple | set | frozenset):
        raise InvalidRequest(f"tags is {_shown(tags)}: use a list of texts")
    if len(tags) > MAX_TAGS:
        raise InvalidRequest(f"there are {len(tags)} tags: use at most {MAX_TAGS}")
    checked = []
    for number, tag in enumerate(tags):
        text = _text(f"tags[{number}]", tag, MAX_TAG)
        if not text:
            raise InvalidRequest(f"tags[{number}] is empty: leave it out")
        checked.append(text)
    return tuple(checked)


def _shown(value: object) -> str:
    """The given value, short enough for a message."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, str | int | float | None):
        text = ascii(value)
        return text if len(text) <= 60 else f"{text[:60]}..."
    return f"of type {type(value).__name__}"
