"""How to connect to Kafka: the brokers, and other settings of librdkafka."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from infinite_scheduler.errors import ConfigError
from infinite_scheduler.secrets import HIDDEN, is_secret, without_secrets

PropertyValue = str | int | float | bool

_ACKS: Final = "every message waits for all in-sync replicas; this cannot be changed"
_TIMEOUT: Final = "it follows the time-out of the app: set timeout there"
_SERVERS: Final = "set bootstrap_servers"
_CALLBACK: Final = "functions cannot be set here"
_COMMITS: Final = "the position in a topic is stored with the jobs, in one transaction"

OWNED: Final[Mapping[str, str]] = {
    "bootstrap.servers": _SERVERS,
    "metadata.broker.list": _SERVERS,
    "allow.auto.create.topics": "reading creates no topic: create it with the partitions that it should have",
    "group.id": "set group_id of the ingest",
    "auto.offset.reset": "set auto_offset_reset of the ingest",
    "enable.auto.commit": _COMMITS,
    "auto.commit.enable": _COMMITS,
    "auto.commit.interval.ms": _COMMITS,
    "enable.auto.offset.store": _COMMITS,
    "partition.assignment.strategy": "it is cooperative-sticky, so that a joining node does not stop others",
    "group.protocol": "it is classic, with cooperative rebalancing",
    "enable.idempotence": "it is on, so that a message that the client sends again is not doubled",
    "acks": _ACKS,
    "request.required.acks": _ACKS,
    "message.timeout.ms": _TIMEOUT,
    "delivery.timeout.ms": _TIMEOUT,
    "transactional.id": "messages are sent without transactions",
    "delivery.report.only.error": "a job is done when its message was reported as delivered",
    "enable.partition.eof": "it is on, so that the end of a partition is known",
    "logger": _CALLBACK,
    "error_cb": _CALLBACK,
    "stats_cb": _CALLBACK,
    "throttle_cb": _CALLBACK,
    "oauth_cb": _CALLBACK,
    "on_delivery": _CALLBACK,
    "on_commit": _CALLBACK,
}
"""Properties that users cannot set, and why."""


class KafkaOptions(msgspec.Struct, frozen=True):
    """The brokers and the properties of librdkafka that all its clients share; printed without secrets."""

    bootstrap_servers: str
    properties: Mapping[str, PropertyValue] = {}

    def __post_init__(self) -> None:
        servers: object = self.bootstrap_servers
        if not isinstance(servers, str) or not servers.strip(" ,"):
            raise ConfigError(
                f"bootstrap_servers is {servers!r}; expected the brokers' addresses, such as "
                "'localhost:9092' or 'kafka1:9092,kafka2:9092'"
            )
        for name, value in self.properties.items():
            _check(name, value)

    def client(self, defaults: Mapping[str, PropertyValue] = {}, /, **own: Any) -> dict[str, Any]:
        """The configuration of one client; underscores in the names of `own` stand for dots.

        The user's properties override `defaults`, but not `own`, on which the code relies.
        """
        named = {name.replace("_", "."): value for name, value in own.items()}
        return {**defaults, "bootstrap.servers": self.bootstrap_servers, **self.properties, **named}

    @property
    def shown(self) -> dict[str, PropertyValue]:
        """What may be logged."""
        return {
            name: HIDDEN if is_secret(name) else without_secrets(value) if isinstance(value, str) else value
            for name, value in self.client().items()
        }

    def without_secrets(self, text: str) -> str:
        """A text, such as an error message, without the secrets of these options."""
        for name, value in self.properties.items():
            if is_secret(name) and str(value).strip():
                text = text.replace(str(value), HIDDEN)
        return without_secrets(text)

    def __repr__(self) -> str:
        return f"KafkaOptions({self.shown})"


def _check(name: object, value: object) -> None:
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"a property of Kafka has the name {name!r}; expected one of librdkafka's, such as linger.ms")
    if name in OWNED:
        raise ConfigError(f"the property {name!r} of Kafka cannot be set: {OWNED[name]}")
    if not isinstance(value, PropertyValue):
        shown = HIDDEN if is_secret(name) else f"a {type(value).__name__}"
        raise ConfigError(f"the property {name!r} of Kafka is {shown}; expected a text, a number or a boolean")
