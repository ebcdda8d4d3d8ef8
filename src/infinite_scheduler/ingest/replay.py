"""Replays dead letters: read by the current rules, and accepted as jobs if they are valid now."""

from collections.abc import Mapping
from typing import Any, Final
from zoneinfo import ZoneInfo

import msgspec

from infinite_scheduler.errors import InvalidPayload, InvalidRequest, InvalidTime, SchedulerError
from infinite_scheduler.handlers.base import Handler
from infinite_scheduler.ingest.message import MessageReader
from infinite_scheduler.ingest.payload import MAX_PAYLOAD
from infinite_scheduler.kafka.trace import trace_id
from infinite_scheduler.model import Accepted, JobSpec, datetime_of
from infinite_scheduler.store.inbox import DeadLetter, Inbox

_ENVELOPE: Final = ("appName", "scheduledTime", "jobData")
_FAR_APART: Final = (ZoneInfo("UTC"), ZoneInfo("Etc/GMT+12"))
"""Two zones that never agree: a time that is the same moment in both has a zone of its own."""

_read: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Replayer:
    """Turns dead letters into jobs.

    Times without a zone are read in that of `zones`, by group and topic, else in `zone`; without either, such a letter
    is refused: another zone would mean another moment.
    """

    def __init__(
        self,
        inbox: Inbox,
        handlers: Mapping[str, Handler],
        *,
        zone: ZoneInfo | None,
        zones: Mapping[tuple[str, str], ZoneInfo] | None = None,
        max_payload: int = MAX_PAYLOAD,
    ) -> None:
        self._inbox = inbox
        self._handlers = handlers
        self._zone = zone
        self._zones = zones or {}
        self._max_payload = max_payload

    async def replay(self, letter: DeadLetter, at_ms: int | None = None) -> Accepted:
        """Accept the job that the letter requests, at its own time or at another one.

        Raises InvalidRequest with the reason if it is still invalid: then the letter stays unchanged.
        """
        value = letter.value
        if at_ms is not None and value is not None:
            value = self._retimed(value, at_ms)
        try:
            spec = self._spec(letter, value)
        except InvalidRequest as error:
            if letter.cut_bytes:
                raise InvalidRequest(f"{_cut(letter)}; what is left: {error}") from None
            raise
        except SchedulerError:
            raise
        except Exception as error:  # noqa: BLE001 - a handler's check may raise anything
            raise InvalidRequest(f"the handler could not check it: {type(error).__name__}: {error}") from None
        return await self._inbox.replay(letter.id, spec)

    def _spec(self, letter: DeadLetter, value: bytes | None) -> JobSpec:
        source = letter.source
        zone = self._zones.get((source.group, source.topic), self._zone)
        if zone is not None:
            return self._read(letter, value, zone)
        spec, other = (self._read(letter, value, each) for each in _FAR_APART)
        if spec.scheduled_ms != other.scheduled_ms:
            raise InvalidTime(
                f"its time has no zone, and the configuration has no topic {source.topic!r} that is read by group "
                f"{source.group!r}: give the zone with --zone NAME, or another time with --at or --in"
            )
        return spec

    def _read(self, letter: DeadLetter, value: bytes | None, zone: ZoneInfo) -> JobSpec:
        return MessageReader(self._handlers, zone, self._max_payload).spec(value, lambda: trace_id(letter.headers))

    def _retimed(self, value: bytes, at_ms: int) -> bytes:
        """The message with another time; one that cannot be read is returned unchanged, and refused later."""
        text = msgspec.Raw(msgspec.json.encode(datetime_of(at_ms).isoformat(timespec="milliseconds")))
        try:
            message = _read(value)
            if any(name in message for name in _ENVELOPE):
                return msgspec.json.encode({**message, "scheduledTime": text})
            data = msgspec.json.decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return value
        takers = [app for app, handler in self._handlers.items() if _adopts(handler, data)]
        if len(takers) != 1:
            return value
        whole = {"appName": takers[0], "scheduledTime": text, "jobData": msgspec.Raw(value)}
        return msgspec.json.encode(whole)


def _adopts(handler: Handler, data: Mapping[str, Any]) -> bool:
    """Would it be data for this handler, if it had a time?"""
    try:
        return handler.adopt(data) is not None
    except InvalidPayload:
        return True


def _cut(letter: DeadLetter) -> str:
    source = letter.source
    return (
        f"the store could not take {letter.cut_bytes:,} bytes of the message: read it at offset {letter.offset} of "
        f"partition {source.partition} of topic {source.topic!r}, as long as the topic has it, and send it again"
    )
