"""The ingest guide, done: jobs of several apps by way of scheduler.jobs.ingest."""

import json
import logging
import time
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource  # type: ignore[attr-defined]

from infinite_scheduler import (
    ConfigError,
    Job,
    KafkaIngestConfig,
    MultiAppScheduler,
    ScheduleJobRequest,
)
from tests.kafka.guides.guide_rig import admin, make_ingest_topics, members, metrics, mysql, retention, start
from tests.services.topics import read, told, write
from tests.waiting import until

pytestmark = pytest.mark.servers

SMS: Final = {"phoneNumber": "+49 30 555 0101", "message": "Hello World!", "senderId": "MyApp"}


class Recorder:
    """A handler of the guides: it has required fields, and remembers what it was given."""

    def __init__(self, *required: str) -> None:
        self.required_fields = required
        self.jobs: list[Job] = []

    def handle(self, job: Job) -> None:
        self.jobs.append(job)


def ingest_manager(
    stack: ExitStack, servers: str, url: str, handlers: Mapping[str, object], **options: Any
) -> MultiAppScheduler:
    """Quick start 1 of the ingest guide, started."""
    config = KafkaIngestConfig(
        bootstrap_servers=servers,
        **{
            "topic": "scheduler.jobs.ingest",
            "dlq_topic": "scheduler.jobs.dlq",
            "group_id": "infinite-scheduler-consumer-group",
            "max_poll_records": 500,
            "max_retries": 3,
            "enabled": True,
            **options,
        },
    )
    manager = MultiAppScheduler(**mysql(url), kafka_ingest=config)
    for name, handler in handlers.items():
        manager.register_app(name, handler)
    manager.start_all()
    stack.callback(manager.stop_all)
    return manager


def test_the_quick_start(servers: str, mariadb_url: str, stack: ExitStack) -> None:
    make_ingest_topics(servers)
    apps = {
        "sms": Recorder("phoneNumber", "message"),
        "sipcall": Recorder("callTo", "callFrom", "duration"),
        "payment_gateway": Recorder("accountId", "amount", "currency"),
    }
    manager = ingest_manager(stack, servers, mariadb_url, apps)
    assert set(manager.registered_apps) == set(apps)
    assert "sms" in manager.registered_apps
    request = ScheduleJobRequest("sms", datetime.now(UTC) + timedelta(seconds=1), SMS)
    request.priority = "normal"
    request.idempotency_key = f"unique-key-{time.time_ns() // 1_000_000}"
    sent: list[tuple[int | None, int | None]] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        assert error is None
        sent.append((message.partition(), message.offset()))

    producer = Producer({**told(servers), "acks": "all"})
    producer.produce("scheduler.jobs.ingest", request.to_json(), "sms-job-1", on_delivery=on_delivery)
    producer.flush(10)
    assert sent[0][1] == 0
    until(lambda: len(apps["sms"].jobs) == 1)
    (job,) = apps["sms"].jobs
    assert (job.data, job.request_id) == (SMS, request.request_id)


def test_a_topic_is_read_with_every_option_set(servers: str, mariadb_url: str, stack: ExitStack) -> None:
    make_ingest_topics(servers)
    sms = Recorder()
    ingest_manager(
        stack,
        servers,
        mariadb_url,
        {"sms": sms},
        topic="scheduler.jobs.ingest",
        dlq_topic="scheduler.jobs.dlq",
        group_id="my-scheduler-group",
        max_poll_records=1000,
        poll_timeout_ms=2000,
        enable_auto_commit=False,
        max_retries=5,
        enabled=True,
    )
    write(servers, "scheduler.jobs.ingest", [MESSAGE, "{ not JSON"])
    until(lambda: len(sms.jobs) == 1)
    assert [letter.value for letter in read(servers, "scheduler.jobs.dlq", count=1)] == [b"{ not JSON"]
    assert [sorted(held) for held in members(servers, "my-scheduler-group")] == [list(range(12))]


@pytest.mark.parametrize(("records", "timeout_ms"), [(1000, 500), (100, 100)])
def test_messages_come_in_by_both_tunings(
    servers: str, mariadb_url: str, stack: ExitStack, records: int, timeout_ms: int
) -> None:
    make_ingest_topics(servers)
    sms = Recorder()
    manager = ingest_manager(
        stack, servers, mariadb_url, {"sms": sms}, max_poll_records=records, poll_timeout_ms=timeout_ms
    )
    requests = [ScheduleJobRequest("sms", datetime.now(UTC), SMS).to_json() for _ in range(300)]
    write(servers, "scheduler.jobs.ingest", requests)
    until(lambda: len(sms.jobs) == 300)
    until(lambda: metrics(manager)["messagesReceived"] == 300)
    assert len(sms.jobs) == 300


@pytest.mark.parametrize(
    ("option", "default"),
    [
        ("bootstrap_servers", "localhost:9092"),
        ("topic", "scheduler.jobs.ingest"),
        ("dlq_topic", "scheduler.jobs.dlq"),
        ("group_id", "infinite-scheduler-ingest"),
        ("max_poll_records", 500),
        ("poll_timeout_ms", 1000),
        ("enable_auto_commit", False),
        ("max_retries", 3),
        ("enabled", True),
        ("auto_offset_reset", "earliest"),
    ],
)
def test_every_option_has_its_documented_default(option: str, default: object) -> None:
    assert getattr(KafkaIngestConfig(), option) == default


def test_auto_commit_is_refused() -> None:
    with pytest.raises(ConfigError, match="enable_auto_commit is True; expected False"):
        KafkaIngestConfig(enable_auto_commit=True)


def test_the_three_forms_of_with_kafka_ingest() -> None:
    config = KafkaIngestConfig(bootstrap_servers="127.0.0.1:9092", topic="orders")
    for arguments, servers, topic in (
        ((config,), "127.0.0.1:9092", "orders"),
        (("127.0.0.1:9092", "scheduler.jobs.ingest"), "127.0.0.1:9092", "scheduler.jobs.ingest"),
        ((), "localhost:9092", "scheduler.jobs.ingest"),
    ):
        manager = MultiAppScheduler(store_url="sqlite:///never_opened.db").with_kafka_ingest(*arguments)
        assert manager.kafka_ingest_consumer is not None
        read_as = manager.kafka_ingest_consumer.config
        assert (read_as.bootstrap_servers, read_as.topic) == (servers, topic)


MESSAGE: Final = """{
  "requestId": "auto-generated-uuid",
  "appName": "sms",
  "scheduledTime": "2025-11-03T22:00:00",
  "priority": "normal",
  "idempotencyKey": "sms-12345-unique",
  "jobData": {
    "phoneNumber": "+49 30 555 0101",
    "message": "Hello World!",
    "senderId": "MyApp"
  }
}"""


def test_the_message_of_the_ingest_guide(servers: str, mariadb_url: str, stack: ExitStack) -> None:
    make_ingest_topics(servers)
    sms = Recorder("phoneNumber", "message")
    ingest_manager(stack, servers, mariadb_url, {"sms": sms})
    bare = {
        name: value for name, value in json.loads(MESSAGE).items() if name in {"appName", "scheduledTime", "jobData"}
    }
    write(servers, "scheduler.jobs.ingest", [MESSAGE, json.dumps(bare)])
    until(lambda: len(sms.jobs) == 2)
    asked = datetime(2025, 11, 3, 22, tzinfo=UTC)
    assert [(job.data, job.scheduled_ms) for job in sms.jobs] == [(SMS, int(asked.timestamp()) * 1000)] * 2
    assert len({job.request_id for job in sms.jobs}) == 2
    assert "auto-generated-uuid" in {job.request_id for job in sms.jobs}


def test_the_same_key_is_skipped(servers: str, mariadb_url: str, stack: ExitStack) -> None:
    make_ingest_topics(servers)
    sms = Recorder()
    manager = ingest_manager(stack, servers, mariadb_url, {"sms": sms})
    request = ScheduleJobRequest("sms", datetime.now(UTC), SMS)
    request.idempotency_key = f"order-{4711}"
    write(servers, "scheduler.jobs.ingest", [request.to_json()] * 3)
    until(lambda: metrics(manager)["duplicatesSkipped"] == 2 and len(sms.jobs) == 1)
    manager.stop_all()
    again = ingest_manager(stack, servers, mariadb_url, {"sms": sms})
    write(servers, "scheduler.jobs.ingest", [request.to_json()])
    until(lambda: metrics(again)["duplicatesSkipped"] == 1)
    assert len(sms.jobs) == 1


def test_a_message_is_tried_again_after_200_400_800_ms(
    servers: str, mariadb_url: str, stack: ExitStack, caplog: Any
) -> None:
    make_ingest_topics(servers)
    caplog.set_level(logging.WARNING, "infinite_scheduler.ingest.kafka")
    looks: list[float] = []

    class Moody(Recorder):
        def validate(self, data: Any) -> None:
            looks.append(time.monotonic())
            raise ConnectionError("the directory of numbers is away")

    ingest_manager(stack, servers, mariadb_url, {"sms": Moody()})
    write(servers, "scheduler.jobs.ingest", [MESSAGE])
    (letter,) = read(servers, "scheduler.jobs.dlq", count=1)
    told_ms = [record.wait_ms for record in caplog.records if hasattr(record, "wait_ms")]
    assert told_ms == [200, 400, 800]
    waited_ms = [1000 * (later - earlier) for earlier, later in pairwise(looks)]
    assert all(waited >= told for waited, told in zip(waited_ms, told_ms, strict=True))  # a busy machine takes longer
    assert "the directory of numbers is away" in str(dict(letter.headers)["error-message"])


def test_debug_logging_of_the_topic_alone(servers: str, mariadb_url: str, stack: ExitStack, caplog: Any) -> None:
    make_ingest_topics(servers)
    caplog.set_level(logging.DEBUG, "infinite_scheduler.ingest.kafka")
    sms = Recorder()
    ingest_manager(stack, servers, mariadb_url, {"sms": sms})
    write(servers, "scheduler.jobs.ingest", [MESSAGE])
    until(lambda: len(sms.jobs) == 1 and "Messages of a topic were processed durably." in caplog.text)
    quiet = {record.name for record in caplog.records if record.levelno == logging.DEBUG}
    assert quiet == {"infinite_scheduler.ingest.kafka"}


def test_messages_with_one_key_stay_together(servers: str) -> None:
    make_ingest_topics(servers)
    for customer in range(20):
        write(servers, "scheduler.jobs.ingest", [MESSAGE] * 3, key=f"customer-{customer}".encode())
    homes: dict[bytes | None, set[int]] = {}
    for record in read(servers, "scheduler.jobs.ingest"):
        homes.setdefault(record.key, set()).add(record.partition)
    assert all(len(home) == 1 for home in homes.values())
    assert len(set.union(*homes.values())) > 1


def test_the_retention_is_set_to_a_day(servers: str) -> None:
    make_ingest_topics(servers)
    entry = ConfigEntry("retention.ms", "86400000", incremental_operation=AlterConfigOpType.SET)
    wanted = ConfigResource("topic", "scheduler.jobs.ingest", incremental_configs=[entry])
    for altered in admin(servers).incremental_alter_configs([wanted]).values():
        altered.result()
    until(lambda: retention(servers, "scheduler.jobs.ingest") == "86400000")


def test_the_two_log_lines(servers: str, mariadb_url: str, stack: ExitStack, caplog: Any) -> None:
    make_ingest_topics(servers)
    caplog.set_level(logging.INFO, "infinite_scheduler")
    secret = {"sasl.password": "hush-hush"}
    ingest_manager(stack, servers, mariadb_url, {"sms": Recorder()}, properties=secret)
    lines = [record.getMessage() for record in caplog.records if record.name == "infinite_scheduler.ingest.kafka"]
    assert lines[0].startswith("KafkaJobIngestConsumer created with config: ")
    assert "topic='scheduler.jobs.ingest'" in lines[0]
    assert lines[1].startswith("Kafka ingest consumer started for topic: scheduler.jobs.ingest")
    assert "hush-hush" not in caplog.text


def test_a_topic_that_is_not_enabled_is_not_read(servers: str, mariadb_url: str, stack: ExitStack, caplog: Any) -> None:
    make_ingest_topics(servers)
    caplog.set_level(logging.INFO, "infinite_scheduler")
    sms = Recorder()
    manager = ingest_manager(stack, servers, mariadb_url, {"sms": sms}, enabled=False)
    write(servers, "scheduler.jobs.ingest", [MESSAGE])
    accepted = manager.schedule_job("sms", SMS, timedelta(milliseconds=500))
    until(lambda: len(sms.jobs) == 1)
    assert sms.jobs[0].id == accepted.id
    assert manager.kafka_ingest_consumer is None
    assert "Kafka ingest consumer started" not in caplog.text


def test_jobs_come_in_by_both_doors(servers: str, mariadb_url: str, stack: ExitStack) -> None:
    make_ingest_topics(servers)
    sms = Recorder("phoneNumber", "message")
    manager = ingest_manager(stack, servers, mariadb_url, {"sms": sms})
    accepted = manager.schedule_job("sms", SMS, datetime.now(UTC) + timedelta(milliseconds=200))
    write(servers, "scheduler.jobs.ingest", [MESSAGE])
    until(lambda: len(sms.jobs) == 2)
    assert accepted.id in {job.id for job in sms.jobs}


def test_the_ingest_example(servers: str, stack: ExitStack) -> None:
    make_ingest_topics(servers)
    told_by_example, _ = start(stack, "kafka_ingest.py", "--kafka", servers).communicate(timeout=60)
    assert '"messagesReceived": 8, "messagesProcessed": 3, "messagesFailed": 4' in told_by_example
