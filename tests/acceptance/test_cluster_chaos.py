"""Three nodes on a database server to which everything happens at random, for minutes."""

import random
import time
from collections import Counter

import pytest

from tests.acceptance.checker import Blow
from tests.acceptance.cluster import LEASE_MS, Cluster
from tests.acceptance.place import CONCURRENCY, ServeProcess
from tests.services.databases import kill_connections
from tests.waiting import now_ms

pytestmark = [pytest.mark.endurance, pytest.mark.servers, pytest.mark.timeout(900)]

SPAN_MS = 300_000


class Fates:
    """What happens to the nodes, one thing after the other."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._configs = [None, None, cluster.common]
        self.nodes = cluster.three_nodes()
        self.blows: list[Blow] = []
        self.deeds: Counter[str] = Counter()

    def strike(self) -> None:
        """One thing, to one node."""
        deed = random.choice([self.kill, self.freeze, self.restart, self.cut])
        self.deeds[deed.__name__] += 1
        place = random.randrange(3)
        self.nodes[place] = deed(self.nodes[place]) or self._cluster.node(self._configs[place])

    def kill(self, node: ServeProcess) -> None:
        self.blows += self._cluster.kill(node)

    def freeze(self, node: ServeProcess) -> ServeProcess:
        (blow,) = self._cluster.freeze(node)
        time.sleep(random.uniform(0, 2 * LEASE_MS / 1000))
        self.blows.append(blow._replace(until_ms=now_ms()))
        node.thaw()
        return node

    def restart(self, node: ServeProcess) -> None:
        code = node.ready().stop()
        assert code == 0, f"a stop in good order ended with {code}: {node.stderr}"

    def cut(self, node: ServeProcess) -> ServeProcess:
        """Every connection to the database is lost, of all processes."""
        kill_connections(self._cluster.url)
        return node


def test_whatever_happens_to_a_cluster_nothing_is_lost_early_or_repeated_without_reason(cluster: Cluster) -> None:
    fates = Fates(cluster)
    load = cluster.load()
    while load.lasts_ms() < SPAN_MS:
        time.sleep(random.uniform(0, 5))
        fates.strike()
    accepted = load.accepted()
    cluster.settled(180)

    report = cluster.report(accepted, fates.blows)
    print(f"{dict(fates.deeds)}: {report}")
    assert not report.verdict.faults
    assert len(report.verdict.woken) <= fates.deeds["freeze"] * 2 * CONCURRENCY
    assert cluster.statuses() == {"done": len(accepted)}
    cluster.shared(fates.nodes)
    assert [node.stop() for node in fates.nodes] == [0, 0, 0]
