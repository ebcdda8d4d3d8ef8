"""Statements that read pending jobs by position: their rows by key, and the entries of those that were moved."""

# ruff: noqa: S608 - table names come from checked app names, columns from this package

from collections.abc import Sequence
from typing import Any, Final

from infinite_scheduler.model import Job, shard_of
from infinite_scheduler.store.base import Scan
from infinite_scheduler.store.sql.job_rows import PENDING, JobRows, after, jobs_of
from infinite_scheduler.store.sql.tables import day_of, day_table, later_table, moved_table

STRIDE: Final = 2
"""So many rows for each job of a page are looked at in one statement."""

PAYLOAD: Final = 3
"""The place of the payload in `_job_columns`."""

BUDGET: Final = 20
"""So many rows for each job of a page are looked at in one call: a range of settled rows must not hold the lane."""


class Scans(JobRows):
    """Pending jobs by position."""

    def scan_rows(self, scan: Scan) -> tuple[Sequence[Job], bytes | None]:
        rows, end = self._scan_days(scan)
        later = later_table(scan.app)
        if self._has(later):
            others, others_end, _ = self._scan_table(later, scan, scan.start, scan.end, scan.limit, BUDGET * scan.limit)
            rows, end = _merged(rows, end, others, others_end, scan.limit)
        return jobs_of(scan.app, rows), end

    def _scan_days(self, scan: Scan) -> tuple[list[Any], bytes | None]:
        """The day tables one after the other, until the page is full."""
        rows: list[Any] = []
        budget = BUDGET * scan.limit
        first, last = day_of(scan.start), day_of(scan.end)
        for day in self._catalog.days(scan.app, self._cursor):
            if not first <= day <= last:
                continue
            found, end, looked = self._scan_table(
                day_table(scan.app, day), scan, scan.start, scan.end, scan.limit - len(rows), budget
            )
            rows += found
            budget -= looked
            if end is not None:
                return rows, end
            if rows and sum(len(row[PAYLOAD]) for row in rows) >= scan.room:
                return rows, _next(rows[-1][0], scan.end)
            if len(rows) >= scan.limit:
                return rows, _next(rows[-1][0], scan.end)
        return rows, None

    def _scan_table(
        self, table: str, scan: Scan, start: bytes, end: bytes, limit: int, budget: int
    ) -> tuple[list[Any], bytes | None, int]:
        """Pending rows of one table; the key up to which all were read, or None; how many rows were looked at."""
        select = (
            f"SELECT {self._job_columns} FROM {table} WHERE id >= ? AND id < ? AND status = '{PENDING}'"
            f"{self._filter(scan)} ORDER BY id LIMIT ?"
        )
        stride = f"SELECT id FROM {table} WHERE id >= ? AND id < ? ORDER BY id LIMIT 1 OFFSET ?"
        rows: list[Any] = []
        looked, room = 0, scan.room
        while True:
            ahead = self._select(stride, (start, end, STRIDE * scan.limit))
            bound = ahead[0][0] if ahead else end
            some, cut = self._select_some(select, (start, bound, limit - len(rows)), PAYLOAD, room)
            rows += some
            room -= sum(len(row[PAYLOAD]) for row in some)
            if cut or len(rows) >= limit:
                return rows, _next(rows[-1][0], end), looked
            if not ahead:
                return rows, None, looked
            start = bound
            looked += STRIDE * scan.limit
            if looked >= budget:
                return rows, bound, looked

    def _filter(self, scan: Scan) -> str:
        """Conditions on shard and priority; none when all shards of the app are asked for."""
        condition = ""
        if len(scan.shards) < self._shard_count(scan.app):
            condition += f" AND shard IN ({', '.join(str(int(shard)) for shard in sorted(scan.shards))})"
        if scan.priority is not None:
            condition += f" AND priority = {int(scan.priority)}"
        return condition

    def _shard_count(self, app: str) -> int:
        """How many shards the app has: fixed when it is made."""
        if app not in self._shards_of:
            rows = self._select("SELECT shards FROM scheduler_apps WHERE name = ?", (app,))
            if not rows:
                return 256
            self._shards_of[app] = rows[0][0]
        return self._shards_of[app]

    def scan_entries(self, scan: Scan) -> tuple[Sequence[tuple[bytes, Job]], bytes | None]:
        if not self._has(moved_table(scan.app)):
            return (), None
        found: list[tuple[bytes, Job]] = []
        start = scan.start
        for _ in range(BUDGET // STRIDE):
            entries, bound = self._entries(scan, start)
            found += self._pending(scan, entries)
            cut = scan.limit
            while 0 < cut < len(found) and found[cut][0] == found[cut - 1][0]:
                cut += 1  # one position is never split between pages
            if cut < len(found):
                return found[:cut], found[cut][0]
            if bound is None:
                return found, None
            start = bound
        return found, start

    def _entries(self, scan: Scan, start: bytes) -> tuple[list[Any], bytes | None]:
        """A stretch of entries, and where the next one begins."""
        size = STRIDE * scan.limit
        entries = self._select(
            f"SELECT position, id FROM {moved_table(scan.app)} WHERE position >= ? AND position < ?"
            " ORDER BY position, id LIMIT ?",
            (start, scan.end, size + 1),
        )
        if len(entries) <= size:
            return entries, None
        bound: bytes = entries[-1][0]
        return [entry for entry in entries if entry[0] < bound], bound

    def _pending(self, scan: Scan, entries: Sequence[Any]) -> list[tuple[bytes, Job]]:
        """Those entries whose rows are pending, in order."""
        wanted = [
            (place, key)
            for place, key in entries
            if shard_of(place) in scan.shards and scan.priority in (None, (place[7] >> 2) & 3)
        ]
        keys = {key for _, key in wanted}
        rows = self._read_by_key(scan.app, keys, self._job_columns, f" AND status = '{PENDING}'") if keys else []
        jobs = {job.key: job for job in jobs_of(scan.app, rows)}
        return [(place, jobs[key]) for place, key in wanted if key in jobs]

    def insert_entries(self, app: str, entries: Sequence[tuple[bytes, bytes]]) -> None:
        if entries:
            self._dialect.insert_many(self._cursor, moved_table(app), ("position", "id"), sorted(entries))

    def delete_entries(self, app: str, entries: Sequence[tuple[bytes, bytes]]) -> None:
        self._run_many(f"DELETE FROM {moved_table(app)} WHERE position = ? AND id = ?", sorted(entries))


def _merged(
    rows: list[Any], end: bytes | None, others: list[Any], others_end: bytes | None, limit: int
) -> tuple[list[Any], bytes | None]:
    """Two sources as one page: only up to where both were read."""
    bounds = [bound for bound in (end, others_end) if bound is not None]
    bound = min(bounds) if bounds else None
    if others:
        rows = sorted(rows + others)
    if bound is not None:
        rows = [row for row in rows if row[0] < bound]
    if len(rows) > limit:
        return rows[:limit], rows[limit][0]
    return rows, bound


def _next(key: bytes, end: bytes) -> bytes | None:
    """Where to go on after `key`; None when that is the end."""
    following = after(key)
    return following if following < end else None
