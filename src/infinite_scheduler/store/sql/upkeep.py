"""Maintenance of a SQL store: tables ahead, retention, small tables kept small; in slices that never block the lane."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar, cast

from infinite_scheduler.errors import SchedulerError
from infinite_scheduler.model import DAY_MS, start_of
from infinite_scheduler.store.ownership import Upkeep
from infinite_scheduler.store.sql.rows import in_chunks
from infinite_scheduler.store.sql.statements import Body, Session
from infinite_scheduler.store.sql.tables import SqlApp, later_table, span_of
from infinite_scheduler.store.sql.upkeep_rows import FIRST, LAST, SLICE, UpkeepRows

T = TypeVar("T")

DAYS_AHEAD: Final = 2
SLICES: Final = 100
"""The most slices that delete something in one round, per app and shared table: about 100,000 rows."""

TOGETHER: Final = 24
"""Tables that are created at once: no other process can create any meanwhile."""

VERDICT_MS: Final = 3_600_000
"""Verdicts are kept this long; a caller waits for one only for seconds."""

IDLE_MS: Final = 3_600_000
"""A counter of what waits, which may be for a day far ahead, is folded when it was not written for this long."""

NODE_MS: Final = 3_600_000
"""A node that was silent for this long and owns nothing is deleted; if it is alive, its next heartbeat adds it."""


async def make_tables_ahead(session: Session, app: str, now_ms: int, days: int) -> list[str]:
    """Create the tables of an app for this many days from now, a few at a time. Returns the names of the new ones."""

    def missing(tx: UpkeepRows) -> list[str]:
        return list(tx.missing_ahead(app, now_ms, days))

    tables = await session.read(cast("Body[list[str]]", missing))
    for some in in_chunks(tables, TOGETHER):
        await session.write(cast("Body[None]", lambda tx, some=some: tx.make_tables(some)))
    return tables


class Maintainer:
    """One round of maintenance, as a series of short transactions.

    It searches without a lock for what can be deleted, then deletes by key, under the lock of at most one shard. Two
    rounds at once, of two nodes that both think that it is their turn, do no harm.
    """

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
        self._failed: SchedulerError | None = None  # the first error

    async def run(self) -> Upkeep:
        """Do what is due, for a short while at most. Errors are raised at the end, when all other parts have run."""
        made: list[str] = []
        dropped: list[str] = []
        infos = await self._reader.read(lambda tx: tx.read_apps())
        unused: Collection[str] = ()
        without_jobs: Collection[str] = ()
        with self._going_on():
            unused, without_jobs = await self._read(lambda tx: tx.idle_apps([info.name for info in infos]))
        for info in infos:
            if info.name in unused:
                continue
            self._slices = SLICES
            with self._going_on():
                made += [] if info.name in without_jobs else await self._make_tables(info.name)
            with self._going_on():
                dropped += await self._retire(info)
            with self._going_on():
                await self._prune_later(info.name)
            with self._going_on():
                await self._prune_entries(info.name)
        for step in (
            self._prune_attempts,
            self._prune_keys,
            self._prune_letters,
            self._prune_audit,
            self._prune_verdicts,
            self._prune_counters,
            self._forget_nodes,
        ):
            self._slices = SLICES
            with self._going_on():
                await step()
        if self._failed is not None:
            raise self._failed
        return Upkeep(made=tuple(made), dropped=tuple(dropped), rows_pruned=self._pruned)

    async def nonces(self) -> frozenset[str]:
        """The nonces that are still in use."""
        return await self._read(lambda tx: tx.known_nonces())

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """Run a part of the round: if it fails, the error is remembered, and the round goes on."""
        try:
            yield
        except SchedulerError as error:
            self._failed = self._failed or error

    async def _write(self, step: Callable[[UpkeepRows], T]) -> T:
        return await self._session.write(cast("Body[T]", step))

    async def _read(self, step: Callable[[UpkeepRows], T]) -> T:
        return await self._reader.read(cast("Body[T]", step))

    async def _make_tables(self, app: str) -> list[str]:
        return await make_tables_ahead(self._session, app, self._now_ms, DAYS_AHEAD)

    async def _retire(self, info: SqlApp) -> list[str]:
        """Delete jobs that ended longer ago than the retention, and tables of periods with no jobs left."""
        app, dropped = info.name, []
        for period in await self._read(lambda tx: tx.old_periods(app, self._old_ms)):
            table = span_of(info.span).table(app, period)
            with self._going_on():
                await self._prune_jobs(table, LAST)
                if await self._write(lambda tx, at=period: tx.drop_period(app, at, self._old_ms)):  # type: ignore[misc]
                    dropped.append(table)
        return dropped

    async def _prune_later(self, app: str) -> None:
        await self._prune_jobs(later_table(app), start_of(max(0, self._old_ms)))

    async def _prune_jobs(self, table: str, end: bytes) -> None:
        """Search for ended jobs outside the lane, and delete them in it."""
        start: bytes | None = FIRST
        found: bytes | None = None
        while start is not None and self._slices > 0:
            if found is None:
                found, start = await self._read(
                    lambda tx, at=start: tx.find_ended(table, at, end, self._old_ms)  # type: ignore[misc]
                )
            if found is not None:
                count, start = await self._write(
                    lambda tx, at=found: tx.prune_jobs(table, at, end, self._old_ms)  # type: ignore[misc]
                )
                self._spend(count)
                found = start if count > SLICE // 2 else None  # where many have ended, the next ones probably have too

    async def _prune_entries(self, app: str) -> None:
        start: bytes | None = FIRST
        while start is not None and self._slices > 0:
            stale, start = await self._read(lambda tx, at=start: tx.stale_entries(app, at))  # type: ignore[misc]
            count = 0
            for shard, entries in stale.items():
                count += await self._write(
                    lambda tx, shard=shard, entries=entries: tx.prune_entries(shard, entries)  # type: ignore[misc]
                )
            self._spend(count)

    async def _prune_attempts(self) -> None:
        start: bytes | None = FIRST
        while start is not None and self._slices > 0:
            gone, start = await self._read(
                lambda tx, at=start: tx.attempts_of_gone(at, max(0, self._old_ms))  # type: ignore[misc]
            )
            if gone:
                self._spend(await self._write(lambda tx, gone=gone: tx.delete_attempts(gone)))  # type: ignore[misc]

    async def _prune_keys(self) -> None:
        count = SLICE
        while count == SLICE and self._slices > 0:
            count = await self._write(lambda tx: tx.prune_keys(self._old_keys_ms))
            self._spend(count)

    async def _prune_letters(self) -> None:
        """Delete old dead letters; unsent ones stay, however old."""
        start: bytes | None = FIRST
        while start is not None and self._slices > 0:
            old, start = await self._read(
                lambda tx, at=start: tx.old_letters(at, max(0, self._old_ms))  # type: ignore[misc]
            )
            if old:
                self._spend(await self._write(lambda tx, old=old: tx.delete_letters(old)))  # type: ignore[misc]

    async def _prune_audit(self) -> None:
        count = SLICE
        while count == SLICE and self._slices > 0:
            count = await self._write(lambda tx: tx.prune_audit(max(0, self._old_ms)))
            self._spend(count)

    async def _prune_verdicts(self) -> None:
        count = SLICE
        while count == SLICE and self._slices > 0:
            old = await self._read(lambda tx: tx.old_decisions(self._now_ms - VERDICT_MS))
            count = len(old)
            if old:
                self._spend(await self._write(lambda tx, old=old: tx.delete_decisions(old)))  # type: ignore[misc]

    async def _prune_counters(self) -> None:
        """Fold counters that are not written any more into one row each; delete old ones."""
        today, before = self._now_ms // DAY_MS, self._old_ms // DAY_MS
        for step in (
            lambda tx: tx.delete_counters(before),
            lambda tx: tx.fold_counters(today, self._now_ms - IDLE_MS),
        ):
            count = SLICE
            while count == SLICE and self._slices > 0:
                count = await self._write(step)
                self._spend(count)

    async def _forget_nodes(self) -> None:
        silent = await self._read(lambda tx: tx.silent_nodes(self._now_ms - NODE_MS))
        if silent:
            self._spend(await self._write(lambda tx: tx.delete_nodes(silent)))

    def _spend(self, count: int) -> None:
        self._slices -= count > 0
        self._pruned += count
