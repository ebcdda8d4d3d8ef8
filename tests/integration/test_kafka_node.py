"""A node between topics: jobs come in by Kafka and go out by Kafka, on librdkafka's own broker and a SQLite file."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from infinite_scheduler import Client, Job, KafkaIngestConfig, MultiAppScheduler, Scheduler, SyncClient
from infinite_scheduler.errors import ConfigError
from infinite_scheduler.ingest.metrics import METRICS
from infinite_scheduler.kafka.embedded import embedded_broker
from infinite_scheduler.observe.events import Event, IngestStopped, MessagesTaken
from tests.command import NO_HTTP
from tests.services.topics import MakeTopic, read, write
from tests.waiting import until

BOUND_S = 30
PAST = "2025-11-03T22:00:00"
NO_BROKER = "127.0.0.1:1"


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with embedded_broker() as address:
        yield address


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}"


def request(app: str, data: object, when: str = PAST, **more: Any) -> str:
    return json.dumps({"appName": app, "scheduledTime": when, "jobData": data, **more})


class Inbox:
    """A handler as the guides have it."""

    required_fields = ("phoneNumber", "message")

    def __init__(self) -> None:
        self.jobs: SimpleQueue[Job] = SimpleQueue()

    def execute(self, job: Job) -> None:
        self.jobs.put(job)

    def next(self) -> Any:
        return self.jobs.get(timeout=BOUND_S).data


def test_messages_become_jobs_of_registered_apps(servers: str, url: str) -> None:
    sms, sipcall = Inbox(), Inbox()
    good = {"phoneNumber": "+8801712345678", "message": "Hello", "n": 9007199254740993}
    write(servers, "first", [request("sms", good), "no JSON", request("sms", {"message": "to whom?"})])
    config = KafkaIngestConfig(bootstrap_servers=servers, topic="first", dlq_topic="first.dlq", group_id="first")
    manager = MultiAppScheduler(store_url=url, kafka_ingest=config)
    manager.register_app("sms", sms)
    manager.register_app("sipcall", sipcall)
    consumer = manager.kafka_ingest_consumer
    assert consumer is not None
    with manager:
        assert consumer.is_running
        assert sms.next() == good
        write(servers, "first", [request("sipcall", good, idempotencyKey="k")] * 3)
        assert sipcall.next() == good
        until(lambda: consumer.metrics["duplicatesSkipped"] == 2 and consumer.metrics["messagesSentToDLQ"] == 2)
        assert {name: consumer.metrics[name] for name in METRICS[:3]} == {
            "messagesReceived": 6,
            "messagesProcessed": 2,
            "messagesFailed": 2,
        }
        letters = {record.value: dict(record.headers)["error-message"] for record in read(servers, "first.dlq", 2)}
        assert b"phoneNumber is required in jobData" in (
            letters[request("sms", {"message": "to whom?"}).encode()] or b""
        )
    assert not consumer.is_running
    assert set(consumer.metrics) == set(METRICS)
    assert sipcall.jobs.empty()


def test_a_restart_goes_on_where_it_stopped(kafka_servers: str, fresh_topic: MakeTopic, url: str) -> None:
    sms, topic = Inbox(), fresh_topic("restarted", partitions=3)
    config = KafkaIngestConfig(bootstrap_servers=kafka_servers, topic=topic, group_id=topic, dlq_topic=None)
    manager = MultiAppScheduler(store_url=url).with_kafka_ingest(config)
    manager.register_app("sms", sms)
    for count in range(3):
        write(kafka_servers, topic, [request("sms", {"phoneNumber": "+1", "message": str(count)})])
        with manager:
            assert sms.next()["message"] == str(count)
    assert sms.jobs.empty()


def test_a_broker_that_is_away_holds_nobody_up(servers: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infinite_scheduler.kafka.group_client._LEAVE_S", 1.0)
    sms = Inbox()
    write(servers, "there", [request("sms", {"phoneNumber": "+1", "message": "by topic"})])
    there = KafkaIngestConfig(bootstrap_servers=servers, topic="there", group_id="there", dlq_topic=None)
    manager = MultiAppScheduler(store_url=url).with_kafka_ingest(NO_BROKER, "away").with_kafka_ingest(there)
    manager.register_app("sms", sms)
    began = time.monotonic()
    with manager:
        assert time.monotonic() - began < 5
        manager.schedule_job("sms", {"phoneNumber": "+1", "message": "by call"}, "now")
        assert {sms.next()["message"] for _ in range(2)} == {"by call", "by topic"}
        away, near = manager.kafka_ingest_consumers
        until(lambda: manager._scheduler.counters.snapshot()["gauges"]["ingest_ready"] == 1)
        assert (away.is_running, near.is_running) == (True, True)
        assert away.metrics["messagesReceived"] == 0
        began = time.monotonic()
        assert manager.stop_all()
    assert time.monotonic() - began < 10


def test_a_property_that_kafka_does_not_know_fails_the_start(servers: str, url: str) -> None:
    config = KafkaIngestConfig(bootstrap_servers=servers, properties={"sokket.timeout.ms": 5})
    manager = MultiAppScheduler(store_url=url, kafka_ingest=config)
    manager.register_app("sms", Inbox())
    threads = set(threading.enumerate())
    with pytest.raises(ConfigError, match=r"sokket\.timeout\.ms"):
        manager.start_all()
    assert set(threading.enumerate()) <= threads


async def test_nothing_is_accepted_after_a_stop_began(kafka_servers: str, fresh_topic: MakeTopic, url: str) -> None:
    topic = fresh_topic("stopped")
    begun, shut, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()
    taken: list[int] = []

    def watch(event: Event) -> None:
        if isinstance(event, MessagesTaken):
            taken.append(event.accepted)
        elif isinstance(event, IngestStopped):
            shut.set()

    config = KafkaIngestConfig(bootstrap_servers=kafka_servers, topic=topic, group_id=topic, dlq_topic=None)
    scheduler = Scheduler(url, observers=[watch]).with_kafka_ingest(config)

    @scheduler.app("sms")
    async def take(job: Job) -> None:
        begun.set()
        await go_on.wait()

    await asyncio.to_thread(write, kafka_servers, topic, [request("sms", {"n": 1})])
    await scheduler.start()
    try:
        await asyncio.wait_for(begun.wait(), BOUND_S)
        stopping = asyncio.create_task(scheduler.stop())
        await asyncio.wait_for(shut.wait(), BOUND_S)
        assert not stopping.done()  # the job is in flight
        await asyncio.to_thread(write, kafka_servers, topic, [request("sms", {"n": 2})])
        go_on.set()
        assert await asyncio.wait_for(stopping, BOUND_S)
    finally:
        go_on.set()
        await scheduler.stop()
    assert taken == [1]
    async with Client(url) as client:
        assert [record.status for record in (await client.find("sms")).records] == ["done"]


CONFIG = """
[[ingest]]
topic = "SMS_Retry"
dlq_topic = "SMS_Retry_DLQ"
group_id = "sms-retry-scheduler"
[[ingest]]
[apps.sms_retry]
handler = "sms_retry"
topic = "SMS_Send"
[apps.sms]
handler = "kafka"
topic = "sms.out"
key = "{phoneNumber}"
value = { to = "{phoneNumber}", text = "Dear {name}" }
required = ["phoneNumber", "name"]
[apps.generic]
handler = "kafka"
topic = "generic.out"
[apps.python]
function = "tasks:note"
required = ["id"]
validate = "tasks:check"
"""
TASKS = """
def note(job):
    with open("noted", "a", encoding="utf-8") as file:
        file.write(f"{job.data['id']}\\n")

def check(data):
    if data["id"] > 9:
        raise ValueError("the id has one digit")
"""
RETRY = {
    "campaignTaskId": 12345,
    "createdOn": "2025-11-13 15:00:00",
    "retryTime": "2025-11-13 15:30:00",
    "retryAttempt": 1,
    "failureReason": "Network timeout",
}


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], Mapping[str, Any]]]:
    """A node as a process of its own, and what it said when it was ready."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("INFINITE_SCHEDULER_")} | NO_HTTP
    command = [sys.executable, "-m", "infinite_scheduler", "serve", "--config", "scheduler.toml", "--json", *arguments]
    with subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def stop(process: "subprocess.Popen[str]") -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(BOUND_S)


def test_a_configuration_alone_runs_the_guides(servers: str, tmp_path: Path) -> None:
    (tmp_path / "scheduler.toml").write_text(CONFIG, encoding="utf-8")
    (tmp_path / "tasks.py").write_text(TASKS, encoding="utf-8")
    write(servers, "SMS_Retry", [request("sms_retry", RETRY, "2025-11-13 15:30:00"), json.dumps(RETRY)])
    jobs = [
        request("sms", {"phoneNumber": "+1", "name": "Ada"}),
        request("sms", {"phoneNumber": "+1"}),
        request("generic", {"entityId": "e", "n": 9007199254740993}),
        request("python", {"id": 7}),
        request("python", {"id": 12}),
    ]
    write(servers, "scheduler.jobs.ingest", jobs)
    store = f"sqlite:///{tmp_path / 'jobs.db'}"
    with serving(tmp_path, "--kafka", servers, "--node-id", "scheduler-1", "--store", store) as (process, ready):
        assert ready == {
            "event": "started",
            "node": "scheduler-1",
            "store": store,
            "apps": ["generic", "python", "sms", "sms_retry"],
            "topics": ["SMS_Retry", "scheduler.jobs.ingest"],
            "http": None,
            "pid": process.pid,
        }
        with SyncClient(store) as client:
            until(lambda: [record.status for record in client.find().records] == ["done"] * 5)
        for record in read(servers, "SMS_Send", 2):
            sent = json.loads(record.value or b"")
            assert record.key == b"task-12345"
            assert sent.pop("actualExecutionTime") > "2026"
            assert sent == {
                "campaignTaskId": 12345,
                "createdOn": "2025-11-13 15:00:00",
                "scheduledRetryTime": "2025-11-13 15:30:00",
                "retryAttempt": 1,
            }
        (record,) = read(servers, "sms.out", 1)
        assert (record.key, json.loads(record.value or b"")) == (b"+1", {"to": "+1", "text": "Dear Ada"})
        (record,) = read(servers, "generic.out", 1)
        generic = json.loads(record.value or b"")
        assert (generic["appName"], generic["entityId"], generic["queueType"]) == ("generic", "e", "KAFKA")
        assert generic["jobParams"] == {"entityId": "e", "n": 9007199254740993}
        until(lambda: len(read(servers, "scheduler.jobs.dlq")) == 2)
        refused = {dict(record.headers)["error-message"] for record in read(servers, "scheduler.jobs.dlq")}
        assert refused == {b"name is required in jobData", b"jobData was refused: the id has one digit"}
        assert stop(process) == 0
    assert (tmp_path / "noted").read_text(encoding="utf-8") == "7\n"


def test_a_node_whose_brokers_are_away_stops_in_good_order(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        (tmp_path / "scheduler.toml").write_text(CONFIG, encoding="utf-8")
        (tmp_path / "tasks.py").write_text(TASKS, encoding="utf-8")
        with serving(tmp_path, "--kafka", address) as (process, ready):
            assert ready["topics"] == ["SMS_Retry", "scheduler.jobs.ingest"]
            with SyncClient(f"sqlite:///{tmp_path / 'scheduler.db'}") as client:
                job = client.schedule("python", {"id": 1}, delay=0)
                assert client.wait(job.id, timeout=BOUND_S).status == "done"
            assert stop(process) == 0


def test_a_template_that_cannot_be_read_is_named_with_its_app(tmp_path: Path) -> None:
    wrong = {"handler": "kafka", "topic": "out", "key": "{customer"}
    with pytest.raises(ConfigError, match=r"^apps\.sms: the key of the message is '\{customer'"):
        Scheduler(f"sqlite:///{tmp_path / 'jobs.db'}", settings={"apps.sms": wrong})
