"""The settings of Kafka: how its brokers are reached, and which topics bring jobs."""

from collections.abc import Sequence
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from infinite_scheduler.config.section import Section
from infinite_scheduler.config.values import (
    FilledText,
    GroupId,
    Properties,
    SaslMechanism,
    SecurityProtocol,
    Servers,
    Topic,
    TopicOrNone,
    Zone,
    does_not_fit,
    show,
    whole,
)
from infinite_scheduler.kafka.options import OWNED, KafkaOptions, PropertyValue
from infinite_scheduler.secrets import is_secret

_SHORTHANDS: Final = (
    "security_protocol",
    "sasl_mechanism",
    "sasl_username",
    "sasl_password",
    "ssl_ca_location",
    "ssl_certificate_location",
    "ssl_key_location",
    "ssl_key_password",
)
"""Settings that stand for a property of librdkafka: dots instead of underscores."""


def check_properties(properties: Properties) -> Properties:
    """Refuse properties that are decided elsewhere: they would have no effect."""
    for name, value in properties.items():
        if name in OWNED:
            raise does_not_fit((name,), value, f"cannot be set: {OWNED[name]}")
    return properties


CheckedProperties = Annotated[Properties, AfterValidator(check_properties)]


class KafkaSettings(Section):
    """How the brokers are reached."""

    bootstrap_servers: Servers = "localhost:9092"
    """The brokers to connect to first, separated by commas."""
    security_protocol: SecurityProtocol | None = None
    """The protocol of connections: with or without TLS, with or without a login."""
    sasl_mechanism: SaslMechanism | None = None
    """The mechanism of the login."""
    sasl_username: FilledText | None = None
    """The user of the login."""
    sasl_password: str | None = Field(default=None, repr=False)
    """The password of the user."""
    ssl_ca_location: FilledText | None = None
    """The certificate authorities that are trusted to sign the brokers' certificates: a PEM file."""
    ssl_certificate_location: FilledText | None = None
    """The certificate of the client: a PEM file."""
    ssl_key_location: FilledText | None = None
    """The key of that certificate: a PEM file."""
    ssl_key_password: str | None = Field(default=None, repr=False)
    """The password of that key."""
    properties: CheckedProperties = Field(default={}, repr=False)  # may contain a password
    """Any other property of librdkafka, by its dotted name."""

    @model_validator(mode="after")
    def _says_nothing_twice(self) -> Self:
        for name in _SHORTHANDS:
            value, dotted = getattr(self, name), name.replace("_", ".")
            if value is not None and dotted in self.properties:
                raise does_not_fit(
                    name, value, f'contradicts properties, which has "{dotted}": leave out one of the two'
                )
        return self

    @model_validator(mode="after")
    def _says_nothing_in_vain(self) -> Self:
        protocol = str(self._properties().get("security.protocol", "PLAINTEXT")).upper()
        for part, names in (("SASL", _SHORTHANDS[1:3]), ("SSL", _SHORTHANDS[4:7])):
            given = [name for name in names if getattr(self, name) is not None]
            if given and part not in protocol:
                need = f'has no effect while security_protocol is {show(protocol)}: set "{part}" or "SASL_SSL" there'
                raise does_not_fit(given[0], getattr(self, given[0]), need.replace('"SASL"', '"SASL_PLAINTEXT"'))
        return self

    def _properties(self) -> dict[str, PropertyValue]:
        given = {name.replace("_", "."): getattr(self, name) for name in _SHORTHANDS}
        return {**self.properties, **{name: value for name, value in given.items() if value is not None}}

    def options(self) -> KafkaOptions:
        """The connection options of every client of these brokers."""
        return KafkaOptions(self.bootstrap_servers, self._properties())


def _stays_manual(value: bool) -> bool:
    if value:
        raise ValueError(
            "expected false: positions are written together with the jobs, "
            "and a commit on a timer would skip messages after a crash"
        )
    return value


class IngestSettings(Section):
    """One topic that brings jobs."""

    topic: Topic = "scheduler.jobs.ingest"
    """The topic to read."""
    dlq_topic: TopicOrNone = "scheduler.jobs.dlq"
    """The topic for messages that cannot become jobs; empty: they are kept only in the store."""
    group_id: GroupId = "infinite-scheduler-ingest"
    """The consumer group; nodes of one group share the topic's partitions."""
    bootstrap_servers: Servers | None = None
    """The brokers of this topic, instead of `kafka.bootstrap_servers`."""
    zone: Zone | None = None
    """The IANA time zone of times without a zone, instead of `time.zone`."""
    max_poll_records: Annotated[int, whole(1, 1_000_000)] = 500
    """How many messages one poll returns at most."""
    poll_timeout_ms: Annotated[int, whole(1, 60_000)] = 1000
    """How long one poll waits for a message."""
    max_retries: Annotated[int, whole(0, 10)] = 3
    """How often a message with a temporary error is retried before it is given up."""
    auto_offset_reset: Literal["earliest", "latest"] = "earliest"
    """Where a new group begins."""
    enable_auto_commit: Annotated[bool, AfterValidator(_stays_manual)] = False
    """Always false."""
    enabled: bool = True
    """Is the topic read?"""
    properties: CheckedProperties = Field(default={}, repr=False)  # may contain a password
    """Properties of librdkafka for this topic, which override those of `kafka.properties`."""

    @model_validator(mode="after")
    def _dead_letters_leave(self) -> Self:
        if self.dlq_topic == self.topic:
            raise does_not_fit("dlq_topic", self.dlq_topic, "expected another topic than the one that is read")
        return self


def hides(path: Sequence[str | int], value: object) -> bool:
    """May the value at this path be a secret, or contain one?"""
    last = str(path[-1]) if path else ""
    ours = path[0] in {"kafka", "ingest"} if path else False
    return last in {"password", "token"} or (ours and (is_secret(last) or is_secret(str(value))))
