"""Dead letters tried again: read by the rules of today, and made a job if they have become good."""

from collections.abc import Mapping
from typing import Final
from zoneinfo import ZoneInfo

import msgspec

from infinite_scheduler.errors import InvalidRequest, SchedulerError
from infinite_scheduler.handlers.base import Handler
from infinite_scheduler.ingest.payload import MAX_PAYLOAD
from infinite_scheduler.ingest.wire import Wire
from infinite_scheduler.model import Accepted, moment
from infinite_scheduler.store.inbox import DeadLetter, Inbox

_ENVELOPE: Final = ("appName", "scheduledTime", "jobData")
_read: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Replayer:
    """Makes jobs of dead letters. `zones` has the topics whose times without a zone are in one of their own."""

    def __init__(
        self,
        inbox: Inbox,
        handlers: Mapping[str, Handler],
        *,
        zone: ZoneInfo,
        zones: Mapping[str, ZoneInfo] | None = None,
        max_payload: int = MAX_PAYLOAD,
    ) -> None:
        self._inbox = inbox
        self._handlers = handlers
        self._zone = zone
        self._zones = zones or {}
        self._max_payload = max_payload

    async def replay(self, letter: DeadLetter, at_ms: int | None = None) -> Accepted:
        """Accept the job that the letter asks for, at its own moment or at another one.

        Raises InvalidRequest with the reason when it is still bad: then it stays what it is.
        """
        value = letter.value
        if at_ms is not None and value is not None:
            value = self._retimed(value, at_ms)
        wire = Wire(self._handlers, self._zones.get(letter.source.topic, self._zone), self._max_payload)
        try:
            spec = wire.spec(value)
        except SchedulerError:
            raise
        except Exception as error:  # noqa: BLE001 - a handler that looks at the data may raise anything
            raise InvalidRequest(f"the handler could not look at it: {type(error).__name__}: {error}") from None
        return await self._inbox.replay(letter.id, spec)

    def _retimed(self, value: bytes, at_ms: int) -> bytes:
        """The same message with another moment; what cannot be read stays as it is, and is refused as it is."""
        text = msgspec.Raw(msgspec.json.encode(moment(at_ms).isoformat(timespec="milliseconds")))
        try:
            message = _read(value)
            if any(name in message for name in _ENVELOPE):
                return msgspec.json.encode({**message, "scheduledTime": text})
            data = msgspec.json.decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return value
        takers = [app for app, handler in self._handlers.items() if handler.adopt(data) is not None]
        if len(takers) != 1:
            return value
        whole = {"appName": takers[0], "scheduledTime": text, "jobData": msgspec.Raw(value)}
        return msgspec.json.encode(whole)
