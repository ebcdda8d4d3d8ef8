"""Prepares a SQL store for nodes: its schema, the configured apps and their tables ahead."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from infinite_scheduler.store.cluster_state import AppInfo
from infinite_scheduler.store.scheme import Preparation
from infinite_scheduler.store.sql.schema import VERSION
from infinite_scheduler.store.sql.store import SqlStore


class PrepareReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was done."""

    store: str
    database_made: bool
    schema_before: int  # 0: there was none
    schema: int
    apps_made: Sequence[str]
    tables_made: Sequence[str]
    notes: Sequence[str] = ()


async def prepare(
    store: SqlStore, location: str, *, apps: Mapping[str, int | None], made: bool, days: int
) -> Preparation:
    """Open the store, which brings its schema up to date, make what is missing, and close it."""
    await store.open()
    try:
        known = {app.name for app in (await store.survey()).view.apps}
        infos = await store.register_all(apps)
        every = [app.name for app in (await store.survey()).view.apps]
        tables = [table for app in every for table in await store.make_tables_ahead(app, days)]
    finally:
        await store.close()
    report = PrepareReport(
        store=location,
        database_made=made,
        schema_before=store.schema_found,
        schema=VERSION,
        apps_made=[info.name for info in infos if info.name not in known],
        tables_made=tables,
        notes=[_note(info) for info in infos if info.kept],
    )
    done = list(_lines(report)) or [f"nothing to do: {location} is up to date"]
    return Preparation(done=done, notes=report.notes, data=msgspec.to_builtins(report))


def _note(info: AppInfo) -> str:
    span = info.kept["tables"]
    return f"app {info.name} keeps its {span} tables, since it was created with them; store.tables is for new apps"


def _lines(report: PrepareReport) -> Iterator[str]:
    if report.database_made:
        yield f"created the database {report.store}"
    if report.schema_before < report.schema:
        before = f", from version {report.schema_before}" if report.schema_before else ""
        yield f"brought the schema to version {report.schema}{before}"
    for app in report.apps_made:
        yield f"added the app {app}"
    if report.tables_made:
        first, last = report.tables_made[0], report.tables_made[-1]
        count = len(report.tables_made)
        yield f"created {count} tables, {first} to {last}" if count > 1 else f"created the table {first}"
