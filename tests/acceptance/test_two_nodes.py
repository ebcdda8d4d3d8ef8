"""Two nodes on one SQLite file: they share the work, and each survives whatever happens to the other."""

import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from tests.acceptance.checker import Blow, judge
from tests.acceptance.place import CONCURRENCY, SOAK, Node, Place, now_ms, until

LEASE_MS, FROZEN_MS = (10_000, 30_000) if SOAK else (3_000, 7_000)
PACES = "" if SOAK else 'lease = "3s"\nheartbeat = "500ms"'
SLACK_MS = 4000
"""What a busy machine may add to any delay."""

RATE = 500
"""Jobs due in a second: enough that some are always in flight, few enough that two nodes share one file at ease."""

SHARDS = 4
"""Jobs that are accepted together, 1,000 at a time, go into one shard: so every shard has some, at every moment."""

Pair = tuple[Node, Node]


@pytest.fixture
def pair(place: Place) -> Pair:
    """Two nodes that have shared the shards."""
    place.configure(node=PACES, app=f"shards = {SHARDS}")
    first, second = place.node().ready(), place.node().ready()
    _shared(place)
    return first, second


def _shared(place: Place) -> None:
    until(lambda: sorted(place.owners().values()) == [SHARDS // 2] * 2, "both own half of the shards")


def _load(place: Place, seconds: float) -> tuple[int, dict[str, int]]:
    """Jobs evenly over so many seconds, on all shards. Returns when they begin, and what was promised."""
    start_ms = now_ms() + 2000
    moments = [start_ms + int(number * 1000 / RATE) for number in range(int(RATE * seconds))]
    assert len(moments) >= 1000 * SHARDS
    random.shuffle(moments)
    return start_ms, place.schedule({"at": moment_ms} for moment_ms in moments)


def _wait_until(moment_ms: int) -> None:
    time.sleep(max(0, moment_ms - now_ms()) / 1000)


def _holds_the_lock(place: Place) -> bool:
    """Does a frozen process hold the write lock? That of one that runs is free again after a moment."""
    with closing(sqlite3.connect(place.database, timeout=0, isolation_level=None)) as database:
        deadline = time.monotonic() + 0.7
        while time.monotonic() < deadline:
            try:
                database.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                time.sleep(random.uniform(0, 0.002))
            else:
                database.execute("ROLLBACK")
                return False
    return True


def _freeze(place: Place, node: Node, *, inside_a_transaction: bool) -> int:
    """Freeze a node, in the middle of a write transaction or outside of one. Returns when."""
    for _ in range(200):
        frozen_ms = now_ms()
        node.freeze()
        if _holds_the_lock(place) is inside_a_transaction:
            return frozen_ms
        node.thaw()
        time.sleep(random.uniform(0.001, 0.02))
    raise AssertionError("the node was never caught at the wanted moment")


@pytest.mark.endurance
@pytest.mark.timeout(300)
def test_a_node_that_was_frozen_longer_than_its_lease_repeats_nothing_that_the_other_took(
    place: Place, pair: Pair
) -> None:
    frozen, other = pair
    start_ms, promised = _load(place, 6 + FROZEN_MS / 1000)
    _wait_until(start_ms + 2000)
    frozen_ms = _freeze(place, frozen, inside_a_transaction=False)
    _wait_until(frozen_ms + FROZEN_MS)
    assert place.owners()[frozen.node_id] == 0
    thawed_ms = now_ms()
    frozen.thaw()
    place.settled()

    verdict = judge(place.evidence(promised, [Blow(frozen.pid, frozen_ms, thawed_ms)]))
    late = max(one.wall_ms - one.due_ms for one in place.handed_over())
    print(
        f"{len(promised):,} jobs, {len(verdict.explained)} repeats explained by the freeze, {len(verdict.woken)} made "
        f"after it, latest by {late} ms"
    )
    assert not verdict.faults
    assert len(verdict.woken) <= CONCURRENCY
    assert place.statuses() == {"done": len(promised)}
    assert "Another node took shards" in frozen.stderr
    while_frozen = [one for one in place.handed_over() if frozen_ms < one.wall_ms < thawed_ms]
    assert {one.pid for one in while_frozen} == {other.pid}
    waited = [ms for ms in promised.values() if frozen_ms < ms < thawed_ms - LEASE_MS - SLACK_MS]
    assert len({one.job for one in while_frozen}) >= len(waited)
    assert LEASE_MS / 2 < late < LEASE_MS + 2000 + SLACK_MS
    _shared(place)  # it lives again, and takes its part of the work
    assert [frozen.stop(), other.stop()] == [0, 0]


@pytest.mark.endurance
@pytest.mark.timeout(300)
def test_a_node_frozen_inside_a_write_transaction_blocks_the_file_and_nothing_is_lost_or_doubled(
    place: Place, pair: Pair
) -> None:
    frozen, other = pair
    start_ms, promised = _load(place, 6 + FROZEN_MS / 1000)
    _wait_until(start_ms + 1000)
    frozen_ms = _freeze(place, frozen, inside_a_transaction=True)
    _wait_until(frozen_ms + max(FROZEN_MS, 8000))
    assert "write lock" in other.stderr
    thawed_ms = now_ms()
    frozen.thaw()
    place.settled()

    verdict = judge(place.evidence(promised, [Blow(frozen.pid, frozen_ms, thawed_ms)]))
    print(f"{len(promised):,} jobs, {len(verdict.explained)} repeats")
    assert not verdict.faults
    assert not verdict.woken
    assert not verdict.explained  # nobody could take its shards, so nobody had to repeat anything
    assert place.statuses() == {"done": len(promised)}
    assert [frozen.stop(), other.stop()] == [0, 0]


@contextmanager
def _locked(place: Place) -> Iterator[None]:
    """Somebody, a sqlite3 shell perhaps, holds the write lock."""
    with closing(place.connect()) as database:
        database.execute("BEGIN IMMEDIATE")
        yield
        database.execute("ROLLBACK")


@pytest.mark.timeout(180)
def test_a_foreign_process_that_holds_the_write_lock_is_named_and_costs_lateness_only(place: Place, pair: Pair) -> None:
    start_ms, promised = _load(place, 8)
    _wait_until(start_ms + 500)
    with _locked(place):
        time.sleep(6.5)  # nodes are patient for 5 s
        some = next(iter(promised))
        explained = place.run("explain", some, code=None)
        refused = place.run("schedule", place.app, "--in", "1s", code=5)
    assert "write lock" in refused.stderr
    assert explained.returncode == 0, f"looking needs no write lock: {explained.stderr}"
    place.settled()

    verdict = judge(place.evidence(promised))
    assert not verdict.faults
    assert not verdict.explained
    for node in pair:
        assert "write lock" in node.stderr
        assert "answers again" in node.stderr
        assert node.stop() == 0


@pytest.mark.timeout(180)
def test_a_rolling_restart_of_two_nodes_under_load_repeats_nothing(place: Place, pair: Pair) -> None:
    first, second = pair
    start_ms, promised = _load(place, 12)
    _wait_until(start_ms + 1000)
    assert first.stop() == 0
    third = place.node().ready()
    _shared(place)
    assert second.stop() == 0
    fourth = place.node().ready()
    _shared(place)
    assert now_ms() < max(promised.values()), "the load ended before the restarts did"
    place.settled()

    verdict = judge(place.evidence(promised))
    late = max(one.wall_ms - one.due_ms for one in place.handed_over())
    print(f"{len(promised):,} jobs, 2 restarts, latest by {late} ms")
    assert not verdict.faults
    assert not verdict.explained
    assert {one.pid for one in place.handed_over()} == {first.pid, second.pid, third.pid, fourth.pid}
    assert [third.stop(), fourth.stop()] == [0, 0]


@pytest.mark.timeout(180)
def test_the_jobs_of_a_killed_node_are_taken_at_once_without_waiting_for_its_lease(place: Place) -> None:
    # A lease that the test does not wait for: that the node has ended is proved by the lock that it no longer holds.
    place.configure(node='lease = "20s"\nheartbeat = "1s"', app=f"shards = {SHARDS}")
    killed, other = place.node().ready(), place.node().ready()
    _shared(place)
    start_ms, promised = _load(place, 8)
    _wait_until(start_ms + 2000)
    blow = killed.kill()
    place.settled()

    verdict = judge(place.evidence(promised, [blow]))
    late = max(one.wall_ms - one.due_ms for one in place.handed_over())
    print(f"{len(promised):,} jobs, {len(verdict.explained)} repeats explained by the kill, latest by {late} ms")
    assert not verdict.faults
    assert late < 2000 + SLACK_MS
    assert place.statuses() == {"done": len(promised)}
    assert other.stop() == 0
