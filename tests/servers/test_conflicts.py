"""Somebody else in the way: deadlocks and serialization failures, again and again, and nothing is lost."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pymysql
import pytest

from infinite_scheduler import NewJob, StoreBusy
from infinite_scheduler.config import load_settings
from infinite_scheduler.model import DAY_MS
from infinite_scheduler.store.sql.limits import SqlLimits
from infinite_scheduler.store.sql.server.driver import Fault
from infinite_scheduler.store.sql.server.drivers import server_driver
from infinite_scheduler.store.sql.server.session import Link
from infinite_scheduler.store.sql.server.table_maker import TableMaker
from infinite_scheduler.store.sql.statements import Statements
from infinite_scheduler.store.sql.tables import DAILY
from tests.servers.node_rig import APP, NodeRig
from tests.services.databases import connect, execute, kind_of
from tests.waiting import PATIENCE_S

ERRORS = (pymysql.err.Error, psycopg.Error)

ISOLATION = {
    "mariadb": "SET SESSION TRANSACTION ISOLATION LEVEL {}",
    "postgres": "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {}",
}
DEADLOCK = {
    "mariadb": pymysql.err.OperationalError(pymysql.constants.ER.LOCK_DEADLOCK, "here"),
    "postgres": psycopg.errors.DeadlockDetected(),
}
NOBODY_ELSE = {"mariadb": "SELECT * FROM scheduler_shards FOR UPDATE", "postgres": "LOCK TABLE scheduler_counters"}
"""What keeps a job from being accepted."""

BY_US = (
    "SELECT COUNT(*) FROM information_schema.processlist"
    " WHERE db = DATABASE() AND command <> 'Sleep' AND info LIKE 'SET STATEMENT%'"
)
"""How many of our statements the server is at work on."""


# Serialization failures


class Serializable(Link):
    """A connection whose transactions are serializable, and which counts what is tried again."""

    def __init__(self, url: str) -> None:
        driver: Any = server_driver(url)
        driver._begin = driver._begin.replace("READ COMMITTED", "SERIALIZABLE")
        self.failures: list[str] = []
        judge = driver.fault

        def fault(error: Exception) -> Fault:
            if judge(error) is Fault.AGAIN:
                self.failures.append(str(error))
            return judge(error)  # type: ignore[no-any-return]

        driver.fault = fault
        super().__init__(driver, TableMaker(driver, allowed=False), "p")


def add_up(*, read: str, write: str) -> Callable[[Statements, Callable[[], object]], None]:
    """A transaction that writes what it has read, and something more; something else happens in between."""

    def body(tx: Statements, meanwhile: Callable[[], object]) -> None:
        cursor: Any = tx.cursor  # type: ignore[attr-defined]
        cursor.execute(f"SELECT SUM(n) FROM pairs WHERE id IN ({read})")
        total = cursor.fetchone()[0]
        meanwhile()
        cursor.execute(f"UPDATE pairs SET n = {total} + 1 WHERE id = {write}")
        time.sleep(0.005)

    return body


@pytest.mark.parametrize(
    ("bodies", "result"),
    [
        ((add_up(read="1", write="1"), add_up(read="1", write="1")), [(20,), (0,)]),  # both write the same row
        ((add_up(read="1, 2", write="1"), add_up(read="1, 2", write="2")), None),  # each writes what the other has read
    ],
)
async def test_a_transaction_that_cannot_be_serialized_is_done_again(
    postgres_url: str, bodies: tuple[Any, Any], result: list[Any] | None
) -> None:
    async with NodeRig(postgres_url).scheduler:
        pass
    execute(postgres_url, "CREATE TABLE pairs (id INT PRIMARY KEY, n NUMERIC)")
    execute(postgres_url, "INSERT INTO pairs VALUES (1, 0), (2, 0)")
    links = [Serializable(postgres_url) for _ in bodies]
    both_have_read = threading.Barrier(2, timeout=PATIENCE_S)

    def add(link: Link, body: Callable[[Statements, Callable[[], object]], None]) -> None:
        meetings = iter([both_have_read.wait])  # the first time; later they meet by chance

        def meanwhile() -> None:
            next(meetings, lambda: time.sleep(0.005))()

        for _ in range(10):
            link.write(lambda tx: body(tx, meanwhile))

    await asyncio.gather(*(asyncio.to_thread(add, *both) for both in zip(links, bodies, strict=True)))
    for link in links:
        link.close()
    assert any("could not serialize" in failure for link in links for failure in link.failures)
    found = execute(postgres_url, "SELECT n FROM pairs ORDER BY id")
    # Each of the twenty has seen all before it, so that what it writes is more than what anybody wrote.
    assert found == result if result else max(n for (n,) in found) >= 20


# A storm of deadlocks


def deadlocks(url: str) -> int:
    """How many there were, as the server counts them."""
    if kind_of(url) == "mariadb":
        return int(execute(url, "SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'")[0][1])
    return int(execute(url, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")[0][0])


def backwards(url: str, table: str, turn: int) -> list[str]:
    """What locks pending jobs and idempotency keys from the last to the first, against the order of the store."""
    id_, digest = ("X'00'", "X'00'") if kind_of(url) == "mariadb" else ("gen_random_uuid()", r"'\x00'")
    pending = f"SELECT id FROM {table} WHERE status = 'pending' ORDER BY id DESC"
    keys = [
        "INSERT INTO scheduler_idempotency_keys (app, idempotency_key, id, digest, created_ms)"
        f" VALUES ('{APP}', 'key-{turn}-{number}', {id_}, {digest}, 0)"
        for number in (9, 0)
    ]
    return [f"{pending} LIMIT 1 FOR UPDATE", f"{pending} LIMIT 300 FOR UPDATE", *keys]


@contextmanager
def storm(url: str, table: str, turns: list[int], *, isolation: str = "READ COMMITTED") -> Iterator[None]:
    """Foreign transactions that lock in the wrong order all the while, and take everything back."""
    ends = threading.Event()

    def lock() -> None:
        with closing(connect(url)) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(ISOLATION[kind_of(url)].format(isolation))
            while not ends.is_set():
                cursor.execute("BEGIN")
                with suppress(*ERRORS):
                    for statement in backwards(url, table, turns[-1]):
                        cursor.execute(statement)
                        time.sleep(0.002)
                cursor.execute("ROLLBACK")
                time.sleep(0.002)

    threads = [threading.Thread(target=lock) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ends.set()
        for thread in threads:
            thread.join()


async def test_in_a_storm_of_deadlocks_every_call_ends_and_nothing_is_lost_or_done_twice(url: str) -> None:
    if kind_of(url) == "postgres":
        execute(url, f"ALTER DATABASE {urlsplit(url).path[1:]} SET deadlock_timeout = '20ms'")
    rig = NodeRig(url)
    async with rig.scheduler:
        ids = await rig.add(20)
        table = DAILY.table(APP, int(time.time() * 1000) // DAY_MS)
        before, turns = deadlocks(url), [0]
        with storm(url, table, turns):
            began_s, met = time.monotonic(), 0
            while met < 5 or time.monotonic() < began_s + 1.5:
                assert time.monotonic() < began_s + PATIENCE_S, "it is none"
                ids += await rig.add(150, "50ms")
                ids += await add_keyed(rig, turns)
                met = await asyncio.to_thread(deadlocks, url) - before
        await rig.done(ids)


async def add_keyed(rig: NodeRig, turns: list[int]) -> list[str]:
    """Jobs whose keys the storm inserts from the last to the first."""
    turn = turns[-1]
    turns.append(turn + 1)
    keyed = [NewJob(data=n, delay="50ms", idempotency_key=f"key-{turn}-{n}") for n in range(10)]
    return [accepted.id for accepted in await rig.scheduler.schedule_many(APP, keyed)]


async def test_in_a_storm_of_locked_gaps_every_call_ends_in_time_and_has_written_all_or_nothing(url: str) -> None:
    """At REPEATABLE READ, the default of MariaDB, who reads for update keeps others from inserting."""
    rig = NodeRig(url, store={"lock_wait": "1s"})
    async with rig.scheduler:
        ids = await rig.add(20)
        table = DAILY.table(APP, int(time.time() * 1000) // DAY_MS)
        turns, took_s, refused = [0], [0.0], 0
        with storm(url, table, turns, isolation="REPEATABLE READ"):
            until_s = time.monotonic() + 2
            while time.monotonic() < until_s:
                began_s = time.monotonic()
                try:
                    ids += await rig.add(150, "50ms")
                    ids += await add_keyed(rig, turns)
                except StoreBusy:
                    refused += 1
                took_s.append(time.monotonic() - began_s)
        assert max(took_s) < 8, f"{refused} of {len(took_s)} were refused"
        await rig.done(ids)


# One who has to wait, and another, and another


def linked(url: str, lock_wait: str) -> Link:
    settings = load_settings(overrides={"store": {"url": url, "lock_wait": lock_wait}})
    driver = server_driver(url, SqlLimits.of(settings.store.options))
    return Link(driver, TableMaker(driver, allowed=False), "p")


@contextmanager
def in_turn(url: str, locks: Mapping[str, float], isolation: str) -> Iterator[None]:
    """Foreign transactions, each with a lock of its own for so many seconds."""
    begun = threading.Barrier(len(locks) + 1)

    def hold(lock: str, seconds: float) -> None:
        with closing(connect(url)) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(ISOLATION[kind_of(url)].format(isolation))
            cursor.execute("BEGIN")
            cursor.execute(lock)
            begun.wait()
            time.sleep(seconds)
            cursor.execute("ROLLBACK")

    threads = [threading.Thread(target=hold, args=lock) for lock in locks.items()]
    for thread in threads:
        thread.start()
    begun.wait()
    yield
    for thread in threads:
        thread.join()


def make_pairs(url: str, ids: Iterable[int]) -> None:
    execute(url, "CREATE TABLE pairs (id INT PRIMARY KEY, n INT)")
    execute(url, f"INSERT INTO pairs VALUES {', '.join(f'({number}, 0)' for number in ids)}")


def test_a_statement_that_waits_for_one_row_after_the_other_is_ended_by_the_server(mariadb_url: str) -> None:
    """Each of its waits is shorter than `lock_wait`, and the server counts them one by one."""
    make_pairs(mariadb_url, range(0, 60, 10))
    gaps = {f"SELECT * FROM pairs WHERE id = {10 * second - 5} FOR UPDATE": second for second in range(1, 6)}
    insert = f"INSERT INTO pairs VALUES {', '.join(f'({number}, 1)' for number in range(6, 56, 10))}"
    link = linked(mariadb_url, "2s")
    with in_turn(mariadb_url, gaps, "REPEATABLE READ"):
        with pytest.raises(StoreBusy, match="ended a statement that waited for locks"):
            link.write(lambda tx: tx.cursor.execute(insert))  # type: ignore[attr-defined]
        assert execute(mariadb_url, BY_US) == [(0,)], "it still waits on the server"
    assert execute(mariadb_url, "SELECT COUNT(*) FROM pairs WHERE n = 1") == [(0,)]
    link.close()


def test_what_one_statement_has_waited_the_next_ones_do_not(url: str) -> None:
    make_pairs(url, range(2))
    link = linked(url, "4s")

    def body(tx: Statements) -> None:
        for number in range(2):
            tx.cursor.execute(f"UPDATE pairs SET n = 1 WHERE id = {number}")  # type: ignore[attr-defined]

    locks = {f"SELECT * FROM pairs WHERE id = {number} FOR UPDATE": 3 + 3.3 * number for number in range(2)}
    with in_turn(url, locks, "READ COMMITTED"), pytest.raises(StoreBusy, match="locks"):
        link.write(body)
    assert execute(url, "SELECT SUM(n) FROM pairs") == [(0,)]
    link.write(body)
    assert execute(url, "SELECT SUM(n) FROM pairs") == [(2,)]
    link.close()


def test_deadlocks_are_tried_again_for_as_long_as_a_call_waits_for_locks(url: str) -> None:
    link = linked(url, "1s")
    tries: list[float] = []

    def body(_: Statements) -> None:
        tries.append(time.monotonic())
        time.sleep(0.3)
        raise DEADLOCK[kind_of(url)]

    with pytest.raises(
        StoreBusy, match=r"given up after \d tries in \d\.\d s, .* a deadlock; nothing was committed: .*"
    ):
        link.write(body)
    assert 2 <= len(tries) <= 5
    link.close()


async def test_who_has_waited_for_locks_does_not_wait_four_times(url: str) -> None:
    rig = NodeRig(url, store={"lock_wait": "1s"})
    async with NodeRig(url).scheduler:
        pass
    await rig.scheduler.open()
    with closing(connect(url)) as stranger, closing(stranger.cursor()) as cursor:
        cursor.execute("BEGIN")
        cursor.execute(NOBODY_ELSE[kind_of(url)])
        began_s = time.monotonic()
        with pytest.raises(StoreBusy, match="waited 1 s for locks"):
            await rig.add(1)
        assert time.monotonic() - began_s < 3.9
        cursor.execute("ROLLBACK")
    assert len(await rig.add(1)) == 1
    await rig.scheduler.close()
