"""The SMS retry guide, done: from SMS_Retry through the database to SMS_Send."""

import json
import subprocess
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Consumer

from infinite_scheduler import (
    KafkaIngestConfig,
    MultiAppScheduler,
    ScheduleJobRequest,
    SmsRetryJobHandler,
    SmsRetryProducer,
    retry_time_after,
)
from tests.kafka.guides.guide_rig import (
    COMMAND,
    INGEST_PARTITIONS,
    PAYLOAD,
    SMS_PARTITIONS,
    lag,
    make,
    make_sms_topics,
    members,
    metrics,
    mysql,
    partitions,
    query,
    retention,
    retry,
    sms_manager,
    start,
    values,
)
from tests.services.topics import read, told, write
from tests.snippets import environment
from tests.waiting import until

pytestmark = pytest.mark.servers


def test_the_payloads_of_both_topics(servers: str, mariadb_url: str, stack: ExitStack) -> None:
    make_sms_topics(servers)
    sms_manager(stack, servers, mariadb_url)
    before = datetime.now(UTC).replace(microsecond=0)
    write(servers, "SMS_Retry", [PAYLOAD, json.dumps(json.loads(PAYLOAD)["jobData"])])
    records = read(servers, "SMS_Send", count=2)
    for record, sent in zip(records, values(records), strict=True):
        at = datetime.strptime(sent.pop("actualExecutionTime"), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
        assert before <= at <= datetime.now(UTC)
        assert record.key == b"task-12345"
        assert sent == {
            "campaignTaskId": 12345,
            "createdOn": "2025-11-13 15:00:00",
            "scheduledRetryTime": "2025-11-13 15:30:00",
            "retryAttempt": 1,
        }


def test_the_producer_in_both_its_forms(servers: str) -> None:
    make_sms_topics(servers)
    created, due = datetime(2025, 11, 13, 15, tzinfo=UTC), datetime(2025, 11, 13, 15, 30, tzinfo=UTC)
    producer = SmsRetryProducer(servers)
    producer.schedule_retry(12345, created, due, 1, "Network timeout")
    producer.schedule_retry(12346, created, due)
    producer.close()
    records = {record.key: json.loads(record.value or b"") for record in read(servers, "SMS_Retry", count=2)}
    assert records[b"task-12345"].pop("requestId") != records[b"task-12346"].pop("requestId")
    assert records[b"task-12345"] == json.loads(PAYLOAD)
    assert records[b"task-12346"]["jobData"]["retryAttempt"] == 1


def test_the_back_off_of_the_guide() -> None:
    now = datetime(2025, 11, 13, 15, tzinfo=UTC)
    minutes = [(retry_time_after(attempt, now) - now) // timedelta(minutes=1) for attempt in range(1, 8)]
    assert minutes == [1, 5, 15, 30, 60, 60, 60]


MAX_RETRIES: Final = 3


def test_a_service_that_fails_and_one_that_sends(servers: str, mariadb_url: str, stack: ExitStack) -> None:
    make_sms_topics(servers)
    sms_manager(stack, servers, mariadb_url)
    retries = SmsRetryProducer(servers)
    stack.callback(retries.close)
    consumer = Consumer({**told(servers), "group.id": "sms-sender-service", "auto.offset.reset": "earliest"})
    stack.callback(consumer.close)
    consumer.subscribe(["SMS_Send"])
    attempts: dict[int, list[int]] = {1: [], 2: [], 3: []}
    created = datetime.now(UTC)
    for task in attempts:
        retries.schedule_retry(task, created, created + timedelta(seconds=1), 1, "Network timeout")
    settled = 0
    while settled < len(attempts):
        record = consumer.poll(30)
        assert record is not None
        assert record.error() is None
        payload = json.loads(record.value() or b"")
        task, attempt = payload["campaignTaskId"], payload["retryAttempt"]
        due = datetime.fromisoformat(payload["scheduledRetryTime"] + "Z")
        assert record.timestamp()[1] >= due.timestamp() * 1000
        attempts[task].append(attempt)
        if attempt < task or (task == 3 and attempt < MAX_RETRIES):
            retries.schedule_retry(
                task, created, datetime.now(UTC) + timedelta(seconds=1), attempt + 1, "Network timeout"
            )
        else:
            settled += 1
    assert attempts == {1: [1], 2: [1, 2], 3: [1, 2, 3]}


def test_the_scheduler_from_a_command_line(servers: str, mariadb_url: str, stack: ExitStack, tmp_path: Any) -> None:
    make_sms_topics(servers)
    (tmp_path / "scheduler.toml").write_text(
        """
        [[ingest]]
        topic = "SMS_Retry"
        dlq_topic = "SMS_Retry_DLQ"
        group_id = "sms-retry-scheduler"
        [apps.sms_retry]
        handler = "sms_retry"
        topic = "SMS_Send"
        """
    )
    position = urlsplit(mariadb_url)
    variables = {  # -Ddb.host, -Ddb.port, -Ddb.name, -Ddb.user, -Ddb.password
        "INFINITE_SCHEDULER_STORE__KIND": "mysql",
        "INFINITE_SCHEDULER_STORE__HOST": str(position.hostname),
        "INFINITE_SCHEDULER_STORE__PORT": str(position.port),
        "INFINITE_SCHEDULER_STORE__DATABASE": position.path.strip("/"),
        "INFINITE_SCHEDULER_STORE__USER": str(position.username),
        "INFINITE_SCHEDULER_STORE__PASSWORD": str(position.password),
    }
    node = subprocess.Popen(
        [*COMMAND, "serve", "--config", "scheduler.toml", "--kafka", servers, "--node-id", "scheduler-1", "--json"],
        cwd=tmp_path,
        env=environment() | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    stack.callback(node.wait)
    stack.callback(node.terminate)
    assert node.stdout is not None
    stack.callback(node.stdout.close)
    started = json.loads(node.stdout.readline())
    assert (started["node"], started["apps"]) == ("scheduler-1", ["sms_retry"])
    write(servers, "SMS_Retry", [PAYLOAD])
    assert values(read(servers, "SMS_Send", count=1))[0]["campaignTaskId"] == 12345


def test_topics_are_made_by_the_admin_api(servers: str) -> None:
    make(servers, *SMS_PARTITIONS.items(), *INGEST_PARTITIONS.items())
    until(lambda: partitions(servers) == SMS_PARTITIONS | INGEST_PARTITIONS)


def test_topics_are_made_by_the_command(servers: str) -> None:
    for preset in ("sms-retry", "ingest"):
        command = [*COMMAND, "topics", "create", "--preset", preset, "--kafka", servers]
        subprocess.run(command, env=environment(), check=True, capture_output=True)
    until(lambda: partitions(servers) == SMS_PARTITIONS | INGEST_PARTITIONS)
    assert retention(servers, "scheduler.jobs.ingest") == "86400000"


def test_the_three_examples_side_by_side(servers: str, mariadb_url: str, stack: ExitStack) -> None:
    make_sms_topics(servers)
    hurry = ["--kafka", servers, "--minute", "0.1"]
    scheduler = start(stack, "sms_retry_scheduler.py", "--kafka", servers, "--store", mariadb_url)
    sender = start(stack, "sms_sender.py", *hurry, "--count", "3")
    service = start(stack, "sms_service.py", *hurry)
    assert service.communicate(timeout=30)[0].count("scheduled retry at") == 3
    told_by_sender, _ = sender.communicate(timeout=60)
    assert "successful: task 102, attempt 2" in told_by_sender
    assert "task 103 given up after 3 retries" in told_by_sender
    assert scheduler.poll() is None
    scheduler.terminate()
    assert scheduler.wait(30) == 0


def test_a_request_with_priority_and_key(servers: str, mariadb_url: str, stack: ExitStack) -> None:
    make_sms_topics(servers)
    manager = sms_manager(stack, servers, mariadb_url)
    request = ScheduleJobRequest("sms_retry", datetime.now(UTC), json.loads(PAYLOAD)["jobData"])
    request.priority = "high"
    request.idempotency_key = "task-12345-retry-1"
    write(servers, "SMS_Retry", [request.to_json()] * 2)
    read(servers, "SMS_Send", count=1)
    until(lambda: metrics(manager)["duplicatesSkipped"] == 1)
    assert len(read(servers, "SMS_Send")) == 1
    (row,) = jobs_of_all_days(mariadb_url)
    assert (row["priority"], row["idempotency_key"]) == (PRIORITY_HIGH, "task-12345-retry-1")


PRIORITY_HIGH: Final = 0


def jobs_of_all_days(url: str) -> list[dict[str, Any]]:
    """There may be a midnight between a request and its job."""
    tables = [name for row in query(url, "SHOW TABLES LIKE 'sms_retry_scheduled_jobs_%'") for name in row.values()]
    return [row for table in tables for row in query(url, f"SELECT * FROM {table}")]


def test_three_instances_share_the_partitions(servers: str, mariadb_url: str, stack: ExitStack) -> None:
    make_sms_topics(servers)
    soon = {"heartbeat.interval.ms": 200}  # so soon each hears that another has come or gone
    nodes = [
        sms_manager(stack, servers, mariadb_url, properties=soon, settings={"node": {"id": f"scheduler-{number}"}})
        for number in (1, 2, 3)
    ]
    until(lambda: sorted(len(held) for held in members(servers, "sms-retry-scheduler")) == [2, 2, 2])
    write(servers, "SMS_Retry", [retry(number) for number in range(30)])
    assert {sent["campaignTaskId"] for sent in values(read(servers, "SMS_Send", count=30))} == set(range(30))
    until(lambda: all(metrics(node)["messagesProcessed"] for node in nodes))
    nodes.pop(0).stop_all()
    until(lambda: sorted(len(held) for held in members(servers, "sms-retry-scheduler")) == [3, 3])
    write(servers, "SMS_Retry", [retry(number) for number in range(30, 60)])
    assert len(read(servers, "SMS_Send", count=60)) == 60
    assert len(read(servers, "SMS_Send")) == 60


def test_the_configuration_of_production(servers: str, mariadb_url: str, stack: ExitStack) -> None:
    make_sms_topics(servers)
    config = KafkaIngestConfig(
        bootstrap_servers=f"127.0.0.1:1,{servers},127.0.0.1:2",  # one of three answers
        topic="SMS_Retry",
        dlq_topic="SMS_Retry_DLQ",
        group_id="sms-retry-scheduler-prod",
        max_poll_records=1000,
        poll_timeout_ms=1000,
        max_retries=3,
        enabled=True,
    )
    manager = MultiAppScheduler(**mysql(mariadb_url), kafka_ingest=config)
    manager.register_app("sms_retry", SmsRetryJobHandler(servers))
    manager.start_all()
    stack.callback(manager.stop_all)
    write(servers, "SMS_Retry", [retry(number) for number in range(30)])
    assert {sent["campaignTaskId"] for sent in values(read(servers, "SMS_Send", count=30))} == set(range(30))
    assert [sorted(held) for held in members(servers, "sms-retry-scheduler-prod")] == [list(range(6))]


def test_the_lag_of_a_group(servers: str, mariadb_url: str, stack: ExitStack) -> None:
    make_sms_topics(servers)
    manager = sms_manager(stack, servers, mariadb_url)
    write(servers, "SMS_Retry", [retry(number) for number in range(20)])
    until(lambda: lag(servers, "sms-retry-scheduler", "SMS_Retry") == 0)
    manager.stop_all()
    write(servers, "SMS_Retry", [retry(number) for number in range(7)])
    assert lag(servers, "sms-retry-scheduler", "SMS_Retry") == 7


def test_the_reasons_for_the_dead_letter_queue(servers: str, mariadb_url: str, stack: ExitStack) -> None:
    make_sms_topics(servers)
    sms_manager(stack, servers, mariadb_url)
    bad = {
        "{ not JSON": "the message is not valid JSON",
        '{"scheduledTime": "2025-11-13 15:30:00", "jobData": {}}': "appName is required",
        '{"appName": "sms_retry", "jobData": {"campaignTaskId": 1}}': "scheduledTime is required",
        PAYLOAD.replace("sms_retry", "fax"): "unknown app 'fax'; known apps: sms_retry",
        PAYLOAD.replace("2025-11-13 15:30:00", "soon"): "scheduledTime",
    }
    before_ms = time.time() * 1000
    write(servers, "SMS_Retry", list(bad), key=b"task-1")
    source = {record.value: record for record in read(servers, "SMS_Retry")}
    letters = read(servers, "SMS_Retry_DLQ", count=len(bad))
    for letter in letters:
        headers = {name: (value or b"").decode() for name, value in letter.headers}
        origin = source[letter.value]
        assert (letter.key, set(headers)) == (b"task-1", HEADERS)
        assert headers["original-topic"] == "SMS_Retry"
        assert (headers["original-partition"], headers["original-offset"]) == (
            str(origin.partition),
            str(origin.offset),
        )
        assert before_ms - 1 <= int(headers["error-timestamp"]) <= time.time() * 1000
        assert headers["error-message"].startswith(bad[(letter.value or b"").decode()])
    assert len(letters) == len({letter.value for letter in letters})
    write(servers, "SMS_Retry", [PAYLOAD])
    assert len(read(servers, "SMS_Send", count=1)) == 1


HEADERS: Final = {"original-topic", "original-partition", "original-offset", "error-message", "error-timestamp"}


def test_metrics_and_health(servers: str, mariadb_url: str, stack: ExitStack) -> None:
    make_sms_topics(servers)
    manager = sms_manager(stack, servers, mariadb_url)
    consumer = manager.kafka_ingest_consumer
    assert consumer is not None
    assert consumer.is_running
    write(servers, "SMS_Retry", [PAYLOAD, PAYLOAD, "{"])
    until(lambda: consumer.metrics["messagesSentToDLQ"] == 1 and consumer.metrics["messagesProcessed"] == 2)
    assert consumer.metrics["messagesReceived"] == 3
    assert consumer.metrics["messagesFailed"] == 1
    assert consumer.metrics["duplicatesSkipped"] == 0
    assert consumer.metrics["idempotencyCacheSize"] == 0
    manager.stop_all()
    assert not consumer.is_running


def test_the_query_for_scheduled_jobs(servers: str, mariadb_url: str, stack: ExitStack) -> None:
    make_sms_topics(servers)
    manager = sms_manager(stack, servers, mariadb_url)
    day = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    with SmsRetryProducer(servers) as producer:
        for task in range(12):
            producer.schedule_retry(task, day, day + timedelta(minutes=task))
    until(lambda: metrics(manager)["messagesProcessed"] == 12)
    sql = f"SELECT * FROM sms_retry_scheduled_jobs_{day:%Y%m%d} ORDER BY scheduled_time DESC LIMIT 10"
    rows = query(mariadb_url, sql)
    assert [row["scheduled_time"].minute for row in rows] == list(range(11, 1, -1))
    assert {row["status"] for row in rows} == {"pending"}
