"""What psycopg writes by itself about a connection that is lost: an operator sees the store's own words only."""

import itertools
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from infinite_scheduler.errors import StoreUnavailable
from infinite_scheduler.store.sql.statements import Statements
from tests.servers.test_lost_connections import linked

PIPELINE = 3000
"""More statements than are on their way at once: the connection is lost in the middle, and once more at the end."""

CLOSED_AMID_A_LOSS = """
import asyncio, sys
from infinite_scheduler import Client, StoreUnavailable
from tests.servers.test_psycopg_log import lose_the_connection

async def main():
    client = await Client(sys.argv[1]).open()
    lost = asyncio.create_task(client._store._door.write(lose_the_connection))
    await asyncio.sleep(0)
    await client.close()
    try:
        await lost
    except StoreUnavailable:
        print("lost")

asyncio.run(main())
"""


def lose_the_connection(tx: Statements) -> None:
    kill_within_a_pipeline(tx.cursor)  # type: ignore[attr-defined]


def kill_within_a_pipeline(cursor: Any) -> None:
    """Let the server end this connection while statements are on their way."""
    ((pid,),) = cursor.execute("SELECT pg_backend_pid()").fetchall()
    cursor.executemany("SELECT pg_terminate_backend(%s)", [(pid,)] * PIPELINE)


def lines_of(caplog: pytest.LogCaptureFixture) -> set[tuple[str, str]]:
    return {(line.name, line.levelname) for line in caplog.records if "error ignored" in line.getMessage()}


def losses(caplog: pytest.LogCaptureFixture) -> Iterator[int]:
    """Lose connections until there is a line about one: if all answers came before the end, there is none."""
    return itertools.takewhile(lambda _: not lines_of(caplog), range(20))


def test_a_connection_that_is_killed_at_a_close_leaves_nothing_on_standard_error(postgres_url: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CLOSED_AMID_A_LOSS, postgres_url], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "lost\n"
    assert ended.stderr == ""


def test_lines_of_psycopg_about_our_connections_are_for_debugging(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    link = linked(postgres_url)
    caplog.set_level(logging.DEBUG, "infinite_scheduler.store")
    for _ in losses(caplog):
        with pytest.raises(StoreUnavailable):
            link.write(lose_the_connection)
    link.close()
    assert lines_of(caplog) == {("infinite_scheduler.store", "DEBUG")}


def test_lines_of_psycopg_about_other_connections_are_left_alone(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    linked(postgres_url).close()
    for _ in losses(caplog):
        with psycopg.connect(postgres_url, autocommit=True) as theirs, pytest.raises(psycopg.OperationalError):
            kill_within_a_pipeline(theirs.cursor())
    assert lines_of(caplog) == {("psycopg", "WARNING")}
