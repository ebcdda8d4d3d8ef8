"""Who should own which shard."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infinite_scheduler.cluster import plan as planning
from infinite_scheduler.cluster.plan import Planner, ShardKey, plan

Nodes = dict[str, frozenset[str]]
Shards = dict[ShardKey, str | None]


@st.composite
def clusters(draw: st.DrawFn, nodes: int = 5, apps: int = 4, shards: int = 8) -> tuple[Nodes, Shards, frozenset[str]]:
    """Nodes with what they can run, shards with their owners (some dead or incapable), and who drains."""
    app_names = [f"app{number}" for number in range(draw(st.integers(1, apps)))]
    names = [f"node{number}" for number in range(draw(st.integers(0, nodes)))]
    runs = {name: frozenset(draw(st.sets(st.sampled_from(app_names)) | st.just(set(app_names)))) for name in names}
    owners = st.sampled_from([*names, "dead", None])
    owned = {
        (app, number): draw(owners) for app in app_names for number in range(draw(st.integers(1, shards), label=app))
    }
    draining = frozenset(draw(st.sets(st.sampled_from(names), max_size=2))) if names else frozenset()
    return runs, owned, draining


def capable(nodes: Nodes, draining: frozenset[str], app: str) -> list[str]:
    return sorted(node for node, apps in nodes.items() if app in apps and node not in draining)


def counts(owned: Mapping[ShardKey, str | None], app: str, among: list[str]) -> list[int]:
    held = Counter(owner for (name, _), owner in owned.items() if name == app)
    return [held[node] for node in among]


def squares(owned: Mapping[ShardKey, str | None]) -> int:
    return sum(count**2 for owner, count in Counter(owned.values()).items() if owner is not None)


def moves(before: Mapping[ShardKey, str | None], after: Mapping[ShardKey, str | None]) -> int:
    return sum(before[key] != after[key] for key in before)


@given(clusters())
def test_every_shard_has_a_capable_owner_if_there_is_one(cluster: tuple[Nodes, Shards, frozenset[str]]) -> None:
    nodes, shards, draining = cluster
    planned = plan(nodes, shards, draining)
    assert planned.keys() == shards.keys()
    for (app, _), owner in planned.items():
        able = capable(nodes, draining, app)
        assert owner in able if able else owner is None


@given(clusters())
def test_the_shards_of_an_app_are_spread_evenly(cluster: tuple[Nodes, Shards, frozenset[str]]) -> None:
    nodes, shards, draining = cluster
    planned = plan(nodes, shards, draining)
    for app in {app for app, _ in shards}:
        if able := capable(nodes, draining, app):
            held = counts(planned, app, able)
            assert max(held) - min(held) <= 1


@given(clusters())
def test_planning_again_changes_nothing(cluster: tuple[Nodes, Shards, frozenset[str]]) -> None:
    nodes, shards, draining = cluster
    planned = plan(nodes, shards, draining)
    assert plan(nodes, planned, draining) == planned


@given(clusters(), st.randoms(use_true_random=False))
def test_the_order_of_the_mappings_does_not_matter(
    cluster: tuple[Nodes, Shards, frozenset[str]], rand: random.Random
) -> None:
    nodes, shards, draining = cluster
    shuffled_nodes, shuffled_shards = list(nodes.items()), list(shards.items())
    rand.shuffle(shuffled_nodes)
    rand.shuffle(shuffled_shards)
    assert plan(dict(shuffled_nodes), dict(shuffled_shards), draining) == plan(nodes, shards, draining)


def best_of_all(nodes: Nodes, shards: Shards, draining: frozenset[str]) -> tuple[int, int]:
    """The least unevenness of totals and, with it, the fewest moves, by trying every choice of extras."""
    fixed = 0
    choices: list[list[tuple[Counter[str], int]]] = []
    for app in sorted({app for app, _ in shards}):
        able = capable(nodes, draining, app)
        size = sum(name == app for name, _ in shards)
        if not able:
            fixed += sum(owner is not None for (name, _), owner in shards.items() if name == app)
            continue
        held = dict(zip(able, counts(shards, app, able), strict=True))
        base, spare = divmod(size, len(able))
        options: list[tuple[Counter[str], int]] = []
        for extras in combinations(able, spare):
            target = Counter({node: base + (node in extras) for node in able})
            options.append((target, size - sum(min(held[node], target[node]) for node in able)))
        choices.append(options)
    results: list[tuple[int, int]] = []
    for choice in product(*choices):
        totals: Counter[str] = Counter()
        for target, _ in choice:
            totals.update(target)
        results.append((sum(count**2 for count in totals.values()), fixed + sum(cost for _, cost in choice)))
    return min(results)


@st.composite
def uneven_clusters(draw: st.DrawFn) -> tuple[Nodes, Shards, frozenset[str]]:
    """Nodes that run nearly everything, and apps of which a few nodes own all: here evenness and moves pull apart."""
    names = [f"node{number}" for number in range(draw(st.integers(3, 4)))]
    apps = [f"app{number}" for number in range(draw(st.integers(2, 4)))]
    runs = {name: frozenset(apps) - draw(st.sets(st.sampled_from(apps), max_size=1)) for name in names}
    shards: Shards = {}
    for app in apps:
        owners = st.sampled_from(draw(st.lists(st.sampled_from(names), min_size=1, max_size=2)))
        shards.update({(app, number): draw(owners) for number in range(draw(st.integers(1, 7)))})
    return runs, shards, frozenset()


@settings(max_examples=4 * settings().max_examples)
@given(clusters(nodes=4, apps=4, shards=6) | uneven_clusters())
def test_totals_are_as_even_as_can_be_and_nothing_moves_in_vain(
    cluster: tuple[Nodes, Shards, frozenset[str]],
) -> None:
    nodes, shards, draining = cluster
    planned = plan(nodes, shards, draining)
    assert (squares(planned), moves(shards, planned)) == best_of_all(nodes, shards, draining)


@given(clusters(apps=1, shards=32))
def test_with_one_app_no_more_shards_move_than_evenness_demands(
    cluster: tuple[Nodes, Shards, frozenset[str]],
) -> None:
    nodes, shards, draining = cluster
    able = capable(nodes, draining, "app0")
    if not able:
        return
    base, spare = divmod(len(shards), len(able))
    held = sorted(counts(shards, "app0", able), reverse=True)
    kept = sum(min(count, base + (rank < spare)) for rank, count in enumerate(held))
    assert moves(shards, plan(nodes, shards, draining)) == len(shards) - kept


@given(st.integers(1, 7), st.integers(1, 12))
def test_nodes_that_can_run_everything_differ_by_one_shard_in_all(nodes: int, apps: int) -> None:
    names = [f"app{number}" for number in range(apps)]
    shards: Shards = {(app, number): None for app in names for number in range(16)}
    planned = plan({f"node{number}": frozenset(names) for number in range(nodes)}, shards)
    totals = Counter(planned.values()).values()
    assert max(totals) - min(totals) <= 1


def test_a_node_that_joins_takes_its_share_and_nothing_moves_between_the_others() -> None:
    apps = frozenset({"sms", "mail", "call"})
    shards: Shards = {(app, number): None for app in apps for number in range(16)}
    before = plan({"a": apps, "b": apps}, shards)
    after = plan({"a": apps, "b": apps, "c": apps}, before)
    assert Counter(after.values()) == {"a": 16, "b": 16, "c": 16}
    assert {owner for key, owner in after.items() if before[key] != owner} == {"c"}
    assert moves(before, after) == 16


def test_a_node_that_drains_or_dies_gives_up_everything_and_the_others_keep_theirs() -> None:
    apps = frozenset({"sms"})
    shards: Shards = {("sms", number): "abc"[number % 3] for number in range(16)}
    nodes = {"a": apps, "b": apps, "c": apps}
    drained = plan(nodes, shards, draining=frozenset({"c"}))
    assert drained == plan({"a": apps, "b": apps}, shards)
    assert {shards[key] for key, owner in drained.items() if shards[key] != owner} == {"c"}


def test_without_nodes_nobody_owns_anything() -> None:
    assert plan({}, {("sms", 0): "gone", ("sms", 1): None}) == {("sms", 0): None, ("sms", 1): None}
    assert plan({"a": frozenset({"sms"})}, {}) == {}


def test_a_planner_plans_again_only_when_something_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[frozenset[str]] = []

    def counted(nodes: Nodes, shards: Shards, draining: frozenset[str]) -> Shards:
        asked.append(draining)
        return plan(nodes, shards, draining)

    monkeypatch.setattr(planning, "plan", counted)
    planner = Planner()
    for nodes, owner, draining in (
        ("ab", "a", ""),
        ("ab", "a", ""),
        ("ab", "a", "b"),
        ("ab", "a", "b"),
        ("ab", None, "b"),
        ("abc", None, "b"),
        ("abc", None, "b"),
    ):
        runs = {node: frozenset({"sms"}) for node in nodes}
        shards: Shards = {("sms", number): owner for number in range(4)}
        assert planner.plan(runs, shards, frozenset(draining)) == plan(runs, shards, frozenset(draining))
    assert len(asked) == 4


@pytest.mark.parametrize("change", ["joins", "leaves", "scattered"])
def test_a_large_cluster_is_planned_with_few_looks_for_cycles(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look takes about 10 ms here, and the event loop stands still meanwhile."""
    apps = frozenset(f"app{number}" for number in range(100))
    nodes = {f"node{number}": apps for number in range(50)}
    shards: Shards = {(app, number): None for app in apps for number in range(16)}
    if change == "scattered":
        rand = random.Random(1)
        shards = {key: rand.choice(sorted(nodes)) for key in sorted(shards)}
    else:
        shards = plan(nodes, shards)
        nodes = {**nodes, "new": apps} if change == "joins" else {n: a for n, a in nodes.items() if n != "node7"}
    looks = 0
    look = planning._negative_cycle

    def counted(edges: Sequence[tuple[str, str, int]]) -> list[tuple[str, str]]:
        nonlocal looks
        looks += 1
        return look(edges)

    monkeypatch.setattr(planning, "_negative_cycle", counted)
    plan(nodes, shards)
    assert looks <= 3
