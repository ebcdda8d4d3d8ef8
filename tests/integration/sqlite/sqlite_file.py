"""A database of SQLite in a file, and processes that work on it."""

import subprocess
import sys
from pathlib import Path

from infinite_scheduler.model import DAY_MS
from infinite_scheduler.store.ownership import Upkeep
from infinite_scheduler.store.sql.sqlite.database import SqliteDatabase
from infinite_scheduler.store.sql.statements import Session
from infinite_scheduler.store.sql.tables import SqlApp
from tests.contract.test_statements import MAIL, NOW, SMS

WEEK_MS = 7 * DAY_MS
BOUND_S = 20


async def opened(path: Path | str) -> SqliteDatabase:
    database = SqliteDatabase(path)
    await database.open()
    return database


async def registered(database: SqliteDatabase) -> Session:
    session = database.session("door")
    for app in (SMS, MAIL):
        info = SqlApp(name=app, shards=4, paused=False, created_ms=NOW)
        await session.write(lambda tx, info=info: tx.insert_app(info, NOW))  # type: ignore[misc]
    return session


def in_process(code: str, *arguments: object, **options: object) -> subprocess.Popen[str]:
    """Run Python code in a process of its own; it says a line when it is ready."""
    command = [sys.executable, "-c", PRELUDE + code, *map(str, arguments)]
    return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.PIPE, text=True, **options
    )


PRELUDE = """
import asyncio, os, sys
from tests.contract.test_statements import *
from infinite_scheduler.errors import SchedulerError
from infinite_scheduler.store.sql.sqlite.database import SqliteDatabase
path = sys.argv[1]
"""


def said(process: subprocess.Popen[str]) -> str:
    """The next line of a process."""
    assert process.stdout
    line = process.stdout.readline()
    if not line and process.wait() and process.stderr:
        raise AssertionError(process.stderr.read())
    return line.strip()


async def maintained(database: SqliteDatabase, now_ms: int = NOW) -> Upkeep:
    return await database.maintain(now_ms=now_ms, retention_ms=WEEK_MS, idempotency_ms=DAY_MS)
