"""Fixtures of the tests of SQLite."""

import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from infinite_scheduler.store.sql.sqlite.database import SqliteDatabase
from infinite_scheduler.store.sql.statements import Session
from tests.integration.sqlite.sqlite_file import in_process, opened, registered


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def database(path: Path) -> AsyncIterator[SqliteDatabase]:
    database = await opened(path)
    yield database
    await database.close()


@pytest.fixture
async def session(database: SqliteDatabase) -> Session:
    return await registered(database)


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start processes that do not outlive the test."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]), prepend=os.pathsep)
    started: list[subprocess.Popen[str]] = []

    def begin(code: str, *arguments: object, **options: object) -> subprocess.Popen[str]:
        started.append(in_process(code, *arguments, **options))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()
