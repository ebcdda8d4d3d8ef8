"""Maintenance on a server: the table of a period is dropped as a whole, when all jobs in it ended long enough ago."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from infinite_scheduler.store.sql.database_thread import DatabaseThread
from infinite_scheduler.store.sql.server.table_maker import TableMaker
from infinite_scheduler.store.sql.statements import Session
from infinite_scheduler.store.sql.tables import SqlApp, span_of
from infinite_scheduler.store.sql.upkeep import Maintainer
from infinite_scheduler.store.sql.upkeep_rows import LAST, Blocker

AGAIN_MS: Final = 3_600_000
"""A table with a job that must stay is checked again after this: a check reads all of its keys."""


class OldTable(NamedTuple):
    """The table of a period that is over."""

    app: str
    period: int
    name: str


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about an old table since it was searched."""

    again_ms: int = 0  # when it is to be searched again
    revivals: Mapping[int, int] | None = None  # nothing in it was pending or new when these were all the revivals


class ServerMaintainer(Maintainer):
    """One round of maintenance on a server; `looks` are remembered from round to round."""

    def __init__(
        self, session: Session, tables: TableMaker, thread: DatabaseThread, looks: dict[OldTable, Look], **times: Any
    ) -> None:
        super().__init__(session, session, **times)
        self._tables = tables
        self._thread = thread
        self._looks = looks
        self._retention_ms = self._now_ms - self._old_ms

    async def _make_tables(self, app: str) -> list[str]:
        return await super()._make_tables(app) if self._tables.allowed else []

    async def _retire(self, info: SqlApp) -> list[str]:
        dropped = []
        for table in await self._old_tables(info):
            if self._looks.get(table, Look()).again_ms > self._now_ms:
                continue
            with self._going_on():
                if not self._tables.allowed:
                    await self._prune_period(table)
                elif await self._drop(table):
                    self._looks.pop(table, None)
                    dropped.append(table.name)
        return dropped

    async def _old_tables(self, info: SqlApp) -> Sequence[OldTable]:
        """The tables of an app that may be old enough to drop; what is known about others is forgotten."""
        app, span = info.name, span_of(info.span)
        periods = await self._read(lambda tx: tx.old_periods(app, self._old_ms))
        found = [OldTable(app, period, span.table(app, period)) for period in periods]
        for table in {table for table in self._looks if table.app == app}.difference(found):
            del self._looks[table]
        return found

    async def _drop(self, table: OldTable) -> bool:
        """Search the table without a lock, unless that was done; then drop it, or leave it for later."""
        app, period, name = table
        revivals = self._looks.get(table, Look()).revivals
        if revivals is None:
            revivals = await self._read(lambda tx: tx.revivals(app))
            blocker = await self._blocker(name)
            if blocker is not None:
                await self._put_off(table, blocker)
                return False
            self._looks[table] = Look(revivals=revivals)
        asked = await self._read(lambda tx: tx.may_drop(app, period, self._old_ms, revivals))
        if not asked:
            self._looks.pop(table)
            return False
        return await self._thread.do(
            partial(self._tables.drop, name, lambda tx: tx.may_drop(app, period, self._old_ms, revivals))
        )

    async def _blocker(self, table: str) -> Blocker | None:
        """A job because of which the table must stay; the newest keys are the most likely."""
        found: Blocker | None = None
        below: bytes | None = LAST
        while below is not None and found is None:
            found, below = await self._read(
                lambda tx, at=below: tx.unsettled(table, at, self._old_ms)  # type: ignore[misc]
            )
        return found

    async def _put_off(self, table: OldTable, blocker: Blocker) -> None:
        """Wait for a job that ended lately; a pending one may stay for months, so the others are deleted without it."""
        if blocker.finished_ms is None:
            await self._prune_period(table)
        else:
            again_ms = min(self._now_ms + AGAIN_MS, blocker.finished_ms + self._retention_ms + 1)
            self._looks[table] = Look(again_ms=again_ms)

    async def _prune_period(self, table: OldTable) -> None:
        await self._prune_jobs(table.name, LAST)
        if self._slices > 0:  # there was time for all of it
            self._looks[table] = Look(again_ms=self._now_ms + AGAIN_MS)
