"""The consumer of a topic: everything that is asked of librdkafka, all of it on one thread."""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from infinite_scheduler.clock import Clock
from infinite_scheduler.errors import BrokerUnavailable, SchedulerError
from infinite_scheduler.ingest.kafka import KafkaIngestConfig
from infinite_scheduler.ingest.placing import Committed
from infinite_scheduler.kafka.chatter import Chatter
from infinite_scheduler.kafka.errors import config_error, is_fatal, reason
from infinite_scheduler.kafka.options import Value

if TYPE_CHECKING:
    from confluent_kafka import Consumer as Client
    from confluent_kafka import KafkaError, Message, TopicPartition

MOST: Final = 5000
"""Messages of one gathering: few more would share a page of the database."""

ROOM: Final = 4 << 20
"""Bytes after which a gathering ends."""

OVERHEAD: Final = 200
"""Bytes that a message takes beside its key and its value."""

_UNSEEN: Final = ROOM >> 6
"""How large a message may be while none was seen; after each poll of smaller ones, half as large."""

GATHER_MS: Final = 50

_SLICE_MS: Final = 100
"""How long a stop waits for a poll that finds nothing."""

_LEAVE_S: Final = 5.0
_ASK_S: Final = 5.0
_PROBE_S: Final = 2.0

AGAIN_MS: Final = (1000, 60_000)
"""How soon a client that has failed for good is made anew, at first and at most."""

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

_ASTRAY: Final = frozenset({"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"})

MARK: Final = "infinite-scheduler"
"""The note beside an offset that this program commits: one that was set with Kafka's tools is without it."""

Gathered = list[tuple["Share", "Message"]]


def parts(gathered: Gathered) -> Iterator[Gathered]:
    """What was gathered, in pieces that one transaction takes: polls may bring more than was to be expected."""
    start = size = 0
    for number, (_, message) in enumerate(gathered):
        size += bytes_of(message)
        if size >= ROOM:
            yield gathered[start : number + 1]
            start, size = number + 1, 0
    if start < len(gathered):
        yield gathered[start:]


def bytes_of(message: "Message") -> int:
    """About what a message takes of the memory, without its headers."""
    key = message.key()
    return len(message) + OVERHEAD if key is None else len(message) + len(key) + OVERHEAD


class Share:
    """A partition that the group gave to this node: one object from its assignment to its revocation.

    Nothing of it is read before its place is known.
    """

    __slots__ = ("astray", "end", "expected", "flows", "fresh", "partition", "place", "topic_id")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.place: int | None = None  # how far the store says that the group is; None: to be asked
        self.topic_id: str | None = None
        self.fresh = True  # it has not had a place yet
        self.expected = 0  # the least offset that comes next
        self.flows = False  # librdkafka fetches it
        self.astray = False  # the topic does not have the offset that was asked for
        self.end: int | None = None

    @property
    def lag(self) -> int | None:
        """How many messages are yet to be dealt with, as far as is known."""
        return None if self.place is None or self.end is None else max(0, self.end - self.place)


class TopicConsumer:
    """Reads the partitions that the group gives it, each from the offset that it is told."""

    def __init__(self, config: KafkaIngestConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._options = config.options
        self._topic = config.topic
        self._client: Client | None = None
        self._stopping = threading.Event()
        self._suffered: KafkaError | None = None
        self._refused: str | None = None  # rights that are missing: told once by librdkafka, and not seen in a probe
        self._fatal = False  # librdkafka has given up: only a new client reads on
        self._again_ms = clock.steady_ms() - AGAIN_MS[1]  # when a new one may be made
        self._again_wait_ms = AGAIN_MS[0]
        self._largest = _UNSEEN  # bytes of the largest message lately
        self._unsaid: dict[int, int] = {}  # places that Kafka has yet to be told
        self.held: dict[int, Share] = {}
        self.joined = False  # the group has given this node its partitions, or none
        self.problem: str | None = None  # why nothing can be read

    # Life

    def open(self) -> None:
        """Begin to connect and to join the group; returns at once."""
        from confluent_kafka import Consumer as Client  # noqa: PLC0415 - 54 ms that only users of Kafka pay
        from confluent_kafka import KafkaException  # noqa: PLC0415

        settings = self._options.client(
            DEFAULTS,
            group_id=self._config.group_id,
            enable_auto_commit=False,
            enable_auto_offset_store=False,
            auto_offset_reset="error",  # where to go on is decided here, and told
            partition_assignment_strategy="cooperative-sticky",
            allow_auto_create_topics=False,
        )
        settings["error_cb"] = self._suffer
        settings["logger"] = Chatter()
        try:
            self._client = Client(settings)
        except KafkaException as error:
            raise config_error(error, self._options) from None
        self._client.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)

    def stop(self) -> None:
        """Let a gathering that waits return; from any thread."""
        self._stopping.set()

    def close(self) -> None:
        """Tell Kafka how far the group is, and leave it.

        While no broker answers, librdkafka would wait for ever to get rid of an offset: it is left behind then, and the
        group finds out by itself that this member is gone.
        """
        if self._client is not None:
            self._say_places()
            leaving = threading.Thread(target=self._client.close, name="leaves-topic", daemon=True)
            leaving.start()
            leaving.join(_LEAVE_S)
            self._client = None
        self.held.clear()
        self.joined = False

    def reopen(self) -> None:
        """Begin again with a new client."""
        self.close()
        self._fatal = False
        if not self._stopping.is_set():
            self.open()

    # Messages

    def gather(self) -> Gathered:
        """What is there: waits for the first message only, and takes the others that have come."""
        self.flow(self.held.values())
        self._say_places()
        first = self._first()
        if first is None:
            return []
        gathered: Gathered = []
        size = self._keep([first], gathered)
        until_ms = self._clock.steady_ms() + GATHER_MS
        while len(gathered) < MOST and size < ROOM and self._clock.steady_ms() < until_ms:
            fitting = max(1, (ROOM - size) // self._largest)
            more = self._it.consume(min(self._config.max_poll_records, MOST - len(gathered), fitting), 0)
            if not more:
                break
            size += self._keep(more, gathered)
        return gathered

    def linger(self) -> None:
        """Stay a member of the group while nothing can be taken: stop fetching, and serve what the group asks."""
        if self._client is None:
            return
        self.halt(self.held.values())
        self._say_places()
        message = self._it.poll(0)
        if message is not None:
            self._keep([message], [])

    def _first(self) -> "Message | None":
        """The first message, or None after the time of one poll."""
        until_ms = self._clock.steady_ms() + self._config.poll_timeout_ms
        while not self._stopping.is_set():
            left_ms = until_ms - self._clock.steady_ms()
            if left_ms <= 0:
                break
            message = self._it.poll(min(left_ms, _SLICE_MS) / 1000)
            if message is not None:
                return message
            if self._idle_shares():
                break
        return None

    def _idle_shares(self) -> bool:
        return any(not share.flows for share in self.held.values())

    def _keep(self, messages: "Iterable[Message]", gathered: Gathered) -> int:
        """Append the messages that are expected; returns their bytes."""
        size = largest = 0
        held = self.held
        for message in messages:
            error = message.error()
            if error is not None:
                self._fail(error, message.partition())
                continue
            share = held.get(message.partition() or 0)
            offset = message.offset() or 0
            if share is None or not share.flows or offset < share.expected:
                continue
            share.expected = offset + 1
            gathered.append((share, message))
            its = bytes_of(message)
            size += its
            largest = max(largest, its)
        if largest:
            self._refused = None
            self._largest = max(largest, self._largest // 2)
        return size

    # Partitions

    def flow(self, shares: Iterable[Share]) -> None:
        """Begin to read these, each from its place."""
        ready = [share for share in shares if self.holds(share) and share.place is not None and not share.flows]
        if ready:
            places = [self._at(share.partition, share.place) for share in ready]
            self._ask(lambda: self._it.incremental_assign(places))
        for share in ready:
            share.expected = share.place or 0
            share.flows = True

    def halt(self, shares: Iterable[Share]) -> None:
        """Read no more of these; what was fetched ahead is dropped."""
        flowing = [share for share in shares if self.holds(share) and share.flows]
        if flowing:
            places = [self._at(share.partition) for share in flowing]
            self._ask(lambda: self._it.incremental_unassign(places))
        for share in flowing:
            share.flows = False

    def forget(self, shares: Iterable[Share]) -> None:
        """Be in doubt about the places of these."""
        doubtful = list(shares)
        self.halt(doubtful)
        for share in doubtful:
            share.place = None

    def forget_all(self) -> None:
        """Be in doubt about all places."""
        self.forget(self.held.values())

    def holds(self, share: Share) -> bool:
        """Does it still belong to this node?"""
        return self.held.get(share.partition) is share

    def _assigned(self, client: "Client", partitions: "Collection[TopicPartition]") -> None:
        """Called within a poll. Nothing is fetched yet: where to begin is for the store to say."""
        client.incremental_assign([])
        self.joined = True
        self._refused = None
        for each in partitions:
            self.held[each.partition] = Share(each.partition)

    def _revoked(self, client: "Client", partitions: "Collection[TopicPartition]") -> None:
        """Called within a poll. What was gathered of these and not taken yet is for another node."""
        self._say_places()
        gone = [share for each in partitions if (share := self.held.pop(each.partition, None)) is not None]
        client.incremental_unassign([self._at(share.partition) for share in gone if share.flows])

    # What Kafka knows

    def committed(self, partitions: Collection[int]) -> dict[int, Committed]:
        """The offsets that Kafka has for the group; partitions without one are left out."""
        found = self._ask(lambda: self._it.committed([self._at(each) for each in partitions], _ASK_S))
        for each in found:
            if each.error is not None:
                raise BrokerUnavailable(self._sentence(each.error))
        return {
            each.partition: Committed(each.offset, ours=each.metadata == MARK) for each in found if each.offset >= 0
        }

    def partitions(self) -> Collection[int]:
        """All partitions of the topic."""
        topic = self._ask(lambda: self._it.list_topics(self._topic, timeout=_ASK_S)).topics.get(self._topic)
        if topic is None or topic.error is not None or not topic.partitions:
            raise BrokerUnavailable(f"the partitions of topic {self._topic!r} are not known in time")
        return list(topic.partitions)

    def offset_since(self, partition: int, since_ms: int) -> int | None:
        """The first message of this moment or later, or the end. None: the brokers do not tell."""
        (found,) = self._ask(lambda: self._it.offsets_for_times([self._at(partition, max(0, since_ms))], _ASK_S))
        if found.error is not None:
            return None
        return found.offset if found.offset >= 0 else self.bounds(partition)[1]

    def bounds(self, partition: int) -> tuple[int, int]:
        """The earliest offset of a partition and its end."""
        bounds = self._ask(lambda: self._it.get_watermark_offsets(self._at(partition), _ASK_S))
        if bounds is None:
            raise BrokerUnavailable(f"where topic {self._topic!r} begins and ends is not known in time")
        return bounds[0], bounds[1]

    def measure(self) -> None:
        """Note where the partitions end, as far as librdkafka knows without asking."""
        for share in self.held.values():
            if share.flows:
                end = self._it.get_watermark_offsets(self._at(share.partition), cached=True)[1]
                share.end = end if end >= 0 else share.end

    def say(self, places: Mapping[int, int]) -> None:
        """Remember to tell Kafka how far the group is: for those who watch its lag."""
        self._unsaid.update(places)

    def probe(self) -> None:
        """Find out whether the topic can be read, and why not."""
        from confluent_kafka import KafkaException  # noqa: PLC0415

        if self._fatal or self._client is None:
            self._begin_again()
            return
        try:
            topic = self._it.list_topics(self._topic, timeout=_PROBE_S).topics.get(self._topic)
        except KafkaException as raised:
            self.linger()  # what the connections suffer from says more
            self.problem = self._sentence(raised.args[0] if self._suffered is None else self._suffered)
            return
        if topic is not None and topic.error is not None:
            self.problem = self._sentence(topic.error)
        else:
            self.problem, self._suffered = self._refused, None

    def _begin_again(self) -> None:
        """Make a new client in the place of one that is of no use any more, less and less often."""
        now_ms = self._clock.steady_ms()
        if now_ms < self._again_ms or self._stopping.is_set():
            return
        lately = now_ms - self._again_ms < AGAIN_MS[1]
        self._again_wait_ms = min(self._again_wait_ms * 2, AGAIN_MS[1]) if lately else AGAIN_MS[0]
        self._again_ms = now_ms + self._again_wait_ms
        try:
            self.reopen()
        except SchedulerError as error:
            self.problem = str(error)

    def _say_places(self) -> None:
        from confluent_kafka import KafkaException, TopicPartition  # noqa: PLC0415

        if not self._unsaid or self.problem is not None or self._client is None:
            return
        places = [
            TopicPartition(self._topic, partition, place, MARK)
            for partition, place in self._unsaid.items()
            if partition in self.held
        ]
        self._unsaid.clear()
        if not places:
            return
        with suppress(KafkaException):  # the store knows how far the group is; Kafka hears of it with the next messages
            self._it.commit(offsets=places, asynchronous=True)

    def _fail(self, error: "KafkaError", partition: int | None) -> None:
        """An error that librdkafka delivers in the place of a message."""
        if error.name() in _ASTRAY:
            share = self.held.get(partition if partition is not None else -1)
            if share is not None:
                share.astray = True
                self.forget([share])
        else:
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

    def _sentence(self, error: "KafkaError") -> str:
        return reason(error, self._options, self._topic)

    def _ask(self, question: Callable[[], Any]) -> Any:
        from confluent_kafka import KafkaException  # noqa: PLC0415

        try:
            return question()
        except KafkaException as raised:
            self._fatal = self._fatal or is_fatal(raised.args[0])
            raise BrokerUnavailable(self._sentence(raised.args[0])) from None

    def _at(self, partition: int, offset: int | None = None) -> "TopicPartition":
        from confluent_kafka import TopicPartition  # noqa: PLC0415

        return (
            TopicPartition(self._topic, partition) if offset is None else TopicPartition(self._topic, partition, offset)
        )

    @property
    def _it(self) -> "Client":
        if self._client is None:
            raise BrokerUnavailable(f"the consumer of topic {self._topic!r} is closed")
        return self._client
