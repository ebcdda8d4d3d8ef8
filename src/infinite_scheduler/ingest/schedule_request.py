"""The message that requests a job, as programs write it to a topic."""

import uuid
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Any, Final, Self
from zoneinfo import ZoneInfo

import msgspec

from infinite_scheduler.errors import InvalidPayload, InvalidRequest, InvalidTime
from infinite_scheduler.ingest.payload import encode_data
from infinite_scheduler.ingest.request import make_spec
from infinite_scheduler.model import Priority
from infinite_scheduler.policy.calendar import parse_moment

RequestTime = datetime | date | str | int | Mapping[str, Any]
"""A time in a message: a datetime, ISO text, epoch milliseconds, or Java's fields."""

_ANY_ZONE: Final = ZoneInfo("UTC")  # whether a time can be read does not depend on the zone
_NAMES: Final = {
    "app_name": "appName",
    "scheduled_time": "scheduledTime",
    "job_data": "jobData",
    "priority": "priority",
    "idempotency_key": "idempotencyKey",
    "request_id": "requestId",
}


class ScheduleJobRequest:
    """Requests one job: write `to_json()` to a topic that a scheduler reads.

    A datetime with a zone is written with it, and means the same moment everywhere. One without a zone is written
    without, and the scheduler reads it in its own zone. All fields can be set; values that cannot be read are refused
    at once, and again when the message is written.
    """

    def __init__(
        self,
        app_name: str,
        scheduled_time: RequestTime,
        job_data: Mapping[str, Any] | None = None,
        *,
        priority: str | Priority | None = None,
        idempotency_key: str | None = None,
        request_id: str | None = None,
    ) -> None:
        self.app_name = app_name
        self.scheduled_time = scheduled_time
        self.job_data = job_data
        self.priority = priority
        self.idempotency_key = idempotency_key
        self.request_id = request_id or str(uuid.uuid4())
        self._check()

    def to_json(self) -> str:
        """The message as JSON text."""
        self._check()
        fields = {
            "requestId": self.request_id,
            "appName": self.app_name,
            "scheduledTime": _written(self.scheduled_time),
            "jobData": msgspec.Raw(encode_data(self.job_data or {})),
            "priority": self.priority.name.lower() if isinstance(self.priority, Priority) else self.priority,
            "idempotencyKey": self.idempotency_key,
        }
        return msgspec.json.encode({name: value for name, value in fields.items() if value is not None}).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The request in a message; unknown fields are ignored."""
        try:
            message = msgspec.json.decode(text, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise InvalidRequest(f"the message cannot be read: {error}; expected one JSON object") from None
        given = {ours: message[theirs] for ours, theirs in _NAMES.items() if message.get(theirs) is not None}
        for ours in ("app_name", "scheduled_time"):
            if ours not in given:
                raise InvalidRequest(f"{_NAMES[ours]} is required")
        return cls(**given)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScheduleJobRequest) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # its fields can be set

    def __repr__(self) -> str:
        return f"ScheduleJobRequest({self.app_name!r}, {self.scheduled_time!r}, request_id={self.request_id!r})"

    def _check(self) -> None:
        if self.app_name in {None, ""}:
            raise InvalidRequest("appName is required")
        if self.scheduled_time is None:
            raise InvalidTime("scheduledTime is required")
        if self.job_data is not None and not isinstance(self.job_data, Mapping):
            raise InvalidPayload(f"jobData is a {type(self.job_data).__name__}; expected a mapping, such as a dict")
        make_spec(
            self.app_name,
            scheduled_ms=parse_moment(self.scheduled_time, now_ms=None, zone=_ANY_ZONE),
            absolute=True,
            data=self.job_data or {},
            priority=Priority.NORMAL if self.priority is None else self.priority,
            idempotency_key=self.idempotency_key,
            request_id=self.request_id,
        )


def _written(moment: RequestTime) -> object:
    if not isinstance(moment, datetime):
        return moment.isoformat() if isinstance(moment, date) else moment
    if moment.utcoffset() is None:
        return moment.isoformat()
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
