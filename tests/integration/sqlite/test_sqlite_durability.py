"""A commit of SQLite is on the disk when it returns."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from infinite_scheduler.store.sql.sqlite.database import SqliteDatabase
from infinite_scheduler.store.sql.statements import Session, Statements
from infinite_scheduler.store.sql.upkeep_rows import UpkeepRows
from tests.integration.sqlite.refused_syncs import POSSIBLE
from tests.integration.sqlite.sqlite_file import opened, registered, said

FULL = 2


def pragma(name: str) -> Callable[[Statements], object]:
    def body(tx: Statements) -> object:
        assert isinstance(tx, UpkeepRows)
        tx.cursor.execute(f"PRAGMA {name}")
        return tx.cursor.fetchone()[0]

    return body


@pytest.mark.parametrize("inline", [False, True], ids=["threads", "inline"])
async def test_every_connection_that_writes_syncs_each_commit(path: Path, inline: bool) -> None:
    database = SqliteDatabase(path, inline=inline)
    await database.open()
    for name in ("lane-0", "door", "heartbeat", "upkeep"):
        session: Session = database.session(name)
        assert await session.write(pragma("journal_mode")) == "wal"
        assert await session.write(pragma("synchronous")) == FULL, name
    await database.close()


async def test_the_connection_that_does_not_sync_cannot_write(database: SqliteDatabase) -> None:
    assert await database.session("reader").read(pragma("query_only")) == 1


@pytest.mark.skipif(not POSSIBLE, reason="needs a filter of system calls")
async def test_a_commit_that_the_disk_did_not_sync_is_not_acknowledged(
    path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """What waits for no sync would not notice that it fails."""
    await registered(database := await opened(path))
    await database.close()
    code = """
from tests.integration.sqlite.refused_syncs import refuse_syncs

async def main():
    database = SqliteDatabase(path)
    await database.open()
    session = database.session("door")
    await add(session, [new_row(), new_row()])  # what the beginning of a log syncs is not meant
    refuse_syncs()
    try:
        await add(session, [new_row()])
    except SchedulerError as error:
        print(type(error).__name__, error, flush=True)
    else:
        print("acknowledged", flush=True)
    os._exit(0)
asyncio.run(main())
"""
    answer = said(start(code, path))
    assert answer.startswith("StoreUnavailable")
    assert answer.endswith("it is unknown whether it took place")
