"""Prepares a store: the database, its schema, the configured apps and their tables ahead."""

import asyncio
from collections.abc import Sequence

import msgspec

from infinite_scheduler.cli.output import Output
from infinite_scheduler.cli.place import Place
from infinite_scheduler.cli.presence import check_there, lack_of_store
from infinite_scheduler.client import store_limits
from infinite_scheduler.clock import SystemClock
from infinite_scheduler.config import Settings
from infinite_scheduler.errors import StoreMismatch
from infinite_scheduler.store import open_store, server_driver
from infinite_scheduler.store.base import AppInfo, StoreLimits
from infinite_scheduler.store.sql.schema import VERSION
from infinite_scheduler.store.sql.server.address import names_server
from infinite_scheduler.store.sql.store import SqlStore


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was done."""

    store: str
    database_made: bool
    schema_before: int  # 0: there was none
    schema: int
    apps_made: Sequence[str]
    tables_made: Sequence[str]
    notes: Sequence[str] = ()


def prepare_store(place: Place, *, create: bool, days: int) -> int:
    """Bring the store up to date, and say what was done."""
    settings = place.settings()
    report = asyncio.run(_prepare(settings, create=create, days=days))
    _show(report, Output(as_json=place.as_json))
    return 0


async def _prepare(settings: Settings, *, create: bool, days: int) -> Report:
    url = settings.store.address_url
    limits = msgspec.structs.replace(store_limits(settings), ddl=True)  # the setting is meant for nodes
    made = _make_database(settings, limits) if create else False
    if not (create or names_server(url)):
        check_there(settings)
    store = open_store(url, SystemClock(), limits)
    if not isinstance(store, SqlStore):
        raise StoreMismatch("this store needs no preparation")
    await store.open()
    try:
        known = {app.name for app in (await store.survey()).view.apps}
        infos = [await store.register(name, app.shards) for name, app in settings.apps.items()]
        apps = {app.name: app for app in (await store.survey()).view.apps}
        tables = [table for app in apps for table in await store.make_tables_ahead(app, days)]
        return Report(
            store=_place_of(url),
            database_made=made,
            schema_before=store.schema_found,
            schema=VERSION,
            apps_made=[info.name for info in infos if info.name not in known],
            tables_made=tables,
            notes=list(_notes(settings, infos)),
        )
    finally:
        await store.close()


def _make_database(settings: Settings, limits: StoreLimits) -> bool:
    """Create the database in the settings, unless it exists; a SQLite file is created by opening it."""
    url = settings.store.address_url
    if not names_server(url):
        return lack_of_store(settings) is not None
    driver = server_driver(url, limits)
    try:
        return driver.create_database()
    except driver.Error as error:
        raise driver.translated(error) from error


def _place_of(url: str) -> str:
    return server_driver(url).place if names_server(url) else url


def _notes(settings: Settings, infos: Sequence[AppInfo]) -> list[str]:
    """Where the store keeps what it has, although the settings say something else."""
    if "tables" not in settings.store.model_fields_set:
        return []
    wanted = settings.store.tables
    return [
        f"app {info.name} keeps its {info.span} tables, since it was created with them; store.tables is for new apps"
        for info in infos
        if info.span != wanted
    ]


def _show(report: Report, out: Output) -> None:
    if out.as_json:
        out.record(msgspec.to_builtins(report))
        return
    for line in _lines(report):
        out.say(line)
    for note in report.notes:
        out.note(note)


def _lines(report: Report) -> list[str]:
    lines: list[str] = []
    if report.database_made:
        lines.append(f"created the database {report.store}")
    if report.schema_before < report.schema:
        before = f", from version {report.schema_before}" if report.schema_before else ""
        lines.append(f"brought the schema to version {report.schema}{before}")
    lines += [f"added the app {app}" for app in report.apps_made]
    if report.tables_made:
        first, last = report.tables_made[0], report.tables_made[-1]
        count = len(report.tables_made)
        lines.append(f"created {count} tables, {first} to {last}" if count > 1 else f"created the table {first}")
    return lines or [f"nothing to do: {report.store} is up to date"]
