"""What the replays of the guides share: the topics, the database and the scheduler as the guides set them up."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import cache
from typing import Any, Final
from urllib.parse import urlsplit

import pymysql
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from infinite_scheduler import (
    KafkaIngestConfig,
    MultiAppScheduler,
    MultiAppSchedulerManager,
    SmsRetryJobHandler,
)
from tests.services.topics import Written, end_offsets, make_topic, told
from tests.snippets import environment

COMMAND: Final = [sys.executable, "-m", "infinite_scheduler"]

SMS_PARTITIONS: Final = {"SMS_Retry": 6, "SMS_Send": 6, "SMS_Retry_DLQ": 3}

INGEST_PARTITIONS: Final = {"scheduler.jobs.ingest": 12, "scheduler.jobs.dlq": 3}

PAYLOAD: Final = """{
  "appName": "sms_retry",
  "scheduledTime": "2025-11-13 15:30:00",
  "jobData": {
    "campaignTaskId": 12345,
    "createdOn": "2025-11-13 15:00:00",
    "retryTime": "2025-11-13 15:30:00",
    "retryAttempt": 1,
    "failureReason": "Network timeout"
  }
}"""


@cache
def admin(servers: str) -> AdminClient:
    return AdminClient(told(servers))


def make(servers: str, *topics: tuple[str, int]) -> None:
    """`kafka-topics.sh --create`, by the admin API."""
    for name, count in topics:
        make_topic(admin(servers), name, count)


def make_sms_topics(servers: str) -> None:
    make(servers, ("SMS_Retry", 6), ("SMS_Send", 6), ("SMS_Retry_DLQ", 3))


def make_ingest_topics(servers: str) -> None:
    make(servers, *INGEST_PARTITIONS.items())


def partitions(servers: str) -> dict[str, int]:
    topics = admin(servers).list_topics(timeout=10).topics
    return {name: len(topic.partitions) for name, topic in topics.items() if not name.startswith("__")}


def retention(servers: str, topic: str) -> str:
    (found,) = admin(servers).describe_configs([ConfigResource("topic", topic)]).values()
    return str(found.result()["retention.ms"].value)


def members(servers: str, group: str) -> list[list[int]]:
    """`kafka-consumer-groups.sh --describe`: the partitions of each member."""
    found = admin(servers).describe_consumer_groups([group])[group].result()
    return [[each.partition for each in member.assignment.topic_partitions] for member in found.members]


def lag(servers: str, group: str, topic: str) -> int:
    """The LAG column of `kafka-consumer-groups.sh --describe`, summed up."""
    with closing(Consumer({**told(servers), "group.id": group})) as consumer:
        ends = end_offsets(consumer, topic)
        committed = consumer.committed([TopicPartition(topic, partition) for partition in ends], timeout=10)
    return sum(ends[each.partition] - max(each.offset, 0) for each in committed)


def mysql(url: str) -> dict[str, Any]:
    """The address of the database as the builder takes it."""
    parts = urlsplit(url)
    return {
        "mysql_host": parts.hostname,
        "mysql_port": parts.port,
        "mysql_database": parts.path.strip("/"),
        "mysql_username": parts.username,
        "mysql_password": parts.password,
    }


def query(url: str, sql: str) -> list[dict[str, Any]]:
    """What a client of the database shows."""
    position = urlsplit(url)
    connection = pymysql.connect(
        host=position.hostname,
        port=position.port or 3306,
        user=position.username,
        password=position.password or "",
        database=position.path.strip("/"),
        cursorclass=pymysql.cursors.DictCursor,
    )
    with connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


def sms_manager(
    stack: ExitStack, servers: str, url: str, *, properties: Mapping[str, Any] | None = None, **more: Any
) -> MultiAppSchedulerManager:
    """Setup 1 of the SMS retry guide, started."""
    manager = MultiAppSchedulerManager(**mysql(url), **more).with_kafka_ingest(
        KafkaIngestConfig(
            bootstrap_servers=servers,
            topic="SMS_Retry",
            dlq_topic="SMS_Retry_DLQ",
            group_id="sms-retry-scheduler",
            max_poll_records=500,
            enabled=True,
            properties=properties or {},
        )
    )
    manager.register_app("sms_retry", SmsRetryJobHandler(servers, "SMS_Send"))
    manager.start_all()
    stack.callback(manager.stop_all)
    return manager


def metrics(manager: MultiAppScheduler) -> Mapping[str, int]:
    consumer = manager.kafka_ingest_consumer
    assert consumer is not None
    return consumer.metrics


def retry(task: int) -> str:
    message = json.loads(PAYLOAD)
    message["jobData"]["campaignTaskId"] = task
    return json.dumps(message)


def values(records: Sequence[Written]) -> list[Any]:
    return [json.loads(record.value or b"") for record in records]


def start(stack: ExitStack, name: str, *options: str) -> subprocess.Popen[str]:
    """An example as a process, gone at the end."""
    process = subprocess.Popen(
        [sys.executable, f"examples/{name}", *options],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    stack.enter_context(process)
    stack.callback(process.kill)
    return process
