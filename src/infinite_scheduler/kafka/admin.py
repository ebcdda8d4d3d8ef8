"""What operators ask Kafka's brokers: which topics exist, where they end, how far a group has read."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import msgspec

from infinite_scheduler.errors import BrokerUnavailable
from infinite_scheduler.kafka.broker_errors import config_error, reason
from infinite_scheduler.kafka.librdkafka_log import LibrdkafkaLog
from infinite_scheduler.kafka.options import KafkaOptions

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, TopicPartition
    from confluent_kafka.admin import AdminClient

T = TypeVar("T")

TIMEOUT_S: Final = 10.0
"""How long brokers may take to answer."""

_OPTIONAL_S: Final = 3.0
"""How long to wait for optional answers."""

_FOR_EVER_S: Final = 600.0
"""The time-out that librdkafka gets for requests about groups; a shorter one is applied here instead.

It ends the process (an assertion, as of 2.16) if it learns which broker to ask after the time-out.
"""

_SLICE_S: Final = 0.5
_MOMENT_S: Final = 0.02
_HOPELESS: Final = frozenset({"_ALL_BROKERS_DOWN", "_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "_SSL"})
"""Errors of connections after which waiting any longer is useless."""

_PASSING: Final = frozenset(
    {
        "NOT_LEADER_FOR_PARTITION",
        "LEADER_NOT_AVAILABLE",
        "_NOENT",
        "COORDINATOR_NOT_AVAILABLE",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "NOT_COORDINATOR",
    }
)
"""Errors of a topic or a group that was just created, or whose broker has just started."""

_GONE: Final = frozenset({"UNKNOWN_TOPIC_OR_PART", "GROUP_ID_NOT_FOUND"})


class TopicInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One topic as the brokers describe it; `problem` says why they cannot."""

    partitions: Sequence[int] = ()
    replication: int = 0
    problem: str | None = None


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The brokers that answered, and which of the requested topics exist."""

    brokers: Sequence[str]
    topics: Mapping[str, TopicInfo]


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a consumer group, and the partitions assigned to it, by topic."""

    name: str
    held: Mapping[str, Collection[int]] = {}


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group as its coordinator sees it."""

    state: str
    members: Sequence[Member]

    def readers(self, topic: str) -> Sequence[str]:
        """The members with partitions of a topic; other members read other topics, or have none yet."""
        return sorted(member.name for member in self.members if member.held.get(topic))

    def held(self, topic: str) -> frozenset[int]:
        """The partitions of a topic that a member reads."""
        return frozenset(partition for member in self.members for partition in member.held.get(topic, ()))


class Admin:
    """Asks the brokers; raises BrokerUnavailable with the reason if none answers, or they refuse the request.

    Use it with `async with`: a client that is left to the garbage collector may be collected in a thread of its own,
    which ends the process.
    """

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._client: AdminClient | None = None
        self._suffered: KafkaError | None = None
        self._hopeless = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        client, self._client = self._client, None
        if client is not None:
            await asyncio.to_thread(client.__exit__, None, None, None)

    async def overview(self, topics: Collection[str]) -> Overview:
        """The brokers and these topics, in one request."""
        asking = asyncio.create_task(asyncio.to_thread(self._metadata))
        try:
            found = await asyncio.shield(asking)
        except asyncio.CancelledError:
            self._hopeless = True
            await asyncio.wait([asking])  # the client must not be closed while it is asked
            raise
        return Overview(
            brokers=[f"{broker.host}:{broker.port}" for _, broker in sorted(found.brokers.items())],
            topics={name: self._topic(name, found.topics[name]) for name in topics if name in found.topics},
        )

    async def topic_id(self, topic: str) -> str | None:
        """The id of the topic with this name; None if the brokers do not say."""
        from confluent_kafka import TopicCollection  # noqa: PLC0415 - 54 ms that only users of Kafka pay

        answers = self._it.describe_topics(TopicCollection([topic]), request_timeout=_OPTIONAL_S)
        found = await self._optional(answers[topic])
        return None if found is None or found.topic_id is None else str(found.topic_id)

    async def settings(self, topic: str) -> Mapping[str, str]:
        """The settings of a topic; none if the brokers do not say."""
        from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]  # noqa: PLC0415

        (answer,) = self._it.describe_configs([ConfigResource("topic", topic)], request_timeout=_OPTIONAL_S).values()
        found = await self._optional(answer)
        return {} if found is None else {name: entry.value for name, entry in found.items()}

    async def create(self, name: str, partitions: int, replication: int, settings: Mapping[str, str]) -> bool:
        """Create a topic; False if there is one of this name."""
        from confluent_kafka import KafkaException  # noqa: PLC0415
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # noqa: PLC0415

        new = NewTopic(name, num_partitions=partitions, replication_factor=replication, config=dict(settings))
        made = self._it.create_topics([new], operation_timeout=TIMEOUT_S, request_timeout=TIMEOUT_S)
        try:
            await asyncio.wrap_future(made[name])
        except KafkaException as raised:
            if raised.args[0].name() == "TOPIC_ALREADY_EXISTS":
                return False
            raise self._refused(raised.args[0], name) from None
        await asyncio.to_thread(self._await_topic, name)
        return True

    async def remove(self, topics: Sequence[str], groups: Sequence[str]) -> Sequence[str]:
        """Delete topics, and groups without members; returns what is left, and why."""
        from confluent_kafka import KafkaException  # noqa: PLC0415

        limits = {"operation_timeout": TIMEOUT_S, "request_timeout": TIMEOUT_S}
        gone = self._it.delete_topics(list(topics), **limits) if topics else {}
        ended = self._it.delete_consumer_groups(list(groups), request_timeout=_FOR_EVER_S) if groups else {}
        asked = [*(("topic", *each) for each in gone.items()), *(("group", *each) for each in ended.items())]
        left = []
        for kind, name, answer in asked:
            try:
                await _in_time(answer, TIMEOUT_S)
            except TimeoutError:
                left.append(f"{kind} {name}: no answer within {TIMEOUT_S:g} s")
            except KafkaException as raised:
                if raised.args[0].name() not in _GONE:
                    left.append(f"{kind} {name}: {reason(raised.args[0], self._options, name)}")
        return left

    async def bounds(self, topic: str, partitions: Iterable[int]) -> Mapping[int, tuple[int, int]]:
        """The earliest offset of each partition, and its end."""
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # noqa: PLC0415

        wanted = list(partitions)
        earliest = await self._offsets(topic, wanted, OffsetSpec.earliest)
        ends = await self._offsets(topic, wanted, OffsetSpec.latest)
        return {partition: (earliest[partition], ends[partition]) for partition in wanted}

    async def offsets_at(self, topic: str, partitions: Iterable[int], at_ms: int) -> Mapping[int, int | None]:
        """The offset of the first message at this time or later; None if there is none."""
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # noqa: PLC0415

        found = await self._offsets(topic, list(partitions), lambda: OffsetSpec.for_timestamp(at_ms))
        return {partition: offset if offset >= 0 else None for partition, offset in found.items()}

    async def committed(self, group: str, topic: str, partitions: Iterable[int]) -> Mapping[int, int]:
        """The offsets that a group has committed for a topic; partitions without one are left out."""
        return await asyncio.to_thread(self._committed, group, topic, list(partitions))

    async def group(self, group: str) -> Group | None:
        """The members of a group; None if the brokers do not say."""
        answers = self._it.describe_consumer_groups([group], request_timeout=_FOR_EVER_S)
        found = await self._optional(answers[group])
        if found is None:
            return None
        return Group(state=found.state.name.lower(), members=[_member(member) for member in found.members])

    # How requests are sent

    def _metadata(self) -> Any:
        """All metadata, or the reason why there is none: at once if waiting is useless."""
        from confluent_kafka import KafkaException  # noqa: PLC0415

        until_s = time.monotonic() + TIMEOUT_S
        while True:
            try:
                return self._it.list_topics(timeout=_SLICE_S)
            except KafkaException as raised:
                self._it.poll(0)  # lets librdkafka report errors of its connections
                if self._hopeless or time.monotonic() > until_s:
                    raise self._refused(self._suffered or raised.args[0], None) from None

    def _committed(self, group: str, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """Ask as a consumer that joins nothing: librdkafka (2.16) ends the process of an admin client that asks the
        wrong broker, as happens while brokers start."""
        from confluent_kafka import Consumer, KafkaException, TopicPartition  # noqa: PLC0415

        wanted = [TopicPartition(topic, partition) for partition in partitions]
        until_s = time.monotonic() + TIMEOUT_S
        with closing(self._open(Consumer, group_id=group, enable_auto_commit=False)) as consumer:
            while True:
                try:
                    found = consumer.committed(wanted, TIMEOUT_S)
                except KafkaException as raised:
                    error = raised.args[0]
                    if error.name() not in _PASSING or time.monotonic() > until_s:
                        raise self._refused(error, topic) from None
                else:
                    return {each.partition: each.offset for each in found if each.error is None and each.offset >= 0}
                time.sleep(_MOMENT_S)

    def _await_topic(self, name: str) -> None:
        """Wait until the asked broker knows a topic that was just created, which takes a moment."""
        until_s = time.monotonic() + TIMEOUT_S
        while True:
            found = self._metadata().topics.get(name)
            if (found is not None and found.partitions) or time.monotonic() > until_s:
                return
            time.sleep(_MOMENT_S)

    async def _offsets(self, topic: str, partitions: Sequence[int], spec: Callable[[], Any]) -> dict[int, int]:
        from confluent_kafka import TopicPartition  # noqa: PLC0415

        wanted = {TopicPartition(topic, partition): spec() for partition in partitions}
        if not wanted:
            return {}

        def ask() -> "Future[Any]":
            return _all(self._it.list_offsets(wanted, request_timeout=TIMEOUT_S))

        found: dict[TopicPartition, Any] = await self._answer(ask, topic)
        return {each.partition: answer.offset for each, answer in found.items()}

    async def _answer(self, ask: "Callable[[], Future[T]]", topic: str) -> T:
        """The answer to a request; what was created a moment ago is asked for again until it is ready."""
        from confluent_kafka import KafkaException  # noqa: PLC0415

        until_s = time.monotonic() + TIMEOUT_S
        while True:
            try:
                return await asyncio.wrap_future(ask())
            except KafkaException as raised:
                error = raised.args[0]
                if error.name() not in _PASSING or time.monotonic() > until_s:
                    raise self._refused(error, topic) from None
            await asyncio.to_thread(self._metadata)  # the client would remember for long that there was no leader

    async def _optional(self, asked: "Future[T]") -> T | None:
        """The answer, if there is one: old brokers, and those that refuse, give none."""
        from confluent_kafka import KafkaException  # noqa: PLC0415

        try:
            return await _in_time(asked, _OPTIONAL_S)
        except (KafkaException, TimeoutError):
            return None

    def _topic(self, name: str, found: Any) -> TopicInfo:
        if found.error is not None:
            return TopicInfo(problem=reason(found.error, self._options, name))
        replicas = [len(partition.replicas) for partition in found.partitions.values()]
        return TopicInfo(partitions=sorted(found.partitions), replication=min(replicas, default=0))

    def _refused(self, error: "KafkaError", topic: str | None) -> BrokerUnavailable:
        return BrokerUnavailable(reason(error, self._options, topic))

    def _suffer(self, error: "KafkaError") -> None:
        """Take an error of librdkafka's connections; "no broker is left" says less than the error of one of them."""
        self._hopeless = self._hopeless or error.name() in _HOPELESS
        if self._suffered is None or error.name() != "_ALL_BROKERS_DOWN":
            self._suffered = error

    @property
    def _it(self) -> "AdminClient":
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415

        if self._client is None:
            self._client = self._open(AdminClient)
        return self._client

    def _open(self, kind: "Callable[[dict[str, Any]], T]", **own: Any) -> T:
        """A librdkafka client of this kind."""
        from confluent_kafka import KafkaException  # noqa: PLC0415

        settings = self._options.client({"client.id": "infinite-scheduler"}, logger=LibrdkafkaLog(), **own)
        settings["error_cb"] = self._suffer
        try:
            return kind(settings)
        except KafkaException as error:
            raise config_error(error, self._options) from None


async def _in_time(asked: "Future[T]", within_s: float) -> T:
    """The answer, if it comes within this time; raises TimeoutError. A later answer is ignored."""
    answer = asyncio.wrap_future(asked)
    answer.add_done_callback(lambda late: late.cancelled() or late.exception())
    await asyncio.wait([answer], timeout=within_s)
    if not answer.done():
        raise TimeoutError
    return answer.result()


def _member(found: Any) -> Member:
    held: dict[str, list[int]] = {}
    for each in found.assignment.topic_partitions if found.assignment else ():
        held.setdefault(each.topic, []).append(each.partition)
    return Member(name=f"{found.client_id} at {found.host.lstrip('/')}", held=held)


def _all(asked: "Mapping[TopicPartition, Future[Any]]") -> "Future[dict[TopicPartition, Any]]":
    """One future for several that are answered together."""
    whole: Future[dict[TopicPartition, Any]] = Future()

    def note(_: "Future[Any]") -> None:
        if not whole.done() and all(each.done() for each in asked.values()):
            failed = next((error for each in asked.values() if (error := each.exception()) is not None), None)
            if failed is not None:
                whole.set_exception(failed)
            else:
                whole.set_result({partition: each.result() for partition, each in asked.items()})

    for each in asked.values():
        each.add_done_callback(note)
    return whole
