"""Brokers that speak TLS: jobs come in and go out through it, and a certificate from a stranger is not accepted."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infinite_scheduler import KafkaHandler, Scheduler
from infinite_scheduler.errors import BrokerUnavailable, DestinationAway
from infinite_scheduler.kafka.admin import Admin
from infinite_scheduler.kafka.options import KafkaOptions
from infinite_scheduler.model import Job, JobId
from infinite_scheduler.observe import events
from infinite_scheduler.observe.events import Event
from tests.kafka.topic_rig import message, rig
from tests.services.kafka import SafeKafka
from tests.services.private import safe_kafka
from tests.services.topics import fresh_topics, read, write
from tests.waiting import until_async

pytestmark = pytest.mark.servers

NOT_ACCEPTED = "the certificate of Kafka at {} was not accepted: check that ssl.ca.location names the authority"


@pytest.fixture(scope="module")
def broker() -> Iterator[SafeKafka]:
    with safe_kafka() as started:
        yield started


def settings(folder: Path, options: Any, topic: str, *, dlq_topic: str, out: str) -> dict[str, Any]:
    return {
        "store": {"url": f"sqlite:///{folder / 'scheduler.db'}"},
        "kafka": {
            "bootstrap_servers": options["bootstrap.servers"],
            "security_protocol": options["security.protocol"],
            "ssl_ca_location": options["ssl.ca.location"],
        },
        "ingest": [{"topic": topic, "dlq_topic": dlq_topic, "group_id": topic}],
        "apps": {"sms": {"handler": "kafka", "topic": out}},
    }


async def status(folder: Path, told: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """What `ingest status` says of the topic of these settings."""
    tables = [f"[{name}]\n{_lines(told[name])}" for name in ("store", "kafka")]
    file = folder / "scheduler.toml"
    file.write_text("".join([*tables, f"[[ingest]]\n{_lines(told['ingest'][0])}"]))
    command = [sys.executable, "-m", "infinite_scheduler", "ingest", "status", "--json", "--config", str(file)]
    return await asyncio.to_thread(subprocess.run, command, text=True, capture_output=True, check=False)


def _lines(table: dict[str, str]) -> str:
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in table.items())


async def test_jobs_come_in_and_go_out_through_tls(tmp_path: Path, broker: SafeKafka) -> None:
    options = broker.options_trusting("first")
    with fresh_topics(options) as make:
        topic, dlq, out = make("jobs"), make("dlq"), make("out")
        told: list[Event] = []
        known = settings(tmp_path, options, topic, dlq_topic=dlq, out=out)
        async with Scheduler(settings=known, observers=[told.append]):
            now = {"scheduledTime": "2025-11-03T22:00:00"}
            await asyncio.to_thread(write, options, topic, [message(7, **now), "bad"])
            (handed_over,) = await asyncio.to_thread(read, options, out, 1)
            (letter,) = await asyncio.to_thread(read, options, dlq, 1)
            ended = await status(tmp_path, known)
        assert json.loads(handed_over.value or b"")["jobParams"] == {"n": 7}
        assert letter.value == b"bad"
        assert (ended.returncode, json.loads(ended.stdout)["ready"]) == (0, True), ended.stderr
        assert not [event for event in told if isinstance(event, events.TopicAway)]


async def test_a_certificate_that_is_not_accepted_is_told_and_tried_again(tmp_path: Path, broker: SafeKafka) -> None:
    options, sentence = broker.options_trusting("second"), NOT_ACCEPTED.format(broker.url)
    with fresh_topics(broker.options) as make:
        topic = make("jobs")
        async with rig(tmp_path, options, topic) as wary:
            door = wary.door()
            door.start()
            await until_async(lambda: wary.heard(events.TopicAway))
            known = settings(tmp_path, options, topic, dlq_topic="", out="out")
            ended, error = await asyncio.gather(status(tmp_path, known), _sending(options))
            assert (ended.returncode, "Traceback" in ended.stderr) == (1, False)
            found = json.loads(ended.stdout)
            assert (found["ready"], len(found["problems"])) == (False, 1)
            (told,) = wary.heard(events.TopicAway)
            for text in (found["problems"][0], told.error, door.problem, str(error)):
                assert sentence in str(text)
            assert not door.ready
            try:
                await asyncio.to_thread(broker.show, "second")
                await until_async(lambda: door.ready)
                await wary.send([message(1)])
                await wary.has([1])
            finally:
                await asyncio.to_thread(broker.show, "first")


async def test_a_client_without_tls_is_told_what_may_be_wrong(broker: SafeKafka) -> None:
    async with Admin(KafkaOptions(broker.url, {})) as admin:
        with pytest.raises(BrokerUnavailable, match=r"check that security\.protocol is what it expects"):
            await admin.overview(["jobs"])


async def _sending(options: Any) -> DestinationAway:
    """How an attempt to publish a job ends."""
    properties = {name: value for name, value in options.items() if name != "bootstrap.servers"}
    handler = KafkaHandler(KafkaOptions(options["bootstrap.servers"], properties), "out", timeout_ms=3000)
    job = Job(key=JobId.make(0, 0, 1), app="sms", due_ms=0, scheduled_ms=0, payload=b"{}", created_ms=0)
    outcomes: list[Any] = []
    await handler.start()
    try:
        await handler.handle([job], lambda _, outcome: outcomes.append(outcome))
    finally:
        await handler.stop()
    (outcome,) = outcomes
    assert isinstance(outcome, DestinationAway)
    return outcome
