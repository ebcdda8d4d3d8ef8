"""How jobs come from a topic: every option has its documented default, and wrong ones are refused."""

from typing import Any
from zoneinfo import ZoneInfo

import pytest

from infinite_scheduler.errors import ConfigError
from infinite_scheduler.ingest.config import KafkaIngestConfig


def test_the_defaults_are_the_documented_ones() -> None:
    config = KafkaIngestConfig()
    assert (config.bootstrap_servers, config.topic, config.dlq_topic, config.group_id) == (
        "localhost:9092",
        "scheduler.jobs.ingest",
        "scheduler.jobs.dlq",
        "infinite-scheduler-ingest",
    )
    assert (config.max_poll_records, config.poll_timeout_ms, config.enable_auto_commit) == (500, 1000, False)
    assert (config.max_retries, config.enabled, config.auto_offset_reset) == (3, True, "earliest")
    assert (config.zone, config.zone_info, config.properties) == (None, None, {})


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"bootstrap_servers": ""}, "bootstrap_servers is ''"),
        ({"bootstrap_servers": "  "}, "bootstrap_servers is '  '"),
        ({"topic": ""}, "topic is ''; expected the name of a topic"),
        ({"topic": "  "}, "topic is '  '"),
        ({"topic": "^all.*"}, "topic is"),
        ({"topic": ".."}, "topic is"),
        ({"topic": "a" * 250}, "topic is"),
        ({"topic": None}, "topic is None"),
        ({"dlq_topic": ""}, "dlq_topic is ''; expected the name .* or None for none"),
        ({"dlq_topic": "scheduler.jobs.ingest"}, "dead letters would be read again"),
        ({"group_id": " "}, "group_id is ' '"),
        ({"group_id": "g" * 256}, "group_id has 256 characters; expected a name of up to 255"),
        ({"max_poll_records": 0}, "max_poll_records is 0; expected a whole number from 1"),
        ({"max_poll_records": 2.5}, "max_poll_records is 2.5"),
        ({"poll_timeout_ms": 0}, "poll_timeout_ms is 0"),
        ({"poll_timeout_ms": True}, "poll_timeout_ms is True"),
        ({"max_retries": -1}, "max_retries is -1"),
        ({"max_retries": 11}, "max_retries is 11"),
        ({"enabled": "yes"}, "enabled is 'yes'; expected True or False"),
        ({"enable_auto_commit": True}, "enable_auto_commit is True; expected False: .* in one transaction"),
        ({"auto_offset_reset": "none"}, "auto_offset_reset is 'none'; expected 'earliest' or 'latest'"),
        ({"zone": "Mars/Base"}, "zone is 'Mars/Base'; expected a time zone"),
        ({"zone": "../UTC"}, "zone is"),
        ({"properties": {"group.id": "other"}}, "'group.id' of Kafka cannot be set: set group_id"),
    ],
)
def test_what_cannot_work_is_refused_with_what_to_change(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        KafkaIngestConfig(**wrong)


def test_dead_letters_may_have_no_topic() -> None:
    assert KafkaIngestConfig(dlq_topic=None).dlq_topic is None


def test_a_topic_may_have_a_zone_of_its_own() -> None:
    assert KafkaIngestConfig(zone="Asia/Dhaka").zone_info == ZoneInfo("Asia/Dhaka")


def test_secrets_are_shown_to_nobody() -> None:
    config = KafkaIngestConfig(properties={"sasl.password": "hush-hush", "sasl.username": "ann", "linger.ms": 5})
    for shown in (repr(config), str(config), str(config.shown)):
        assert "hush-hush" not in shown
        assert "'sasl.username': 'ann'" in shown
    assert "topic='scheduler.jobs.ingest'" in repr(config)
