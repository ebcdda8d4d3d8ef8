"""How jobs come from a Kafka topic: every option, its default, and its allowed values."""

from collections.abc import Mapping
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from infinite_scheduler.errors import ConfigError
from infinite_scheduler.kafka.names import check_topic
from infinite_scheduler.kafka.options import KafkaOptions, PropertyValue

_LONGEST_GROUP: Final = 255
_RESETS: Final = ("earliest", "latest")
_MOST_RETRIES: Final = 10
"""The last wait is then 100 s: a message that cannot be stored delays its partitions for that long."""


class KafkaIngestConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The topic that jobs are read from, and how; printed without secrets.

    `zone` is for a scheduledTime without a zone; the default is that of the node. `properties` are librdkafka's.
    """

    bootstrap_servers: str = "localhost:9092"
    topic: str = "scheduler.jobs.ingest"
    dlq_topic: str | None = "scheduler.jobs.dlq"  # None: dead letters are only in the store
    group_id: str = "infinite-scheduler-ingest"
    max_poll_records: int = 500  # at most this many messages are requested at once
    poll_timeout_ms: int = 1000  # how long one poll waits for messages
    enable_auto_commit: bool = False
    max_retries: int = 3  # of temporary errors: after 200, 400, 800 ms
    enabled: bool = True
    auto_offset_reset: str = "earliest"  # where a new group begins
    zone: str | None = None
    properties: Mapping[str, PropertyValue] = {}

    def __post_init__(self) -> None:
        _ = self.options
        check_topic(self.topic)
        if self.dlq_topic is not None:
            check_topic(self.dlq_topic, "dlq_topic", "; or None for none")
            if self.dlq_topic == self.topic:
                raise ConfigError(
                    f"dlq_topic and topic are both {self.topic!r}: dead letters would be read again; use two names"
                )
        if not isinstance(self.group_id, str) or not self.group_id.strip():  # type: ignore[redundant-expr]
            raise ConfigError(f"group_id is {self.group_id!r}; expected the name of a consumer group")
        if len(self.group_id) > _LONGEST_GROUP:
            raise ConfigError(
                f"group_id has {len(self.group_id)} characters; expected a name of up to {_LONGEST_GROUP}, "
                "which every store can keep"
            )
        _check_number("max_poll_records", self.max_poll_records, 1, 1_000_000)
        _check_number("poll_timeout_ms", self.poll_timeout_ms, 1, 60_000)
        _check_number("max_retries", self.max_retries, 0, _MOST_RETRIES)
        _check_flag("enable_auto_commit", self.enable_auto_commit)
        _check_flag("enabled", self.enabled)
        if self.enable_auto_commit:
            raise ConfigError(
                "enable_auto_commit is True; expected False: the position is stored with the jobs, in one transaction, "
                "and an offset that Kafka commits by itself would lose messages that were not accepted yet"
            )
        if self.auto_offset_reset not in _RESETS:
            raise ConfigError(f"auto_offset_reset is {self.auto_offset_reset!r}; expected 'earliest' or 'latest'")
        _ = self.zone_info

    @property
    def options(self) -> KafkaOptions:
        """The connection options."""
        return KafkaOptions(self.bootstrap_servers, self.properties)

    @property
    def zone_info(self) -> ZoneInfo | None:
        """The zone of times without one, if this topic has a zone of its own."""
        if self.zone is None:
            return None
        try:
            return ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
            raise ConfigError(f"zone is {self.zone!r}; expected a time zone such as 'UTC' or 'Asia/Dhaka'") from None

    @property
    def shown(self) -> dict[str, Any]:
        """What may be logged: everything, with secrets masked."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__ if name != "properties"}
        masked = self.options.shown
        fields["bootstrap_servers"] = masked.pop("bootstrap.servers")
        return {**fields, "properties": masked}

    def __repr__(self) -> str:
        return f"KafkaIngestConfig({', '.join(f'{name}={value!r}' for name, value in self.shown.items())})"


def _check_number(name: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ConfigError(f"{name} is {value!r}; expected a whole number from {least} to {most}")


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}; expected True or False")
