"""A trace goes through: the message that a job becomes belongs to the trace of the one that asked for it."""

import asyncio
import json
from pathlib import Path

from infinite_scheduler import KafkaHandler, KafkaIngestConfig, Scheduler, SmsRetryJobHandler
from infinite_scheduler.observe.events import Event, JobsSettled
from tests.kafka.topic_rig import rig
from tests.services.topics import Written, read, write
from tests.waiting import until_async

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PAST = "2025-11-03T22:00:00"
GOOD = f"00-{TRACE}-00f067aa0ba902b7-00".encode()
BAD = f"00-{TRACE}-0000000000000000-01".encode()


def request(app: str, number: int, **more: str) -> str:
    return json.dumps({"appName": app, "scheduledTime": PAST, "jobData": {"campaignTaskId": number}, **more})


def parents(found: list[Written]) -> dict[bytes, list[str]]:
    headers = [dict(each.headers) for each in found]
    return {each["job-id"] or b"": (each["traceparent"] or b"").decode().split("-") for each in headers}


async def test_the_trace_of_a_message_goes_on_with_its_job(tmp_path: Path, mock_kafka: str) -> None:
    traced = [request("sms", 1), request("sms", 2), request("sms_retry", 3)]
    for values, header in ((traced, GOOD), ([request("other", 4)], BAD), ([request("other", 5, requestId="r")], GOOD)):
        await asyncio.to_thread(write, mock_kafka, "jobs", values, headers=[("traceparent", header)])
    told: list[Event] = []
    scheduler = Scheduler(f"sqlite:///{tmp_path / 'jobs.db'}", observers=[told.append]).with_kafka_ingest(
        KafkaIngestConfig(bootstrap_servers=mock_kafka, topic="jobs", dlq_topic=None)
    )
    for app in ("sms", "other"):
        scheduler.add_app(app, KafkaHandler(mock_kafka, f"{app}.out"))
    scheduler.add_app("sms_retry", SmsRetryJobHandler(mock_kafka, "retry.out"))
    async with scheduler:
        await until_async(
            lambda: sum(event.counts.get("done", 0) for event in told if isinstance(event, JobsSettled)) == 5
        )
    sms, retry, other = [
        parents(await asyncio.to_thread(read, mock_kafka, topic)) for topic in ("sms.out", "retry.out", "other.out")
    ]
    assert (len(sms), len(retry), len(other)) == (2, 1, 2)
    for version, trace, span, flags in (*sms.values(), *retry.values()):
        assert (version, trace, flags) == ("00", TRACE, "01")
        assert span != "00f067aa0ba902b7"
    assert len({span for _, _, span, _ in (*sms.values(), *retry.values())}) == 3
    assert {job_id.decode().replace("-", ""): trace for job_id, (_, trace, _, _) in other.items()} == {
        trace: trace for _, trace, _, _ in other.values()
    }


async def test_a_message_that_is_refused_after_its_trace_was_read_keeps_its_headers(
    tmp_path: Path, mock_kafka: str
) -> None:
    async with rig(tmp_path, mock_kafka, "jobs") as inside:
        await inside.send([request("nobody", 1)], headers=[("traceparent", GOOD), ("other", None)])
        door = await inside.started()
        await until_async(lambda: door.metrics["messagesFailed"] == 1)
        (letter,) = await inside.letters()
        assert "nobody" in letter.error
        assert list(letter.headers) == [("traceparent", GOOD), ("other", None)]
