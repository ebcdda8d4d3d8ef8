"""The retry of an SMS as a handler: when due, it is published to the topic that the SMS sender reads."""

import re
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, cast
from zoneinfo import ZoneInfo

import msgspec

from infinite_scheduler.clock import Clock
from infinite_scheduler.errors import ConfigError, InvalidPayload
from infinite_scheduler.handlers.kafka import BATCH, TopicHandler, correlation
from infinite_scheduler.kafka.options import KafkaOptions, PropertyValue
from infinite_scheduler.kafka.producer import Record
from infinite_scheduler.model import Job, key_text

_ABSENT: Final = msgspec.Raw(b"null")
_WHOLE: Final = re.compile(rb"-?[0-9]+")
_COUNT: Final = re.compile(rb"[1-9][0-9]*")


class _Task(msgspec.Struct, gc=False):
    """The data of a retry, each field as it was written."""

    campaignTaskId: msgspec.Raw = _ABSENT  # noqa: N815 - the names on the wire
    createdOn: msgspec.Raw = _ABSENT  # noqa: N815
    retryTime: msgspec.Raw = _ABSENT  # noqa: N815
    retryAttempt: msgspec.Raw = _ABSENT  # noqa: N815


_decode: Final = msgspec.json.Decoder(_Task).decode


class SmsRetryJobHandler(TopicHandler):
    """Publishes `{"campaignTaskId", "createdOn", "scheduledRetryTime", "actualExecutionTime", "retryAttempt"}`.

    The key is `task-<campaignTaskId>`. Numbers and times are copied from the job's data character by character;
    `actualExecutionTime` is the time of the hand-over in `zone`, as `yyyy-MM-dd HH:mm:ss`. Without `zone` that is the
    `time.zone` of the scheduler with which the handler is registered, and UTC outside of one.
    """

    checks = True

    def __init__(
        self,
        bootstrap_servers: str | KafkaOptions,
        topic: str = "SMS_Send",
        *,
        zone: str | ZoneInfo | None = None,
        properties: Mapping[str, PropertyValue] | None = None,
        timeout_ms: int = 30_000,
        batch: int = BATCH,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            bootstrap_servers, topic, properties=properties, timeout_ms=timeout_ms, batch=batch, clock=clock
        )
        self._is_located = zone is not None
        self._zone = read_zone("UTC" if zone is None else zone)

    def locate(self, zone: ZoneInfo) -> None:
        """Without a zone of its own, the handler uses that of the node, in which times are read too."""
        if not self._is_located:
            self._zone = zone

    def adopt(self, message: Mapping[str, Any]) -> object | None:
        """A retry may come without an envelope; then its `retryTime` is when it is due."""
        if "campaignTaskId" not in message:
            return None
        if message.get("retryTime") is None:
            raise InvalidPayload("retryTime is required in a retry without an envelope")
        return cast("object", message["retryTime"])

    def check(self, data: Any) -> None:
        """Refuse data that is not a retry of an SMS."""
        _task(msgspec.json.encode(data))

    def record(self, job: Job, now_ms: int) -> Record:
        """The message of this job."""
        task = _task(job.payload)
        number = bytes(task.campaignTaskId)
        scheduled = bytes(task.retryTime)
        if scheduled == b"null":
            scheduled = b'"%b"' % _local(job.scheduled_ms // 1000, self._zone)
        attempt = bytes(task.retryAttempt)
        value = b"".join(
            (
                b'{"campaignTaskId":',
                number,
                b',"createdOn":',
                task.createdOn,
                b',"scheduledRetryTime":',
                scheduled,
                b',"actualExecutionTime":"',
                _local(now_ms // 1000, self._zone),
                b'","retryAttempt":',
                b"1" if attempt == b"null" else attempt,
                b"}",
            )
        )
        return Record(self.topic, b"task-" + number, value, correlation(job, key_text(job.key)))


def _task(payload: bytes) -> _Task:
    """The data, if it is a retry of an SMS."""
    try:
        task = _decode(payload)
    except msgspec.ValidationError:
        raise InvalidPayload("jobData must be an object with campaignTaskId") from None
    number, attempt = bytes(task.campaignTaskId), bytes(task.retryAttempt)
    if number == b"null":
        raise InvalidPayload("campaignTaskId is required in jobData")
    if not _WHOLE.fullmatch(number):
        raise InvalidPayload(f"campaignTaskId is {_shown(number)}; expected a whole number")
    if attempt != b"null" and not _COUNT.fullmatch(attempt):
        raise InvalidPayload(f"retryAttempt is {_shown(attempt)}; expected a whole number of at least 1")
    for name, raw in (("createdOn", bytes(task.createdOn)), ("retryTime", bytes(task.retryTime))):
        if raw[:1] in b"[tf":
            raise InvalidPayload(f'{name} is {_shown(raw)}; expected a time such as "2025-11-13 15:00:00"')
    return task


def _shown(raw: bytes) -> str:
    text = raw.decode()
    return text if len(text) <= 60 else f"{text[:60]}..."


@lru_cache(maxsize=1024)
def _local(second: int, zone: ZoneInfo) -> bytes:
    return datetime.fromtimestamp(second, zone).strftime("%Y-%m-%d %H:%M:%S").encode()


def read_zone(zone: str | ZoneInfo) -> ZoneInfo:
    """The time zone with this name."""
    if isinstance(zone, ZoneInfo):
        return zone
    try:
        return ZoneInfo(zone)
    except (KeyError, ValueError, TypeError, OSError):  # KeyError: no such zone; OSError: the name of a folder
        raise ConfigError(
            f"zone is {zone!r}; expected the name of a time zone, such as 'UTC' or 'Europe/Berlin'"
        ) from None
