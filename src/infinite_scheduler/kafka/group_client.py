"""The client of a member of a consumer group: what is asked of librdkafka about topics, and why one cannot be read."""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from infinite_scheduler.errors import BrokerUnavailable
from infinite_scheduler.kafka.broker_errors import config_error, is_fatal, reason
from infinite_scheduler.kafka.librdkafka_log import LibrdkafkaLog
from infinite_scheduler.kafka.options import KafkaOptions, PropertyValue
from infinite_scheduler.kafka.partition import Partition

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, TopicPartition

_LEAVE_S: Final = 5.0
_ASK_S: Final = 5.0
_PROBE_S: Final = 2.0

_UNHEARD: Final = 8
"""After so many probes without an answer, a client that once had one may be stuck: librdkafka (2.16) forgets every
address it knows when a broker that is about to stop says that there are no brokers. A new one knows where to begin."""

DEFAULTS: Final[Mapping[str, PropertyValue]] = {
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
"""What users may override."""

_AWAY: Final = frozenset({"_ALL_BROKERS_DOWN", "_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "_SSL", "_RESOLVE"})
"""Errors of connections after which nothing comes until they are gone."""

MARK: Final = "infinite-scheduler"
"""The note beside an offset that this program commits: one that was set with Kafka's tools is without it."""

Rebalance = Callable[["Consumer", "Collection[TopicPartition]"], None]
"""Told of partitions that come or go, within a poll."""


class Committed(msgspec.Struct, frozen=True):
    """The offset that Kafka has for the group."""

    offset: int
    ours: bool = False  # committed by this program, not set with Kafka's tools


class GroupClient:
    """A member of the consumer group as librdkafka makes it; after it has failed for good, a new one."""

    def __init__(self, options: KafkaOptions, group: str, topics: Sequence[str]) -> None:
        self._options = options
        self._group = group
        self._topics = list(topics)
        self._client: Consumer | None = None
        self._suffered: KafkaError | None = None
        self._former: dict[Partition, int] = {}  # positions of before partitions were fetched anew
        self._missing: dict[str, str] = {}  # topics that are not there, or not well, and why
        self._refused: dict[str | None, str] = {}  # by topic, or None for the group: rights that are missing
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
        settings["logger"] = LibrdkafkaLog()
        try:
            self._client = Consumer(settings)
        except KafkaException as error:
            raise config_error(error, self._options) from None
        self._client.subscribe(self._topics, on_assign=assigned, on_revoke=revoked, on_lost=lost)

    def close(self) -> None:
        """Leave the group.

        While no broker answers, librdkafka would wait for ever to get rid of an offset: it is left behind then, and the
        group finds out by itself that this member is gone.
        """
        if self._client is not None:
            leaving = threading.Thread(target=self._client.close, name="leaves-group", daemon=True)
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
            raise BrokerUnavailable(f"the consumer of topic {self._names!r} is closed")
        return self._client

    # What is fetched

    def fetch(self, offsets: Mapping[Partition, int]) -> None:
        """Begin to fetch these partitions, each from its offset."""
        begun = [self.at(partition, offset) for partition, offset in offsets.items()]
        self._former |= self._positions(offsets)
        self._ask(lambda: self.consumer.incremental_assign(begun))

    def drop(self, partitions: Collection[Partition]) -> None:
        """Fetch no more of these; what was fetched ahead is dropped."""
        ended = [self.at(partition) for partition in partitions]
        self._ask(lambda: self.consumer.incremental_unassign(ended))

    def positions(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Up to where everything there is was handed out, behind control records and what they have aborted.

        Partitions of which nothing came yet are left out. So is a position of before the partition was fetched anew: it
        is forgotten by another thread of librdkafka, at an unknown time, and would count messages as read.
        """
        found = self._positions(partitions)
        return {partition: at for partition, at in found.items() if at >= 0 and at != self._former.get(partition)}

    def _positions(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        from confluent_kafka import KafkaException  # noqa: PLC0415

        try:
            found = self.consumer.position([self.at(partition) for partition in partitions])
        except KafkaException:  # the topic has just gone
            return {}
        return {Partition(each.topic, each.partition): each.offset for each in found}

    def at(self, partition: Partition, offset: int | None = None) -> "TopicPartition":
        """A partition in librdkafka's words."""
        from confluent_kafka import TopicPartition  # noqa: PLC0415

        return TopicPartition(*partition) if offset is None else TopicPartition(*partition, offset)

    # What Kafka knows

    def committed(self, partitions: Collection[Partition]) -> dict[Partition, Committed]:
        """The offsets that Kafka has for the group; partitions without one are left out."""
        found = self._ask(lambda: self.consumer.committed([self.at(each) for each in partitions], _ASK_S))
        for each in found:
            if each.error is not None:
                raise BrokerUnavailable(self._sentence(each.error, each.topic))
        return {
            Partition(each.topic, each.partition): Committed(each.offset, ours=each.metadata == MARK)
            for each in found
            if each.offset >= 0
        }

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Tell Kafka how far the group is, without waiting for an answer."""
        from confluent_kafka import KafkaException, TopicPartition  # noqa: PLC0415

        marked = [TopicPartition(*partition, offset, MARK) for partition, offset in offsets.items()]
        with suppress(KafkaException):  # what counts is kept elsewhere; Kafka hears of it with the next messages
            self.consumer.commit(offsets=marked, asynchronous=True)

    def partitions(self) -> Collection[Partition]:
        """All partitions of the topics."""
        return [each for topic in self._topics for each in self._partitions(topic)]

    def _partitions(self, topic: str) -> Collection[Partition]:
        found = self._ask(lambda: self._describe(topic, _ASK_S))
        if found is None or found.error is not None or not found.partitions:
            raise BrokerUnavailable(f"the partitions of topic {topic!r} are not known in time")
        return [Partition(topic, number) for number in found.partitions]

    def _describe(self, topic: str, within_s: float) -> Any:
        return self.consumer.list_topics(topic, timeout=within_s).topics.get(topic)

    def offset_since(self, partition: Partition, since_ms: int) -> int | None:
        """The first message of this moment or later, or the end. None: the brokers do not tell."""
        (found,) = self._ask(lambda: self.consumer.offsets_for_times([self.at(partition, max(0, since_ms))], _ASK_S))
        if found.error is not None:
            return None
        return found.offset if found.offset >= 0 else self.bounds(partition)[1]

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """The earliest offset of a partition and its end."""
        bounds = self._ask(lambda: self.consumer.get_watermark_offsets(self.at(partition), _ASK_S))
        if bounds is None:
            raise BrokerUnavailable(f"where topic {partition.topic!r} begins and ends is not known in time")
        return bounds[0], bounds[1]

    def known_end(self, partition: Partition) -> int | None:
        """Where a partition ends, as far as librdkafka knows without asking."""
        from confluent_kafka import KafkaException  # noqa: PLC0415

        try:
            end = self.consumer.get_watermark_offsets(self.at(partition), cached=True)[1]
        except KafkaException:  # the topic has just gone
            return None
        return end if end >= 0 else None

    # What is wrong

    def probe(self, listen: Callable[[], None]) -> None:
        """Find out whether the topics can be read, and why not; `listen` lets librdkafka tell what it suffers from."""
        from confluent_kafka import KafkaException  # noqa: PLC0415

        try:
            found = {topic: self._describe(topic, _PROBE_S) for topic in self._topics}
        except KafkaException as raised:
            self._unheard += 1
            listen()  # what the connections suffer from says more
            self.problem = self._sentence(raised.args[0] if self._suffered is None else self._suffered)
            return
        self._heard, self._unheard = True, 0
        self._missing = {
            topic: self._sentence(told.error, topic)
            for topic, told in found.items()
            if told is not None and told.error is not None
        }
        if len(unreadable := self.unreadable) == len(self._topics):
            self.problem = next(iter(unreadable.values()))
        else:
            self.problem = self._refused.get(None)
        if not self._missing:
            self._suffered = None

    @property
    def unreadable(self) -> Mapping[str, str]:
        """Topics that cannot be read, and why; the others are read meanwhile."""
        refused = {topic: told for topic, told in self._refused.items() if topic is not None}
        return {**refused, **self._missing}

    def allowed(self, topics: Iterable[str]) -> None:
        """Messages or partitions of these topics have come, or an assignment without any: no rights are missing."""
        if self._missing or self._refused:
            for topic in set(topics) or self._topics:
                self._missing.pop(topic, None)
                self._refused.pop(topic, None)
            self._refused.pop(None, None)
        self._heard, self._unheard = True, 0

    def fail(self, error: "KafkaError", topic: str | None) -> None:
        """librdkafka has delivered an error in the place of a message; once, and a probe does not see each of them."""
        told = self._sentence(error, topic)
        self._fatal = self._fatal or is_fatal(error)
        known = topic if topic in self._topics else None
        if error.name().endswith("_AUTHORIZATION_FAILED"):
            self._refused[known] = told
        if known is None or self._fatal or len(self._topics) == 1:
            self.problem = told
        elif known not in self._refused:
            self._missing[known] = told

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

    def _sentence(self, error: "KafkaError", topic: str | None = None) -> str:
        return reason(error, self._options, topic or self._names)

    @property
    def _names(self) -> str:
        return ", ".join(self._topics)
