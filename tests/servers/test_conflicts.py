"""Somebody else in the way: deadlocks and serialization failures, again and again, and nothing is lost."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pymysql
import pytest

from infinite_scheduler import NewJob
from infinite_scheduler.model import DAY_MS
from infinite_scheduler.store import server_driver
from infinite_scheduler.store.sql.server.driver import Fault
from infinite_scheduler.store.sql.server.session import Link
from infinite_scheduler.store.sql.server.tables import TableMaker
from infinite_scheduler.store.sql.statements import Statements
from infinite_scheduler.store.sql.tables import DAILY
from tests.servers.rig import APP, Rig
from tests.services.databases import connect, execute, kind_of

ERRORS = (pymysql.err.Error, psycopg.Error)


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


def add_up(*, read: str, write: str) -> Callable[[Statements], None]:
    """A transaction that writes what it has read, and something more."""

    def body(tx: Statements) -> None:
        cursor: Any = tx.cursor  # type: ignore[attr-defined]
        cursor.execute(f"SELECT SUM(n) FROM pairs WHERE id IN ({read})")
        total = cursor.fetchone()[0]
        time.sleep(0.005)
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
    async with Rig(postgres_url).scheduler:
        pass
    execute(postgres_url, "CREATE TABLE pairs (id INT PRIMARY KEY, n NUMERIC)")
    execute(postgres_url, "INSERT INTO pairs VALUES (1, 0), (2, 0)")
    links = [Serializable(postgres_url) for _ in bodies]

    def add(link: Link, body: Callable[[Statements], None]) -> None:
        for _ in range(10):
            link.write(body)

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
def storm(url: str, table: str, turns: list[int]) -> Iterator[None]:
    """Foreign transactions that lock in the wrong order all the while, and take everything back."""
    ends = threading.Event()

    def lock() -> None:
        with closing(connect(url)) as connection, closing(connection.cursor()) as cursor:
            if kind_of(url) == "mariadb":  # otherwise it keeps all others from inserting, which is another story
                cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
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
    yield
    ends.set()
    for thread in threads:
        thread.join()


async def test_in_a_storm_of_deadlocks_every_call_ends_and_nothing_is_lost_or_done_twice(url: str) -> None:
    if kind_of(url) == "postgres":
        execute(url, f"ALTER DATABASE {urlsplit(url).path[1:]} SET deadlock_timeout = '20ms'")
    rig = Rig(url)
    async with rig.scheduler:
        ids = await rig.add(20)
        table = DAILY.table(APP, int(time.time() * 1000) // DAY_MS)
        before, turns = deadlocks(url), [0]
        with storm(url, table, turns):
            until_s = time.monotonic() + 2
            while time.monotonic() < until_s:
                ids += await rig.add(150, "50ms")
                keyed = [NewJob(data=n, delay="50ms", idempotency_key=f"key-{turns[-1]}-{n}") for n in range(10)]
                ids += [accepted.id for accepted in await rig.scheduler.schedule_many(APP, keyed)]
                turns.append(turns[-1] + 1)
        await rig.done(ids)
        assert await asyncio.to_thread(deadlocks, url) - before >= 5, "it was one"
