"""The rights that the page for operators grants are enough, and not more."""

import asyncio
import re
import secrets
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import psycopg
import pymysql
import pytest

from infinite_scheduler import Job, Scheduler
from infinite_scheduler.cli.run import run
from infinite_scheduler.clock import SystemClock
from infinite_scheduler.errors import StoreMismatch
from infinite_scheduler.model import DAY_MS, JobSpec
from infinite_scheduler.store import open_store
from infinite_scheduler.store.inbox import DeadLetter, LetterState, Move, Source, new_letter_id
from infinite_scheduler.store.sql.server.database import ServerDatabase
from infinite_scheduler.store.sql.server.drivers import server_driver
from tests.periods import DAY_S, await_a_whole
from tests.services.databases import execute, kill_connections, kind_of
from tests.snippets import ROOT
from tests.waiting import until_async

pytestmark = pytest.mark.servers
PAGE = (ROOT / "docs" / "how-to" / "servers.md").read_text(encoding="utf-8")
NAMES = ("scheduler_owner", "scheduler_node", "scheduler_reader")
REFUSED = (psycopg.errors.InsufficientPrivilege, pymysql.err.OperationalError)


class Roles(NamedTuple):
    """The same database as its three roles see it."""

    owner: str
    node: str
    reader: str


def grants(kind: str) -> list[str]:
    """The statements of the page, one a line."""
    found = re.search(rf'^```sql title="{kind}"\n(.*?)^```', PAGE, re.MULTILINE | re.DOTALL)
    assert found
    return found[1].strip().splitlines()


@pytest.fixture
def roles(url: str) -> Iterator[Roles]:
    parts, own = urlsplit(url), secrets.token_hex(4)
    kind = "mariadb" if kind_of(url) == "mariadb" else "postgresql"
    for statement in grants(kind):
        named = re.sub(r"\b(scheduler_[a-z]+)\b", rf"\1_{own}", statement)
        execute(url, re.sub(r"\bjobs\.\*", f"{parts.path[1:]}.*", named))
    places = [
        parts._replace(netloc=f"{name}_{own}:secret-{n}@{parts.hostname}:{parts.port}").geturl()
        for n, name in enumerate(NAMES, 1)
    ]
    yield Roles(*places)
    kill_connections(url)
    for name in reversed(NAMES):
        if kind == "postgresql":
            execute(url, f"DROP OWNED BY {name}_{own}")
        execute(url, f"DROP USER {name}_{own}")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text("def remind(job): ...\n", encoding="utf-8")
    path = tmp_path / "scheduler.toml"
    path.write_text('[apps.reminders]\nfunction = "tasks:remind"\nshards = 2\n', encoding="utf-8")
    return path


async def test_each_role_can_do_its_part_and_no_more(roles: Roles, config: Path) -> None:
    await_a_whole(DAY_S)
    command = ["migrate", "--config", str(config), "--store", roles.owner, "--days", "1"]
    assert await asyncio.to_thread(run, command) == 0
    fired: list[str] = []
    scheduler = Scheduler(roles.node, settings={"store.ddl": False})

    @scheduler.app("reminders")
    async def remind(job: Job) -> None:
        fired.append(job.id)

    async with scheduler:
        jobs = {(await scheduler.schedule("reminders", delay="0s")).id for _ in range(5)}
        await until_async(lambda: set(fired) >= jobs, "every job is handed over")
    today = f"reminders_scheduled_jobs_{datetime.now(UTC):%Y%m%d}"
    assert execute(roles.reader, f"SELECT COUNT(*) FROM {today}") == [(5,)]
    for place, statement in (
        (roles.reader, f"DELETE FROM {today}"),
        (roles.node, f"DROP TABLE {today}"),
        (roles.node, "CREATE TABLE mine (id INTEGER)"),
    ):
        with pytest.raises(REFUSED):
            execute(place, statement)
    await drop_as_owner(roles, today)


async def test_a_node_may_take_in_what_is_read_from_topics(roles: Roles, config: Path) -> None:
    command = ["migrate", "--config", str(config), "--store", roles.owner, "--days", "1"]
    assert await asyncio.to_thread(run, command) == 0
    clock = SystemClock()
    source, now_ms = Source("door", "jobs", 0), clock.wall_ms()
    spec = JobSpec(app="reminders", scheduled_ms=now_ms, payload=b"{}", idempotency_key="k")
    letter = DeadLetter(
        id=new_letter_id(now_ms),
        source=source,
        offset=1,
        key=None,
        value=b"{",
        headers=(),
        error="not JSON",
        failed_ms=now_ms,
        dlq_topic=None,
        state=LetterState.KEPT,
    )
    store = open_store(roles.node, clock, {"ddl": False})
    await store.open()
    inbox = store.inbox()
    await inbox.take([spec], [letter], [Move(source=source, seen=None, next=2)])
    await inbox.take([spec], [], [Move(source=source, seen=2, next=3)])
    assert (await inbox.replay(letter.id, spec)).repeated
    await store.close()
    assert execute(roles.reader, "SELECT state FROM scheduler_dead_letters") == [("replayed",)]


async def drop_as_owner(roles: Roles, table: str) -> None:
    later_ms = int(time.time() * 1000) + 10 * DAY_MS
    execute(roles.node, f"UPDATE scheduler_shards SET low_ms = {later_ms}, line_ms = {later_ms}")
    database = ServerDatabase(server_driver(roles.owner))
    await database.open()
    done = await database.maintain(now_ms=later_ms, retention_ms=7 * DAY_MS, idempotency_ms=DAY_MS)
    await database.close()
    assert table in done.dropped


async def test_a_process_that_shall_make_no_tables_makes_none_even_if_its_user_could(url: str) -> None:
    database = ServerDatabase(server_driver(url))
    await database.open()
    await database.close()
    store = open_store(url, SystemClock(), {"ddl": False})
    await store.open()
    with pytest.raises(StoreMismatch, match=r"store\.ddl is false"):
        await store.register("reminders")
    await store.close()
