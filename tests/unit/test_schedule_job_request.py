import json
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest

from infinite_scheduler import InvalidPayload, InvalidRequest, InvalidTime, Priority, ScheduleJobRequest

MOMENT = datetime(2025, 11, 13, 15, 30, tzinfo=UTC)


def written(request: ScheduleJobRequest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(request.to_json())
    return found


def test_the_message_is_the_documented_one() -> None:
    request = ScheduleJobRequest("sms_retry", "2025-11-13 15:30:00", {"campaignTaskId": 9007199254740993})
    request.priority = "high"
    request.idempotency_key = "task-12345-retry-1"
    request.request_id = "r-1"
    assert request.to_json() == (
        '{"requestId":"r-1","appName":"sms_retry","scheduledTime":"2025-11-13 15:30:00",'
        '"jobData":{"campaignTaskId":9007199254740993},"priority":"high","idempotencyKey":"task-12345-retry-1"}'
    )


def test_what_is_not_set_is_left_out_and_the_request_id_made() -> None:
    first, second = (ScheduleJobRequest("shop", MOMENT) for _ in range(2))
    assert written(first) == {
        "requestId": first.request_id,
        "appName": "shop",
        "scheduledTime": "2025-11-13T15:30:00Z",
        "jobData": {},
    }
    assert first.request_id != second.request_id
    assert first.to_json() == first.to_json()


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (MOMENT, "2025-11-13T15:30:00Z"),
        (MOMENT.astimezone(timezone(timedelta(hours=6))), "2025-11-13T15:30:00Z"),
        (MOMENT.replace(tzinfo=None), "2025-11-13T15:30:00"),
        (MOMENT.replace(microsecond=250_000), "2025-11-13T15:30:00.250000Z"),
        (date(2025, 11, 13), "2025-11-13"),
        (1763047800000, 1763047800000),
        ("2025-11-13T15:30:00+06:00", "2025-11-13T15:30:00+06:00"),
    ],
)
def test_a_moment_is_written_so_that_it_means_the_same_when_read(moment: Any, text: object) -> None:
    assert written(ScheduleJobRequest("shop", moment))["scheduledTime"] == text


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("", MOMENT), InvalidRequest, "appName is required"),
        ((None, MOMENT), InvalidRequest, "appName is required"),
        (("No Name", MOMENT), InvalidRequest, "app name 'No Name' is not allowed"),
        (("shop", None), InvalidTime, "scheduledTime is required"),
        (("shop", "soon"), InvalidTime, "'soon' is not a time"),
        (("shop", "+90s"), InvalidTime, "is relative to now"),
        (("shop", MOMENT, [1]), InvalidPayload, "jobData is a list; expected a mapping"),
        (("shop", MOMENT, {"a": object()}), InvalidPayload, "a is an object"),
        (("shop", MOMENT, {1: 2}), InvalidPayload, "only text as keys"),
    ],
)
def test_what_no_scheduler_could_read_is_refused_when_it_is_made(
    arguments: tuple[Any, ...], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        ScheduleJobRequest(*arguments)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("priority", "urgent", "use 'high', 'normal', 'low'"),
        ("idempotency_key", "", "idempotency_key is empty"),
        ("idempotency_key", 7, "use a text"),
        ("scheduled_time", "soon", "is not a time"),
        ("app_name", None, "appName is required"),
    ],
)
def test_a_field_that_was_set_wrong_is_refused_when_the_message_is_written(field: str, value: Any, words: str) -> None:
    request = ScheduleJobRequest("shop", MOMENT)
    setattr(request, field, value)
    with pytest.raises(InvalidRequest, match=words):
        request.to_json()


def test_a_request_comes_back_from_its_message() -> None:
    request = ScheduleJobRequest("shop", "2025-11-13 15:30:00", {"a": [1.5]}, priority="low", idempotency_key="k")
    assert ScheduleJobRequest.from_json(request.to_json()) == request
    assert ScheduleJobRequest.from_json(request.to_json().encode()).job_data == {"a": [1.5]}
    assert ScheduleJobRequest.from_json('{"appName":"shop","scheduledTime":1763047800000,"more":1}').app_name == "shop"


def test_a_priority_may_be_one_of_the_enumeration() -> None:
    assert written(ScheduleJobRequest("shop", MOMENT, priority=Priority.HIGH))["priority"] == "high"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nope", "cannot be read"),
        ("[1]", "cannot be read"),
        ("{}", "appName is required"),
        ('{"appName":"shop"}', "scheduledTime is required"),
        (b"\xff", "cannot be read"),
        ("[" * 5000, "cannot be read"),
    ],
)
def test_a_message_that_is_no_request_is_refused(text: str | bytes, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        ScheduleJobRequest.from_json(text)


def test_a_request_shows_what_it_is_but_not_its_data() -> None:
    assert "secret" not in repr(ScheduleJobRequest("shop", MOMENT, {"a": "secret"}))
