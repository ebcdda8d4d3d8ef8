import asyncio
import json
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from infinite_scheduler import KafkaHandler, RetryPolicy, Status
from infinite_scheduler.errors import ConfigError, DestinationAway, HandlerError, InvalidPayload, SendError
from infinite_scheduler.kafka.options import KafkaOptions
from infinite_scheduler.kafka.producer import Delivered, Record
from infinite_scheduler.model import Done, Failed, Job, JobId
from infinite_scheduler.testing import Harness, ManualClock
from infinite_scheduler.testing.manual_clock import START_MS
from infinite_scheduler.views.explain import Reason, explain
from tests.services.topics import read

NOWHERE = "127.0.0.1:1"
BUSY = timedelta(seconds=20)
"""How long an answer may take on a busy machine."""

PAYLOAD = b'{"phoneNumber": "+1",  "id": 9007199254740993, "amount": 1.10, "entityId": {"n": 0.50}}'


def job(payload: bytes = PAYLOAD, number: int = 0, **fields: Any) -> Job:
    return Job(
        key=JobId.make(START_MS, 0, 1, entropy=number.to_bytes(8, "big")),
        app="sms",
        due_ms=START_MS,
        scheduled_ms=START_MS - 1,
        payload=payload,
        created_ms=0,
        **fields,
    )


def handler(topic: Any = "sms.out", **settings: Any) -> KafkaHandler:
    return KafkaHandler(NOWHERE, topic, clock=ManualClock(), **settings)


def record(payload: bytes = PAYLOAD, **settings: Any) -> Record:
    return handler(**settings).record(job(payload, attempt=3), START_MS + 7)


def test_the_generic_shape_is_the_documented_one_with_the_data_byte_for_byte() -> None:
    made = record()
    assert made.topic == "sms.out"
    assert made.key == job().id.encode()
    assert made.value == (
        b'{"jobId":"%b","appName":"sms","entityId":{"n": 0.50},"executionTime":"2026-01-01T00:00:00.007Z",'
        b'"queueType":"KAFKA","topicName":"sms.out","jobParams":%b}' % (job().id.encode(), PAYLOAD)
    )


@pytest.mark.parametrize("payload", [b"{}", b"[1]", b"null", b'{"entityId":null}'])
def test_the_entity_is_null_where_the_data_names_none(payload: bytes) -> None:
    found = json.loads(record(payload).value or b"")
    assert found["entityId"] is None
    assert found["jobParams"] == json.loads(payload)


def test_the_value_may_be_the_data_as_it_is() -> None:
    assert record(value="data").value == PAYLOAD


def test_key_value_and_headers_are_filled_in() -> None:
    made = record(
        key="task-{id}",
        value={"to": "{phoneNumber}", "id": "{id}", "try": "{job.attempt}", "sum": "{amount} EUR"},
        headers={"kind": "sms", "to": "{phoneNumber}"},
    )
    assert made.key == b"task-9007199254740993"
    assert made.value == b'{"to":"+1","id":9007199254740993,"try":3,"sum":"1.10 EUR"}'
    assert list(made.headers)[-2:] == [("kind", b"sms"), ("to", b"+1")]


def test_every_message_says_which_delivery_it_is() -> None:
    own = job(attempt=3)
    assert list(record().headers) == [
        ("job-id", own.id.encode()),
        ("job-attempt", b"3"),
        ("job-scheduled-time", b"2025-12-31T23:59:59.999Z"),
        ("traceparent", f"00-{own.id.replace('-', '')}-0000000000000003-01".encode()),
    ]


def test_the_trace_id_is_the_same_for_all_attempts_and_the_span_another() -> None:
    traces = [dict(handler().record(job(attempt=n), 0).headers)["traceparent"] or b"" for n in (1, 2, 2)]
    first, second, again = (trace.decode().split("-") for trace in traces)
    assert first[1] == second[1]
    assert first[2] != second[2]
    assert second == again


@pytest.mark.parametrize("request_id", [None, "r-1", "4BF92F3577B34DA6A3CE929D0E0E4736", "0" * 32])
def test_the_trace_of_the_request_goes_on(request_id: str | None) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    own, other = job(attempt=3), job(attempt=3, request_id=request_id)
    assert handler().record(other, 0).headers == handler().record(own, 0).headers
    traces = [
        dict(handler().record(job(number=number, attempt=n, request_id=trace), 0).headers)["traceparent"] or b""
        for number in (1000, 2000)
        for n in (1, 2)
    ]
    assert {each.decode()[:36] for each in traces} == {f"00-{trace}-"}
    assert {each[-3:] for each in traces} == {b"-01"}
    assert len(set(traces)) == 4, "two deliveries of a trace have the same span"


def test_a_header_of_the_users_takes_the_place_of_ours() -> None:
    headers = list(record(headers={"traceparent": "{phoneNumber}"}).headers)
    assert [value for name, value in headers if name == "traceparent"] == [b"+1"]


@pytest.mark.parametrize("topic", ["", " ", ".", "..", "a b", "ä", "x" * 250, None, 7])
def test_a_name_that_no_topic_can_have_is_refused(topic: Any) -> None:
    with pytest.raises(ConfigError, match="expected the name of a topic"):
        handler(topic)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"key": "{"}, "the key of the message is '{'"),
        ({"key": " "}, "key is ' '"),
        ({"key": 7}, "key is 7"),
        ({"headers": {"a": "{job.nix}"}}, "the header 'a'"),
        ({"headers": {"": "a"}}, "headers has ''"),
        ({"headers": {"a": 1}}, "headers has 'a': 1"),
        ({"value": "text"}, "value is 'text'; expected 'generic'"),
        ({"value": ["a"]}, "expected 'generic'"),
        ({"value": {"a": "}"}}, "the value of the message"),
        ({"batch": 0}, "batch is 0"),
        ({"timeout_ms": 0}, "timeout_ms is 0"),
        ({"properties": {"acks": "1"}}, "'acks'.*cannot be set"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_to_change(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        handler(**settings)


def test_properties_are_given_once() -> None:
    with pytest.raises(ConfigError, match="twice"):
        KafkaHandler(KafkaOptions(NOWHERE), "t", properties={"linger.ms": 1})


def test_required_is_a_list_of_names() -> None:
    with pytest.raises(HandlerError, match="expected a list of names"):
        handler(required="phoneNumber")


def test_where_nothing_of_the_data_is_needed_doors_need_not_look() -> None:
    assert not handler().checks
    assert not handler(value="data", key="{job.id}").checks
    assert handler(required=["a"]).checks
    assert handler(key="{a}").checks
    assert handler(headers={"h": "{a}"}).checks
    assert handler(value={"v": "{a}"}).checks


@pytest.mark.parametrize(
    ("settings", "data", "words"),
    [
        ({"required": ["a", "b"]}, {"a": 1}, "b is required"),
        ({"required": ["a"]}, {"a": None}, "a is required"),
        ({"required": ["a"]}, [1], "must be an object"),
        ({"key": "{a.b}"}, {"a": {}}, "no field 'a.b'"),
        ({"key": "{a}"}, {"a": None}, "'a' is null"),
        ({"value": {"x": "{a}"}}, {}, "no field 'a'"),
        ({"headers": {"x": "{a}"}}, None, "must be an object"),
    ],
)
async def test_data_of_which_no_message_can_be_made_is_refused_at_the_door_and_fails_at_the_moment(
    settings: dict[str, Any], data: Any, words: str
) -> None:
    made = handler(**settings)
    with pytest.raises(InvalidPayload, match=words):
        made.check(data)
    made._producer = scripted = Scripted()  # type: ignore[assignment]
    outcomes: list[object] = []
    await made.handle(
        [job(json.dumps(data).encode()), job(b'{"a": {"b": 1}, "b": 1}', 1)], lambda _, o: outcomes.append(o)
    )
    assert isinstance(outcomes[0], Failed)
    assert words in outcomes[0].reason
    assert len(scripted.records) <= 1


@pytest.mark.parametrize("data", [{"a": 1}, {"a": 0, "more": [1]}, {"a": ""}])
def test_data_that_has_what_is_needed_is_accepted(data: Any) -> None:
    handler(required=["a"], key="x{a}", value={"v": "{a}"}).check(data)


def test_only_the_fields_that_a_message_needs_are_looked_at() -> None:
    class Unwritable:
        """JSON has nothing of the kind, so whoever encodes it fails."""

    data = {"a": 1, "b": {"c": "x"}, "rest": Unwritable()}
    handler(required=["a"], key="{b.c}", headers={"h": "{a}"}).check(data)
    handler(required=["a", "rest"]).check(data)
    with pytest.raises(InvalidPayload, match=r"'b\.d'"):
        handler(key="{b.d}").check(data)


class Scripted:
    """A producer that answers what the test says, in turn; then always yes."""

    def __init__(self, *errors: SendError | None) -> None:
        self.errors = list(errors)
        self.records: list[Record] = []

    async def start(self) -> None: ...

    async def stop(self, timeout_s: float) -> bool:
        return True

    async def send(self, records: Sequence[Record], delivered: Delivered) -> None:
        for index, one in enumerate(records):
            self.records.append(one)
            delivered(index, self.errors.pop(0) if self.errors else None)


PASSING = SendError("no broker took it", code="_MSG_TIMED_OUT", retryable=True)
COMPANY = SendError("another is invalid", code="_INVALID_DIFFERENT_RECORD", retryable=True, refused=True)
FOR_GOOD = SendError("the message is too large", code="MSG_SIZE_TOO_LARGE", retryable=False, too_large=True)


async def test_each_job_ends_as_its_own_message_did() -> None:
    made = handler()
    made._producer = Scripted(None, PASSING, FOR_GOOD)  # type: ignore[assignment]
    outcomes: dict[str, object] = {}
    jobs = [job(number=n) for n in range(4)]
    await made.handle(jobs, lambda one, outcome: outcomes.__setitem__(one.id, outcome))
    done, away, failed, also_done = outcomes.values()
    assert (done, failed, also_done) == (Done(), Failed("the message is too large"), Done())
    assert isinstance(away, DestinationAway)
    assert str(away) == "no broker took it"
    assert list(outcomes) == [one.id for one in jobs]


async def test_a_message_that_was_refused_with_another_one_is_an_error_of_its_job() -> None:
    made = handler()
    made._producer = Scripted(COMPANY)  # type: ignore[assignment]
    outcomes: list[object] = []
    await made.handle([job()], lambda _, outcome: outcomes.append(outcome))
    assert outcomes == [COMPANY]


async def test_a_topic_that_takes_nothing_holds_the_app_back_and_a_message_that_is_refused_fails() -> None:
    async with Harness() as h:
        made = handler()
        made._producer = scripted = Scripted(PASSING, FOR_GOOD)  # type: ignore[assignment]
        h.scheduler.add_app("sms", made, retry=RetryPolicy(max_attempts=1))
        await h.start()
        first = await h.client.schedule("sms", {"n": 1}, delay="1s")
        second = await h.client.schedule("sms", {"n": 2}, delay="2s")
        await h.advance("5s")
        assert [(await h.client.get(one.id)).status for one in (first, second)] == [Status.PENDING] * 2
        await h.advance("2s")
        found = [await h.client.get(one.id) for one in (first, second)]
        assert sorted(one.error or "" for one in found) == ["", "the message is too large"]
        assert {one.status for one in found} == {Status.DONE, Status.FAILED}
        assert {one.job.attempt for one in found} == {1}
        assert {dict(one.headers)["job-attempt"] for one in scripted.records} == {b"1"}
        assert len(scripted.records) == 3


async def test_due_jobs_are_in_the_topic_once_each_and_done(mock_kafka: str) -> None:
    async with Harness(patience=BUSY) as h:
        h.scheduler.add_app("sms", KafkaHandler(mock_kafka, "sms.out", clock=h.clock))
        await h.start()
        for n in range(600):
            await h.client.schedule("sms", {"n": n}, delay="5s")
        await h.advance("10s")
        survey = await h.client.find(app="sms", status="done", limit=1000)
        found = await asyncio.to_thread(read, mock_kafka, "sms.out", 600)
        assert len(survey.records) == 600
        assert sorted(json.loads(each.value or b"")["jobParams"]["n"] for each in found) == list(range(600))


async def test_a_start_without_a_broker_works_and_jobs_wait() -> None:
    async with Harness(patience=BUSY) as h:
        h.scheduler.add_app("sms", KafkaHandler(NOWHERE, "t", timeout_ms=300, clock=h.clock))
        await h.start()
        one = await h.client.schedule("sms", {}, delay="1s")
        await h.advance("1500ms")
        found = await h.client.get(one.id)
        assert (found.status, found.job.attempt) == (Status.PENDING, 1)
        await h.advance("3s")
        explained = explain(found, await h.client.survey(), now_ms=h.clock.wall_ms(), lease_ms=10_000)
        assert explained.reason is Reason.HELD_BACK
        assert "no broker at 127.0.0.1:1" in explained.why


async def test_a_stop_that_interrupts_takes_back_what_was_not_sent() -> None:
    made = handler()
    await made.start()
    sending = asyncio.create_task(made.handle([job()], lambda *_: pytest.fail("nothing is known of it")))
    await asyncio.sleep(0)
    sending.cancel()
    await asyncio.wait([sending])
    assert sending.cancelled()
    began = time.monotonic()
    await made.stop()
    assert time.monotonic() - began < 5  # and not until its message is given up


async def test_others_have_their_turn_between_two_batches_however_many_are_due() -> None:
    loop = asyncio.get_running_loop()
    order: list[str] = []

    class Seen(Scripted):
        async def send(self, records: Sequence[Record], delivered: Delivered) -> None:
            order.append("batch")
            await super().send(records, delivered)

    def tick() -> None:
        order.append("tick")
        if order.count("batch") < 10:
            loop.call_soon(tick)

    made = handler()
    made._producer = Seen()  # type: ignore[assignment]
    jobs = [job(number=n) for n in range(250)]
    loop.call_soon(tick)
    await asyncio.gather(*(made.handle(jobs, lambda *_: None) for _ in range(10)))
    assert "batch batch" not in " ".join(order)


async def test_a_stop_waits_for_no_broker() -> None:
    made = handler()
    await made.start()
    outcomes: list[object] = []
    sending = asyncio.create_task(made.handle([job()], lambda _, outcome: outcomes.append(outcome)))
    await asyncio.sleep(0)
    await asyncio.wait_for(made.stop(), 5)
    await sending
    (error,) = outcomes
    assert isinstance(error, DestinationAway)


def test_a_message_is_given_up_before_the_time_out_of_the_app() -> None:
    assert handler(timeout_ms=30_000)._producer._message_timeout_ms == 20_000
    assert handler(timeout_ms=1)._producer._message_timeout_ms == 1
