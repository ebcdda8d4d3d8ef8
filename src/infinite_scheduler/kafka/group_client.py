"""The client of a topic: what is asked of librdkafka about it, and why it cannot be read."""

import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from infinite_scheduler.errors import BrokerUnavailable
from infinite_scheduler.kafka.chatter import Chatter
from infinite_scheduler.kafka.errors import config_error, is_fatal, reason
from infinite_scheduler.kafka.options import KafkaOptions, Value

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, TopicPartition

_LEAVE_S: Final = 5.0
_ASK_S: Final = 5.0
_PROBE_S: Final = 2.0

_UNHEARD: Final = 8
"""After so many probes without an answer, a client that once had one may be stuck: librdkafka (2.16) forgets every
address it knows when a broker that is about to stop says that there are no brokers. A new one knows where to begin."""

DEFAULTS: Final[Mapping[str, Value]] = {
    "client.id": "infinite-scheduler",
    "isolation.level": "read_committed",
    "queued.max.messages.kbytes": 8192,  # memory is bounded, however much waits in the topic
    "fetch.max.bytes": 8_388_608,
    "fetch.wait.max.ms": 100,  # a partition that joins waits for the fetch that is under way
    "fetch.error.backoff.ms": 100,
    "topic.metadata.refresh.interval.ms": 5000,  # new topics and partitions are found soon
    "reconnect.backoff.max.ms": 1000,  # so is a broker that was restarted
    "session.timeout.ms": 15_000,
}
"""What users may set otherwise."""

_AWAY: Final = frozenset({"_ALL_BROKERS_DOWN", "_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "_SSL", "_RESOLVE"})
"""Errors of connections after which nothing comes until they are gone."""

MARK: Final = "infinite-scheduler"
"""The note beside an offset that this program commits: one that was set with Kafka's tools is without it."""

Rebalance = Callable[["Consumer", "Collection[TopicPartition]"], None]
"""Told of partitions that come or go, within a poll."""


class Committed(msgspec.Struct, frozen=True):
    """The offset that Kafka has for the group."""

    offset: int
    ours: bool = False  # this program wrote it, not somebody who set it with Kafka's tools


class GroupClient:
    """A member of the consumer group as librdkafka makes it; after it has failed for good, a new one."""

    def __init__(self, options: KafkaOptions, group: str, topic: str) -> None:
        self._options = options
        self._group = group
        self._topic = topic
        self._client: Consumer | None = None
        self._suffered: KafkaError | None = None
        self._refused: str | None = None  # rights that are missing: told once by librdkafka, and not seen in a probe
        self._fatal = False  # librdkafka has given up: only a new one reads on
        self._heard = False  # this client had an answer once
        self._unheard = 0  # probes without an answer since the last one
        self.problem: str | None = None  # why nothing can be read

    # Life

    def open(self, assigned: Rebalance, revoked: Rebalance, lost: Rebalance) -> None:
        """Begin to connect and to join the group; returns at once."""
        from confluent_kafka import Consumer, KafkaException  # noqa: PLC0415 - 54 ms that only users of Kafka pay

        settings = self._options.client(
            DEFAULTS,
            group_id=self._group,
            enable_auto_commit=False,
            enable_auto_offset_store=False,
            auto_offset_reset="error",  # where to go on is decided here, and told
            partition_assignment_strategy="cooperative-sticky",
            allow_auto_create_topics=False,
            enable_partition_eof=True,
        )
        settings["error_cb"] = self._suffer
        settings["logger"] = Chatter()
        try:
            self._client = Consumer(settings)
        except KafkaException as error:
            raise config_error(error, self._options) from None
        self._client.subscribe([self._topic], on_assign=assigned, on_revoke=revoked, on_lost=lost)

    def close(self) -> None:
        """Leave the group.

        While no broker answers, librdkafka would wait for ever to get rid of an offset: it is left behind then, and the
        group finds out by itself that this member is gone.
        """
        if self._client is not None:
            leaving = threading.Thread(target=self._client.close, name="leaves-topic", daemon=True)
            leaving.start()
            leaving.join(_LEAVE_S)
        self._client = None
        self._fatal = self._heard = False
        self._unheard = 0

    @property
    def is_open(self) -> bool:
        return self._client is not None

    @property
    def is_spent(self) -> bool:
        """Is it of no use any more, so that only a new one reads on?"""
        return self._fatal or self._client is None or (self._heard and self._unheard >= _UNHEARD)

    @property
    def consumer(self) -> "Consumer":
        """librdkafka's own; raises BrokerUnavailable when it is closed."""
        if self._client is None:
            raise BrokerUnavailable(f"the consumer of topic {self._topic!r} is closed")
        return self._client

    # What is fetched

    def fetch(self, places: Mapping[int, int]) -> None:
        """Begin to fetch these partitions, each from its place."""
        begun = [self.at(partition, place) for partition, place in places.items()]
        self._ask(lambda: self.consumer.incremental_assign(begun))

    def drop(self, partitions: Collection[int]) -> None:
        """Fetch no more of these; what was fetched ahead is dropped."""
        ended = [self.at(partition) for partition in partitions]
        self._ask(lambda: self.consumer.incremental_unassign(ended))

    def at(self, partition: int, offset: int | None = None) -> "TopicPartition":
        """A partition in librdkafka's words."""
        from confluent_kafka import TopicPartition  # noqa: PLC0415

        return (
            TopicPartition(self._topic, partition) if offset is None else TopicPartition(self._topic, partition, offset)
        )

    # What Kafka knows

    def committed(self, partitions: Collection[int]) -> dict[int, Committed]:
        """The offsets that Kafka has for the group; partitions without one are left out."""
        found = self._ask(lambda: self.consumer.committed([self.at(each) for each in partitions], _ASK_S))
        for each in found:
            if each.error is not None:
                raise BrokerUnavailable(self._sentence(each.error))
        return {
            each.partition: Committed(each.offset, ours=each.metadata == MARK) for each in found if each.offset >= 0
        }

    def commit(self, places: Mapping[int, int]) -> None:
        """Tell Kafka how far the group is, without waiting for an answer."""
        from confluent_kafka import KafkaException, TopicPartition  # noqa: PLC0415

        marked = [TopicPartition(self._topic, partition, place, MARK) for partition, place in places.items()]
        with suppress(KafkaException):  # the store knows how far the group is; Kafka hears of it with the next messages
            self.consumer.commit(offsets=marked, asynchronous=True)

    def partitions(self) -> Collection[int]:
        """All partitions of the topic."""
        topic = self._ask(lambda: self.consumer.list_topics(self._topic, timeout=_ASK_S)).topics.get(self._topic)
        if topic is None or topic.error is not None or not topic.partitions:
            raise BrokerUnavailable(f"the partitions of topic {self._topic!r} are not known in time")
        return list(topic.partitions)

    def offset_since(self, partition: int, since_ms: int) -> int | None:
        """The first message of this moment or later, or the end. None: the brokers do not tell."""
        (found,) = self._ask(lambda: self.consumer.offsets_for_times([self.at(partition, max(0, since_ms))], _ASK_S))
        if found.error is not None:
            return None
        return found.offset if found.offset >= 0 else self.bounds(partition)[1]

    def bounds(self, partition: int) -> tuple[int, int]:
        """The earliest offset of a partition and its end."""
        bounds = self._ask(lambda: self.consumer.get_watermark_offsets(self.at(partition), _ASK_S))
        if bounds is None:
            raise BrokerUnavailable(f"where topic {self._topic!r} begins and ends is not known in time")
        return bounds[0], bounds[1]

    def known_end(self, partition: int) -> int | None:
        """Where a partition ends, as far as librdkafka knows without asking."""
        from confluent_kafka import KafkaException  # noqa: PLC0415

        try:
            end = self.consumer.get_watermark_offsets(self.at(partition), cached=True)[1]
        except KafkaException:  # the topic has just gone
            return None
        return end if end >= 0 else None

    # What is wrong

    def probe(self, listen: Callable[[], None]) -> None:
        """Find out whether the topic can be read, and why not; `listen` lets librdkafka tell what it suffers from."""
        from confluent_kafka import KafkaException  # noqa: PLC0415

        try:
            topic = self.consumer.list_topics(self._topic, timeout=_PROBE_S).topics.get(self._topic)
        except KafkaException as raised:
            self._unheard += 1
            listen()  # what the connections suffer from says more
            self.problem = self._sentence(raised.args[0] if self._suffered is None else self._suffered)
            return
        self._heard, self._unheard = True, 0
        if topic is not None and topic.error is not None:
            self.problem = self._sentence(topic.error)
        else:
            self.problem, self._suffered = self._refused, None

    def allowed(self) -> None:
        """Partitions or messages have come: no rights are missing."""
        self._refused = None
        self._heard, self._unheard = True, 0

    def fail(self, error: "KafkaError") -> None:
        """librdkafka has delivered an error in the place of a message."""
        self.problem = self._sentence(error)
        self._fatal = self._fatal or is_fatal(error)
        if error.name().endswith("_AUTHORIZATION_FAILED"):
            self._refused = self.problem

    def _suffer(self, error: "KafkaError") -> None:
        """librdkafka tells of its connections, inside of a poll."""
        if is_fatal(error):
            self._fatal, self.problem = True, self._sentence(error)
            return
        if error.name() != "_ALL_BROKERS_DOWN" or self._suffered is None:
            self._suffered = error
        if error.name() in _AWAY:
            self.problem = self._sentence(self._suffered)

    def _ask(self, question: Callable[[], Any]) -> Any:
        from confluent_kafka import KafkaException  # noqa: PLC0415

        try:
            return question()
        except KafkaException as raised:
            self._fatal = self._fatal or is_fatal(raised.args[0])
            raise BrokerUnavailable(self._sentence(raised.args[0])) from None

    def _sentence(self, error: "KafkaError") -> str:
        return reason(error, self._options, self._topic)
