"""The simulated database behaves as database servers do at READ COMMITTED, and its faults are what they say."""

import asyncio
from collections.abc import Callable, Iterator, Sequence

import msgspec
import pytest

from infinite_scheduler.errors import StoreUnavailable
from infinite_scheduler.model import JobId, JobSpec, Owner, Shard, Status, position, start_of
from infinite_scheduler.store.cluster_state import ShardInfo
from infinite_scheduler.store.ownership import Request, Scan
from infinite_scheduler.store.sql.statements import NewRow, Statements, Update
from infinite_scheduler.store.sql.tables import SqlApp
from tests.simulation.database import SimDatabase, SimSession
from tests.simulation.server import Server, Weather
from tests.simulation.statements import SimStatements
from tests.simulation.world import EPOCH_MS, Process, World

APP = "app"
SHARD = Shard(APP, 0)
SPEC = JobSpec(app=APP, scheduled_ms=EPOCH_MS, payload=b"{}")


class Bench:
    """A world with a server, an app of two shards, and processes on demand."""

    def __init__(self, seed: int = 1, weather: Weather | None = None) -> None:
        self.world = World(seed, stall=0.0)
        self.server = Server(self.world, Weather(unfair=0.0))
        setup = self.session("setup")
        info = SqlApp(name=APP, shards=2, paused=False, created_ms=0)
        self.world.complete(self.processes["setup"], setup.write(lambda tx: tx.insert_app(info, EPOCH_MS)))
        if weather is not None:
            self.server.weather = weather
            self.server.lost_budget = weather.lost_budget
            self.server.error_budget = weather.error_budget

    processes: dict[str, Process]

    def session(self, name: str, lane: str = "lane-0") -> SimSession:
        if not hasattr(self, "processes"):
            self.processes = {}
            self.databases: dict[str, SimDatabase] = {}
        if name not in self.processes:
            self.processes[name] = self.world.process(name)
            self.databases[name] = SimDatabase(self.server, self.processes[name])
        return self.databases[name].session(lane)

    def begin(self, name: str, body: Callable[[SimStatements], object], lane: str = "lane-0") -> "asyncio.Task[object]":
        """Start a transaction of this process; let time go on to see it work."""
        session = self.session(name, lane)
        return self.processes[name].spawn(session.write(body))  # type: ignore[arg-type]

    def do(self, name: str, body: Callable[[SimStatements], object]) -> object:
        task = self.begin(name, body)
        assert self.world.run(60, task.done)
        return task.result()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.world.close()


def new_row(at_ms: int = EPOCH_MS, tail: int = 1, key: str | None = None) -> NewRow:
    spec = msgspec.structs.replace(SPEC, idempotency_key=key)
    return NewRow(JobId.make(at_ms, 0, 1, entropy=tail.to_bytes(8, "big")), spec, EPOCH_MS)


def retried(row: NewRow, due_ms: int, attempt: int = 1) -> Update:
    return Update(
        key=row.key,
        was_status=Status.PENDING,
        was_attempt=attempt,
        was_due_ms=EPOCH_MS,
        status=Status.PENDING,
        attempt=attempt + 1,
        due_ms=due_ms,
    )


def everything(tx: Statements) -> Sequence[bytes]:
    scan = Scan(
        app=APP, shards=frozenset({0, 1}), start=start_of(0), end=start_of(EPOCH_MS * 2), limit=1000, room=8 << 20
    )
    rows, end = tx.scan_rows(scan)
    while end is not None:
        more, end = tx.scan_rows(msgspec.structs.replace(scan, start=end))
        rows = [*rows, *more]
    return [job.key for job in rows]


def test_a_statement_sees_what_was_committed_since_the_one_before(bench: Bench) -> None:
    row = new_row()

    def twice(tx: SimStatements) -> tuple[int, int]:
        before = len(everything(tx))
        tx.hold(1.0)
        return before, len(everything(tx))

    reader = bench.begin("reader", twice)
    bench.world.run(0.5)
    bench.do("writer", lambda tx: tx.insert_jobs(APP, [row]))
    bench.world.run(1.0)
    assert reader.result() == (0, 1)


def test_a_row_is_invisible_until_a_late_commit(bench: Bench) -> None:
    row = new_row()

    def late(tx: SimStatements) -> int:
        tx.insert_jobs(APP, [row])
        tx.hold(3.0)
        return len(everything(tx))

    writer = bench.begin("writer", late)
    bench.world.run(2.0)
    assert bench.do("reader", everything) == []
    bench.world.run(2.0)
    assert writer.result() == 1, "a transaction sees its own writes"
    assert bench.do("reader", everything) == [row.key]


def test_a_second_writer_waits_and_looks_again(bench: Bench) -> None:
    row = new_row()
    bench.do("writer", lambda tx: tx.insert_jobs(APP, [row]))

    def slow(tx: SimStatements) -> None:
        assert not tx.update_jobs(APP, [retried(row, EPOCH_MS + 1)])
        tx.hold(1.0)

    bench.begin("one", slow)
    bench.world.run(0.5)
    second = bench.begin("two", lambda tx: tx.update_jobs(APP, [retried(row, EPOCH_MS + 2)]))
    bench.world.run(0.3)
    assert not second.done()
    bench.world.run(1.0)
    assert second.result() == [row.key], "the row is not as remembered any more"
    assert bench.server.tables["jobs"][APP, row.key].job.due_ms == EPOCH_MS + 1


def test_a_second_writer_goes_on_when_the_first_rolls_back(bench: Bench) -> None:
    row = new_row()
    bench.do("writer", lambda tx: tx.insert_jobs(APP, [row]))

    def fails(tx: SimStatements) -> None:
        tx.update_jobs(APP, [retried(row, EPOCH_MS + 1)])
        tx.hold(1.0)
        raise LookupError

    first = bench.begin("one", fails)
    bench.world.run(0.5)
    second = bench.begin("two", lambda tx: tx.update_jobs(APP, [retried(row, EPOCH_MS + 2)]))
    bench.world.run(2.0)
    assert isinstance(first.exception(), LookupError)
    assert second.result() == []


def test_shared_locks_go_together_and_an_exclusive_one_waits_for_all(bench: Bench) -> None:
    def shared(tx: SimStatements) -> None:
        tx.lock_shards([SHARD], exclusive=False)
        tx.hold(1.0)

    def exclusive(tx: SimStatements) -> ShardInfo:
        return tx.lock_shards([SHARD], exclusive=True)[SHARD]

    one, two = bench.begin("one", shared), bench.begin("two", shared)
    bench.world.run(0.5)
    three = bench.begin("three", exclusive)
    bench.world.run(0.2)
    assert not three.done()
    bench.world.run(0.5)
    assert one.done()
    assert two.done()
    assert three.done()


def test_what_is_read_under_a_lock_is_what_its_last_holder_committed(bench: Bench) -> None:
    def move(tx: SimStatements) -> None:
        row = tx.lock_shards([SHARD], exclusive=True)[SHARD]
        tx.hold(1.0)
        tx.write_shards([msgspec.structs.replace(row, line_ms=row.line_ms + 7, owner=Owner("n", 1))])

    bench.begin("one", move)
    bench.world.run(0.5)
    seen = bench.begin("two", lambda tx: tx.lock_shards([SHARD], exclusive=False)[SHARD].line_ms)
    bench.world.run(2.0)
    assert seen.result() == EPOCH_MS + 7


def test_a_shard_row_is_written_under_the_exclusive_lock_only(bench: Bench) -> None:
    def careless(tx: SimStatements) -> None:
        tx.write_shards(tx.lock_shards([SHARD], exclusive=False).values())

    with pytest.raises(AssertionError, match="without the exclusive lock"):
        bench.do("one", careless)


def test_a_deadlock_is_found_and_its_victim_runs_again(bench: Bench) -> None:
    runs: list[str] = []

    def cross(name: str, first: int, second: int) -> Callable[[SimStatements], None]:
        def body(tx: SimStatements) -> None:
            runs.append(name)
            tx.lock_shards([Shard(APP, first)], exclusive=True)
            tx.hold(0.5)
            tx.lock_shards([Shard(APP, second)], exclusive=True)

        return body

    one, two = bench.begin("one", cross("one", 0, 1)), bench.begin("two", cross("two", 1, 0))
    bench.world.run(5.0)
    assert one.done()
    assert two.done()
    assert one.exception() is two.exception() is None
    assert len(runs) == 3


def test_two_shared_locks_that_are_upgraded_deadlock(bench: Bench) -> None:
    def upgrade(tx: SimStatements) -> None:
        runs.append(1)
        tx.lock_shards([SHARD], exclusive=False)
        tx.hold(0.5)
        tx.lock_shards([SHARD], exclusive=True)

    runs: list[int] = []
    tasks = [bench.begin(name, upgrade) for name in ("one", "two")]
    bench.world.run(5.0)
    assert all(task.done() and task.exception() is None for task in tasks)
    assert len(runs) == 3


def test_an_insert_of_the_same_key_waits_for_the_first_one(bench: Bench) -> None:
    first, second = new_row(tail=1, key="k"), new_row(tail=2, key="k")

    def slow(tx: SimStatements) -> object:
        others = tx.claim_keys(APP, [first])
        tx.hold(1.0)
        return others

    one = bench.begin("one", slow)
    bench.world.run(0.5)
    two = bench.begin("two", lambda tx: tx.claim_keys(APP, [second]))
    bench.world.run(0.2)
    assert not two.done()
    bench.world.run(1.0)
    assert one.result() == {}
    assert two.result() == {"k": (first.key, b"")}


def test_a_request_is_deleted_by_one_only(bench: Bench) -> None:
    request = Request(id=b"r", shard=SHARD, change=None, keys=(b"k",))
    bench.do("caller", lambda tx: tx.insert_requests([request]))

    def slow(tx: SimStatements) -> object:
        deleted = tx.delete_requests([b"r"])
        tx.hold(1.0)
        return deleted

    one = bench.begin("one", slow)
    bench.world.run(0.5)
    two = bench.begin("two", lambda tx: tx.delete_requests([b"r"]))
    bench.world.run(2.0)
    assert (one.result(), two.result()) == ([b"r"], [])


def test_an_entry_leads_a_scan_to_its_row(bench: Bench) -> None:
    row, due_ms = new_row(), EPOCH_MS + 50

    def move(tx: SimStatements) -> None:
        tx.insert_jobs(APP, [row])
        tx.update_jobs(APP, [retried(row, due_ms)])
        tx.insert_entries(APP, [(position(row.key, due_ms), row.key)] * 2)

    bench.do("one", move)
    scan = Scan(
        app=APP, shards=frozenset({0}), start=start_of(due_ms), end=start_of(due_ms + 1), limit=1000, room=8 << 20
    )
    entries, end = bench.do("two", lambda tx: tx.scan_entries(scan))  # type: ignore[misc]
    assert [(at, job.due_ms) for at, job in entries] == [(position(row.key, due_ms), due_ms)]  # type: ignore[has-type]
    assert end is None  # type: ignore[has-type]
    assert bench.do("two", lambda tx: tx.scan_rows(scan)) == ([], None)


def test_a_session_does_one_transaction_after_the_other(bench: Bench) -> None:
    order: list[str] = []

    def body(name: str) -> Callable[[SimStatements], None]:
        def steps(tx: SimStatements) -> None:
            order.append(f"{name} begins")
            tx.hold(0.5)
            order.append(f"{name} ends")

        return steps

    for name in "abc":
        bench.begin("one", body(name))
    bench.begin("one", body("other lane"), lane="lane-1")
    bench.world.run(5.0)
    assert [line for line in order if "lane" not in line] == [f"{n} {w}" for n in "abc" for w in ("begins", "ends")]
    assert order.index("other lane begins") < order.index("a ends")


def test_a_lost_answer_leaves_the_transaction_open_and_its_end_unknown() -> None:
    ends, held = set(), set()
    for seed in range(20):
        bench = Bench(seed, Weather(lost=1.0, lost_budget=1))

        def insert(tx: SimStatements) -> None:
            tx.lock_shards([SHARD], exclusive=False)
            tx.insert_jobs(APP, [new_row()])

        with pytest.raises(StoreUnavailable, match="no answer to a commit"):
            bench.do("one", insert)
        held.add(len(bench.server.open))
        waits = bench.begin("two", lambda tx: (tx.lock_shards([SHARD], exclusive=True), everything(tx))[1])
        bench.world.run(10.0)
        found = bench.do("three", everything)
        assert waits.result() == found, "whoever has the exclusive lock knows how it ended"
        ends.add(len(found))  # type: ignore[arg-type]
        bench.world.close()
    assert ends == {0, 1}
    assert held == {0, 1}, "it may still be open when the client hears that it is in doubt"


def test_an_error_in_the_middle_rolls_back() -> None:
    for seed in range(10):
        bench = Bench(seed, Weather(error=1.0, error_budget=1))
        with pytest.raises(StoreUnavailable, match="in the middle"):
            bench.do("one", lambda tx: tx.insert_jobs(APP, [new_row()]))
        bench.world.run(5.0)
        assert bench.do("one", everything) == []
        assert not bench.server.open
        bench.world.close()


def test_a_database_that_is_away_refuses_or_hangs() -> None:
    ends = set()
    for seed in range(20):
        bench = Bench(seed)
        bench.session("other")
        bench.session("one")
        bench.server.go_away(3.0, bench.processes["one"])
        task = bench.begin("one", everything)
        assert bench.do("other", everything) == [], "only one process is cut off"
        assert bench.world.now < 1.0
        bench.world.run(10.0, task.done)
        ends.add((bench.world.now > 3.0, isinstance(task.exception(), StoreUnavailable)))
        bench.world.close()
    assert (True, False) in ends
    assert (False, True) in ends


def test_a_killed_process_takes_no_further_step(bench: Bench) -> None:
    seen: list[str] = []

    async def main() -> None:
        try:
            seen.append("begins")
            await bench.session("one").write(body)  # type: ignore[arg-type]
        finally:
            seen.append("ends")

    def body(tx: SimStatements) -> None:
        try:
            tx.insert_jobs(APP, [new_row()])
            tx.hold(1.0)
        finally:
            seen.append("body ends")

    bench.session("one")
    bench.processes["one"].spawn(main())
    bench.world.run(0.5)
    bench.processes["one"].kill()
    bench.world.run(10.0)
    assert seen == ["begins"]
    assert not bench.server.open
    assert bench.do("two", everything) == []


def test_a_commit_that_was_sent_before_a_kill_may_come_true() -> None:
    ends = set()
    for seed in range(40):
        bench = Bench(seed, Weather(latency=1.0))
        bench.begin("one", lambda tx: tx.insert_jobs(APP, [new_row()]))
        bench.world.run(bench.world.rng.random() * 2)
        bench.processes["one"].kill()
        bench.world.run(10.0)
        ends.add(len(bench.do("two", everything)))  # type: ignore[arg-type]
        bench.world.close()
    assert ends == {0, 1}


def test_a_paused_process_keeps_its_locks_until_the_server_loses_patience() -> None:
    for seconds, survives in ((1.0, True), (30.0, False)):
        bench = Bench()

        def body(tx: SimStatements) -> None:
            tx.lock_shards([SHARD], exclusive=True)
            tx.hold(0.5)
            tx.insert_jobs(APP, [new_row()])

        task = bench.begin("one", body)
        bench.world.run(0.2)
        bench.processes["one"].pause(seconds)
        lock = bench.begin("two", lambda tx: tx.lock_shards([SHARD], exclusive=True))
        bench.world.run(0.7)
        assert not lock.done()
        bench.world.run(5.0)
        assert lock.done()
        bench.world.run(40.0)
        assert (task.exception() is None) is survives
        bench.world.close()


def test_a_statement_that_waits_too_long_for_a_lock_fails(bench: Bench) -> None:
    def body(tx: SimStatements) -> None:
        tx.lock_shards([SHARD], exclusive=True)
        tx.hold(20.0)

    bench.begin("one", body)
    bench.world.run(0.5)
    with pytest.raises(StoreUnavailable, match="too long"):
        bench.do("two", lambda tx: tx.lock_shards([SHARD], exclusive=False))


def test_the_same_seed_gives_the_same_history() -> None:
    def history(seed: int) -> list[object]:
        bench = Bench(seed, Weather(slow=0.1, lost=0.05, lost_budget=3, error=0.01, error_budget=3, unfair=0.5))
        commits: list[object] = []
        bench.server.listeners.append(lambda who, changes: commits.append((bench.world.now, who, changes)))

        def body(number: int) -> Callable[[SimStatements], None]:
            def steps(tx: SimStatements) -> None:
                shards = tx.lock_shards([Shard(APP, number % 2)], exclusive=number % 3 == 0)
                tx.insert_jobs(APP, [new_row(tail=number)])
                if number % 3 == 0:
                    tx.write_shards(msgspec.structs.replace(row, low_ms=number) for row in shards.values())

            return steps

        for number in range(60):
            bench.begin(f"process {number % 4}", body(number), lane=f"lane-{number % 3}")
        bench.world.run(2.0)
        bench.processes["process 1"].kill()
        bench.processes["process 2"].pause(3.0)
        bench.world.run(60.0)
        bench.world.close()
        return commits

    assert history(5) == history(5)
    assert history(5) != history(6)
