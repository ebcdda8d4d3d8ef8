import json
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from infinite_scheduler import MultiAppScheduler, Scheduler, SmsRetryJobHandler
from infinite_scheduler.config import load_settings
from infinite_scheduler.errors import ConfigError, InvalidPayload
from infinite_scheduler.handlers.base import Handler
from infinite_scheduler.kafka.producer import Record
from infinite_scheduler.model import Job, JobId
from infinite_scheduler.testing import ManualClock
from infinite_scheduler.testing.manual_clock import START_MS

NOWHERE = "127.0.0.1:1"
DOCUMENTED = b"""{
    "campaignTaskId": 12345,
    "createdOn": "2025-11-13 15:00:00",
    "retryTime": "2025-11-13 15:30:00",
    "retryAttempt": 1,
    "failureReason": "Network timeout"
  }"""


def record(payload: bytes, *, now_ms: int = START_MS + 2999, **settings: Any) -> Record:
    handler = SmsRetryJobHandler(NOWHERE, clock=ManualClock(), **settings)
    job = Job(
        key=JobId.make(START_MS, 0, 1),
        app="sms_retry",
        due_ms=START_MS + 5000,
        scheduled_ms=START_MS + 1000,
        payload=payload,
        created_ms=0,
    )
    return handler.record(job, now_ms)


def test_the_message_is_the_documented_one_field_by_field_in_order() -> None:
    made = record(DOCUMENTED)
    assert made.topic == "SMS_Send"
    assert made.key == b"task-12345"
    assert made.value == (
        b'{"campaignTaskId":12345,"createdOn":"2025-11-13 15:00:00","scheduledRetryTime":"2025-11-13 15:30:00",'
        b'"actualExecutionTime":"2026-01-01 00:00:02","retryAttempt":1}'
    )
    assert [name for name, _ in made.headers] == ["job-id", "job-attempt", "job-scheduled-time", "traceparent"]


@pytest.mark.parametrize("number", ["9007199254740993", "-7", "0", "1" * 5000])
def test_a_number_keeps_all_its_digits(number: str) -> None:
    made = record(b'{"campaignTaskId": %b}' % number.encode())
    assert made.key == f"task-{number}".encode()
    assert made.value is not None
    assert made.value.startswith(b'{"campaignTaskId":%b,' % number.encode())


def test_the_moment_of_the_hand_over_is_shown_in_the_zone() -> None:
    made = json.loads(record(DOCUMENTED, zone="Asia/Dhaka").value or b"")
    assert made["actualExecutionTime"] == "2026-01-01 06:00:02"
    made = json.loads(record(DOCUMENTED, zone=ZoneInfo("America/New_York")).value or b"")
    assert made["actualExecutionTime"] == "2025-12-31 19:00:02"
    assert made["scheduledRetryTime"] == "2025-11-13 15:30:00"


NO_RETRY_TIME = b'{"campaignTaskId": 1}'
SMS_APP = """
[time]
zone = "Asia/Dhaka"
[kafka]
bootstrap_servers = "127.0.0.1:1"
[apps.sms_retry]
handler = "sms_retry"
"""


def times(handler: Handler) -> tuple[str, str]:
    assert isinstance(handler, SmsRetryJobHandler)
    key = JobId.make(START_MS, 0, 1)
    job = Job(key=key, app="sms", due_ms=START_MS, scheduled_ms=START_MS, payload=NO_RETRY_TIME, created_ms=0)
    made = json.loads(handler.record(job, START_MS).value or b"")
    return made["scheduledRetryTime"], made["actualExecutionTime"]


def test_a_handler_without_a_zone_has_that_of_its_scheduler(tmp_path: Path) -> None:
    settings = {"store": {"url": "sqlite:///:memory:"}, "time": {"zone": "Asia/Dhaka"}}
    alone, own, told = (SmsRetryJobHandler(NOWHERE, zone=zone) for zone in (None, "UTC", None))
    scheduler = Scheduler(settings=settings)
    scheduler.add_app("told", told)
    scheduler.add_app("own", own)
    manager = MultiAppScheduler(settings=settings)
    manager.register_app("several", several := SmsRetryJobHandler(NOWHERE))
    file = tmp_path / "scheduler.toml"
    file.write_text(SMS_APP)
    from_toml = Scheduler("sqlite:///:memory:", settings=load_settings(file)).apps["sms_retry"]
    midnight, six = ("2026-01-01 00:00:00",) * 2, ("2026-01-01 06:00:00",) * 2
    assert times(alone) == midnight
    assert times(own) == midnight
    assert [times(each) for each in (told, several, from_toml)] == [six] * 3


@pytest.mark.parametrize("time", [b'"2025-11-13T15:30:00+06:00"', b"1763047800000", b'"\\u0032025-11-13 15:30:00"'])
def test_times_are_echoed_as_they_were_given(time: bytes) -> None:
    made = record(b'{"campaignTaskId": 1, "createdOn": %b, "retryTime": %b}' % (time, time))
    assert made.value is not None
    assert b'"createdOn":%b,"scheduledRetryTime":%b,' % (time, time) in made.value


def test_what_is_left_out_has_the_documented_default() -> None:
    made = json.loads(record(b'{"campaignTaskId": 1}').value or b"")
    assert made == {
        "campaignTaskId": 1,
        "createdOn": None,
        "scheduledRetryTime": "2026-01-01 00:00:01",
        "actualExecutionTime": "2026-01-01 00:00:02",
        "retryAttempt": 1,
    }
    assert json.loads(record(b'{"campaignTaskId": 1, "retryAttempt": null}').value or b"")["retryAttempt"] == 1
    assert json.loads(record(b'{"campaignTaskId": 1, "retryAttempt": 4}').value or b"")["retryAttempt"] == 4


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "campaignTaskId is required"),
        ({"campaignTaskId": None}, "campaignTaskId is required"),
        ({"campaignTaskId": "12345"}, 'campaignTaskId is "12345"; expected a whole number'),
        ({"campaignTaskId": 1.5}, "campaignTaskId is 1.5; expected a whole number"),
        ({"campaignTaskId": True}, "campaignTaskId is true"),
        ({"campaignTaskId": [1]}, "expected a whole number"),
        ({"campaignTaskId": 1, "retryAttempt": 0}, "retryAttempt is 0; expected a whole number of at least 1"),
        ({"campaignTaskId": 1, "retryAttempt": -1}, "retryAttempt is -1"),
        ({"campaignTaskId": 1, "retryAttempt": "2"}, 'retryAttempt is "2"'),
        ({"campaignTaskId": 1, "createdOn": True}, "createdOn is true; expected a time"),
        ({"campaignTaskId": 1, "retryTime": [2025]}, "retryTime is .*expected a time"),
        ([1], "must be an object with campaignTaskId"),
        (None, "must be an object with campaignTaskId"),
        ("x" * 300, "must be an object"),
        ({"campaignTaskId": "x" * 300}, r"xxx\.\.\.; expected"),
    ],
)
def test_data_that_is_no_retry_is_refused_at_the_door_and_at_the_moment(data: Any, words: str) -> None:
    handler = SmsRetryJobHandler(NOWHERE)
    assert handler.checks
    with pytest.raises(InvalidPayload, match=words):
        handler.check(data)
    with pytest.raises(InvalidPayload, match=words):
        record(json.dumps(data).encode())


def test_the_documented_data_is_accepted_with_fields_that_nobody_knows() -> None:
    SmsRetryJobHandler(NOWHERE).check(json.loads(DOCUMENTED) | {"more": {"a": 1}})


def test_a_flat_message_names_its_own_moment() -> None:
    handler = SmsRetryJobHandler(NOWHERE)
    assert handler.adopt(json.loads(DOCUMENTED)) == "2025-11-13 15:30:00"
    assert handler.adopt({"campaignTaskId": 1, "retryTime": 1763047800000}) == 1763047800000
    assert handler.adopt({"retryTime": "2025-11-13 15:30:00"}) is None


@pytest.mark.parametrize("message", [{"campaignTaskId": 1}, {"campaignTaskId": 1, "retryTime": None}])
def test_a_flat_message_without_its_moment_is_told_what_it_lacks(message: Any) -> None:
    with pytest.raises(InvalidPayload, match="retryTime is required"):
        SmsRetryJobHandler(NOWHERE).adopt(message)


@pytest.mark.parametrize("zone", ["", "Mars/Base", "../etc", 7, "Europe"])
def test_a_zone_that_nobody_knows_is_refused(zone: Any) -> None:
    with pytest.raises(ConfigError, match="expected the name of a time zone"):
        SmsRetryJobHandler(NOWHERE, zone=zone)
