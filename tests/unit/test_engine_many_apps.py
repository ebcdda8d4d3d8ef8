"""A node with many apps, of which few have work: what it asks of the store, and that no job is forgotten."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import pytest

from infinite_scheduler.engine.answerer import EMPTY_LOOKS, HELD_UP_LOOKS
from infinite_scheduler.engine.lane import MANY_WINDOWS, SHARDS_AT_ONCE, LaneSettings
from infinite_scheduler.errors import StoreUnavailable
from infinite_scheduler.model import Change, Shard, Status, shard_of
from infinite_scheduler.store.ownership import Claim, Page, Request, Scan, Step
from infinite_scheduler.store.sql import ownership as sql_ownership
from infinite_scheduler.store.sql import request_rows
from infinite_scheduler.store.sql.cluster_rows import ClusterRows
from infinite_scheduler.store.sql.ownership import SqlOwnership
from tests.unit.engine_rig import APP, SHARDS, EngineNode, EngineRig, rig

T = TypeVar("T")

POLL_MS = 50
MANY = 100


class Asked:
    """What a node asks of its store, from now on."""

    def __init__(self, node: EngineNode) -> None:
        self.looks: list[int] = []  # how many shards each look for requests named
        self.scans: Counter[str] = Counter()
        self.steps: Counter[str] = Counter()
        ownership: Any = node.engine._ownership
        requests, scan, advance = ownership.requests, ownership.scan, ownership.advance

        async def count_requests(shards: Collection[Shard], **options: Any) -> Sequence[Request]:
            self.looks.append(len(shards))
            return await requests(shards, **options)  # type: ignore[no-any-return]

        async def count_scan(wanted: Scan) -> Any:
            self.scans[wanted.app] += 1
            return await scan(wanted)

        async def count_advance(steps: Sequence[Step]) -> Any:
            self.steps.update({step.shard.app for step in steps})
            return await advance(steps)

        ownership.requests, ownership.scan, ownership.advance = count_requests, count_scan, count_advance


async def two_lanes(world: EngineRig) -> EngineNode:
    node = world.node()
    node.wire.lanes = 2
    await node.app().start()
    await world.advance(5000)
    return node


def held_by_lane(node: EngineNode) -> list[int]:
    return [sum(len(t.held) for t in lane.owned_shards.by_shard.values()) for lane in node.engine._lanes]


async def many_apps(world: EngineRig, count: int = MANY) -> EngineNode:
    node = world.node()
    for number in range(count):
        node.app(f"app{number}")
    await node.start()
    await world.until(lambda: node.engine.shards_owned == count * world.shards)
    await world.advance(5000)
    return node


def noting(notes: list[str], what: str, inner: Callable[..., T]) -> Callable[..., T]:
    """The same, which notes each call."""

    def noted(*args: Any) -> T:
        notes.append(what)
        return inner(*args)

    return noted


# Requests


async def test_an_idle_node_looks_for_requests_once_for_all_lanes_and_half_as_often() -> None:
    async with rig() as world:
        asked = Asked(await two_lanes(world))
        await world.advance(5000)
        assert set(asked.looks) == {SHARDS}
        assert len(asked.looks) == pytest.approx(5000 / (2 * POLL_MS), abs=2)


async def test_a_request_makes_the_looks_frequent_again() -> None:
    async with rig() as world:
        asked = Asked(await two_lanes(world))
        await world.add(60_000)
        await world.add(10_000)
        await world.advance(2 * POLL_MS + 10)
        asked.looks.clear()
        await world.advance(EMPTY_LOOKS * POLL_MS // 2)
        assert len(asked.looks) >= EMPTY_LOOKS // 2 - 1


async def test_requests_are_found_for_every_lane_and_the_jobs_are_on_time() -> None:
    async with rig() as world:
        node = await two_lanes(world)
        accepted = await world.spread([200] * 16)
        await world.advance(150)
        assert all(held_by_lane(node)), "each lane has heard of its jobs"
        await world.advance(100)
        assert {d.job.key: d.at_ms for d in world.deliveries} == {a.key: a.due_ms for a in accepted}


async def test_a_lane_that_is_held_up_leaves_no_request_of_the_others_unseen() -> None:
    async with rig() as world:
        node = await two_lanes(world)
        first, second = node.engine._lanes
        accepted = [a for a in await world.spread([20_000] * 8) if Shard(APP, shard_of(a.key)) in second.owners()]
        assert accepted
        held_up = asyncio.Event()
        ownership: Any = node.engine._ownership
        ownership.take = lambda claims: held_up.wait()
        first.take([Claim(shard=shard, seen=owner) for shard, owner in first.owners().items()])
        await world.advance(1000)
        wishes = [world.change(Change.CANCEL, a) for a in accepted]
        await world.advance(2 * HELD_UP_LOOKS * POLL_MS + 100)
        assert [wish.done() and wish.result().granted for wish in wishes] == [True] * len(accepted)


# Lines


async def test_apps_without_jobs_cost_few_steps_and_scans() -> None:
    async with rig() as world:
        node = await many_apps(world)
        busy = "app7"
        asked = Asked(node)
        for _ in range(30):
            await world.add(12_000, app=busy)
            await world.advance(10_000)
        idle = [f"app{number}" for number in range(MANY) if f"app{number}" != busy]
        assert max(asked.steps[app] for app in idle) <= 6, "in five minutes; alone, an app takes a step each 25 s"
        assert max(asked.scans[app] for app in idle) <= 12
        assert len(world.delivered(busy)) >= 28


async def test_apps_whose_last_range_had_jobs_are_scanned_without_asking_whether_they_have_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    without_jobs = SqlOwnership.apps_without_jobs

    async def noted(ownership: SqlOwnership, scans: Sequence[Scan]) -> Collection[str]:
        asked.append(len(scans))
        return await without_jobs(ownership, scans)

    monkeypatch.setattr(SqlOwnership, "apps_without_jobs", noted)
    working = 2 * MANY_WINDOWS
    async with rig() as world:
        await many_apps(world, working)
        for app in range(working):
            await world.add(*range(20_000, 120_000, 500), app=f"app{app}")
        await world.advance(30_000)
        asked.clear()
        await world.advance(60_000)
        assert asked == []
        await world.advance(120_000)
        assert len(world.deliveries) == 200 * working
        assert asked, "they have no jobs any more"


async def test_a_job_before_a_far_line_is_handed_over_at_its_moment() -> None:
    async with rig() as world:
        node = await many_apps(world)
        await world.advance(60_000)
        lines = {app: min(t.line_ms for t in w.owned_shards.values()) for app, w in node.lane._windows.items()}
        app = max(lines, key=lambda app: lines[app])
        assert lines[app] > world.now + 30_000
        (soon, later, far) = await world.add(200, 29_000, 400_000, app=app)
        await world.advance(29_000)
        assert [(d.job.key, d.at_ms) for d in world.deliveries] == [(soon.key, soon.due_ms), (later.key, later.due_ms)]
        await world.advance(400_000)
        assert world.delivered(app)[-1] == far.key
        assert await world.statuses([soon, later, far], app) == {Status.DONE: 3}


async def test_a_turn_looks_only_at_apps_with_something_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as world:
        node = await many_apps(world)
        await world.advance(60_000)
        looked: list[str] = []
        owned_shards = node.lane.owned_shards
        for app, window in owned_shards.windows.items():
            monkeypatch.setattr(window, "_rest", noting(looked, app, window._rest))
        await world.add(100, app="app5")
        await world.advance(500)
        assert len(world.delivered("app5")) == 1
        assert len(set(looked)) <= 5, "those whose line is due"
        assert owned_shards.active() == []


# Shards


async def test_many_shards_are_taken_and_released_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    portions: list[int] = []
    for name in ("take", "release"):
        inner = getattr(SqlOwnership, name)

        def counted(self: SqlOwnership, shards: Collection[Any], *rest: Any, inner: Any = inner) -> Any:
            portions.append(len(shards))
            return inner(self, shards, *rest)

        monkeypatch.setattr(SqlOwnership, name, counted)
    async with rig() as world:
        node = await many_apps(world)
        assert await node.stop()
        assert max(portions) == SHARDS_AT_ONCE
        assert sum(portions) == 2 * MANY * SHARDS


async def test_the_owners_of_many_shards_are_read_only_when_one_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_ownership, "MANY_SHARDS", SHARDS)
    reads: list[str] = []
    read_shards = ClusterRows.read_shards
    monkeypatch.setattr(ClusterRows, "read_shards", noting(reads, "shards", read_shards))
    async with rig() as world:
        first = await world.node("n1").app().start()
        await world.advance(20_000)
        reads.clear()
        await world.advance(20_000)
        assert not reads
        second = await world.node("n2").app().start()
        await world.until(lambda: len(first.owned_shards) == len(second.owned_shards) == SHARDS // 2)
        await second.crash(proven=False)
        await world.until(lambda: len(first.owned_shards) == SHARDS)
        third = await world.node("n3").app().start()
        await world.until(lambda: len(third.owned_shards) == SHARDS // 2)
        assert await third.stop()
        await world.until(lambda: len(first.owned_shards) == SHARDS)


async def test_requests_of_other_nodes_do_not_hide_those_of_a_node_with_many_shards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_rows, "MANY_SHARDS", 0)
    async with rig(lane=LaneSettings(answer_at_most=4)) as world:
        other = await world.node("n2").app("away").start()
        await world.node().app().start()
        await world.advance(5000)
        other.wire.away = True
        for _ in range(20):
            await world.add(1000, app="away")
        (accepted,) = await world.add(1000)
        wish = world.change(Change.CANCEL, accepted)
        assert (await world.run(wish)).granted


# A start


async def test_of_many_apps_only_those_with_jobs_are_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    scanned: list[str] = []
    scan = SqlOwnership.scan

    async def noted(ownership: SqlOwnership, wanted: Scan) -> Page:
        scanned.append(wanted.app)
        return await scan(ownership, wanted)

    monkeypatch.setattr(SqlOwnership, "scan", noted)
    async with rig() as world:
        node = await many_apps(world)
        assert len(scanned) < MANY_WINDOWS * 2
        await node.stop()
        for app in ("app7", "app70", "app99"):
            await world.add(1000, 2000, app=app)
        await world.advance(60_000)
        scanned.clear()
        again = await many_apps(world)
        assert len(world.deliveries) == 6
        assert {"app7", "app70", "app99"} <= set(scanned)
        assert len(scanned) < MANY_WINDOWS * 2
        await again.stop()


async def test_what_could_not_be_asked_of_many_apps_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = iter([True, True])
    apps_without_jobs = SqlOwnership.apps_without_jobs

    async def fails(ownership: SqlOwnership, scans: Sequence[Scan]) -> Collection[str]:
        found = await apps_without_jobs(ownership, scans)
        if next(failures, False):
            raise StoreUnavailable("the answer was lost")
        return found

    async with rig() as world:
        await (await many_apps(world)).stop()
        for number in range(MANY):
            await world.add(1000, app=f"app{number}")
        await world.advance(60_000)
        monkeypatch.setattr(SqlOwnership, "apps_without_jobs", fails)
        await many_apps(world)
        await world.until(lambda: len(world.deliveries) == MANY)
        assert max(world.times().values()) == 1
        assert next(failures, True)


async def test_after_a_store_outage_at_a_start_many_apps_without_jobs_are_still_asked_for_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with rig() as world:
        await (await many_apps(world)).stop()
        await world.advance(60_000)
        without_jobs, scan = SqlOwnership.apps_without_jobs, SqlOwnership.scan
        failures = iter([True])
        scanned: list[str] = []

        async def fails(ownership: SqlOwnership, scans: Sequence[Scan]) -> Collection[str]:
            if next(failures, False):
                raise StoreUnavailable("nothing answers")
            return await without_jobs(ownership, scans)

        async def noted(ownership: SqlOwnership, wanted: Scan) -> Page:
            scanned.append(wanted.app)
            return await scan(ownership, wanted)

        monkeypatch.setattr(SqlOwnership, "apps_without_jobs", fails)
        monkeypatch.setattr(SqlOwnership, "scan", noted)
        await many_apps(world)
        assert next(failures, True)
        assert len(scanned) < MANY_WINDOWS * 2
