"""Connections that end, hang or lose an answer while a node works: nothing is lost, and nothing is done twice."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from pymysql.constants import COMMAND

from infinite_scheduler.config import load_settings
from infinite_scheduler.errors import StoreBusy, StoreUnavailable
from infinite_scheduler.observe.events import LeaseLapsed, StoreAway, StoreBack
from infinite_scheduler.store.sql.limits import SqlLimits
from infinite_scheduler.store.sql.server.drivers import server_driver
from infinite_scheduler.store.sql.server.lock_wait import LockWait
from infinite_scheduler.store.sql.server.session import Link
from infinite_scheduler.store.sql.server.table_maker import TableMaker
from infinite_scheduler.store.sql.statements import Statements
from tests.servers.node_rig import APP, NodeRig, overdue
from tests.servers.proxy import Proxy, proxied
from tests.services.databases import connect, execute, kill_connections, kind_of
from tests.waiting import PATIENCE_S, until_async

LONG_ANSWER: dict[str, Any] = {
    "postgres": b"SELECT repeat('x', 8000) FROM generate_series(1, 4000)",
    "mariadb": "SELECT REPEAT('x', 8000) FROM seq_1_to_4000",
}
"""More than is on its way before somebody reads it."""

HASTY = {"silence": "1500ms", "lock_wait": "1s"}
"""Gives a silent server up sooner."""


def commit_of(url: str) -> bytes:
    """A commit as it goes over the wire: other statements have the word in them, too."""
    return b"\x03COMMIT" if kind_of(url) == "mariadb" else b"COMMIT\x00"


@pytest.fixture
def way(url: str) -> Iterator[tuple[Proxy, str]]:
    with proxied(url) as way:
        yield way


# Killed


async def test_idle_connections_that_were_killed_are_replaced_without_a_word(rig: NodeRig, url: str) -> None:
    await rig.done(first := await rig.add(20))
    kill_connections(url)
    second = await rig.add(20)  # no error reaches the caller
    await rig.done([*first, *second])
    assert not rig.told(LeaseLapsed)


async def test_connections_that_are_killed_again_and_again_lose_and_repeat_nothing(rig: NodeRig, url: str) -> None:
    ids: list[str] = []
    for _ in range(8):
        ids += await rig.add(50, "20ms")
        await asyncio.to_thread(kill_connections, url)
    await rig.done(ids)
    assert len(rig.deliveries) == len(ids) == 400


# A lost answer


@pytest.mark.parametrize("round_", range(4))
async def test_an_insert_whose_answer_is_lost_happens_once(way: tuple[Proxy, str], round_: int) -> None:
    proxy, address = way
    rig = NodeRig(address)
    async with rig.scheduler:
        await rig.done(first := await rig.add(1))
        await rig.scheduler.pause(APP)
        proxy.cut_after(commit_of(address))
        second = await rig.add(50, "1h")
        await until_async(lambda: not proxy.waits_to_cut, "the connection is cut")
        assert len(second) == 50
        assert await rig.statuses() == {"done": len(first), "pending": 50}


async def test_answers_that_are_lost_while_a_node_works_lose_and_repeat_nothing(way: tuple[Proxy, str]) -> None:
    proxy, address = way
    rig = NodeRig(address)
    async with rig.scheduler:
        ids: list[str] = []
        for _ in range(10):
            ids += await rig.add(20, "30ms")
            proxy.cut_after(commit_of(address))  # whoever commits next: a door, a lane, a heartbeat
            await until_async(lambda: not proxy.waits_to_cut, "the connection is cut")
        await rig.done(ids)
        await until_async(lambda: proxy.cuts == 10, "the last connection is cut")
        assert len(rig.deliveries) == len(ids) == 200


def test_a_commit_without_an_answer_is_unknown_and_is_not_sent_again(way: tuple[Proxy, str], url: str) -> None:
    execute(url, "CREATE TABLE notes (n INT)")
    proxy, address = way
    link = linked(address)
    proxy.cut_after(commit_of(address))
    with pytest.raises(StoreUnavailable, match="it is unknown whether it took place"):
        link.write(lambda tx: tx.cursor.execute("INSERT INTO notes VALUES (1)"))  # type: ignore[attr-defined]
    link.close()
    assert execute(url, "SELECT COUNT(*) FROM notes") == [(1,)]


def linked(address: str, **settings: str) -> Link:
    """A connection under these settings of the store."""
    options = load_settings(overrides={"store": {"url": address, **settings}}).store.options
    driver = server_driver(address, SqlLimits.of(options))
    TableMaker(driver, allowed=True).migrate()
    return Link(driver, TableMaker(driver, allowed=True), "p")


# A network that swallows everything


def test_a_call_into_silence_ends(way: tuple[Proxy, str]) -> None:
    proxy, address = way
    link = linked(f"{address}&connect_timeout=2", **HASTY)
    link.write(lambda tx: tx.read_apps())
    proxy.fall_silent()
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="does not answer"):
        link.write(lambda tx: tx.read_apps())
    assert time.monotonic() - began < 1.5 + 2 + 4
    proxy.speak()
    assert link.write(lambda tx: tx.read_apps()) == []
    link.close()


async def test_a_node_that_is_cut_off_stops_firing_and_goes_on_when_the_way_is_free(way: tuple[Proxy, str]) -> None:
    proxy, address = way
    rig = NodeRig(f"{address}&connect_timeout=2", node={"lease": "2s", "heartbeat": "400ms"}, store=HASTY)
    async with rig.scheduler:
        first = await rig.add(20)
        await rig.done(first)
        later = await rig.load(20, "5s")
        proxy.fall_silent()
        await until_async(lambda: bool(rig.told(LeaseLapsed)), "the lease lapses")
        before = len(rig.deliveries)  # those due later, too, where the machine was slower than they
        await until_async(lambda: bool(rig.told(StoreAway)), "the node says that the store is away")
        await overdue(later)  # and they must not fire: another node may own them
        assert len(rig.deliveries) == before
        proxy.speak()
        await rig.done([*first, *later])
        assert rig.told(StoreBack)


async def test_a_node_that_is_cut_off_can_be_stopped(way: tuple[Proxy, str]) -> None:
    proxy, address = way
    node = {"stop_timeout": "1s", "heartbeat": "400ms", "lease": "2s"}
    rig = NodeRig(f"{address}&connect_timeout=2", node=node, store=HASTY)
    await rig.scheduler.start()
    await rig.done(await rig.add(5))
    proxy.fall_silent()
    began = time.monotonic()
    assert not await rig.scheduler.stop()
    assert time.monotonic() - began < 15


def test_dead_connections_are_noticed_by_the_kernel(url: str) -> None:
    """What no proxy can show: a machine that is gone acknowledges nothing."""
    connection = server_driver(f"{url}?sslmode=disable").connect()
    number = connection.fileno() if kind_of(url) == "postgres" else connection._sock.fileno()  # type: ignore[attr-defined]
    with closing(socket.fromfd(number, socket.AF_INET, socket.SOCK_STREAM)) as sock:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 15_000
    connection.close()


# Somebody else's locks


async def test_transactions_that_lock_in_opposite_order_all_get_through(url: str) -> None:
    execute(url, "CREATE TABLE pairs (id INT PRIMARY KEY, n INT)")
    execute(url, "INSERT INTO pairs VALUES (1, 0), (2, 0)")
    if kind_of(url) == "postgres":  # which looks for deadlocks once a second otherwise
        execute(url, f"ALTER DATABASE {urlsplit(url).path[1:]} SET deadlock_timeout = '20ms'")
    links = [linked(url) for _ in range(2)]

    def add(order: tuple[int, int]) -> None:
        def body(tx: Statements) -> None:
            for number in order:
                tx.cursor.execute(f"UPDATE pairs SET n = n + 1 WHERE id = {number}")  # type: ignore[attr-defined]
                time.sleep(0.002)

        link = links[order[0] - 1]
        for _ in range(8):
            link.write(body)

    await asyncio.gather(asyncio.to_thread(add, (1, 2)), asyncio.to_thread(add, (2, 1)))
    assert execute(url, "SELECT n FROM pairs") == [(16,), (16,)]
    for link in links:
        link.close()


async def test_a_frozen_transaction_that_holds_a_shard_is_ended_by_the_server(url: str) -> None:
    """The lock of a process that is frozen in the middle: after a while of idleness the server gives it to others."""
    async with NodeRig(url).scheduler:
        pass
    frozen, other = linked(url, idle_in_transaction="1s"), linked(url)
    has_it, may_go_on = threading.Event(), threading.Event()
    tries: list[int] = []

    def lock(tx: Statements) -> int:
        shards = [row.shard for row in tx.read_shards()]
        return len(tx.lock_shards(shards, exclusive=True))

    def freeze(tx: Statements) -> None:
        tries.append(lock(tx))
        has_it.set()
        may_go_on.wait(PATIENCE_S)
        tx.read_apps()

    freezing = asyncio.create_task(asyncio.to_thread(frozen.write, freeze))
    assert await asyncio.to_thread(has_it.wait, PATIENCE_S)
    assert await asyncio.to_thread(other.write, lock) == 4
    assert tries == [4], "it is still frozen"
    may_go_on.set()
    other.close()
    await freezing
    assert tries == [4, 4], "it has begun anew, with the lock"
    frozen.close()


def in_a_copy(connection: Any) -> None:
    connection.pgconn.exec_(b"COPY pairs FROM STDIN")
    connection.pgconn.put_copy_data(b"3\t0\n")
    connection.pgconn.flush()


def in_a_statement(connection: Any) -> None:
    with closing(socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM)) as wire:
        parse = b"\0SELECT 1\0\0\0"
        wire.sendall(b"P" + (len(parse) + 4).to_bytes(4, "big") + parse)
        wire.sendall(b"B" + (100_000).to_bytes(4, "big") + bytes(5_000))


def in_a_pipeline(connection: Any) -> None:
    """A message without an answer: the session still counts as idle, but the timer for idle transactions is off."""
    with closing(socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM)) as wire:
        wire.sendall(b"H" + (4).to_bytes(4, "big"))


def in_an_answer(connection: Any) -> None:
    if isinstance(connection, psycopg.Connection):
        connection.pgconn.send_query(LONG_ANSWER["postgres"])
        connection.pgconn.flush()
    else:
        connection._execute_command(COMMAND.COM_QUERY, LONG_ANSWER["mariadb"])


@pytest.mark.parametrize("freeze", [in_a_copy, in_a_statement, in_a_pipeline, in_an_answer])
def test_a_process_that_is_frozen_in_the_middle_of_a_statement_does_not_keep_its_locks(
    postgres_url: str, freeze: Callable[[Any], None]
) -> None:
    """The server counts as idle only who is between two statements."""
    assert _written_beside_a_frozen_one(f"{postgres_url}?sslmode=disable", freeze) == [(1,)], "and its own is undone"


def test_a_process_that_is_frozen_in_the_middle_of_an_answer_does_not_keep_its_locks(mariadb_url: str) -> None:
    assert _written_beside_a_frozen_one(f"{mariadb_url}?sslmode=disable", in_an_answer) == [(1,)], "its own is undone"


def _written_beside_a_frozen_one(url: str, freeze: Callable[[Any], None]) -> Any:
    """What is in a row after somebody who froze with its lock, and somebody else, have each added one."""
    execute(url, "CREATE TABLE pairs (id INT PRIMARY KEY, n INT)")
    execute(url, "INSERT INTO pairs VALUES (1, 0), (2, 0)")
    link = linked(url, idle_in_transaction="1s")
    update = "UPDATE pairs SET n = n + 1 WHERE id = 1"
    driver = server_driver(
        url, SqlLimits.of(load_settings(overrides={"store": {"url": url, "idle_in_transaction": "1s"}}).store.options)
    )
    frozen: Any = driver.connect()
    cursor = frozen.cursor()
    driver.begin(cursor, LockWait(driver.waits.lock_s))
    cursor.execute(update)
    freeze(frozen)
    link.write(lambda tx: tx.cursor.execute(update))  # type: ignore[attr-defined]
    found = execute(url, "SELECT n FROM pairs WHERE id = 1")
    link.close()
    frozen.close()
    return found


def test_a_session_of_somebody_else_is_left_alone(postgres_url: str) -> None:
    execute(postgres_url, "CREATE TABLE pairs (id INT PRIMARY KEY, n INT)")
    link = linked(postgres_url, idle_in_transaction="1s", lock_wait="4s")
    with closing(connect(postgres_url)) as stranger, closing(stranger.cursor()) as cursor:
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO pairs VALUES (1, 0)")
        in_a_copy(stranger)
        with pytest.raises(StoreBusy):
            link.write(lambda tx: tx.cursor.execute("INSERT INTO pairs VALUES (1, 0)"))  # type: ignore[attr-defined]
        stranger.pgconn.put_copy_end()
        assert stranger.pgconn.get_result().error_message == b""
    link.close()


def test_a_long_answer_to_somebody_who_only_reads_is_left_alone(postgres_url: str) -> None:
    execute(postgres_url, "CREATE TABLE pairs (id INT PRIMARY KEY, n INT)")
    link = linked(postgres_url, idle_in_transaction="1s", lock_wait="4s")
    reader: Any = server_driver(postgres_url).connect()
    in_an_answer(reader)
    with closing(connect(postgres_url)) as stranger, closing(stranger.cursor()) as cursor:
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO pairs VALUES (1, 0)")
        with pytest.raises(StoreBusy):
            link.write(lambda tx: tx.cursor.execute("INSERT INTO pairs VALUES (1, 0)"))  # type: ignore[attr-defined]
    rows = reader.pgconn.get_result()
    assert (rows.error_message, rows.ntuples) == (b"", 4000)
    reader.close()
    link.close()


async def test_a_lock_that_somebody_keeps_is_named(url: str) -> None:
    execute(url, "CREATE TABLE pairs (id INT PRIMARY KEY, n INT)")
    execute(url, "INSERT INTO pairs VALUES (1, 0)")
    link = linked(url, lock_wait="700ms")  # servers count whole seconds
    update = "UPDATE pairs SET n = n + 1"
    with closing(connect(url)) as stranger, closing(stranger.cursor()) as cursor:
        cursor.execute("BEGIN")
        cursor.execute(update)
        with pytest.raises(
            StoreBusy, match=r"waited 1 s for locks of other transactions .*(pg_stat_activity|innodb_trx)"
        ):
            link.write(lambda tx: tx.cursor.execute(update))  # type: ignore[attr-defined]
        cursor.execute("ROLLBACK")
    link.write(lambda tx: tx.cursor.execute(update))  # type: ignore[attr-defined]
    assert execute(url, "SELECT n FROM pairs") == [(1,)]
    link.close()
