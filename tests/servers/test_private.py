"""What can only be done to a server of the test's own: restart it, freeze it, fill its disk, set its clock."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from infinite_scheduler.errors import SchedulerError, StoreBroken, StoreUnavailable
from infinite_scheduler.observe.events import ClockBack, ClockOff, LeaseLapsed, StoreAway, StoreBack
from infinite_scheduler.store.sql.server import mariadb, postgres
from tests.servers.rig import Rig, until
from tests.services import process
from tests.services.databases import connect, execute, fresh_database, limited_user
from tests.services.private import clocked_server, private_server
from tests.services.server import Kind, Server

pytestmark = [pytest.mark.servers, pytest.mark.timeout(180)]

SILENCE_S = 1.5


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
    rig = Rig(url)
    async with rig.scheduler:
        ids = await rig.add(300, "500ms") + await rig.add(300, "1500ms")
        await until(lambda: len(rig.deliveries) > 10, "they begin to fire")
        await asyncio.to_thread(server.restart, 1.0)
        ids += await _accepted(rig, 50)
        await rig.done(ids)
        assert rig.told(StoreAway)
        assert rig.told(StoreBack)
        assert not rig.told(LeaseLapsed)


async def _accepted(rig: Rig, count: int) -> list[str]:
    """Ask until the store answers, as a client would."""
    while True:
        try:
            return await rig.add(count)
        except StoreUnavailable:
            await asyncio.sleep(0.1)


@contextmanager
def frozen(server: Server) -> Iterator[None]:
    """The server's processes stand still: the kernel still takes what is sent to them."""
    assert server.pid
    pids = process.tree(server.pid)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres.Patient, "silence_s", SILENCE_S)
    monkeypatch.setattr(mariadb, "SILENCE_S", SILENCE_S)


@pytest.mark.usefixtures("hasty")
async def test_a_frozen_server_hangs_nobody(server: Server, url: str) -> None:
    rig = Rig(f"{url}?connect_timeout=2", node={"lease": "2s", "heartbeat": "400ms", "stop_timeout": "1s"})
    async with rig.scheduler:
        await rig.done(first := await rig.add(20))
        later = await rig.add(20, "4s")
        await asyncio.sleep(1)
        with frozen(server):
            began = time.monotonic()
            with pytest.raises(StoreUnavailable, match="does not answer"):
                await rig.scheduler.find("work")
            assert time.monotonic() - began < 10
            await until(lambda: bool(rig.told(LeaseLapsed)), "the lease lapses")
            assert len(rig.deliveries) == len(first)
        await rig.done([*first, *later])


@pytest.mark.usefixtures("hasty")
async def test_a_node_whose_server_is_frozen_can_be_stopped_and_another_one_refuses_to_start(
    server: Server, url: str
) -> None:
    rig = Rig(f"{url}?connect_timeout=2", node={"lease": "2s", "heartbeat": "400ms", "stop_timeout": "1s"})
    await rig.scheduler.start()
    await rig.done(await rig.add(5))
    with frozen(server):
        began = time.monotonic()
        assert not await rig.scheduler.stop(), "it could not release its shards"
        assert time.monotonic() - began < 15
        other = Rig(f"{url}?connect_timeout=2")
        with pytest.raises(StoreUnavailable):
            await other.scheduler.open()


async def test_a_server_that_takes_no_writes_for_a_while_costs_lateness_alone(server: Server, url: str) -> None:
    with limited_user(url) as limited:  # whoever may do everything may write even then
        async with Rig(url).scheduler:
            pass
        rig = Rig(limited, store={"ddl": False})
        async with rig.scheduler:
            await rig.done(first := await rig.add(10))
            later = await rig.add(10, "2s")
            _set_read_only(server, url, on=True)
            await until(lambda: bool(rig.told(StoreAway)), "the node says that it cannot write")
            with pytest.raises(StoreUnavailable, match="takes no writes"):
                await rig.add(1)
            assert len(await rig.statuses()) == 2
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
        limit = 10
    else:
        execute(url, "ALTER SYSTEM SET max_connections = 10")
        execute(url, "ALTER SYSTEM SET superuser_reserved_connections = 0")
        server.restart()
        limit = 10
    rig = Rig(url)
    async with rig.scheduler:
        await rig.done(first := await rig.add(5))
        taken: list[Any] = []
        with suppress(Exception):
            while len(taken) <= limit:
                taken.append(connect(url))
        other = Rig(url)
        with pytest.raises(StoreUnavailable, match=r"takes no connection at the moment.*([Tt]oo many|reserved)"):
            await other.scheduler.open()
        second = await rig.add(5)  # who is connected goes on
        for connection in taken:
            connection.close()
        await rig.done([*first, *second])
