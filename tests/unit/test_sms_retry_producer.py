import asyncio
import gc
import json
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from infinite_scheduler import (
    ConfigError,
    InvalidRequest,
    InvalidTime,
    SendError,
    SmsRetryProducer,
    Unavailable,
    retry_time_after,
)
from infinite_scheduler.policy.calendar import parse_moment
from tests.services.topics import read

NOWHERE = "127.0.0.1:1"
CREATED = datetime(2025, 11, 13, 15, 0)  # noqa: DTZ001
RETRY = datetime(2025, 11, 13, 15, 30)  # noqa: DTZ001


def messages(servers: str, count: int, topic: str = "SMS_Retry") -> list[dict[str, Any]]:
    return [json.loads(each.value or b"") for each in read(servers, topic, count)]


def test_a_retry_is_in_the_topic_when_the_call_returns(mock_kafka: str) -> None:
    with SmsRetryProducer(mock_kafka) as producer:
        producer.schedule_retry(12345, CREATED, RETRY, 2, "Network timeout")
        (found,) = read(mock_kafka, "SMS_Retry")
    assert found.key == b"task-12345"
    message = json.loads(found.value or b"")
    del message["requestId"]
    assert message == {
        "appName": "sms_retry",
        "scheduledTime": "2025-11-13 15:30:00",
        "jobData": {
            "campaignTaskId": 12345,
            "createdOn": "2025-11-13 15:00:00",
            "retryTime": "2025-11-13 15:30:00",
            "retryAttempt": 2,
            "failureReason": "Network timeout",
        },
    }


def test_the_short_form_is_the_first_attempt(mock_kafka: str) -> None:
    with SmsRetryProducer(mock_kafka, "Other_Retry") as producer:
        producer.schedule_retry(9007199254740993, CREATED, RETRY)
    (found,) = read(mock_kafka, "Other_Retry")
    assert b'"campaignTaskId":9007199254740993,' in (found.value or b"")
    data = json.loads(found.value or b"")["jobData"]
    assert (data["retryAttempt"], "failureReason" in data) == (1, False)


def test_a_key_of_the_callers_own_goes_along(mock_kafka: str) -> None:
    with SmsRetryProducer(mock_kafka) as producer:
        producer.schedule_retry(1, CREATED, RETRY, idempotency_key="task-1-retry-1", priority="high")
    (message,) = messages(mock_kafka, 1)
    assert (message["idempotencyKey"], message["priority"]) == ("task-1-retry-1", "high")


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (RETRY, "2025-11-13 15:30:00"),
        (RETRY.replace(tzinfo=UTC), "2025-11-13 21:30:00"),
        (RETRY.replace(tzinfo=timezone(timedelta(hours=6))), "2025-11-13 15:30:00"),
        (RETRY.replace(microsecond=1), "2025-11-13 15:30:01"),
        ("2025-11-13T15:30:00Z", "2025-11-13T15:30:00Z"),
    ],
)
def test_a_time_is_one_in_the_zone_and_never_early(mock_kafka: str, moment: Any, text: str) -> None:
    with SmsRetryProducer(mock_kafka, zone="Asia/Dhaka") as producer:
        producer.schedule_retry(1, CREATED, moment)
    (message,) = messages(mock_kafka, 1)
    assert (message["scheduledTime"], message["jobData"]["retryTime"]) == (text, text)


def test_where_the_clocks_are_set_back_the_envelope_means_the_right_one_of_two_moments(mock_kafka: str) -> None:
    zone = ZoneInfo("Europe/Berlin")
    moments = [datetime(2025, 10, 26, hour, 30, tzinfo=UTC) for hour in (0, 1)]  # 02:30 twice
    with SmsRetryProducer(mock_kafka, zone=zone) as producer:
        for number, moment in enumerate(moments):
            producer.schedule_retry(number, CREATED, moment)
    found = {each["jobData"]["campaignTaskId"]: each for each in messages(mock_kafka, 2)}
    for number, moment in enumerate(moments):
        assert found[number]["jobData"]["retryTime"] == "2025-10-26 02:30:00"
        assert parse_moment(found[number]["scheduledTime"], now_ms=None, zone=zone) == moment.timestamp() * 1000


def test_threads_may_share_a_producer(mock_kafka: str) -> None:
    with SmsRetryProducer(mock_kafka) as producer, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: producer.schedule_retry(number, CREATED, RETRY), range(200)))
    assert sorted(each["jobData"]["campaignTaskId"] for each in messages(mock_kafka, 200)) == list(range(200))


def test_who_does_not_wait_gets_a_future_and_close_delivers(mock_kafka: str) -> None:
    producer = SmsRetryProducer(mock_kafka)
    futures = [producer.schedule_retry(number, CREATED, RETRY, wait=False) for number in range(50)]
    producer.close()
    assert all(future.done() and future.exception() is None for future in futures)
    assert len(messages(mock_kafka, 50)) == 50


def test_a_broker_that_is_away_is_told_to_the_caller() -> None:
    with SmsRetryProducer(NOWHERE, timeout_s=0.2) as producer, pytest.raises(SendError, match=NOWHERE) as caught:
        producer.schedule_retry(1, CREATED, RETRY)
    assert caught.value.retryable


def test_close_says_what_was_not_delivered_and_waits_no_longer_than_told() -> None:
    producer = SmsRetryProducer(NOWHERE)
    future = producer.schedule_retry(1, CREATED, RETRY, wait=False)
    began = time.monotonic()
    with pytest.raises(SendError, match="not delivered to topic 'SMS_Retry': 1 messages"):
        producer.close(0.01)
    assert time.monotonic() - began < 5
    assert isinstance(future.exception(), SendError)
    producer.close()


def test_lost_messages_are_counted_and_not_kept() -> None:
    producer = SmsRetryProducer(NOWHERE, timeout_s=0.05)
    futures = [producer.schedule_retry(number, CREATED, RETRY, wait=False) for number in range(5)]
    for future in futures:
        assert isinstance(future.exception(10), SendError)
    alive = [weakref.ref(future) for future in futures]
    del future, futures
    producer._thread.run(asyncio.sleep(0))  # the loop lets go of the last one too
    gc.collect()
    assert [each() for each in alive] == [None] * 5
    with pytest.raises(SendError, match=f"5 messages; the error of one of them: .*{NOWHERE}"):
        producer.close()


def test_an_error_in_the_block_is_the_one_that_is_seen() -> None:
    def fail() -> None:
        with SmsRetryProducer(NOWHERE, timeout_s=0.1) as producer:
            producer.schedule_retry(1, CREATED, RETRY, wait=False)
            raise LookupError

    with pytest.raises(LookupError):
        fail()


def test_there_is_nothing_to_wait_for_where_nothing_was_sent() -> None:
    producer = SmsRetryProducer(NOWHERE)
    began = time.monotonic()
    producer.close()
    assert time.monotonic() - began < 5


def test_a_closed_producer_refuses(mock_kafka: str) -> None:
    before = set(threading.enumerate())
    producer = SmsRetryProducer(mock_kafka)
    producer.close()
    producer.close()
    assert set(threading.enumerate()) <= before
    with pytest.raises(Unavailable, match="closed"):
        producer.schedule_retry(1, CREATED, RETRY)


def test_a_program_that_forgets_to_close_still_delivers(mock_kafka: str) -> None:
    program = (
        "from datetime import datetime; from infinite_scheduler import SmsRetryProducer\n"
        f"producer = SmsRetryProducer({mock_kafka!r})\n"
        "producer.schedule_retry(7, datetime(2025, 11, 13, 15, 0), datetime(2025, 11, 13, 15, 30), wait=False)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert messages(mock_kafka, 1)[0]["jobData"]["campaignTaskId"] == 7


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("12345", CREATED, RETRY), "campaign_task_id is '12345'; expected a whole number"),
        ((True, CREATED, RETRY), "campaign_task_id is True"),
        ((1.0, CREATED, RETRY), "campaign_task_id is 1.0"),
        ((1, "long ago", RETRY), "created_on: 'long ago' is not a time"),
        ((1, CREATED, None), "retry_time: "),
        ((1, CREATED, "+5m"), "retry_time: .*is relative to now"),
        ((1, CREATED, RETRY, 0), "retry_attempt is 0; expected a whole number of at least 1"),
        ((1, CREATED, RETRY, "2"), "retry_attempt is '2'"),
    ],
)
def test_a_retry_that_makes_no_sense_is_refused_before_it_is_sent(arguments: tuple[Any, ...], words: str) -> None:
    with SmsRetryProducer(NOWHERE) as producer, pytest.raises(InvalidRequest, match=words):
        producer.schedule_retry(*arguments)


@pytest.mark.parametrize(
    ("servers", "settings", "words"),
    [
        ("", {}, "bootstrap_servers is ''"),
        (NOWHERE, {"topic": ""}, "topic is ''"),
        (NOWHERE, {"zone": "Mars"}, "zone is 'Mars'"),
        (NOWHERE, {"timeout_s": 0}, "timeout_s is 0"),
        (NOWHERE, {"properties": {"acks": 1}}, "'acks'"),
        (NOWHERE, {"properties": {"no.such": 1}}, "no.such"),
    ],
)
def test_a_producer_that_could_not_work_is_not_made(servers: str, settings: dict[str, Any], words: str) -> None:
    before = set(threading.enumerate())
    with pytest.raises(ConfigError, match=words):
        SmsRetryProducer(servers, **settings)
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(("attempt", "minutes"), [(1, 1), (2, 5), (3, 15), (4, 30), (5, 60), (6, 60), (99, 60)])
def test_each_attempt_waits_longer_up_to_an_hour(attempt: int, minutes: int) -> None:
    now = datetime(2025, 11, 13, 15, 0, tzinfo=UTC)
    assert retry_time_after(attempt, now) == now + timedelta(minutes=minutes)
    assert retry_time_after(attempt, CREATED) == CREATED + timedelta(minutes=minutes)


def test_without_a_moment_the_clock_says_now() -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    found = retry_time_after(1)
    assert before <= found - timedelta(minutes=1) <= datetime.now(UTC)
    assert found.tzinfo is UTC


@pytest.mark.parametrize("attempt", [0, -1, True, 1.5, "1", None])
def test_attempts_are_counted_from_one(attempt: Any) -> None:
    with pytest.raises(InvalidRequest, match="expected a whole number of at least 1"):
        retry_time_after(attempt)


def test_a_time_that_cannot_be_read_is_an_invalid_time() -> None:
    with SmsRetryProducer(NOWHERE) as producer, pytest.raises(InvalidTime):
        producer.schedule_retry(1, "x", RETRY)
