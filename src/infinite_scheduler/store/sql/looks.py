"""Statements that look for jobs, at a bounded number of rows each; payloads are read only of what was found."""

# ruff: noqa: S608 - table names come from checked app names, columns from this package

from collections.abc import Sequence
from typing import Any, Final, assert_never

import msgspec

from infinite_scheduler.model import DAY_MS, Status, position, start_of
from infinite_scheduler.store.looking import Query
from infinite_scheduler.store.sql.dialect import TableSize
from infinite_scheduler.store.sql.job_rows import PENDING, WORDS, JobRows, after
from infinite_scheduler.store.sql.rows import where
from infinite_scheduler.store.sql.schema import ENDED_INDEX
from infinite_scheduler.store.sql.statements import DueCount, DueCounted, LookAt, Probe, Probed
from infinite_scheduler.store.sql.tables import later_table, moved_table

FEW: Final = 256
"""Entries or failures that one look goes through, if the page has fewer: the row of each is looked up by its key."""


COUNTED: Final = 100_000
"""Rows that one statement counts."""

MANY_MOVED: Final = 1024
"""Entries that are counted at a time."""

PENDING_JOBS: Final = Query(status=Status.PENDING)


class Looks(JobRows):
    """Jobs that meet conditions."""

    def look(self, probe: Probe) -> Probed:
        with self._dialect.by_index(self._cursor):
            match probe.at:
                case LookAt.ROWS:
                    return self._look_at_periods(probe)
                case LookAt.LATER:
                    return self._look_at_table(later_table(probe.app), probe)
                case LookAt.MOVED:
                    return self._look_at_moved(probe)
                case LookAt.ENDED:
                    return self._look_at_ended(probe)
                case _:
                    assert_never(probe.at)

    def count_due(self, wanted: DueCount) -> DueCounted:
        with self._dialect.by_index(self._cursor):
            if wanted.at is LookAt.MOVED:
                return self._count_moved(wanted)
            if wanted.at is LookAt.LATER:
                return self._count_in([(later_table(wanted.app), start_of(wanted.from_ms))], wanted)
            span = self._span(wanted.app)
            first, last = span.period_at(wanted.from_ms), span.period_at(wanted.end_ms)
            periods = [period for period in self._periods(wanted.app) if first <= period <= last]
            start = start_of(wanted.from_ms)
            tables = [(span.table(wanted.app, period), max(start, span.keys(period)[0])) for period in periods]
            return self._count_in(tables, wanted)

    def _count_in(self, tables: Sequence[tuple[str, bytes]], wanted: DueCount) -> DueCounted:
        """Count the rows of tables, one after the other, each from its first key, a few statements per table."""
        units: dict[int, int] = {}
        rows, end = 0, start_of(wanted.end_ms)
        for table, first in tables:
            left: bytes | None = first if self._has(table) else None
            while left is not None:
                if rows >= wanted.most:
                    return DueCounted(units=units, rows=rows, to_ms=int.from_bytes(left[:6], "big"))
                most = min(COUNTED, wanted.most - rows)
                probe = Probe(at=wanted.at, app=wanted.app, start=left, end=end, query=PENDING_JOBS, most=most, limit=1)
                bound, some = self._bound(table, probe)
                self._count_range(table, (left, bound or end), wanted, units)
                rows, left = rows + some, bound
        return DueCounted(units=units, rows=rows, to_ms=wanted.end_ms)

    def _count_range(self, table: str, span: tuple[bytes, bytes], wanted: DueCount, units: dict[int, int]) -> None:
        found = self._select(
            f"SELECT (due_ms - {wanted.start_ms:d}) {self._dialect.whole} {wanted.unit_ms:d} AS unit, COUNT(*)"
            f" FROM {table}{self._dialect.by_key} WHERE id >= ? AND id < ? AND status = '{PENDING}'"
            f" AND due_ms >= {wanted.start_ms:d} AND due_ms < {wanted.end_ms:d} GROUP BY unit",
            span,
        )
        for unit, jobs in found:
            units[unit] = units.get(unit, 0) + int(jobs)

    def _count_moved(self, wanted: DueCount) -> DueCounted:
        """Entries that lead to jobs which are not met by their keys."""
        table, start, end = moved_table(wanted.app), start_of(wanted.from_ms), start_of(wanted.end_ms)
        units: dict[int, int] = {}
        rows, at = 0, start
        while self._has(table):
            most = min(MANY_MOVED, wanted.most - rows)
            entries: list[tuple[bytes, bytes]] = self._select(
                f"SELECT position, id FROM {table} WHERE position >= ? AND position < ? ORDER BY position, id LIMIT ?",
                (at, end, most),
            )
            rows += len(entries)
            elsewhere = {(place, key) for place, key in entries if not start <= key < end}
            keys = {key for _, key in elsewhere}
            for key, due_ms in self._read_by_key(wanted.app, keys, "id, due_ms", f" AND status = '{PENDING}'"):
                if (position(key, due_ms), key) in elsewhere:
                    unit = (due_ms - wanted.start_ms) // wanted.unit_ms
                    units[unit] = units.get(unit, 0) + 1
            if len(entries) < most:
                break
            at = after(entries[-1][0])
            if rows >= wanted.most:
                return DueCounted(units=units, rows=rows, to_ms=int.from_bytes(at[:6], "big"))
        return DueCounted(units=units, rows=rows, to_ms=wanted.end_ms)

    def count_pending(self, table: str, days: dict[int, int]) -> None:
        """Add the pending jobs of a table to those of the days on which they are due.

        A range of keys at a time: with millions of rows, one statement would be silent for longer than is waited for.
        """
        by_key, at_once = self._dialect.by_key, self._dialect.counted_at_once
        start: bytes | None = None
        while True:
            condition, values = where({"id >= ?": start})
            ahead: list[Any] = []
            if at_once is not None:
                ahead = self._select(
                    f"SELECT id FROM {table}{by_key}{condition} ORDER BY id LIMIT 1 OFFSET {at_once:d}", values
                )
            end = ahead[0][0] if ahead else None
            condition, values = where({"status = ?": PENDING, "id >= ?": start, "id < ?": end})
            found = self._select(
                f"SELECT due_ms {self._dialect.whole} {DAY_MS} AS day, COUNT(*) FROM {table}{by_key}{condition}"
                " GROUP BY day",
                values,
            )
            for day, jobs in found:
                days[day] = days.get(day, 0) + int(jobs)
            if end is None:
                return
            start = end

    def table_sizes(self) -> Sequence[TableSize]:
        return self._dialect.table_sizes(self._cursor)

    def _look_at_periods(self, probe: Probe) -> Probed:
        """One table after the other, until enough is found or looked at."""
        span = self._span(probe.app)
        first, last = span.period(probe.start), span.period(probe.end)
        periods = [period for period in self._periods(probe.app) if first <= period <= last]
        found: list[tuple[bytes, bytes]] = []
        rows = 0
        for period in reversed(periods) if probe.query.newest_first else periods:
            rest = msgspec.structs.replace(probe, most=probe.most - rows, limit=probe.limit - len(found))
            if rest.most <= 0 or rest.limit <= 0:
                start, end = span.keys(period)
                return Probed(found=found, rows=rows, left=min(end, probe.end) if probe.query.newest_first else start)
            some = self._look_at_table(span.table(probe.app, period), rest)
            found += some.found
            rows += some.rows
            if some.left is not None:
                return Probed(found=found, rows=rows, left=some.left)
        return Probed(found=found, rows=rows, left=None)

    def _look_at_table(self, table: str, probe: Probe) -> Probed:
        if not self._has(table):
            return Probed(found=(), rows=0, left=None)
        newest_first, order = probe.query.newest_first, _order(probe)
        bound, rows = self._bound(table, probe)
        start, end = probe.start, probe.end
        if bound is not None:
            start, end = (bound, end) if newest_first else (start, bound)
        condition, values = self._conditions(probe.query)
        found: list[Any] = self._select(
            f"SELECT {self._dialect.key}, due_ms FROM {table}{self._dialect.by_key} WHERE id >= ? AND id < ?{condition}"
            f" ORDER BY id {order} LIMIT ?",
            [start, end, *values, probe.limit],
        )
        if len(found) == probe.limit:
            bound = found[-1][0] if newest_first else after(found[-1][0])
        if probe.query.status is Status.PENDING:  # those that were moved are found by their entries
            found = [(key, due_ms) for key, due_ms in found if position(key, due_ms) == key]
        return Probed(found=[(key, key) for key, _ in found], rows=rows, left=bound)

    def _bound(self, table: str, probe: Probe) -> tuple[bytes | None, int]:
        """The key at which a look at so many rows ends, None: the range has no more of them; and how many it has."""
        newest_first = probe.query.newest_first
        span = (probe.start, probe.end)
        ahead = self._select(
            f"SELECT id FROM {table}{self._dialect.by_key} WHERE id >= ? AND id < ? ORDER BY id {_order(probe)}"
            f" LIMIT 1 OFFSET {probe.most - newest_first:d}",
            span,
        )
        if ahead:
            return ahead[0][0], probe.most
        rows = self._select(f"SELECT COUNT(*) FROM {table} WHERE id >= ? AND id < ?", span)
        return None, int(rows[0][0])

    def _look_at_moved(self, probe: Probe) -> Probed:
        table = moved_table(probe.app)
        if not self._has(table):
            return Probed(found=(), rows=0, left=None)
        most, order = _few(probe), _order(probe)
        entries: list[tuple[bytes, bytes]] = self._select(
            f"SELECT position, id FROM {table} WHERE position >= ? AND position < ?"
            f" ORDER BY position {order}, id {order} LIMIT ?",
            (probe.start, probe.end, most),
        )
        condition, values = self._conditions(probe.query)
        rows = self._read_by_key(probe.app, {key for _, key in entries}, "id, due_ms", condition, values)
        current = {(position(key, due_ms), key) for key, due_ms in rows}
        elsewhere = [
            (place, key) for place, key in entries if place != key
        ]  # one that was moved back is met by its key
        found = [entry for entry in elsewhere if entry in current]
        return Probed(found=found, rows=len(entries), left=_left([place for place, _ in entries], most, probe))

    def _look_at_ended(self, probe: Probe) -> Probed:
        most, status, order = _few(probe), probe.query.status, _order(probe)
        rows = self._select(
            f"SELECT id FROM scheduler_attempts{self._dialect.using(ENDED_INDEX[0])}"
            " WHERE app = ? AND ended = ? AND id >= ? AND id < ?"
            f" ORDER BY id {order} LIMIT ?",
            (probe.app, WORDS[status or Status.FAILED], probe.start, probe.end, most),
        )
        keys = [row[0] for row in rows]
        condition, values = self._conditions(probe.query)
        meeting = {row[0] for row in self._read_by_key(probe.app, set(keys), "id", condition, values)}
        found = [(key, key) for key in dict.fromkeys(keys) if key in meeting]
        return Probed(found=found, rows=len(keys), left=_left(keys, most, probe))

    def _conditions(self, query: Query) -> tuple[str, list[Any]]:
        """What a job must be like, as a condition with its values."""
        parts = {
            "status = ?": query.status and WORDS[query.status],
            self._dialect.has_tag(): query.tag,
            "job_name = ?": query.job_name,
            "job_group = ?": query.group,
            "request_id = ?": query.request_id,
            self._dialect.contains("error"): query.error,
        }
        wanted = {condition: value for condition, value in parts.items() if value is not None}
        return "".join(f" AND {condition}" for condition in wanted), list(wanted.values())


def _order(probe: Probe) -> str:
    return "DESC" if probe.query.newest_first else "ASC"


def _few(probe: Probe) -> int:
    return min(probe.most, max(FEW, 2 * probe.limit))


def _left(places: Sequence[bytes], most: int, probe: Probe) -> bytes | None:
    """Where the rest of a range begins or ends, after looking at these."""
    if len(places) < most:
        return None
    return places[-1] if probe.query.newest_first else after(places[-1])
