"""What librdkafka is told by each of its clients, and that nobody can set what the code sets itself."""

from typing import Any

import pytest

from infinite_scheduler.kafka import group_client
from infinite_scheduler.kafka import producer as producers
from infinite_scheduler.kafka.admin import Admin
from infinite_scheduler.kafka.group_client import GroupClient
from infinite_scheduler.kafka.options import OWNED, KafkaOptions
from infinite_scheduler.kafka.producer import Producer

SERVERS = "broker:9092"
MAY_BE_SET = {"client.id"} | set(group_client.DEFAULTS) | set(producers.DEFAULTS)


class Recorder:
    """A client of librdkafka that only remembers how it was made."""

    made: list[dict[str, Any]]

    def __init__(self, settings: dict[str, Any], **more: Any) -> None:
        self.made.append({**settings, **more})

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **more: 0


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    Recorder.made = []
    for name in ("confluent_kafka.Consumer", "confluent_kafka.Producer", "confluent_kafka.admin.AdminClient"):
        monkeypatch.setattr(name, Recorder)
    return Recorder.made


def open_consumer(**properties: Any) -> None:
    client = GroupClient(KafkaOptions(SERVERS, properties), "readers", ["jobs"])
    client.open(*[lambda *partitions: None] * 3)


async def test_what_the_code_sets_nobody_else_may_set(made: list[dict[str, Any]]) -> None:
    open_consumer()
    producer = Producer(KafkaOptions(SERVERS))
    await producer.start()
    await producer.stop()
    _ = Admin(KafkaOptions(SERVERS))._it
    assert len(made) == 3
    for settings in made:
        assert set(settings) - MAY_BE_SET <= set(OWNED)


def test_the_consumer_makes_no_topics_and_commits_nothing_by_itself(made: list[dict[str, Any]]) -> None:
    open_consumer()
    (settings,) = made
    assert settings["allow.auto.create.topics"] is False
    assert settings["enable.auto.commit"] is False
    assert settings["enable.auto.offset.store"] is False
    assert settings["auto.offset.reset"] == "error"
    assert settings["partition.assignment.strategy"] == "cooperative-sticky"
    assert settings["isolation.level"] == "read_committed"


def test_what_is_fetched_ahead_is_bounded_unless_the_user_says_otherwise(made: list[dict[str, Any]]) -> None:
    open_consumer()
    open_consumer(**{"queued.max.messages.kbytes": 999})
    assert [settings["queued.max.messages.kbytes"] for settings in made] == [8192, 999]


async def test_the_producer_waits_for_all_replicas_and_writes_once(made: list[dict[str, Any]]) -> None:
    producer = Producer(KafkaOptions(SERVERS))
    await producer.start()
    await producer.stop()
    (settings,) = made
    assert (settings["acks"], settings["enable.idempotence"]) == ("all", True)
    assert settings["queue.buffering.max.kbytes"] == 32_768
