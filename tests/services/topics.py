"""What tests do with Kafka brokers: topics of their own, records in and out, how far a group has come."""

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from tests.services.process import PATIENCE_S

Options = Mapping[str, Any]
"""What a client of Kafka is told: `bootstrap.servers`, and a name and a password where it needs them."""


class Written(NamedTuple):
    """One record as a topic has it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    timestamp_ms: int


MakeTopic = Callable[..., str]
"""`make("orders", partitions=3, **{"retention.ms": "1000"})` returns the name of a new topic."""


@contextmanager
def fresh_topics(servers: str | Options) -> Iterator[MakeTopic]:
    """Make topics with names of their own, deleted at the end."""
    admin = AdminClient(told(servers))
    made: list[str] = []

    def make(name: str = "test", partitions: int = 1, **config: str) -> str:
        made.append(f"{name}-{secrets.token_hex(4)}")
        make_topic(admin, made[-1], partitions, config)
        return made[-1]

    yield make
    delete_topics(admin, *made)


def make_topic(
    servers: str | Options | AdminClient, name: str, partitions: int = 1, config: Options | None = None
) -> None:
    """Make a topic with this very name, and wait until every partition can be used."""
    admin = servers if isinstance(servers, AdminClient) else AdminClient(told(servers))
    new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
    admin.create_topics([new], operation_timeout=PATIENCE_S)[name].result()
    until_usable(admin, name, partitions)


def grow_topic(servers: str | Options, name: str, partitions: int) -> None:
    """Let a topic have so many partitions from now on, and wait until every one can be used."""
    admin = AdminClient(told(servers))
    admin.create_partitions([NewPartitions(name, partitions)], operation_timeout=PATIENCE_S)[name].result()
    until_usable(admin, name, partitions)


def until_usable(servers: str | Options | AdminClient, name: str, partitions: int) -> None:
    """Wait until every partition of a topic can be used, such as after a start of the broker."""
    admin = servers if isinstance(servers, AdminClient) else AdminClient(told(servers))
    deadline = time.monotonic() + PATIENCE_S
    while not _answers(admin, name, partitions):
        if time.monotonic() > deadline:
            raise TimeoutError(f"topic {name} cannot be used")
        time.sleep(0.01)


def forget_everything(servers: str | Options) -> None:
    """Delete all topics, and the groups that nobody is a member of any more."""
    admin = AdminClient(told(servers))
    topics = admin.list_topics(timeout=PATIENCE_S).topics
    delete_topics(admin, *(name for name in topics if not name.startswith("__")))
    groups = [group.group_id for group in admin.list_consumer_groups().result().valid]
    for deleted in (admin.delete_consumer_groups(groups) if groups else {}).values():
        deleted.exception()


def delete_topics(servers: str | Options | AdminClient, *names: str) -> None:
    """Delete these topics, and wait until that is decided; those that the test has deleted itself are not an error."""
    admin = servers if isinstance(servers, AdminClient) else AdminClient(told(servers))
    for deleted in admin.delete_topics(list(names), operation_timeout=PATIENCE_S).values() if names else ():
        try:
            deleted.result()
        except KafkaException as error:
            if error.args[0].name() != "UNKNOWN_TOPIC_OR_PART":
                raise


def write(
    servers: str | Options,
    topic: str,
    values: Iterable[bytes | str | None],
    *,
    key: bytes | None = None,
    partition: int = -1,
    headers: Sequence[tuple[str, bytes | None]] = (),
) -> None:
    """Send these values, each with the same key, and wait until the broker has them all."""
    errors: list[Any] = []
    once = {"acks": "all", "message.send.max.retries": 0}  # an idempotent producer takes 500 ms to begin
    own = {"message.max.bytes": 100_000_000, "topic.metadata.propagation.max.ms": 2000}
    spread = {"sticky.partitioning.linger.ms": 0}  # else all without a key may go to one partition
    producer = Producer({**told(servers), **once, **own, **spread})
    for value in values:
        while True:
            try:
                producer.produce(
                    topic,
                    value,
                    key,
                    partition,
                    on_delivery=lambda error, _: errors.append(error) if error else None,
                    headers=list(headers) or None,
                )
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    left = producer.flush(PATIENCE_S)
    if errors or left:
        raise AssertionError(f"{left} records were not sent to {topic}, {len(errors)} were refused: {errors[:3]}")


def read(servers: str | Options, topic: str, count: int | None = None, within_s: float = PATIENCE_S) -> list[Written]:
    """The records of a topic: all that are there, or the first `count`, waited for. In order within a partition."""
    found: list[Written] = []
    deadline = time.monotonic() + within_s
    own = {"group.id": "a reader of the tests", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    with closing(Consumer({**told(servers), **own, "isolation.level": "read_committed"})) as consumer:
        ends = end_offsets(consumer, topic)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
        while not (_is_read(consumer, ends) if count is None else len(found) >= count):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic} has {len(found)} records, not {count or 'all of them'}: {found[-3:]}")
            for message in consumer.consume(1000, 0.1):
                if error := message.error():
                    raise KafkaException(error)
                found.append(_written(message))
    return found


def end_offsets(consumer: Consumer, topic: str) -> dict[int, int]:
    """Where each partition of a topic ends."""
    partitions = consumer.list_topics(topic, PATIENCE_S).topics[topic].partitions
    return {each: consumer.get_watermark_offsets(TopicPartition(topic, each), PATIENCE_S)[1] for each in partitions}


def told(servers: str | Options) -> dict[str, Any]:
    """What a client is told so that it finds these brokers, and complains to nobody."""
    options = {"bootstrap.servers": servers} if isinstance(servers, str) else dict(servers)
    return {"log_level": 0, "topic.metadata.refresh.fast.interval.ms": 20, **options}


def _is_read(consumer: Consumer, ends: Mapping[int, int]) -> bool:
    at = {each.partition: each.offset for each in consumer.position(consumer.assignment())}
    return all(at.get(partition, -1) >= end for partition, end in ends.items() if end)


def _written(message: Any) -> Written:
    return Written(
        message.topic(),
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
        message.timestamp()[1],
    )


def _answers(admin: AdminClient, name: str, partitions: int) -> bool:
    """Whether every partition has a leader that knows that it is one, which it is told after everybody else."""
    every = {
        TopicPartition(name, partition): OffsetSpec.latest()  # type: ignore[no-untyped-call]
        for partition in range(partitions)
    }
    try:
        for end in admin.list_offsets(every, request_timeout=PATIENCE_S).values():
            end.result()
    except KafkaException:
        admin.list_topics(timeout=PATIENCE_S)  # the client would remember for long that there was no leader
        return False
    return True
