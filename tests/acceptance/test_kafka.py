"""From one topic to another through a store, under load: nodes come and go, are killed and frozen."""

import random
import time

import pytest

from tests.acceptance.checker import Blow, judge_intake
from tests.acceptance.cluster import LEASE_MS
from tests.acceptance.place import SOAK, ServeProcess
from tests.acceptance.streams import Stream, StreamOn, message
from tests.waiting import now_ms, until

pytestmark = [pytest.mark.endurance, pytest.mark.servers, pytest.mark.timeout(900 if SOAK else 120)]

MESSAGES = 200_000 if SOAK else 1_500
"""So many at least."""

BUSY_MS = 8_000
"""What a busy machine may add to a delay."""

MANY = 20_000
"""So many at once that a node has always some in its hands."""

HOUR_MS = 3_600_000


def test_rebalances_and_kills_lose_nothing_and_repeat_only_what_was_in_flight(stream: Stream) -> None:
    nodes = stream.some_nodes(3)
    feed = stream.feed()
    blows: list[Blow] = []
    while not blows or feed.sent < MESSAGES:
        nodes = _one_joins_and_one_leaves(stream, nodes)
        blows += _two_are_killed(stream, nodes)
    feed.end()
    stream.through()

    report = stream.report(blows)
    print(f"{len(blows) // 2} times a node joined, one left and two were killed: {report}")
    stream.has_everything(report, feed)
    assert SOAK or report.late_ms[-1] <= LEASE_MS + 2000 + BUSY_MS  # at length, what waited for the lease adds up
    assert [node.stop() for node in nodes] == [0, 0, 0]


def _one_joins_and_one_leaves(stream: Stream, nodes: list[ServeProcess]) -> list[ServeProcess]:
    joined = [*nodes, stream.node()]
    stream.shared(joined)
    assert joined[0].stop() == 0
    stream.shared(joined[1:])
    return joined[1:]


def _two_are_killed(stream: Stream, nodes: list[ServeProcess]) -> list[Blow]:
    """Kill two nodes at once, and start others in their places; all share the topic again in the end.

    A long run lets them recover first: who dies again and again before the lease is over makes suspects of its jobs.
    """
    time.sleep(LEASE_MS / 1000 + 5 if SOAK else random.uniform(0, 1))
    random.shuffle(nodes)
    blows = stream.kill(*nodes[:2])
    nodes[:2] = [stream.node(), stream.node()]
    stream.shared(nodes)
    return blows


def test_a_node_that_was_frozen_with_messages_in_its_hands_does_not_take_them_again(stream: Stream) -> None:
    nodes = stream.some_nodes(2)
    frozen = random.choice(nodes)
    sent, taken = 0, 0
    while taken == sent:  # again where the node was quicker than the test
        frozen.thaw()
        sent = _send_many(stream, sent)
        until(lambda: sum(stream.places().values()) > taken, "some are taken", every_s=0.001)  # noqa: B023
        frozen.freeze()
        taken = sum(stream.places().values())
    until(lambda: stream.places() == stream.ends(stream.source), "the other takes all of them")
    frozen.thaw()
    until(lambda: stream.parts() == [3, 3], "both share the topic again")
    assert [node.stop() for node in nodes] == [0, 0]

    found = judge_intake(stream.intake())
    print(f"a node was frozen when {taken} of {sent} messages were taken: {found.faults or 'each has one job'}")
    assert not found.faults


def _send_many(stream: Stream, first: int) -> int:
    """Send so many messages that a node cannot take them all at once; the number of the next one."""
    sender = stream.sender()
    for number in range(first, first + MANY):
        sender.send(message(number, now_ms() + HOUR_MS))
    sender.arrived()
    return first + MANY


def test_one_node_that_is_killed_again_and_again_loses_nothing(stream_on: StreamOn) -> None:
    stream = stream_on("sqlite")
    feed = stream.feed()
    blows: list[Blow] = []
    node = stream.node().ready()
    while len(blows) < 2 or feed.sent < MESSAGES:
        before = sum(stream.places().values())
        until(lambda: sum(stream.places().values()) > before, "it reads")  # noqa: B023
        time.sleep(random.uniform(0.5, 1))
        blows += stream.kill(node)
        node = stream.node().ready()
    feed.end()
    stream.through()

    report = stream.report(blows)
    print(f"{len(blows)} kills: {report}")
    stream.has_everything(report, feed)
    assert node.stop() == 0
