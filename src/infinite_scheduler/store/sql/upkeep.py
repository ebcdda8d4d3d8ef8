"""Maintenance of a SQL store: tables ahead, retention, small tables kept small; in slices that never hold the lane."""

from collections.abc import Callable
from typing import Final, TypeVar, cast

from infinite_scheduler.model import DAY_MS, start_of
from infinite_scheduler.store.base import Upkeep
from infinite_scheduler.store.sql.statements import Body, Session
from infinite_scheduler.store.sql.tables import day_table, later_table
from infinite_scheduler.store.sql.upkeep_rows import SLICE, UpkeepRows

T = TypeVar("T")

DAYS_AHEAD: Final = 2
SLICES: Final = 100
"""The most slices that delete jobs in one round: about 100,000 rows."""

VERDICT_MS: Final = 3_600_000
"""Who waits for a verdict does so for seconds."""

NODE_MS: Final = 3_600_000
"""A node that was silent for so long and owns nothing is forgotten; if it lives, its next heartbeat says so."""

FIRST: Final = bytes(16)
LAST: Final = b"\xff" * 16


class Keeper:
    """One round of maintenance, one short transaction after the other."""

    def __init__(
        self, session: Session, reader: Session, *, now_ms: int, retention_ms: int, idempotency_ms: int
    ) -> None:
        self._session = session
        self._reader = reader
        self._now_ms = now_ms
        self._old_ms = now_ms - retention_ms
        self._old_keys_ms = now_ms - idempotency_ms
        self._slices = SLICES
        self._pruned = 0

    async def run(self) -> Upkeep:
        """Do what is due, at most a short while."""
        made: list[str] = []
        dropped: list[str] = []
        for info in await self._reader.read(lambda tx: tx.read_apps()):
            made += await self._make_tables(info.name)
            dropped += await self._retire_days(info.name)
            await self._prune_later(info.name)
            await self._prune_entries(info.name)
        await self._prune_attempts()
        await self._prune_keys()
        await self._prune_verdicts()
        await self._fold()
        return Upkeep(tables_made=tuple(made), tables_dropped=tuple(dropped), rows_pruned=self._pruned)

    async def nonces(self) -> frozenset[str]:
        """The nonces that are still named somewhere."""
        return await self._read(lambda tx: tx.known_nonces())

    async def _write(self, step: Callable[[UpkeepRows], T]) -> T:
        return await self._session.write(cast("Body[T]", step))

    async def _read(self, step: Callable[[UpkeepRows], T]) -> T:
        return await self._reader.read(cast("Body[T]", step))

    async def _make_tables(self, app: str) -> list[str]:
        today = self._now_ms // DAY_MS
        days = range(today, today + DAYS_AHEAD + 1)
        return list(await self._write(lambda tx: tx.make_day_tables(app, days)))

    async def _retire_days(self, app: str) -> list[str]:
        """Jobs go when they ended longer than the retention ago; the table of a day goes when no job is left in it."""
        dropped = []
        for day in await self._read(lambda tx: tx.old_days(app, self._old_ms)):
            await self._prune_jobs(day_table(app, day), LAST)
            if await self._write(lambda tx, day=day: tx.drop_day(app, day, self._old_ms)):  # type: ignore[misc]
                dropped.append(day_table(app, day))
        return dropped

    async def _prune_later(self, app: str) -> None:
        await self._prune_jobs(later_table(app), start_of(max(0, self._old_ms)))

    async def _prune_jobs(self, table: str, end: bytes) -> None:
        """Look for ended jobs beside the lane, and delete them in it."""
        start: bytes | None = FIRST
        while start is not None and self._slices > 0:
            found, start = await self._read(
                lambda tx, at=start: tx.find_ended(table, at, end, self._old_ms)  # type: ignore[misc]
            )
            if found is not None:
                count, start = await self._write(
                    lambda tx, at=found: tx.prune_jobs(table, at, end, self._old_ms)  # type: ignore[misc]
                )
                self._spend(count)

    async def _prune_entries(self, app: str) -> None:
        start: bytes | None = FIRST
        while start is not None and self._slices > 0:
            count, start = await self._write(lambda tx, at=start: tx.prune_entries(app, at))  # type: ignore[misc]
            self._spend(count)

    async def _prune_attempts(self) -> None:
        start: bytes | None = FIRST
        while start is not None and self._slices > 0:
            count, start = await self._write(
                lambda tx, at=start: tx.prune_attempts(at, max(0, self._old_ms))  # type: ignore[misc]
            )
            self._spend(count)

    async def _prune_keys(self) -> None:
        count = SLICE
        while count == SLICE and self._slices > 0:
            count = await self._write(lambda tx: tx.prune_keys(self._old_keys_ms))
            self._spend(count)

    async def _prune_verdicts(self) -> None:
        old = await self._read(lambda tx: tx.old_verdicts(self._now_ms - VERDICT_MS))
        if old:
            self._spend(await self._write(lambda tx: tx.delete_verdicts(old)))

    async def _fold(self) -> None:
        """Counters of past days become one row each; nodes that are long gone are forgotten."""
        today, before = self._now_ms // DAY_MS, self._old_ms // DAY_MS
        self._spend(await self._write(lambda tx: tx.fold_counters(today, before)))
        self._spend(await self._write(lambda tx: tx.forget_nodes(self._now_ms - NODE_MS)))

    def _spend(self, count: int) -> None:
        self._slices -= count > 0
        self._pruned += count
