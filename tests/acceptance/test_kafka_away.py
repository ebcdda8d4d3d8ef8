"""From one topic to another through a store, under load: the store goes away, or the broker does."""

import time

import pytest

from tests.acceptance.place import SOAK
from tests.acceptance.streams import StreamOn
from tests.services.kafka import Kafka
from tests.services.server import Server
from tests.waiting import now_ms

pytestmark = [pytest.mark.endurance, pytest.mark.servers, pytest.mark.timeout(900 if SOAK else 120)]


def test_a_store_that_is_away_for_a_while_sends_nothing_to_the_dead_letters(
    server: Server, stream_on: StreamOn
) -> None:
    stream = stream_on(server.kind, server)
    nodes = stream.some_nodes(2)
    feed = stream.feed()
    time.sleep(10 if SOAK else 1.5)
    server.stop()
    time.sleep(60 if SOAK else 5)
    assert all(node.alive for node in nodes)
    server.start()
    time.sleep(10 if SOAK else 1)
    feed.end()
    stream.through()

    report = stream.report()
    print(f"the store was away: {report}")
    stream.has_everything(report, feed)
    assert not report.verdict.explained
    assert [node.stop() for node in nodes] == [0, 0]


def test_a_broker_that_is_restarted_or_killed_loses_nothing(private_kafka: Kafka, stream_on: StreamOn) -> None:
    stream = stream_on("sqlite", kafka=private_kafka)
    node = stream.some_nodes(1)[0]
    feed = stream.feed()
    for deed in (private_kafka.stop, private_kafka.kill):
        time.sleep(10 if SOAK else 1.5)
        deed()
        time.sleep(30 if SOAK else 1)
        assert node.alive
        private_kafka.start()
    back_ms = now_ms()
    time.sleep(10 if SOAK else 1)
    feed.end()
    stream.through()

    report = stream.report()
    print(f"the broker was away: {report}")
    stream.has_everything(report, feed)
    assert not report.verdict.explained
    assert max(record.timestamp_ms for record in stream.published()) > back_ms
    assert node.stop() == 0
