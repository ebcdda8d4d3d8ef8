"""Texts and JSON with placeholders for the fields of a job, parsed once and filled in for each job.

A placeholder is the path of a field of the data, `{customer.name}` or `{items.0.id}`, or a field of the job:
`{job.id}`. Two braces stand for one. Numbers are copied as they were written, digit by digit.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from infinite_scheduler.errors import ConfigError, InvalidPayload
from infinite_scheduler.model import Job, datetime_of

_PARTS: Final = re.compile(r"(?P<braces>\{\{|\}\})|\{(?P<name>[^{}]*)\}|(?P<odd>[{}])|(?P<text>[^{}]+)")
_NAME: Final = re.compile(r"[^\s.{}]+(\.[^\s.{}]+)*")

_JOB: Final[Mapping[str, Callable[[Job], Any]]] = {
    "id": lambda job: job.id,
    "app": lambda job: job.app,
    "attempt": lambda job: job.attempt,
    "due_at": lambda job: iso(job.due_ms),
    "due_ms": lambda job: job.due_ms,
    "scheduled_time": lambda job: iso(job.scheduled_ms),
    "scheduled_ms": lambda job: job.scheduled_ms,
    "created_at": lambda job: iso(job.created_ms),
    "priority": lambda job: job.priority.name.lower(),
    "request_id": lambda job: job.request_id,
    "job_name": lambda job: job.job_name,
    "group": lambda job: job.group,
    "tags": lambda job: job.tags,
    "data": lambda job: msgspec.Raw(job.payload),
}

FieldPath = tuple[str, ...]
Fields = Mapping[str, msgspec.Raw]

_decode_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_nested: Final = msgspec.json.Decoder(dict[str, msgspec.Raw] | list[msgspec.Raw]).decode


def iso(ms: int) -> str:
    """A time as `2025-11-03T22:00:00.000Z`."""
    return f"{datetime_of(ms).isoformat(timespec='milliseconds')[:-6]}Z"


def fields_of(payload: bytes) -> Fields:
    """The fields of an object, each as it is in the payload."""
    try:
        return _decode_object(payload)
    except msgspec.ValidationError:
        raise InvalidPayload('jobData must be an object, such as {"name": "Ada"}') from None


def path_of(name: str, what: str) -> FieldPath:
    """The path that a dotted name stands for."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{what} has the placeholder {{{name}}}: use the name of a field, such as {{customer.name}}")
    return tuple(name.split("."))


def find(fields: Fields, path: FieldPath) -> msgspec.Raw | None:
    """The field at a path as it is in the payload; None if there is none."""
    raw = fields.get(path[0])
    for name in path[1:]:
        if raw is None:
            return None
        raw = _inside(raw, name)
    return raw


def _inside(raw: msgspec.Raw, name: str) -> msgspec.Raw | None:
    try:
        inner = _decode_nested(raw)
    except msgspec.ValidationError:
        return None
    if isinstance(inner, dict):
        return inner.get(name)
    return inner[int(name)] if name.isdecimal() and int(name) < len(inner) else None


def missing(path: FieldPath, what: str) -> InvalidPayload:
    """The error for data that lacks a field."""
    return InvalidPayload(f"jobData has no field {'.'.join(path)!r}, which {what} needs")


class Placeholder:
    """One field of the data, or of the job."""

    def __init__(self, name: str, what: str) -> None:
        self._what = what
        self.path: FieldPath | None = None
        self._own: Callable[[Job], Any] | None = None
        path = path_of(name, what)
        if path[0] != "job":
            self.path = path
            return
        self._own = _JOB.get(".".join(path[1:]))
        if self._own is None:
            known = ", ".join(f"{{job.{own}}}" for own in _JOB)
            raise ConfigError(f"{what} has the placeholder {{{name}}}, which jobs do not have; use one of {known}")

    def raw(self, job: Job, fields: Fields) -> bytes:
        """The value as JSON."""
        if self.path is None:
            return msgspec.json.encode(self._own(job) if self._own else None)
        found = find(fields, self.path)
        if found is None:
            raise missing(self.path, self._what)
        return bytes(found)

    def text(self, job: Job, fields: Fields) -> str:
        """The value as text; null, lists and objects are refused."""
        raw = self.raw(job, fields)
        if raw[:1] == b'"':
            return msgspec.json.decode(raw, type=str)
        if raw == b"null" or raw[:1] in b"[{":
            name = ".".join(self.path) if self.path else "of the job"
            kind = {b"n": "null", b"[": "a list", b"{": "an object"}[raw[:1]]
            raise InvalidPayload(f"the field {name!r} is {kind}, but {self._what} needs a text, a number or a boolean")
        return raw.decode()


class Text:
    """A text with placeholders."""

    def __init__(self, template: str, what: str) -> None:
        self.parts = list(_read(template, what))

    @property
    def paths(self) -> list[FieldPath]:
        """The fields of the data that are needed."""
        return [part.path for part in self.parts if isinstance(part, Placeholder) and part.path]

    @property
    def only(self) -> Placeholder | None:
        """The placeholder, if the text is nothing else."""
        return self.parts[0] if len(self.parts) == 1 and isinstance(self.parts[0], Placeholder) else None

    def fill(self, job: Job, fields: Fields) -> str:
        """The text for this job."""
        return "".join(part if isinstance(part, str) else part.text(job, fields) for part in self.parts)


class Value:
    """JSON whose texts may have placeholders; a text that is exactly one placeholder becomes the value itself."""

    def __init__(self, template: Mapping[str, Any], what: str) -> None:
        self._parts: list[bytes | Text] = []
        for part in _write(template, what):
            if isinstance(part, bytes) and self._parts and isinstance(self._parts[-1], bytes):
                self._parts[-1] += part
            else:
                self._parts.append(part)

    @property
    def paths(self) -> list[FieldPath]:
        """The fields of the data that are needed."""
        return [path for part in self._parts if isinstance(part, Text) for path in part.paths]

    def fill(self, job: Job, fields: Fields) -> bytes:
        """The JSON for this job."""
        return b"".join(part if isinstance(part, bytes) else _filled(part, job, fields) for part in self._parts)


def _filled(part: Text, job: Job, fields: Fields) -> bytes:
    only = part.only
    return only.raw(job, fields) if only else msgspec.json.encode(part.fill(job, fields))


def _read(template: str, what: str) -> Iterator[str | Placeholder]:
    text = ""
    for part in _PARTS.finditer(template):
        if part["odd"]:
            raise ConfigError(f"{what} is {template!r}, which has a single brace: double it for a literal one")
        if part["name"] is None:
            text += part["text"] or part["braces"][0]
            continue
        if text:
            yield text
            text = ""
        yield Placeholder(part["name"], what)
    if text:
        yield text


def _write(value: object, what: str) -> Iterator[bytes | Text]:
    match value:
        case str():
            text = Text(value, what)
            plain = not any(isinstance(part, Placeholder) for part in text.parts)
            yield msgspec.json.encode("".join(map(str, text.parts))) if plain else text
        case Mapping():
            yield from _write_many(b"{", [(_key(name, what), inner) for name, inner in value.items()], b"}", what)
        case Sequence() if not isinstance(value, bytes | bytearray):
            yield from _write_many(b"[", [(b"", inner) for inner in value], b"]", what)
        case None | bool() | int() | float():
            yield msgspec.json.encode(value)
        case _:
            raise ConfigError(
                f"{what} contains {value!r}, which JSON does not have: use texts, numbers, lists and tables"
            )


def _write_many(begin: bytes, items: Sequence[tuple[bytes, object]], end: bytes, what: str) -> Iterator[bytes | Text]:
    yield begin
    for number, (name, inner) in enumerate(items):
        yield (b"," if number else b"") + name
        yield from _write(inner, what)
    yield end


def _key(name: object, what: str) -> bytes:
    if not isinstance(name, str):
        raise ConfigError(f"{what} has the name {name!r}: names in JSON are texts, so quote it")
    return msgspec.json.encode(name) + b":"
