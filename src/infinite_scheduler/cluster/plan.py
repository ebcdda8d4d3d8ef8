"""Which node should own which shard: a pure function, so that every node comes to the same result."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

ShardKey = tuple[str, int]

_POOL = ""  # no node: a nonce is never empty


def plan(
    nodes: Mapping[str, frozenset[str]],
    shards: Mapping[ShardKey, str | None],
    draining: frozenset[str] = frozenset(),
) -> dict[ShardKey, str | None]:
    """Decide which node should own each shard, given what each node can run and the current owners; None: no node can.

    In this order: the shards of each app are spread evenly over the nodes that can run it (they differ by at most one);
    then the nodes' totals are as even as that allows; then as few shards move as possible. A draining node gets
    nothing. The result does not depend on the order of the mappings, and planning it again changes nothing.
    """
    runs = {node: nodes[node] for node in sorted(nodes) if node not in draining}
    apps = [_AppShards(name, numbers, runs, shards) for name, numbers in _numbers_by_app(shards).items()]
    _choose_extras([app for app in apps if app.nodes])
    return {key: owner for app in apps for key, owner in app.owners().items()}


class Planner:
    """Plans again only when something has changed: usually nothing has."""

    def __init__(self) -> None:
        self._asked: tuple[Mapping[str, frozenset[str]], Mapping[ShardKey, str | None], frozenset[str]] | None = None
        self._answer: Mapping[ShardKey, str | None] = {}

    def plan(
        self, nodes: Mapping[str, frozenset[str]], shards: Mapping[ShardKey, str | None], draining: frozenset[str]
    ) -> Mapping[ShardKey, str | None]:
        """Return the current plan; see `plan`. The mappings must not be changed afterwards."""
        asked = nodes, shards, draining
        if asked != self._asked:
            self._answer = plan(nodes, shards, draining)
            self._asked = asked
        return self._answer


class _AppShards:
    """The shards of one app: each capable node has `base` of them, the nodes in `extras` one more."""

    def __init__(
        self,
        name: str,
        numbers: Sequence[int],
        runs: Mapping[str, frozenset[str]],
        shards: Mapping[ShardKey, str | None],
    ) -> None:
        self.name = name
        self.numbers = numbers
        self.nodes = [node for node, apps in runs.items() if name in apps]
        self.held: dict[str, list[int]] = {node: [] for node in self.nodes}
        for number in numbers:
            owner = shards[name, number]
            if owner in self.held:
                self.held[owner].append(number)
        self.base, self.spare = divmod(len(numbers), len(self.nodes)) if self.nodes else (0, 0)
        self.keen = {node for node in self.nodes if len(self.held[node]) > self.base}  # an extra here saves a move
        self.extras: set[str] = set()

    def pass_extra(self, giver: str, taker: str) -> None:
        """Move the one extra shard to another node."""
        self.extras.remove(giver)
        self.extras.add(taker)

    def takers(self) -> Mapping[int, set[str]]:
        """Nodes that could have one more shard: under 1 those for which it saves a move, under 0 the others."""
        others = set(self.nodes) - self.extras
        return {-1: set(), 0: others - self.keen, 1: others & self.keen, 2: set()}

    def owners(self) -> dict[ShardKey, str | None]:
        """Let each node keep what it may, and give the rest to those that have too few."""
        if not self.nodes:
            return {(self.name, number): None for number in self.numbers}
        owners: dict[int, str] = {}
        wanting: list[str] = []
        for node in self.nodes:
            target = self.base + (node in self.extras)
            kept = self.held[node][:target]
            owners.update(dict.fromkeys(kept, node))
            wanting += [node] * (target - len(kept))
        homeless = [number for number in self.numbers if number not in owners]
        owners.update(zip(homeless, wanting, strict=True))
        return {(self.name, number): owners[number] for number in self.numbers}


def _numbers_by_app(shards: Mapping[ShardKey, str | None]) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = {}
    for app, number in sorted(shards):
        numbers.setdefault(app, []).append(number)
    return numbers


def _choose_extras(apps: Sequence[_AppShards]) -> None:
    """Choose which nodes have one more shard of each app, evenly over all apps and with the fewest moves.

    This is a minimum-cost flow with convex costs: start with a good choice and cancel negative cycles until there are
    none. The result is optimal, not only locally. The better the start, the fewer the cycles.
    """
    totals: Counter[str] = Counter()
    for app in apps:
        totals.update(dict.fromkeys(app.nodes, app.base))
    for app in apps:
        ranked = sorted(app.nodes, key=lambda node: (node not in app.keen, totals[node], node))
        app.extras = set(ranked[: app.spare])
        totals.update(app.extras)
    _level(apps, totals)
    while True:
        exchanges = _exchanges(apps)
        cycle = _negative_cycle(_graph(exchanges, totals))
        if not cycle:
            return
        for giver, taker in cycle:
            if _POOL not in (giver, taker):
                exchanges[giver, taker][1].pass_extra(giver, taker)
                totals[giver] -= 1
                totals[taker] += 1


def _level(apps: Sequence[_AppShards], totals: Counter[str]) -> None:
    """Move extras from the nodes with the most to those with the fewest, wherever this makes the totals more even."""
    for taker in sorted(totals, key=lambda node: (totals[node], node)):
        while max(totals.values()) > totals[taker] + 1:
            offers = [
                (-totals[giver], (giver in app.keen) - (taker in app.keen), giver, number)
                for number, app in enumerate(apps)
                if taker in app.held and taker not in app.extras
                for giver in app.extras
                if totals[giver] > totals[taker] + 1
            ]
            if not offers:
                break
            _, _, giver, number = min(offers)
            apps[number].pass_extra(giver, taker)
            totals[giver] -= 1
            totals[taker] += 1


def _exchanges(apps: Sequence[_AppShards]) -> dict[tuple[str, str], tuple[int, _AppShards]]:
    """For each giver and taker the app whose extra can be passed at the lowest price: how many more moves it takes."""
    cheapest: dict[tuple[str, str], tuple[int, _AppShards]] = {}
    known: defaultdict[str, set[str]] = defaultdict(set)  # giver → nodes to which it can give at a lower price
    sides = [(app, sorted(app.extras), app.takers()) for app in apps]
    for price in (-1, 0, 1):
        for app, givers, takers in sides:
            for giver in givers:
                fresh = takers[(giver in app.keen) - price] - known[giver]
                if fresh:
                    known[giver] |= fresh
                    cheapest.update(dict.fromkeys([(giver, taker) for taker in sorted(fresh)], (price, app)))
    return cheapest


def _graph(
    exchanges: Mapping[tuple[str, str], tuple[int, _AppShards]], totals: Mapping[str, int]
) -> list[tuple[str, str, int]]:
    """The exchanges as weighted edges, closed to cycles by a pool; the edges to the pool carry the cost of the totals.

    A path from one node to another moves one shard of the total; the sum of squares changes by `2 * (to - from + 1)`.
    """
    evenness = 2 * (len(totals) + 1)  # outweighs the moves of any simple cycle
    edges = [(giver, taker, price) for (giver, taker), (price, _) in exchanges.items()]
    for node in sorted(totals):
        edges.append((node, _POOL, evenness * (2 * totals[node] + 1)))
        edges.append((_POOL, node, evenness * (1 - 2 * totals[node])))
    return edges


def _negative_cycle(edges: Sequence[tuple[str, str, int]]) -> list[tuple[str, str]]:
    """The edges of a cycle with a negative sum of weights, or none (Bellman-Ford)."""
    distance = dict.fromkeys((giver for giver, _, _ in edges), 0)
    parent: dict[str, str] = {}
    changed = True
    while changed:
        changed = False
        for giver, taker, weight in edges:
            if distance[giver] + weight < distance[taker]:
                distance[taker] = distance[giver] + weight
                parent[taker] = giver
                changed = True
        if cycle := _cycle_of(parent):
            return cycle
    return []


def _cycle_of(parent: Mapping[str, str]) -> list[tuple[str, str]]:
    """The edges of a cycle in a graph in which every node has at most one parent."""
    finished: set[str] = set()
    for start in parent:
        path: dict[str, None] = {}
        node = start
        while node in parent and node not in finished and node not in path:
            path[node] = None
            node = parent[node]
        if node in path:
            around = list(path)[list(path).index(node) :]
            return [(parent[member], member) for member in around]
        finished.update(path)
    return []
