"""Does the store exist? A command that finds none must not create one."""

import time
from contextlib import closing
from pathlib import Path
from typing import Final

from infinite_scheduler.client import store_limits
from infinite_scheduler.clock import SystemClock
from infinite_scheduler.config import Settings
from infinite_scheduler.errors import StoreMismatch, StoreUnavailable
from infinite_scheduler.store import server_driver
from infinite_scheduler.store.sql.schema import SCHEMA_TABLE
from infinite_scheduler.store.sql.server.address import names_server
from infinite_scheduler.store.sql.sqlite.database import MEMORY, is_store, path_of

MAKING_MS: Final = 2000
"""How long an empty file may take to become a store: a starting node creates one."""


def check_there(settings: Settings) -> None:
    """Raise unless there is a store, and say what creates it; nothing is created."""
    if (lack := lack_of_store(settings)) is not None:
        raise StoreUnavailable(
            f"the store does not exist yet: {lack}; check --store and --config. A node creates it when it starts "
            "(infinite-scheduler serve), and so does `schedule` with a configuration that names the app"
        )
    if (path := _file(settings)) is not None:
        _await_store(path)


def lack_of_store(settings: Settings) -> str | None:
    """What a store has that is missing; None: there is a store, or a file that may be one."""
    url = settings.store.address_url
    if names_server(url):
        return _lack_of_tables(url, settings)
    path = _file(settings)
    return None if path is None or path.exists() else f"there is no database {path}"


def _file(settings: Settings) -> Path | None:
    url = settings.store.address_url
    if names_server(url) or not url.startswith("sqlite:") or path_of(url) == MEMORY:
        return None
    return Path(path_of(url)).absolute()


def _lack_of_tables(url: str, settings: Settings) -> str | None:
    driver = server_driver(url, store_limits(settings))
    try:
        with closing(driver.connect()) as connection:
            tables = driver.dialect.tables(connection.cursor())
    except driver.Error as error:
        raise driver.translated(error) from error
    return None if SCHEMA_TABLE in tables else f"{driver.place} has no table {SCHEMA_TABLE}"


def _await_store(path: Path) -> None:
    clock = SystemClock()
    until_ms = clock.steady_ms() + MAKING_MS
    while not (found := is_store(str(path))):
        if found is False or clock.steady_ms() >= until_ms:
            raise StoreMismatch(f"{path} is not a store: it has no table {SCHEMA_TABLE}")
        time.sleep(0.01)
