"""What an error of Kafka means: does trying again help, and what has to be changed."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from infinite_scheduler.errors import ConfigError, SendError
from infinite_scheduler.kafka.options import KafkaOptions

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, KafkaException

_TOO_LARGE: Final = frozenset(
    {"MSG_SIZE_TOO_LARGE", "_MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_MSG_SIZE"}
)

_PERMANENT: Final = _TOO_LARGE | {
    "CLUSTER_AUTHORIZATION_FAILED",
    "INVALID_RECORD",
    "INVALID_REQUIRED_ACKS",
    "INVALID_TIMESTAMP",
    "POLICY_VIOLATION",
    "TOPIC_AUTHORIZATION_FAILED",
    "TOPIC_EXCEPTION",
    "UNSUPPORTED_FOR_MESSAGE_FORMAT",
    "_INVALID_ARG",
    "_UNKNOWN_PARTITION",
}
"""The same message is always refused. A missing topic is not among them: it may be created at any moment."""

_REFUSED: Final = _TOO_LARGE | {
    "INVALID_MSG",
    "INVALID_RECORD",
    "INVALID_TIMESTAMP",
    "POLICY_VIOLATION",
    "_INVALID_ARG",
    "_INVALID_DIFFERENT_RECORD",
}
"""It is this message, or one that it was sent with, that is not taken; after any other error the topic takes none."""

_SUFFERED: Final = frozenset({"_MSG_TIMED_OUT", "_TIMED_OUT", "_PURGE_QUEUE", "_PURGE_INFLIGHT"})
"""What happens to messages when something else is wrong."""

_UNKNOWN_TOPIC: Final = "topic {topic!r} does not exist on {servers}: create it, or correct its name"
_TOO_FEW: Final = "too few replicas of topic {topic!r} are in sync: start the missing brokers"
_SHUT_OUT: Final = (
    "Kafka at {servers} has fenced this client, and another takes its place: if group.instance.id is set, "
    "give every node its own"
)
_OTHERWISE: Final = " If so, check that security.protocol is what it expects."
_TIMED_OUT: Final = "no broker at {servers} took a message for topic {topic!r} in time"

_SENTENCES: Final[Mapping[str, str]] = {
    "MSG_SIZE_TOO_LARGE": "the message is too large for topic {topic!r}: send less, or raise its max.message.bytes",
    "_MSG_SIZE_TOO_LARGE": "the message is too large for topic {topic!r}: send less, or raise message.max.bytes",
    "RECORD_LIST_TOO_LARGE": "the message is too large for topic {topic!r}: send less, or raise its segment.bytes",
    "TOPIC_AUTHORIZATION_FAILED": "not allowed to use topic {topic!r}: grant this user the right (an ACL)",
    "CLUSTER_AUTHORIZATION_FAILED": "not allowed by the cluster at {servers}: grant this user IdempotentWrite",
    "GROUP_AUTHORIZATION_FAILED": "not allowed to use the consumer group: grant this user the right to read with it",
    "TOPIC_EXCEPTION": "{topic!r} is not a valid topic name: use at most 249 letters, digits, '.', '_' and '-'",
    "UNKNOWN_TOPIC_OR_PART": _UNKNOWN_TOPIC,
    "_UNKNOWN_TOPIC": _UNKNOWN_TOPIC,
    "_UNKNOWN_PARTITION": "topic {topic!r} on {servers} has no such partition: send to an existing one",
    "INVALID_RECORD": "topic {topic!r} refuses the message: if it is compacted, every message needs a key",
    "POLICY_VIOLATION": "a policy of the cluster refuses the message for topic {topic!r}",
    "NOT_ENOUGH_REPLICAS": _TOO_FEW,
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": _TOO_FEW,
    "_MSG_TIMED_OUT": _TIMED_OUT,
    "_TIMED_OUT": "no answer from Kafka at {servers} in time",
    "_ALL_BROKERS_DOWN": "no broker at {servers} can be reached: is Kafka running there?" + _OTHERWISE,
    "_TRANSPORT": "the connection to Kafka at {servers} failed: is it running there?" + _OTHERWISE,
    "_RESOLVE": "unknown host in {servers}: correct bootstrap_servers",
    "_AUTHENTICATION": "Kafka at {servers} refuses the login: check the sasl.* properties",
    "SASL_AUTHENTICATION_FAILED": "Kafka at {servers} refuses the login: check sasl.username and sasl.password",
    "_SSL": "no secure connection to Kafka at {servers}: check security.protocol and the ssl.* properties",
    "FENCED_INSTANCE_ID": _SHUT_OUT,
    "_FATAL": "Kafka at {servers} has refused this client for good, so it is replaced: if group.instance.id is set, "
    "give every node its own; a producer needs the right IdempotentWrite",
    "_PURGE_QUEUE": "the producer was stopped before the message for topic {topic!r} was sent",
    "_PURGE_INFLIGHT": "the producer was stopped before the message for topic {topic!r} was acknowledged",
    "_QUEUE_FULL": "too many messages wait for Kafka at {servers}",
}

_UNTRUSTED: Final = (
    "the certificate of Kafka at {servers} was not accepted: check that ssl.ca.location names the authority that "
    "signed it, and that it is valid for this host"
)
_UNTRUSTED_MARK: Final = "certificate verify failed"
"""From OpenSSL: an unknown authority, another host, or an expired certificate. It comes with several codes."""


def reason(error: "KafkaError", options: KafkaOptions, topic: str | None = None) -> str:
    """One sentence for people: what is wrong, what to change, and librdkafka's own message. Without secrets."""
    told = error.str()
    sentence = _UNTRUSTED if _UNTRUSTED_MARK in told else _SENTENCES.get(error.name())
    if sentence is None:
        position = f"topic {topic!r} on {options.bootstrap_servers}" if topic else options.bootstrap_servers
        return options.without_secrets(f"Kafka ({position}): {told} ({error.name()})")
    text = sentence.format(topic=topic or "", servers=options.bootstrap_servers)
    return options.without_secrets(f"{text} ({told})")


def is_permanent(error: "KafkaError") -> bool:
    """Is the same message always refused?"""
    return error.name() in _PERMANENT


def is_fatal(error: "KafkaError") -> bool:
    """Is the client useless from now on?"""
    return error.fatal() or error.name() == "_FATAL"


def is_too_large(error: "KafkaError") -> bool:
    """Is it the size of the message?"""
    return error.name() in _TOO_LARGE


def send_error(
    error: "KafkaError", options: KafkaOptions, topic: str, *, trouble: "KafkaError | None" = None
) -> SendError:
    """Why a message was not delivered. `trouble` is the last error of the client: it explains what it only suffered."""
    text = reason(error, options, topic)
    if trouble is not None and error.name() == "_FATAL":
        text = reason(trouble, options, topic)
    elif trouble is not None and error.name() in _SUFFERED:
        text = f"{text}: {reason(trouble, options, topic)}"
    return SendError(
        text,
        code=error.name(),
        retryable=not is_permanent(error),
        too_large=is_too_large(error),
        refused=error.name() in _REFUSED,
    )


def config_error(raised: "KafkaException", options: KafkaOptions) -> ConfigError:
    """The error for options from which no client can be created."""
    return ConfigError(options.without_secrets(f"Kafka cannot be used as configured: {raised.args[0].str()}"))
