"""What messages of a topic say, in every documented form and in every wrong one."""

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infinite_scheduler.errors import InvalidPayload, InvalidRequest, InvalidTime
from infinite_scheduler.handlers.base import Handler, Report
from infinite_scheduler.ingest.message import MAX_ENVELOPE_BYTES, MessageReader, _text_moment
from infinite_scheduler.model import Job, JobSpec, Priority

UTC = ZoneInfo("UTC")
DHAKA = ZoneInfo("Asia/Dhaka")
BERLIN = ZoneInfo("Europe/Berlin")
AT = "2025-11-03T22:00:00"
AT_MS = 1_762_207_200_000


class Deaf(Handler):
    """Takes nothing at its door, and has no opinion."""

    async def handle(self, jobs: Sequence[Job], report: Report) -> None:
        raise NotImplementedError


class Picky(Deaf):
    checks = True

    def check(self, data: Any) -> None:
        if "phoneNumber" not in data:
            raise InvalidPayload("phoneNumber is required")
        if data["phoneNumber"] == "busy":
            raise ConnectionError("the directory does not answer")


class Lacking(Deaf):
    """Knows a message of its own that is not complete."""

    def adopt(self, message: Mapping[str, Any]) -> object | None:
        if "campaignTaskId" in message and "retryTime" not in message:
            raise InvalidPayload("retryTime is required")
        return None


class Adopting(Deaf):
    def __init__(self, field: str = "retryTime") -> None:
        self._field = field

    def adopt(self, message: Mapping[str, Any]) -> object | None:
        return message.get(self._field)


def read(
    message: Any,
    *,
    zone: ZoneInfo = UTC,
    handlers: Mapping[str, Handler] | None = None,
    trace: str | None = None,
    **more: Any,
) -> JobSpec:
    value = message if isinstance(message, bytes | None) else json.dumps(message).encode()
    return MessageReader(handlers or {}, zone, **more).spec(value, lambda: trace)


def envelope(**fields: Any) -> dict[str, Any]:
    return {"appName": "sms", "scheduledTime": AT, "jobData": {"n": 1}, **fields}


class TestScheduleMessage:
    def test_every_documented_field_is_read(self) -> None:
        spec = read(
            b'{"requestId": "r-1", "appName": "sms", "scheduledTime": "2025-11-03T22:00:00", "priority": "high", '
            b'"idempotencyKey": "sms-12345-unique", "jobData": {"phoneNumber": "+8801712345678"}}'
        )
        assert (spec.app, spec.scheduled_ms, spec.priority) == ("sms", AT_MS, Priority.HIGH)
        assert (spec.request_id, spec.idempotency_key) == ("r-1", "sms-12345-unique")
        assert spec.payload == b'{"phoneNumber": "+8801712345678"}'
        assert len(spec.digest) == 16

    def test_what_is_optional_has_a_default(self) -> None:
        spec = read({"appName": "sms", "scheduledTime": AT})
        assert (spec.priority, spec.idempotency_key, spec.payload) == (Priority.NORMAL, None, b"{}")
        assert uuid.UUID(spec.request_id).version == 4
        assert uuid.UUID(spec.request_id).variant == uuid.RFC_4122

    @pytest.mark.parametrize("name", ["requestId", "priority", "idempotencyKey", "jobData"])
    def test_null_is_the_same_as_absent(self, name: str) -> None:
        spec = read({"appName": "sms", "scheduledTime": AT, name: None})
        assert (spec.priority, spec.idempotency_key, spec.payload) == (Priority.NORMAL, None, b"{}")
        assert spec.request_id

    def test_made_request_ids_differ(self) -> None:
        assert len({read(envelope()).request_id for _ in range(200)}) == 200

    def test_a_message_that_names_no_request_has_the_id_of_its_trace(self) -> None:
        for own in ({}, {"requestId": None}, {"requestId": ""}):
            assert read(envelope(**own), trace="4bf92f3577b34da6a3ce929d0e0e4736").request_id == (
                "4bf92f3577b34da6a3ce929d0e0e4736"
            )
        assert read(envelope(requestId="r-1"), trace="4bf92f3577b34da6a3ce929d0e0e4736").request_id == "r-1"

    def test_an_empty_request_id_is_replaced(self) -> None:
        assert uuid.UUID(read(envelope(requestId="")).request_id).version == 4

    def test_unknown_fields_are_ignored(self) -> None:
        assert read(envelope(tenant={"a": [1]}, version=2)).app == "sms"

    def test_of_a_field_that_comes_twice_the_last_counts(self) -> None:
        spec = read(
            b'{"appName":"old","appName":"sms","scheduledTime":"2025-11-03","jobData":{"a":1},"jobData":{"b":2}}'
        )
        assert (spec.app, spec.payload) == ("sms", b'{"b":2}')

    def test_the_same_content_has_the_same_digest_however_it_is_written(self) -> None:
        one = read(
            b'{"appName":"sms","scheduledTime":"2025-11-03 22:00:00","idempotencyKey":"k","jobData":{"a":1,"b":2}}'
        )
        two = read(b'{"jobData":{"b" : 2, "a" : 1},"idempotencyKey":"k","scheduledTime":1762207200000,"appName":"sms"}')
        assert one.digest == two.digest


class TestJobData:
    @pytest.mark.parametrize(
        "data",
        [
            b'{"id":9007199254740993,"big":123456789012345678901234567890,"tiny":1e-400}',
            b'{ "b" : 1.10,  "a":[1,2.50,"\\u00e9 \xc3\xa9"],\n"b":2 }',
            b'{"campaignTaskId":12345}',
            b"{}",
        ],
    )
    def test_it_stays_byte_for_byte(self, data: bytes) -> None:
        assert (
            read(b'{"appName":"sms","scheduledTime":"' + AT.encode() + b'","jobData": ' + data + b" }").payload == data
        )

    @given(
        st.dictionaries(
            st.text(),
            st.recursive(
                st.none()
                | st.booleans()
                | st.integers()
                | st.floats(allow_nan=False, allow_infinity=False)
                | st.text(),
                lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
                max_leaves=10,
            ),
            max_size=5,
        )
    )
    def test_any_object_stays_byte_for_byte(self, data: dict[str, Any]) -> None:
        written = json.dumps(data).encode()
        if b"\\ud" in written:  # json writes half of a surrogate pair, which is no text
            return
        spec = read(b'{"jobData":' + written + b',"appName":"sms","scheduledTime":1762207200000}')
        assert spec.payload == written

    @pytest.mark.parametrize("data", ["[]", "[1]", "1", '"text"', "true", "1.5"])
    def test_only_an_object_is_data(self, data: str) -> None:
        with pytest.raises(InvalidPayload, match="jobData is not an object"):
            read(f'{{"appName":"sms","scheduledTime":"{AT}","jobData":{data}}}'.encode())

    def test_it_has_a_limit(self) -> None:
        assert len(read(envelope(jobData={"a": "x" * 90}), max_payload=100).payload) == 99
        with pytest.raises(InvalidPayload, match="jobData has 101 bytes, but at most 100 are allowed"):
            read(envelope(jobData={"a": "x" * 92}), max_payload=100)

    def test_it_may_not_be_nested_too_deeply(self) -> None:
        deep = b'{"a":' * 101 + b"1" + b"}" * 101
        with pytest.raises(InvalidPayload, match="nested more than 100 deep"):
            read(b'{"appName":"sms","scheduledTime":"2025-11-03","jobData":' + deep + b"}")


class TestScheduledTime:
    @pytest.mark.parametrize(
        "at",
        [
            AT,
            "2025-11-03 22:00:00",
            "2025-11-03T22:00",
            "2025-11-03T22:00:00.000",
            "2025-11-03T22:00:00.000000000",
            "2025-11-03T22:00:00Z",
            "2025-11-04T04:00:00+06:00",
            "2025-11-04 04:00:00 +0600",
            1_762_207_200_000,
            "1762207200000",
            1_762_207_200_000.0,
            {"date": {"year": 2025, "month": 11, "day": 3}, "time": {"hour": 22, "minute": 0, "second": 0, "nano": 0}},
            {"date": {"year": 2025, "month": 11, "day": 3}, "time": {"hour": 22, "minute": 0}},
        ],
    )
    def test_every_documented_form_is_read(self, at: Any) -> None:
        assert read(envelope(scheduledTime=at)).scheduled_ms == AT_MS

    @pytest.mark.parametrize(
        "at", [AT, {"date": {"year": 2025, "month": 11, "day": 3}, "time": {"hour": 22, "minute": 0}}]
    )
    def test_one_without_a_zone_is_in_the_zone_of_the_door(self, at: Any) -> None:
        assert read(envelope(scheduledTime=at), zone=DHAKA).scheduled_ms == AT_MS - 6 * 3_600_000

    def test_what_was_read_in_one_zone_is_not_remembered_for_another(self) -> None:
        moments = {read(envelope(scheduledTime=AT), zone=zone).scheduled_ms for zone in (UTC, DHAKA, UTC)}
        assert len(moments) == 2

    def test_only_short_texts_are_remembered(self) -> None:
        before = _text_moment.cache_info().currsize
        for blanks in range(100, 110):
            assert read(envelope(scheduledTime=" " * blanks + AT)).scheduled_ms == AT_MS
        assert _text_moment.cache_info().currsize == before

    def test_a_fraction_of_a_millisecond_is_rounded_up(self) -> None:
        assert read(envelope(scheduledTime="2025-11-03T22:00:00.0001")).scheduled_ms == AT_MS + 1

    @pytest.mark.parametrize("at", ["now", "in 5m", "+90s", "NOW", " in 1h30m"])
    def test_one_that_counts_from_now_is_refused(self, at: str) -> None:
        with pytest.raises(InvalidTime, match=r"scheduledTime: .* is relative to now, which cannot be stored"):
            read(envelope(scheduledTime=at))

    @pytest.mark.parametrize(
        "at", ["tomorrow", "2025-13-01", "2025-02-30T00:00:00", 5, "5", 1.5, True, [1], {}, {"date": {}}, "x" * 500, -1]
    )
    def test_what_is_no_moment_is_refused(self, at: Any) -> None:
        with pytest.raises(InvalidTime, match=r"^scheduledTime: "):
            read(envelope(scheduledTime=at))


class TestRefusals:
    @pytest.mark.parametrize("message", [{"scheduledTime": AT}, envelope(appName=None), envelope(appName=""), {}])
    def test_the_app_is_required(self, message: Any) -> None:
        with pytest.raises(InvalidRequest) as refused:
            read(message)
        assert str(refused.value) == "appName is required"

    @pytest.mark.parametrize("message", [{"appName": "sms"}, envelope(scheduledTime=None), envelope(scheduledTime="")])
    def test_the_moment_is_required(self, message: Any) -> None:
        with pytest.raises(InvalidTime) as refused:
            read(message)
        assert str(refused.value) == "scheduledTime is required"

    @pytest.mark.parametrize(
        ("value", "why"),
        [
            (None, "has no value"),
            (b"", "is not valid JSON"),
            (b"foobar", "is not valid JSON"),
            (b'{"appName": "sms"', "is not valid JSON"),
            (b"\xff\xfe", "is not valid JSON"),
            (b'{"appName": "\xff"}', "not UTF-8"),
            (b'\xef\xbb\xbf{"appName":"sms"}', "is not valid JSON"),
            (b"[]", "not an object"),
            (b"17", "not an object"),
            (b'"text"', "not an object"),
            (b"null", "not an object"),
            (b"[" * 100_000, "nested too deeply|not an object|not valid JSON"),
            (b'{"x":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply|appName is required|nested more"),
        ],
    )
    def test_what_is_no_json_object_is_refused(self, value: bytes | None, why: str) -> None:
        with pytest.raises(InvalidRequest, match=why):
            read(value)

    @pytest.mark.parametrize(
        ("fields", "why"),
        [
            ({"appName": 5}, "appName is of type number: use a text"),
            ({"appName": ["sms"]}, "appName is of type list"),
            ({"appName": "SMS Retry"}, "app name 'SMS Retry' is not allowed"),
            ({"priority": "urgent"}, "priority 'urgent' is unknown"),
            ({"priority": 1}, "priority 1 is unknown"),
            ({"idempotencyKey": 12}, "idempotencyKey is 12: use a text"),
            ({"idempotencyKey": ""}, "idempotencyKey is empty"),
            ({"idempotencyKey": "k" * 201}, "idempotencyKey has 201 characters: use at most 200"),
            ({"idempotencyKey": "a\x00b"}, "idempotencyKey .* has a character that cannot be stored"),
            ({"requestId": 12}, "requestId is 12: use a text"),
            ({"requestId": "r" * 201}, "requestId has 201 characters"),
        ],
    )
    def test_a_wrong_field_is_named_as_its_sender_knows_it(self, fields: dict[str, Any], why: str) -> None:
        with pytest.raises(InvalidRequest, match=why):
            read(envelope(**fields))

    def test_a_message_of_ten_megabytes_is_refused_unread(self) -> None:
        with pytest.raises(InvalidPayload, match=r"the message has 10000000 bytes, but at most \d+ are read"):
            read(b"x" * 10_000_000)
        assert read(envelope(padding="x" * (MAX_ENVELOPE_BYTES - 200)), max_payload=20).app == "sms"

    @given(st.binary(max_size=60))
    def test_nothing_else_than_a_refusal_comes_of_any_bytes(self, value: bytes) -> None:
        with pytest.raises(InvalidRequest):
            read(value)


class TestMoments:
    @pytest.mark.parametrize(
        ("written", "moment"),
        [
            ("2030-03-31T01:59:59", "2030-03-31T00:59:59Z"),
            ("2030-03-31T02:30:00", "2030-03-31T01:30:00Z"),  # skipped: 03:30 summer time
            ("2030-03-31T03:00:00", "2030-03-31T01:00:00Z"),
            ("2030-10-27T02:30:00", "2030-10-27T00:30:00Z"),  # comes twice: the first
            ("2030-10-27T03:00:00", "2030-10-27T02:00:00Z"),
        ],
    )
    def test_hours_that_the_clocks_skip_or_repeat(self, written: str, moment: str) -> None:
        meant = read(envelope(scheduledTime=moment)).scheduled_ms
        assert read(envelope(scheduledTime=written), zone=BERLIN).scheduled_ms == meant
        day, time = written.split("T")
        fields = {
            "date": dict(zip(("year", "month", "day"), map(int, day.split("-")), strict=True)),
            "time": dict(zip(("hour", "minute", "second"), map(int, time.split(":")), strict=True)),
        }
        assert read(envelope(scheduledTime=fields), zone=BERLIN).scheduled_ms == meant

    @pytest.mark.parametrize("value", [True, [1], 1.5, "soon", "2030-02-30T10:00:00", "in 5m"])
    def test_nobody_is_advised_to_count_from_now(self, value: Any) -> None:
        with pytest.raises(InvalidTime, match=r"scheduledTime: .*expected 2025-11-03T22:00:00.* or epoch") as caught:
            read(envelope(scheduledTime=value))
        assert not any(form in str(caught.value) for form in ("+90s", "1h30m", "'now'"))


class TestHandlers:
    def test_the_apps_handler_may_refuse_the_data(self) -> None:
        handlers = {"sms": Picky(), "other": Deaf()}
        with pytest.raises(InvalidPayload, match="phoneNumber is required"):
            read(envelope(), handlers=handlers)
        assert read(envelope(jobData={"phoneNumber": "1"}), handlers=handlers).app == "sms"
        assert read(envelope(appName="other"), handlers=handlers).app == "other"

    def test_an_error_of_the_handler_is_no_refusal(self) -> None:
        with pytest.raises(ConnectionError):
            read(envelope(jobData={"phoneNumber": "busy"}), handlers={"sms": Picky()})

    def test_an_app_that_this_node_does_not_run_is_left_to_the_store(self) -> None:
        assert read(envelope(appName="elsewhere"), handlers={"sms": Picky()}).app == "elsewhere"


class TestFlat:
    FLAT = b'{"campaignTaskId": 9007199254740993, "retryTime": "2025-11-03 22:00:00", "x": 1}'

    def test_one_handler_may_adopt_a_message_without_an_envelope(self) -> None:
        spec = read(self.FLAT, handlers={"mail": Deaf(), "sms_retry": Adopting()})
        assert (spec.app, spec.scheduled_ms, spec.payload) == ("sms_retry", AT_MS, self.FLAT)
        assert uuid.UUID(str(spec.request_id)).version == 4
        assert read(self.FLAT, handlers={"sms_retry": Adopting()}, trace="f" * 32).request_id == "f" * 32

    def test_nobody_adopts_it(self) -> None:
        with pytest.raises(InvalidRequest, match=r"^appName is required$"):
            read(self.FLAT, handlers={"mail": Deaf()})

    def test_a_handler_says_what_a_message_lacks_that_is_nearly_its_own(self) -> None:
        with pytest.raises(InvalidPayload, match=r"^retryTime is required$"):
            read({"campaignTaskId": 1}, handlers={"mail": Deaf(), "sms_retry": Lacking()})
        with pytest.raises(InvalidRequest, match=r"^appName is required$"):
            read({"something": "else"}, handlers={"sms_retry": Lacking()})

    def test_another_handler_may_adopt_what_is_nearly_the_own_of_one(self) -> None:
        message = {"campaignTaskId": 1, "when": AT}
        assert read(message, handlers={"sms_retry": Lacking(), "mail": Adopting("when")}).app == "mail"

    def test_two_would_adopt_it(self) -> None:
        with pytest.raises(InvalidRequest, match="appName is required: a, b could all take this message"):
            read(self.FLAT, handlers={"b": Adopting(), "a": Adopting()})

    @pytest.mark.parametrize("field", ["appName", "scheduledTime", "jobData"])
    def test_a_message_with_a_field_of_the_envelope_is_not_flat(self, field: str) -> None:
        message = {**json.loads(self.FLAT), field: {} if field == "jobData" else AT}
        with pytest.raises(InvalidRequest, match="is required"):
            read(message, handlers={"sms_retry": Adopting()})

    def test_its_moment_must_be_one(self) -> None:
        with pytest.raises(InvalidTime, match="scheduledTime: 'soon' is not a time"):
            read({"retryTime": "soon"}, handlers={"sms_retry": Adopting()})

    def test_it_has_the_limits_of_a_payload(self) -> None:
        with pytest.raises(InvalidPayload, match="at most 20 are allowed"):
            read(self.FLAT, handlers={"sms_retry": Adopting()}, max_payload=20)
