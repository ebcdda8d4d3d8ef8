"""Statements that read pending jobs by position: their rows by key, and the entries of those that were moved."""

# ruff: noqa: S608 - table names come from checked app names, columns from this package

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import msgspec

from infinite_scheduler.model import Job, Status, priority_of, shard_of
from infinite_scheduler.store.ownership import Scan
from infinite_scheduler.store.sql.dialect import placeholders
from infinite_scheduler.store.sql.job_rows import PENDING, JobRows, after, jobs_of
from infinite_scheduler.store.sql.rows import RunAgain, in_chunks, padded
from infinite_scheduler.store.sql.statements import Head
from infinite_scheduler.store.sql.tables import later_table, moved_table

STRIDE: Final = 2
"""How many rows per job of a page one statement looks at."""

LEAST_STRIDE: Final = 2000
"""How many rows one statement of a small page looks at, if it may look at that many at all."""

PAYLOAD: Final = 3
"""The index of the payload in `_job_columns`."""

SIZE: Final = 10
"""The index of the payload's size after `_job_columns`."""

SMALL: Final = 8 << 10
"""Payloads up to this many bytes are read with their rows: a thousand of them are 8 MiB."""

MOST: Final = 1 << 30
"""As many jobs as a page has."""

BUDGET: Final = 20
"""How many rows per job of a page one call looks at: a range of settled rows must not block the lane."""


class Scans(JobRows):
    """Pending jobs by position."""

    _at_once: int = MOST  # jobs requested in one statement, adapted to the size of the last ones

    def scan_rows(self, scan: Scan) -> tuple[Sequence[Job], bytes | None]:
        rows, end = self._scan_periods(scan)
        later = later_table(scan.app)
        if self._has(later):
            read = msgspec.structs.replace(scan, end=end) if end is not None else scan
            others, others_end, _ = self._scan_table(later, read, BUDGET * scan.limit)
            rows, end = _merged(rows, end, others, others_end, scan)
        return jobs_of(scan.app, rows), end

    def apps_without_jobs(self, scans: Sequence[Scan]) -> Collection[str]:
        ranges = [
            (scan, table, "position" if table == moved_table(scan.app) else "id")
            for scan in scans
            for table in self._tables_of(scan)
        ]
        found: set[str] = set()
        mark = self._dialect.placeholder
        for some in in_chunks(ranges, self._dialect.ranges_at_once):
            text = " UNION ALL ".join(
                f"SELECT * FROM (SELECT '{scan.app}' FROM {table} WHERE {key} >= {mark} AND {key} < {mark} LIMIT 1)"
                f" AS range_{i}"
                for i, (scan, table, key) in enumerate(some)
            )
            # Not by `_select`, which keeps the texts: these are long, and hardly ever the same.
            self._cursor.execute(text, [key for scan, _, _ in some for key in (scan.start, scan.end)])
            found.update(app for (app,) in self._cursor.fetchall())
        return {scan.app for scan in scans if scan.app not in found}

    def _tables_of(self, scan: Scan) -> list[str]:
        """The tables in which the rows and entries of this range may be."""
        span = self._span(scan.app)
        first, last = span.period(scan.start), span.period(scan.end)
        tables = [span.table(scan.app, period) for period in self._periods(scan.app) if first <= period <= last]
        return [*tables, *filter(self._has, (later_table(scan.app), moved_table(scan.app)))]

    def _scan_periods(self, scan: Scan) -> tuple[list[Any], bytes | None]:
        """Read the tables of the periods one after the other, until the page is full."""
        rows: list[Any] = []
        budget = BUDGET * scan.limit
        span = self._span(scan.app)
        first, last = span.period(scan.start), span.period(scan.end)
        for period in self._periods(scan.app):
            if not first <= period <= last:
                continue
            found, end, looked = self._scan_table(span.table(scan.app, period), scan, budget, rows)
            rows += found
            budget -= looked
            if end is not None:
                return rows, end
            if len(rows) >= scan.limit or (rows and _weight(rows) >= scan.room):
                return rows, _next(rows[-1][0], scan.end)
        return rows, None

    def _scan_table(
        self, table: str, scan: Scan, budget: int, before: Sequence[Any] = ()
    ) -> tuple[list[Any], bytes | None, int]:
        """Pending rows of one table, as many as still fit into the page.

        Returns them; the key up to which all were read, or None; and how many rows were looked at.
        """
        condition, stride = self._filter(scan), self._stride(scan)
        rows: list[Any] = []
        start, end, looked = scan.start, scan.end, 0
        limit, room = scan.limit - len(before), scan.room - _weight(before)
        while True:
            bound, some, cut = self._read_some(table, condition, (start, end), (limit - len(rows), stride), room)
            rows += some
            room -= _weight(some)
            if cut or len(rows) >= limit:
                return rows, _next(rows[-1][0], end), looked
            if bound is None:
                return rows, None, looked
            start = bound
            looked += stride
            if looked >= budget:
                return rows, bound, looked

    def _stride(self, scan: Scan) -> int:
        """How many rows one statement looks at: more if most of them belong to other shards."""
        share = self._shape(scan.app)[0] // len(scan.shards)
        return min(BUDGET * scan.limit, max(STRIDE * max(1, share) * scan.limit, LEAST_STRIDE))

    def _read_some(
        self, table: str, condition: str, span: tuple[bytes, bytes], sizes: tuple[int, int], room: int
    ) -> tuple[bytes | None, list[Any], bool]:
        """Read jobs until their payloads exceed `room`, at least one, in pages of these sizes (`Dialect.read_page`).

        Returns where the page ends, the jobs, and whether there may be more before that.
        """
        if not self._dialect.streams:
            return self._read_fitting(table, condition, span, sizes, room)
        bound, found = self._dialect.read_page(self._cursor, table, self._job_columns, condition, span, *sizes)
        rows: list[Any] = []
        for row in found:
            rows.append(row)
            room -= len(row[PAYLOAD])
            if room <= 0:
                return bound, rows, True
        return bound, rows, False

    def _read_fitting(
        self, table: str, condition: str, span: tuple[bytes, bytes], sizes: tuple[int, int], room: int
    ) -> tuple[bytes | None, list[Any], bool]:
        """Like `_read_some`, for drivers that return whole results: large payloads are read only if they fit."""
        limit, most = sizes
        asked = min(limit, self._at_once)
        size, payload = self._dialect.payload_size, self._dialect.payload
        small = f"CASE WHEN {size} <= {SMALL} THEN {payload} END"
        columns = f"{self._job_columns.replace(payload, small)}, {size}"
        bound, found = self._dialect.read_page(self._cursor, table, columns, condition, span, asked, most)
        rows, left = _some(found, room)
        # A database reads a large payload even to tell its size: of those, ask for no more than may fit.
        average = (room - left) // len(rows) if rows else 0
        self._at_once = max(8, 2 * room // average) if average > SMALL else MOST
        return bound, self._filled(table, rows), bool(rows) and (left <= 0 or len(rows) == asked < limit)

    def _filled(self, table: str, rows: list[Any]) -> list[Any]:
        """These rows, with the payloads that were left out."""
        large = [row[0] for row in rows if row[PAYLOAD] is None]
        payloads: dict[bytes, bytes] = {}
        for chunk in in_chunks(large):
            some = padded(chunk)
            text = f"SELECT id, {self._dialect.payload} FROM {table} WHERE id IN ({placeholders(len(some))})"
            payloads.update(self._select(text, some))
        if len(payloads) < len(large):
            raise RunAgain  # one was deleted in between
        if not large:
            return rows
        return [(*row[:PAYLOAD], payloads.get(row[0], row[PAYLOAD]), *row[PAYLOAD + 1 :]) for row in rows]

    def _filter(self, scan: Scan) -> str:
        """Conditions on status, shard and priority; none on shards if all of the app are wanted."""
        condition = f"status = '{PENDING}'"
        if len(scan.shards) < self._shape(scan.app)[0]:
            condition += f" AND shard IN ({', '.join(str(int(shard)) for shard in sorted(scan.shards))})"
        if scan.priority is not None:
            condition += f" AND priority = {int(scan.priority)}"
        return condition

    def scan_entries(self, scan: Scan) -> tuple[Sequence[tuple[bytes, Job]], bytes | None]:
        if not self._has(moved_table(scan.app)):
            return (), None
        found: list[tuple[bytes, Head]] = []
        start = scan.start
        for _ in range(BUDGET // STRIDE):
            entries, bound = self._entries(scan, start)
            found += self._pending(scan, entries)
            cut = _cut(found, scan)
            if cut < len(found):
                return self._loaded(scan.app, found[:cut]), found[cut][0]
            if bound is None:
                return self._loaded(scan.app, found), None
            start = bound
        return self._loaded(scan.app, found), start

    def _entries(self, scan: Scan, start: bytes) -> tuple[list[Any], bytes | None]:
        """A range of entries, and where the next one begins."""
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

    def _pending(self, scan: Scan, entries: Sequence[Any]) -> list[tuple[bytes, Head]]:
        """Those entries whose rows are pending, in order, without payloads."""
        wanted = [
            (position, key)
            for position, key in entries
            if shard_of(position) in scan.shards and scan.priority in (None, priority_of(position))
        ]
        heads = {head.key: head for head in self.read_heads(scan.app, {key for _, key in wanted})}
        pending = [(position, heads[key]) for position, key in wanted if key in heads]
        return [(position, head) for position, head in pending if head.status is Status.PENDING]

    def _loaded(self, app: str, found: Sequence[tuple[bytes, Head]]) -> list[tuple[bytes, Job]]:
        """These entries with their jobs, except those that are no longer pending."""
        keys = {head.key for _, head in found}
        rows = self._read_by_key(app, keys, self._job_columns, f" AND status = '{PENDING}'")
        jobs = {job.key: job for job in jobs_of(app, rows)}
        return [(position, jobs[head.key]) for position, head in found if head.key in jobs]

    def insert_entries(self, app: str, entries: Sequence[tuple[bytes, bytes]]) -> None:
        if entries:
            self._dialect.insert_many(self._cursor, moved_table(app), ("position", "id"), sorted(entries))

    def delete_entries(self, app: str, entries: Sequence[tuple[bytes, bytes]]) -> None:
        self._delete_many(moved_table(app), ("position", "id"), sorted(entries))


def _some(found: Iterable[Any], room: int) -> tuple[list[Any], int]:
    """Rows as long as there is room for their payloads, at least one; and how much room is left."""
    rows: list[Any] = []
    for row in found:
        rows.append(row[:SIZE])
        room -= row[SIZE]
        if room <= 0:
            break
    return rows, room


def _cut(found: Sequence[tuple[bytes, Head]], scan: Scan) -> int:
    """How many of these make a page: one position is never split between two pages."""
    room = scan.room
    for i, (position, head) in enumerate(found):
        if i and (i >= scan.limit or room <= 0) and position != found[i - 1][0]:
            return i
        room -= head.size
    return len(found)


def _weight(rows: Sequence[Any]) -> int:
    """The bytes of payload in these rows."""
    return sum(len(row[PAYLOAD]) for row in rows)


def _merged(
    rows: list[Any], end: bytes | None, others: list[Any], others_end: bytes | None, scan: Scan
) -> tuple[list[Any], bytes | None]:
    """Merge two sources into one page, up to where both were read."""
    bounds = [bound for bound in (end, others_end) if bound is not None]
    bound = min(bounds) if bounds else None
    if others:
        rows = sorted(rows + others)
    if bound is not None:
        rows = [row for row in rows if row[0] < bound]
    if not others:
        return rows, bound
    room = scan.room
    for i, row in enumerate(rows):
        if i and (i >= scan.limit or room <= 0):
            return rows[:i], row[0]
        room -= len(row[PAYLOAD])
    return rows, bound


def _next(key: bytes, end: bytes) -> bytes | None:
    """Where to continue after `key`; None at the end."""
    following = after(key)
    return following if following < end else None
