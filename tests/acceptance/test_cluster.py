"""Three nodes on a database server under load: they come and go, are killed and frozen, and the server goes away."""

import random
import time

import pytest

from tests.acceptance.checker import Blow, HandOver
from tests.acceptance.cluster import LEASE_MS, RARE, SLACK_MS, Accepted, Cluster
from tests.acceptance.place import CONCURRENCY, SOAK, ServeProcess
from tests.services.server import Server
from tests.waiting import now_ms, until

pytestmark = [pytest.mark.endurance, pytest.mark.servers, pytest.mark.timeout(900 if SOAK else 120)]

SPAN_S = 300 if SOAK else 0
"""How long nodes come and go; in a short run as often as is needed to see something."""


def test_nodes_that_join_and_leave_under_load_lose_and_repeat_nothing(cluster: Cluster) -> None:
    nodes = cluster.three_nodes()
    able = set(nodes[:2])
    load = cluster.load()
    leaves = 0
    while leaves < 3 or load.lasts_ms() < SPAN_S * 1000:
        leaving = nodes.pop(0)
        nodes.append(cluster.node(None if leaving in able else cluster.common))
        able.update(nodes[-1:] if leaving in able else ())
        cluster.shared([leaving, *nodes])
        assert leaving.stop() == 0
        leaves += 1
    accepted = load.accepted()
    cluster.settled()

    print(f"{leaves} joins and leaves: {cluster.report(accepted)}")
    _nothing_repeated(cluster, accepted)
    hands = {one.pid for one in cluster.handed_over() if accepted[one.job].app == RARE}
    assert hands <= {node.pid for node in able}, "a node was given jobs that it has no handler for"
    assert [node.stop() for node in nodes] == [0, 0, 0]


def _nothing_repeated(cluster: Cluster, accepted: dict[str, Accepted]) -> None:
    """Nothing lost, early or handed over twice, and everything is done in the store."""
    verdict = cluster.report(accepted).verdict
    assert not verdict.faults
    assert not verdict.explained
    assert cluster.statuses() == {"done": len(accepted)}


def test_a_rolling_restart_of_all_nodes_under_load_repeats_nothing(cluster: Cluster) -> None:
    nodes = cluster.three_nodes()
    configs = [None, None, cluster.common]
    load = cluster.load()
    restarts = 0
    while restarts < 3 or load.lasts_ms() < SPAN_S * 1000:
        place = restarts % 3
        assert nodes[place].stop() == 0
        nodes[place] = cluster.node(configs[place])
        cluster.shared(nodes)
        restarts += 1
    accepted = load.accepted()
    cluster.settled()

    print(f"{restarts} restarts: {cluster.report(accepted)}")
    _nothing_repeated(cluster, accepted)
    assert {node.pid for node in nodes} <= {one.pid for one in cluster.handed_over()}
    assert [node.stop() for node in nodes] == [0, 0, 0]


VICTIMS = [(0,), (1,), (2,)] if SOAK else [(0, 2), (1, 2)]
"""Which of three nodes are killed at once: never both that can run everything."""


def test_nodes_that_are_killed_lose_nothing_and_repeat_only_what_was_in_flight(cluster: Cluster) -> None:
    nodes = cluster.three_nodes()
    configs = [None, None, cluster.common]
    load = cluster.load()
    blows: list[Blow] = []
    for _ in range(20 if SOAK else 1):
        time.sleep(15 if SOAK else 2)
        victims = random.choice(VICTIMS)
        blows += cluster.kill(*(nodes[place] for place in victims))
        for place in victims:
            nodes[place] = cluster.node(configs[place])
    time.sleep(LEASE_MS / 1000)
    accepted = load.accepted()
    cluster.settled()

    report = cluster.report(accepted, blows)
    print(f"{len(blows)} nodes killed: {report}")
    assert not report.verdict.faults
    assert cluster.statuses() == {"done": len(accepted)}
    assert report.latest_ms <= LEASE_MS + 2000 + SLACK_MS
    assert [node.ready().stop() for node in nodes] == [0, 0, 0]


def test_a_server_that_is_away_for_a_while_costs_lateness_only(server: Server, cluster_alone: Cluster) -> None:
    cluster = cluster_alone
    nodes = cluster.three_nodes()
    load = cluster.load()
    for deed in (server.stop, server.kill) if SOAK else (server.stop,):
        time.sleep(10 if SOAK else 2)
        deed()
        time.sleep(20 if SOAK else 5)
        assert all(node.alive for node in nodes)
        server.start()
    time.sleep(10 if SOAK else 1)
    accepted = load.accepted()
    cluster.settled()

    print(f"the server was away: {cluster.report(accepted)}")
    _nothing_repeated(cluster, accepted)
    cluster.shared(nodes)
    for node in nodes:
        assert "The store does not answer" in node.stderr
        until(lambda node=node: "The store answers again" in node.stderr, f"{node.name} says so")  # type: ignore[misc]
        assert node.stop() == 0


SLOW = "slow"
SLOW_APP = f"""
[apps.{SLOW}]
function = "handlers:testify"
concurrency = 500
timeout = "1m"
retry = {{ max_attempts = 1 }}
"""
FROZEN_MS, WORK_MS = (30_000, 25_000) if SOAK else (6_000, 5_000)
"""How long a node is frozen at least, and a slow call takes: its own is over when it wakes, its successor's not yet."""


def test_a_node_that_was_frozen_longer_than_its_lease_settles_and_repeats_nothing_that_others_took(
    cluster: Cluster,
) -> None:
    cluster.arrange(SLOW_APP)
    nodes = cluster.three_nodes()
    load = cluster.load(slow=WORK_MS // 1000)
    until(lambda: _slow_calls_of(cluster, nodes[0]), "it has slow calls under way", every_s=0.5)
    time.sleep(2)
    blow = _freeze(cluster, nodes[0])
    time.sleep(1)
    accepted = load.accepted()
    cluster.settled()

    report = cluster.report(accepted, [blow], SLOW)
    print(f"frozen for {FROZEN_MS} ms: {report}")
    assert not report.verdict.faults
    assert len(report.verdict.woken) <= 2 * CONCURRENCY
    assert report.latest_ms <= LEASE_MS + 2000 + SLACK_MS
    _zombie_was_not_heard(cluster, blow)
    until(lambda: "Another node took shards" in nodes[0].stderr, "it says that it has lost them")
    cluster.shared(nodes)  # it lives again, and takes its part of the work
    assert [node.stop() for node in nodes] == [0, 0, 0]


def _freeze(cluster: Cluster, node: ServeProcess) -> Blow:
    """Freeze a node until its slow calls are over, and others have begun them again."""
    (blow,) = cluster.freeze(node)
    time.sleep(FROZEN_MS / 1000)
    until(lambda: any(one.pid != blow.pid for one in _frozen_calls(cluster, blow)), "others take over", every_s=0.1)
    thawed_ms = now_ms()
    node.thaw()
    return blow._replace(until_ms=thawed_ms)


def _slow_calls_of(cluster: Cluster, node: ServeProcess) -> list[HandOver]:
    rows = cluster.rows(SLOW)
    return [one for one in cluster.handed_over() if one.job in rows and one.pid == node.pid]


def _frozen_calls(cluster: Cluster, blow: Blow) -> list[HandOver]:
    """The slow calls that were under way when a node was frozen, and the repeats of them."""
    rows = cluster.rows(SLOW)
    calls = [one for one in cluster.handed_over() if one.job in rows]
    under_way_ms = range(blow.wall_ms - WORK_MS + 500, blow.wall_ms)
    begun = {one.job for one in calls if one.pid == blow.pid and one.wall_ms in under_way_ms}
    return [one for one in calls if one.job in begun]


def _zombie_was_not_heard(cluster: Cluster, blow: Blow) -> None:
    """What was under way when it was frozen was begun again by others, and the store has their word for it."""
    rows, calls = cluster.rows(SLOW), _frozen_calls(cluster, blow)
    begun = {one.job for one in calls}
    heard = {int((rows[job][1] or "").split()[-1]) for job in begun}
    awake_ms = blow.until_ms or 0
    both = [one for one in calls if one.wall_ms < awake_ms < one.wall_ms + WORK_MS]
    print(f"{len(begun)} slow calls were frozen, {len(both)} of others not over when it woke; heard from {heard}")
    assert both
    assert blow.pid not in heard
    assert {status for status, _ in rows.values()} == {"failed"}
