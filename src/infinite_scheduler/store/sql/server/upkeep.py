"""Maintenance on a server: the table of a period goes whole, when all that is in it ended long enough ago."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import msgspec

from infinite_scheduler.store.base import AppInfo
from infinite_scheduler.store.sql.server.tables import TableMaker
from infinite_scheduler.store.sql.statements import Session
from infinite_scheduler.store.sql.tables import span_of
from infinite_scheduler.store.sql.upkeep import Keeper
from infinite_scheduler.store.sql.upkeep_rows import LAST, Blocker
from infinite_scheduler.store.sql.worker import Worker

AGAIN_MS: Final = 3_600_000
"""A table with a job that must stay is looked at again after this: a look reads all of its keys."""


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an old table since it was looked through."""

    again_ms: int = 0  # it need not be looked at before
    revivals: Mapping[int, int] | None = None  # nothing in it was pending or new when these were all the revivals


class ServerKeeper(Keeper):
    """One round of maintenance on a server; `looks` are remembered from round to round."""

    def __init__(
        self, session: Session, tables: TableMaker, worker: Worker, looks: dict[str, Look], **times: Any
    ) -> None:
        super().__init__(session, session, **times)
        self._tables = tables
        self._worker = worker
        self._looks = looks
        self._retention_ms = self._now_ms - self._old_ms

    async def _make_tables(self, app: str) -> list[str]:
        return await super()._make_tables(app) if self._tables.allowed else []

    async def _retire(self, info: AppInfo) -> list[str]:
        dropped = []
        for period in await self._read(lambda tx: tx.old_periods(info.name, self._old_ms)):
            table = span_of(info.span).table(info.name, period)
            if self._looks.get(table, Look()).again_ms > self._now_ms:
                continue
            if not self._tables.allowed:
                await self._prune_period(table)
            elif await self._drop(info.name, period, table):
                self._looks.pop(table, None)
                dropped.append(table)
        return dropped

    async def _drop(self, app: str, period: int, table: str) -> bool:
        """Look through the table beside everybody, if that was not done yet; then drop it, or leave it for later."""
        revivals = self._looks.get(table, Look()).revivals
        if revivals is None:
            revivals = await self._read(lambda tx: tx.revivals(app))
            blocker = await self._blocker(table)
            if blocker is not None:
                await self._put_off(table, blocker)
                return False
            self._looks[table] = Look(revivals=revivals)
        asked = await self._read(lambda tx: tx.may_drop(app, period, self._old_ms, revivals))
        if not asked:
            self._looks.pop(table)
            return False
        return await self._worker.do(
            partial(self._tables.drop, table, lambda tx: tx.may_drop(app, period, self._old_ms, revivals))
        )

    async def _blocker(self, table: str) -> Blocker | None:
        """A job for which the table must stay; the newest keys are the likeliest."""
        found: Blocker | None = None
        below: bytes | None = LAST
        while below is not None and found is None:
            found, below = await self._read(
                lambda tx, at=below: tx.unsettled(table, at, self._old_ms)  # type: ignore[misc]
            )
        return found

    async def _put_off(self, table: str, blocker: Blocker) -> None:
        """One that ended lately is waited for; one that is pending may be for months, so the others go without it."""
        if blocker.finished_ms is None:
            await self._prune_period(table)
        else:
            again_ms = min(self._now_ms + AGAIN_MS, blocker.finished_ms + self._retention_ms + 1)
            self._looks[table] = Look(again_ms=again_ms)

    async def _prune_period(self, table: str) -> None:
        await self._prune_jobs(table, LAST)
        if self._slices > 0:  # there was time for all of it
            self._looks[table] = Look(again_ms=self._now_ms + AGAIN_MS)
