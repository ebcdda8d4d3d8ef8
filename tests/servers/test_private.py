"""What can only be done to a server of the test's own: restart it, freeze it, fill its disk, set its clock."""

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest

from infinite_scheduler.clock import SystemClock
from infinite_scheduler.errors import SchedulerError, StoreBroken, StoreUnavailable
from infinite_scheduler.ingest.request import make_spec
from infinite_scheduler.model import MAX_DUE_MS
from infinite_scheduler.observe.events import ClockBack, ClockOff, LeaseLapsed, StoreAway, StoreBack
from infinite_scheduler.store.sql.server.drivers import server_driver
from tests.servers.node_rig import APP, NodeRig, overdue
from tests.services import process
from tests.services.databases import connect, execute, fresh_database, limited_user
from tests.services.private import clocked_server, private_server, small_disk_server
from tests.services.server import Kind, Server
from tests.waiting import until_async

pytestmark = [pytest.mark.servers, pytest.mark.timeout(180)]

HASTY = {"silence": "1500ms", "lock_wait": "1s"}
"""Gives a silent server up sooner."""


@pytest.fixture(params=["mariadb", "postgres"])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def server(kind: Kind) -> Iterator[Server]:
    with private_server(kind) as server:
        yield server


@pytest.fixture
def url(kind: Kind, server: Server) -> Iterator[str]:
    with fresh_database(kind, server) as url:
        yield url


async def test_a_server_that_restarts_in_the_middle_of_a_batch_costs_lateness_alone(server: Server, url: str) -> None:
    rig = NodeRig(url, node={"lease": "1m"})
    async with rig.scheduler:
        ids = await rig.add(300, "500ms") + await rig.add(300, "1500ms")
        await until_async(lambda: len(rig.deliveries) > 10, "they begin to fire")
        await asyncio.to_thread(server.stop)
        await until_async(lambda: bool(rig.told(StoreAway)), "the node says that the store is away")
        await asyncio.to_thread(server.start)
        ids += await _accepted(rig, 50)
        await rig.done(ids)
        await until_async(lambda: bool(rig.told(StoreBack)), "the node says that the store is back")
        assert not rig.told(LeaseLapsed)


async def _accepted(rig: NodeRig, count: int) -> list[str]:
    """Ask until the store answers, as a client would."""
    while True:
        try:
            return await rig.add(count)
        except (StoreUnavailable, StoreBroken):
            await asyncio.sleep(0.1)


@contextmanager
def frozen(server: Server) -> Iterator[None]:
    """The server's processes stand still: the kernel still takes what is sent to them."""
    assert server.pid
    os.kill(server.pid, signal.SIGSTOP)  # at first, so that it starts no others
    pids = process.tree(server.pid)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


async def test_a_frozen_server_hangs_nobody(server: Server, url: str) -> None:
    node = {"lease": "2s", "heartbeat": "400ms", "stop_timeout": "1s"}
    rig = NodeRig(f"{url}?connect_timeout=2", node=node, store=HASTY)
    async with rig.scheduler:
        await rig.done(first := await rig.add(20))
        later = await rig.load(20, "6s")
        with frozen(server):
            rig.events.clear()
            began = time.monotonic()
            looking = asyncio.create_task(rig.scheduler.find("work"))
            await until_async(lambda: bool(rig.told(LeaseLapsed)), "the lease lapses")
            before = len(rig.deliveries)  # those due later, too, where the machine was slower than they
            assert "answer" in str(rig.told(LeaseLapsed)[0].error), "and the cause is known"  # type: ignore[attr-defined]
            with pytest.raises(StoreUnavailable, match="does not answer"):
                await looking
            assert time.monotonic() - began < 10
            await overdue(later)
            assert len(rig.deliveries) == before
        await rig.done([*first, *later])


async def test_a_node_whose_server_is_frozen_can_be_stopped_and_another_one_refuses_to_start(
    server: Server, url: str
) -> None:
    rig = NodeRig(f"{url}?connect_timeout=2", node={"lease": "2s", "heartbeat": "400ms", "stop_timeout": "1s"})
    await rig.scheduler.start()
    await rig.done(await rig.add(5))
    with frozen(server):
        began = time.monotonic()
        assert not await rig.scheduler.stop(), "it could not release its shards"
        assert time.monotonic() - began < 15
        other = NodeRig(f"{url}?connect_timeout=2")
        with pytest.raises(StoreUnavailable):
            await other.scheduler.open()


async def test_a_server_that_takes_no_writes_for_a_while_costs_lateness_alone(server: Server, url: str) -> None:
    with limited_user(url) as limited:  # whoever may do everything may write even then
        async with NodeRig(url).scheduler:
            pass
        rig = NodeRig(limited, store={"ddl": False})
        async with rig.scheduler:
            await rig.done(first := await rig.add(10))
            later = await rig.add(10, "2s")
            _set_read_only(server, url, on=True)
            await until_async(lambda: bool(rig.told(StoreAway)), "the node says that it cannot write")
            with pytest.raises(StoreUnavailable, match="takes no writes"):
                await rig.add(1)
            assert (await rig.statuses()).total() == 20, "it can be read"
            _set_read_only(server, url, on=False)
            await rig.done([*first, *later])


def _set_read_only(server: Server, url: str, *, on: bool) -> None:
    if server.kind == "mariadb":
        execute(url, f"SET GLOBAL read_only = {int(on)}")
    else:
        with closing(connect(url)) as connection:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute(f"ALTER SYSTEM SET default_transaction_read_only = {'on' if on else 'off'}")
            connection.execute("SELECT pg_reload_conf()")


async def test_a_full_server_is_tried_again(server: Server, url: str) -> None:
    if server.kind == "mariadb":
        execute(url, "SET GLOBAL max_connections = 10")
    rig = NodeRig(url)
    async with rig.scheduler:
        await rig.done(first := await rig.add(5))
        taken: list[Any] = []
        with suppress(Exception):
            while True:
                taken.append(connect(url))
        other = NodeRig(url)
        with pytest.raises(StoreUnavailable, match=r"takes no connection at the moment.*([Tt]oo many|reserved)"):
            await other.scheduler.open()
        second = await rig.add(5)  # who is connected goes on
        for connection in taken:
            connection.close()
        await rig.done([*first, *second])


async def test_large_payloads_go_through_a_small_max_allowed_packet() -> None:
    """What counts is bytes on the way: characters of four bytes, and signs that are written as two."""
    with private_server("mariadb") as server, fresh_database("mariadb", server) as url:
        execute(url, f"SET GLOBAL max_allowed_packet = {4 << 20}")
        rig = NodeRig(url)
        async with rig.scheduler:
            for text in ("\N{GRINNING FACE}" * 240_000, "'" * 1_000_000):
                payload = json.dumps(text, ensure_ascii=False).encode()
                spec = make_spec(APP, scheduled_ms=MAX_DUE_MS, absolute=True, payload=payload)
                accepted = await rig.scheduler.submit([spec] * 12)
                assert (await rig.scheduler.get(accepted[-1].id)).job.payload == payload


# Clocks


class SteppedClock(SystemClock):
    """A machine's clock that somebody sets."""

    offset_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.offset_ms


async def test_a_server_whose_clock_is_off_is_not_gone_by(kind: Kind) -> None:
    with clocked_server(kind) as (server, clock), fresh_database(kind, server) as url:
        rig = NodeRig(url, node={"heartbeat": "400ms", "lease": "5s"})
        async with rig.scheduler:
            first = await rig.add(5)
            await rig.done(first)
            soon = await rig.add(5, "3s")
            later = await rig.add(5, "30m")
            clock.set(3600)
            await until_async(lambda: bool(rig.told(ClockOff)), "the node says that the clocks differ")
            await until_async(lambda: rig.shards_owned == 0, "it gives its shards up")
            before = len(rig.deliveries)  # the next ones, too, where the machine was slower than they
            await overdue(soon)
            assert len(rig.deliveries) == before, "nothing fires while nobody knows what time it is"
            clock.set(0)
            await until_async(lambda: bool(rig.told(ClockBack)), "the node says that the clocks agree")
            await until_async(lambda: len(rig.deliveries) == 10, "what is due fires")
            assert {job for job, _ in rig.deliveries} == {*first, *soon}
            assert not rig.early
            assert set(later).isdisjoint({job for job, _ in rig.deliveries})


async def test_a_node_whose_clock_is_stepped_fires_nothing_early(kind: Kind) -> None:
    clock = SteppedClock()
    with private_server(kind) as server, fresh_database(kind, server) as url:
        rig = NodeRig(url, clock=clock, node={"heartbeat": "400ms", "lease": "5s"})
        async with rig.scheduler:
            await rig.done(first := await rig.add(5))
            later = await rig.add(5, "30m")
            clock.offset_ms = 3_600_000
            await until_async(lambda: bool(rig.told(ClockOff)), "the node says that the clocks differ")
            await asyncio.sleep(2)
            assert len(rig.deliveries) == len(first)
            clock.offset_ms = 0
            await until_async(lambda: bool(rig.told(ClockBack)), "the node says that the clocks agree")
            await until_async(lambda: rig.shards_owned == 4, "it owns its shards again")
            second = await rig.add(5)
            await until_async(lambda: len(rig.deliveries) == 10, "it goes on")
            assert {job for job, _ in rig.deliveries} == {*first, *second}
            assert set(later).isdisjoint({job for job, _ in rig.deliveries})


# No space left


async def test_a_full_disk_costs_lateness_alone(kind: Kind) -> None:
    with small_disk_server(kind, "300m") as (server, disk), fresh_database(kind, server) as url:
        await _fill_and_go_on(server, url, disk)


async def _fill_and_go_on(server: Server, url: str, disk: Path) -> None:
    rig = NodeRig(url)
    async with rig.scheduler:
        await rig.done(first := await rig.add(10))
        filler = disk / "filler"
        for block in (bytes(1 << 20), bytes(4096)):
            with filler.open("ab", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(block)
        noise = "".join(random.choices("0123456789abcdef", k=900_000))
        refused: SchedulerError | None = None
        added = 0
        while refused is None and added < 40:
            try:
                await rig.scheduler.schedule(APP, noise, delay="1h")
                added += 1
            except SchedulerError as error:
                refused = error
        died = isinstance(refused, StoreUnavailable)  # as MariaDB does when it cannot write its log
        if died:
            await until_async(lambda: server.pid is None, "the server has died")
        else:
            assert isinstance(refused, StoreBroken), "the disk is full, and nobody says so"
            assert "no space left" in str(refused)
        filler.unlink()
        if died:
            server.kill()  # to note down that it has ended
            await asyncio.to_thread(server.start)
        second = await _accepted(rig, 10)
        await until_async(lambda: {job for job, _ in rig.deliveries} == {*first, *second}, "it goes on")
        await rig.settled(20, pending=added)  # what was refused is not there, what was accepted is


def test_the_words_of_a_full_disk_are_understood() -> None:
    driver = server_driver("mariadb://u:p@127.0.0.1/db")
    for code, words in (
        (1114, "The table 'work_scheduled_jobs_later' is full"),
        (1021, "Disk full (/tmp/#sql)"),
        (3, 'Error writing file "./jobs/work_20261116.frm" (Errcode: 28 "No space left on device")'),
    ):
        error = driver.translated(pymysql.err.InternalError(code, words))
        assert isinstance(error, StoreBroken)
        assert "no space left" in str(error)
        assert words in str(error)
