"""Two nodes on one SQLite file: they share the work, and each survives whatever happens to the other."""

import random
import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.acceptance.checker import Blow, judge
from tests.acceptance.cluster import Load
from tests.acceptance.place import CONCURRENCY, SCRIPTS, SOAK, Place, ServeProcess
from tests.waiting import now_ms, until

LEASE_MS, FROZEN_MS = (10_000, 30_000) if SOAK else (3_000, 7_000)
PACES = "" if SOAK else 'lease = "3s"\nheartbeat = "500ms"'
SLACK_MS = 8000
"""What a busy machine may add to any delay."""

RATE = 500
"""Jobs due in a second: enough that some are always in flight, few enough that two nodes share one file at ease."""

SHARDS = 4
"""Jobs that are accepted together, 1,000 at a time, go into one shard: so every shard has some, at every moment."""

WRITE_LOCK = 120
"""The byte of the shared memory file that whoever writes has locked."""

Pair = tuple[ServeProcess, ServeProcess]


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


def _holds_the_lock(place: Place, node: ServeProcess) -> bool:
    """Does this process hold the write lock of the file, as the kernel knows it?"""
    shared = place.database.with_name(f"{place.database.name}-shm").stat().st_ino
    lock = rf"POSIX +ADVISORY +WRITE +{node.pid} \S+:{shared} {WRITE_LOCK} "
    return re.search(lock, Path("/proc/locks").read_text()) is not None


def _freeze(place: Place, node: ServeProcess, *, inside_a_transaction: bool) -> Blow:
    """Freeze a node, in the middle of a write transaction or outside of one."""
    for _ in range(2000):
        (blow,) = place.freeze(node)
        if _holds_the_lock(place, node) is inside_a_transaction:
            return blow
        node.thaw()
        time.sleep(random.uniform(0.001, 0.02))
    raise AssertionError("the node was never caught at the wanted moment")


def _thaw(node: ServeProcess, blow: Blow) -> Blow:
    """Let it go on; the blow with the time that it took."""
    thawed_ms = now_ms()
    node.thaw()
    return blow._replace(until_ms=thawed_ms)


@pytest.mark.endurance
@pytest.mark.timeout(300)
def test_a_node_that_was_frozen_longer_than_its_lease_repeats_nothing_that_the_other_took(
    place: Place, pair: Pair
) -> None:
    frozen, other = pair
    start_ms, promised = _load(place, 6 + FROZEN_MS / 1000)
    _wait_until(start_ms + 2000)
    blow = _freeze(place, frozen, inside_a_transaction=False)
    until(lambda: place.owners()[frozen.node_id] == 0, "the other takes its shards", every_s=0.1)
    waited = {job for job, due_ms in promised.items() if due_ms < now_ms()}
    until(lambda: waited <= {one.job for one in place.handed_over()}, "the other does its work", every_s=0.1)
    _wait_until(blow.wall_ms + FROZEN_MS)
    blow = _thaw(frozen, blow)
    place.settled()

    verdict = judge(place.evidence(promised, [blow]))
    late = max(one.wall_ms - one.due_ms for one in place.handed_over())
    print(
        f"{len(promised):,} jobs, {len(verdict.explained)} repeats explained by the freeze, {len(verdict.woken)} made "
        f"after it, latest by {late} ms"
    )
    assert not verdict.faults
    assert len(verdict.woken) <= CONCURRENCY
    assert place.statuses() == {"done": len(promised)}
    until(lambda: "Another node took shards" in frozen.stderr, "it says that it has lost them")
    while_frozen = [one for one in place.handed_over() if blow.wall_ms < one.wall_ms < (blow.until_ms or 0)]
    assert {one.pid for one in while_frozen} == {other.pid}
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
    blow = _freeze(place, frozen, inside_a_transaction=True)
    _wait_until(blow.wall_ms + FROZEN_MS)
    until(lambda: "write lock" in other.stderr, "the other says what it waits for")
    blow = _thaw(frozen, blow)
    place.settled()

    verdict = judge(place.evidence(promised, [blow]))
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
        until(lambda: all("write lock" in node.stderr for node in pair), "both say what they wait for")
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
        until(lambda node=node: "answers again" in node.stderr, f"{node.name} says so")  # type: ignore[misc]
        assert node.stop() == 0


def _at_work(place: Place, *nodes: ServeProcess) -> None:
    pids = {node.pid for node in nodes}
    until(lambda: pids <= {one.pid for one in place.handed_over()}, "each has handed something over", every_s=0.1)


@pytest.mark.timeout(180)
def test_a_rolling_restart_of_two_nodes_under_load_repeats_nothing(place: Place, pair: Pair) -> None:
    command = [place.installation.python, str(SCRIPTS / "load.py"), f"sqlite:///{place.database}", "3000"]
    load = Load([*command, f"{place.app}:{RATE}:0"], place.folder / "load.answers")
    try:
        new = []
        for node in pair:
            _at_work(place, *pair)
            assert node.stop() == 0
            new.append(place.node().ready())
            _shared(place)
        _at_work(place, *new)
        promised = {job: answer.due_ms for job, answer in load.accepted().items()}
    finally:
        load.end()
    place.settled()

    verdict = judge(place.evidence(promised))
    late = max(one.wall_ms - one.due_ms for one in place.handed_over())
    print(f"{len(promised):,} jobs, 2 restarts, latest by {late} ms")
    assert not verdict.faults
    assert not verdict.explained
    assert [node.stop() for node in new] == [0, 0]


@pytest.mark.timeout(180)
def test_the_jobs_of_a_killed_node_are_taken_at_once_without_waiting_for_its_lease(place: Place) -> None:
    # A lease that the test does not wait for: that the node has ended is proved by the lock that it no longer holds.
    place.configure(node='lease = "20s"\nheartbeat = "1s"', app=f"shards = {SHARDS}")
    killed, other = place.node().ready(), place.node().ready()
    _shared(place)
    start_ms, promised = _load(place, 8)
    _wait_until(start_ms + 2000)
    blows = place.kill(killed)
    place.settled()

    verdict = judge(place.evidence(promised, blows))
    late = max(one.wall_ms - one.due_ms for one in place.handed_over())
    print(f"{len(promised):,} jobs, {len(verdict.explained)} repeats explained by the kill, latest by {late} ms")
    assert not verdict.faults
    assert late < 2000 + SLACK_MS
    assert place.statuses() == {"done": len(promised)}
    assert other.stop() == 0
