"""For services that send SMS: request the retry of a failed one, through a topic."""

import atexit
import threading
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self
from zoneinfo import ZoneInfo

from infinite_scheduler.clock import SystemClock
from infinite_scheduler.errors import ConfigError, InvalidRequest, InvalidTime, SendError
from infinite_scheduler.handlers.kafka import read_options
from infinite_scheduler.handlers.sms_retry import read_zone
from infinite_scheduler.ingest.schedule_request import ScheduleJobRequest
from infinite_scheduler.kafka.names import check_topic
from infinite_scheduler.kafka.options import KafkaOptions, PropertyValue
from infinite_scheduler.kafka.producer import Producer, Record
from infinite_scheduler.loop_thread import LoopThread
from infinite_scheduler.model import check_app_name, datetime_of
from infinite_scheduler.policy.calendar import parse_moment

RETRY_DELAYS: Final = tuple(timedelta(minutes=minutes) for minutes in (1, 5, 15, 30, 60))
"""How long to wait before the first, second, … retry; all further ones wait as long as the last."""

_SECOND_MS: Final = 1000


def retry_delay(attempt: int) -> timedelta:
    """How long to wait before this attempt: 1, 5, 15, 30, then always 60 minutes."""
    return RETRY_DELAYS[min(_whole("attempt", attempt, least=1), len(RETRY_DELAYS)) - 1]


def retry_time_after(attempt: int, now: datetime | None = None) -> datetime:
    """The time of this attempt, counted from `now`; without `now`, from the current time, aware and in UTC."""
    return (datetime_of(SystemClock().wall_ms()) if now is None else now) + retry_delay(attempt)


class SmsRetryProducer:
    """Asks the scheduler to return an SMS at a later time. Create one and keep it: all threads may share it.

    When `schedule_retry` returns, all in-sync replicas have the message. If no broker takes it within `timeout_s`, or
    the topic refuses it, it raises SendError: nothing is lost silently.

    A datetime with a zone is converted to `zone`, one without is read in it: use the zone in which the scheduler reads
    the topic's times, which is UTC unless its `time.zone` or the topic's `zone` is another. The messages carry whole
    seconds; a fraction is rounded up, so that no retry is early.
    """

    def __init__(
        self,
        bootstrap_servers: str | KafkaOptions,
        topic: str = "SMS_Retry",
        *,
        app_name: str = "sms_retry",
        zone: str | ZoneInfo = "UTC",
        timeout_s: float = 30.0,
        properties: Mapping[str, PropertyValue] | None = None,
    ) -> None:
        if timeout_s <= 0:
            raise ConfigError(f"timeout_s is {timeout_s}; expected more than 0")
        self._topic = check_topic(topic)
        self._app_name = check_app_name(app_name)
        self._zone = read_zone(zone)
        self._producer = Producer(
            read_options(bootstrap_servers, properties), message_timeout_ms=max(1, int(timeout_s * 1000))
        )
        closed = "the producer is closed: create another"
        self._thread = LoopThread("sms-retry-producer", idle=closed, ended=closed)
        self._lock = threading.Lock()
        self._unwatched: set[Future[None]] = set()  # with wait=False, in progress
        self._lost = 0  # of those, never delivered
        self._lost_by: BaseException | None = None  # why the first of them was not
        self._thread.begin()
        try:
            self._thread.run(self._producer.start())
        except BaseException:
            self._thread.end()
            raise
        atexit.register(self.close)

    def schedule_retry(
        self,
        campaign_task_id: int,
        created_on: datetime | str,
        retry_time: datetime | str,
        retry_attempt: int = 1,
        failure_reason: str | None = None,
        *,
        idempotency_key: str | None = None,
        priority: str | None = None,
        wait: bool = True,
    ) -> "Future[None]":
        """Request a retry of this SMS at `retry_time`.

        Returns when the message is durable, or raises SendError. With `wait=False` it returns at once: the future holds
        the result, and `close` raises if a message was lost.
        """
        request = self._request(campaign_task_id, created_on, retry_time, retry_attempt, failure_reason)
        request.idempotency_key, request.priority = idempotency_key, priority
        record = Record(self._topic, f"task-{campaign_task_id}".encode(), request.to_json().encode())
        self._thread.refuse_inside()
        future = self._thread.submit(self._deliver(record))
        if wait:
            future.result()
        else:
            with self._lock:
                self._unwatched.add(future)
            future.add_done_callback(self._delivered)
        return future

    def close(self, timeout_s: float = 30.0) -> None:
        """Wait for messages in progress, but not longer than this; then give them up.

        Raises SendError if a message sent with `wait=False` was not delivered.
        """
        if not self._thread.running:
            return
        atexit.unregister(self.close)
        try:
            self._thread.run(self._producer.stop(timeout_s))
        finally:
            self._thread.end()
        with self._lock:
            left, self._unwatched = self._unwatched, set()
        for future in left:
            self._count(_error(future))
        lost, error = self._lost, self._lost_by
        if lost:
            raise SendError(
                f"not delivered to topic {self._topic!r}: {lost} messages; the error of one of them: {error}",
                code=getattr(error, "code", "_FAIL"),
                retryable=getattr(error, "retryable", True),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except SendError:
            if kind is None:  # else the error that ends the block matters more
                raise

    async def _deliver(self, record: Record) -> None:
        errors: list[SendError] = []
        await self._producer.send([record], lambda _, error: errors.append(error) if error else None)
        if errors:
            raise errors[0]

    def _delivered(self, future: "Future[None]") -> None:
        with self._lock:
            if future not in self._unwatched:
                return  # close has counted it
            self._unwatched.remove(future)
        self._count(_error(future))

    def _count(self, error: BaseException | None) -> None:
        """Count a lost message, without keeping its content."""
        if error is not None:
            with self._lock:
                self._lost, self._lost_by = self._lost + 1, self._lost_by or error

    def _request(
        self,
        campaign_task_id: int,
        created_on: datetime | str,
        retry_time: datetime | str,
        retry_attempt: int,
        failure_reason: str | None,
    ) -> ScheduleJobRequest:
        due = self._text("retry_time", retry_time)
        data: dict[str, Any] = {
            "campaignTaskId": _whole("campaign_task_id", campaign_task_id),
            "createdOn": self._text("created_on", created_on),
            "retryTime": due,
            "retryAttempt": _whole("retry_attempt", retry_attempt, least=1),
        }
        if failure_reason is not None:
            data["failureReason"] = str(failure_reason)
        return ScheduleJobRequest(self._app_name, self._moment(retry_time, due), data)

    def _text(self, name: str, value: datetime | str) -> str:
        """A time as `yyyy-MM-dd HH:mm:ss` in the zone; a text unchanged, if it can be read."""
        try:
            ms = parse_moment(value, now_ms=None, zone=self._zone)
        except InvalidTime as error:
            raise InvalidTime(f"{name}: {error}") from None
        if isinstance(value, str):
            return value
        second = -(-ms // _SECOND_MS)
        return datetime.fromtimestamp(second, self._zone).strftime("%Y-%m-%d %H:%M:%S")

    def _moment(self, value: datetime | str, text: str) -> str:
        """The time for the envelope; in UTC when clocks are set back, since the text would mean another moment."""
        if isinstance(value, str):
            return value
        second = -(-parse_moment(value, now_ms=None, zone=self._zone) // _SECOND_MS)
        if parse_moment(text, now_ms=None, zone=self._zone) == second * _SECOND_MS:
            return text
        return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _error(future: "Future[None]") -> BaseException | None:
    try:
        return future.exception(0)
    except (CancelledError, TimeoutError) as error:
        return error


def _whole(name: str, value: object, *, least: int | None = None) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
        expected = "a whole number" if least is None else f"a whole number of at least {least}"
        raise InvalidRequest(f"{name} is {value!r}; expected {expected}")
    return value
