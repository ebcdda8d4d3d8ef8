"""What a message of a topic says: the job in it, or why it is refused."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from os import urandom
from typing import Any, Final, TypeVar
from zoneinfo import ZoneInfo

import msgspec

from infinite_scheduler.errors import InvalidPayload, InvalidRequest, InvalidTime
from infinite_scheduler.handlers.base import Handler
from infinite_scheduler.ingest.payload import MAX_PAYLOAD, read_payload
from infinite_scheduler.ingest.request import make_spec
from infinite_scheduler.model import JobSpec, Priority
from infinite_scheduler.policy.calendar import parse_moment

T = TypeVar("T")

MAX_ENVELOPE_BYTES: Final = 65_536
"""How many bytes a message may have besides its jobData."""

_REMEMBERED: Final = 40
"""A longer text is parsed each time: memory is limited."""

Trace = Callable[[], str | None]
"""The trace that a message continues; computed only when needed."""

_NOTHING: Final = msgspec.Raw()
_NAMES: Final = {"idempotency_key": "idempotencyKey", "request_id": "requestId", "the payload": "jobData"}


class ScheduleMessage(msgspec.Struct, rename="camel", gc=False):
    """A request for a job as its sender writes it; other fields of the message are ignored."""

    app_name: Any = None
    scheduled_time: Any = None
    job_data: msgspec.Raw = _NOTHING
    priority: Any = None
    idempotency_key: Any = None
    request_id: Any = None


_read: Final = msgspec.json.Decoder(ScheduleMessage).decode


class MessageReader:
    """Reads messages: one that names its app, or an app's own data that exactly one handler adopts."""

    def __init__(self, handlers: Mapping[str, Handler], zone: ZoneInfo, max_payload: int = MAX_PAYLOAD) -> None:
        self._handlers = handlers
        self._checks = {app: self._noted(app, handler.check) for app, handler in handlers.items() if handler.checks}
        self.asked: str | None = None
        """The app whose handler is checking the data of a message."""
        self.asks = 0
        """How often a handler has begun to."""
        self._zone = zone
        self._max_payload = max_payload

    def spec(self, value: bytes | None, trace: Trace) -> JobSpec:
        """The job that this message requests, or an InvalidRequest that says what its sender must change.

        Without a request id, the job gets the id of its trace. Any other error comes from a handler that checked the
        data, and may be temporary.
        """
        if value is None:
            raise InvalidRequest("the message has no value: send a JSON object with appName, scheduledTime and jobData")
        most = self._max_payload + MAX_ENVELOPE_BYTES
        if len(value) > most:
            raise InvalidPayload(
                f"the message has {len(value)} bytes, but at most {most} are read: send less, such as a reference to "
                "the data, or raise the setting limits.payload"
            )
        message = _parsed(value)
        app, at, data = message.app_name, message.scheduled_time, message.job_data
        if app is None and at is None and data is _NOTHING:
            return self._flat(value, trace)
        if app is None or app == "":
            raise InvalidRequest("appName is required")
        if at is None or at == "":
            raise InvalidTime("scheduledTime is required")
        if not isinstance(app, str):
            raise InvalidRequest(f"appName is of type {_kind(app)}: use a text")
        if message.idempotency_key == "":
            raise InvalidRequest(
                "idempotencyKey is empty: leave it out, or use the same text for all repeats of the request"
            )
        try:
            return make_spec(
                app,
                scheduled_ms=self._moment(at),
                absolute=True,
                payload=_job_data(data),
                priority=Priority.NORMAL if message.priority is None else message.priority,
                idempotency_key=message.idempotency_key,
                request_id=message.request_id or trace() or _new_request_id(),
                max_payload=self._max_payload,
                check=self._checks.get(app),
            )
        except InvalidRequest as error:
            raise _with_message_field_names(error) from None

    def _noted(self, app: str, ask: Callable[[Any], T]) -> Callable[[Any], T]:
        def noted(data: Any) -> T:
            self.asked, self.asks = app, self.asks + 1
            try:
                return ask(data)
            finally:
                self.asked = None

        return noted

    def _moment(self, value: Any) -> int:
        if type(value) is str and len(value) <= _REMEMBERED:
            return _text_moment(value, self._zone)
        if type(value) is float and value.is_integer():  # JSON has one kind of number, and some write 1.7E12
            value = int(value)
        try:
            return parse_moment(value, now_ms=None, zone=self._zone)
        except InvalidTime as error:
            raise InvalidTime(f"scheduledTime: {error}") from None

    def _flat(self, value: bytes, trace: Trace) -> JobSpec:
        """A message that is itself a job's data: the handler that knows it says for when."""
        data = read_payload(value, self._max_payload)
        found: dict[str, object] = {}
        nearly: list[InvalidPayload] = []
        for app, handler in self._handlers.items():
            try:
                at = self._noted(app, handler.adopt)(data)
            except InvalidPayload as error:
                nearly.append(error)
                continue
            if at is not None:
                found[app] = at
        if not found:
            raise nearly[0] if len(nearly) == 1 else InvalidRequest("appName is required")
        if len(found) > 1:
            raise InvalidRequest(f"appName is required: {', '.join(sorted(found))} could all take this message")
        ((app, at),) = found.items()
        return make_spec(
            app,
            scheduled_ms=self._moment(at),
            absolute=True,
            payload=value,
            request_id=trace() or _new_request_id(),
            max_payload=self._max_payload,
            check=self._checks.get(app),
        )


def _parsed(value: bytes) -> ScheduleMessage:
    try:
        return _read(value)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the message is not UTF-8: {error.reason}") from None
    except RecursionError:
        raise InvalidRequest("the message is nested too deeply: make it flatter") from None
    except msgspec.ValidationError:
        raise InvalidRequest(
            "the message is JSON, but not an object: send one with appName, scheduledTime and jobData"
        ) from None
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"the message is not valid JSON: {error}") from None


def _job_data(raw: msgspec.Raw) -> bytes:
    """The bytes of jobData as they are in the message."""
    payload = bytes(raw)
    if not payload or payload == b"null":
        return b"{}"
    if not payload.startswith(b"{"):
        raise InvalidPayload('jobData is not an object: use one, such as {"phoneNumber": "..."}')
    return payload


@lru_cache(maxsize=16_384)
def _text_moment(text: str, zone: ZoneInfo) -> int:
    """Parsed once: messages for the same moment have the same text."""
    try:
        return parse_moment(text, now_ms=None, zone=zone)
    except InvalidTime as error:
        raise InvalidTime(f"scheduledTime: {error}") from None


_DRAWN: Final = 256
"""Ids that are drawn together: each draw releases the interpreter, and must wait to get it back."""

_drawn: Final[list[str]] = []


def _new_request_id() -> str:
    """A UUID of version 4, in a quarter of the time of the standard library."""
    try:
        digits = _drawn.pop()
    except IndexError:
        drawn = urandom(16 * _DRAWN).hex()
        digits, *more = (drawn[start : start + 32] for start in range(0, len(drawn), 32))
        _drawn.extend(more)
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def _with_message_field_names(error: InvalidRequest) -> InvalidRequest:
    """The refusal with the field names that the sender knows."""
    text = str(error)
    for ours, theirs in _NAMES.items():
        if text.startswith(ours):
            return type(error)(theirs + text.removeprefix(ours))
    return error


def _kind(value: Any) -> str:
    names = {bool: "boolean", int: "number", float: "number", list: "list", dict: "object"}
    return names.get(type(value), type(value).__name__)
