"""librdkafka's in-process broker: Kafka for demos and fast tests, without a server."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from infinite_scheduler.errors import BrokerUnavailable


@contextmanager
def embedded_broker(brokers: int = 1, topics: Iterable[str] = ()) -> Iterator[str]:
    """Run brokers in this process until the block ends; yields their addresses, in the form of `bootstrap_servers`.

    `topics` exist from the beginning, others are created by sending to them; each has four partitions. Nothing is kept:
    the log is short, and gone at the end. A consumer group has one member there: librdkafka (2.16) rejects a second one
    that asks for partitions after the leader has assigned them, and lets it join again one session later.
    """
    from confluent_kafka import Producer  # noqa: PLC0415 - 54 ms that only users of Kafka pay

    host = Producer({"bootstrap.servers": "embedded", "test.mock.num.brokers": brokers, "log_level": 0})
    try:
        found = host.list_topics(timeout=10).brokers.values()
        if not found:
            raise BrokerUnavailable("the embedded broker of librdkafka does not answer")
        for topic in topics:
            host.list_topics(topic, timeout=10)  # asking for a topic creates it
        yield ",".join(f"{broker.host}:{broker.port}" for broker in found)
    finally:
        host.close()
