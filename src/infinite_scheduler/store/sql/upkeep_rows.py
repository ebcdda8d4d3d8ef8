"""Statements of maintenance: each is a short slice, and none ever deletes a row that is pending."""

# ruff: noqa: S608 - table names come from checked app names, columns from this package

from collections.abc import Collection, Sequence
from typing import Any, Final

from infinite_scheduler.model import DAY_MS, Status, position, shard_of, start_of
from infinite_scheduler.store.sql.dialect import places
from infinite_scheduler.store.sql.job_rows import PENDING
from infinite_scheduler.store.sql.relational import COUNTER, SqlStatements
from infinite_scheduler.store.sql.rows import in_chunks, padded
from infinite_scheduler.store.sql.tables import day_table, moved_table

SLICE: Final = 1000
"""Rows that one transaction of maintenance looks at: a few ms under the write lock."""

STRIDE: Final = 20 * SLICE
"""Rows that one reading transaction of maintenance looks at: it holds up nobody, but the log grows meanwhile."""

_STRIDE: Final = "SELECT id FROM {table} WHERE id >= ? AND id < ? ORDER BY id LIMIT 1 OFFSET ?"
_ENDED: Final = f"id >= ? AND id < ? AND status <> '{PENDING}' AND finished_ms < ?"

FOLDED: Final = ""
"""The process under whose name the counters of all others are added up."""


class UpkeepRows(SqlStatements):
    """What maintenance asks of the database, beside what the protocol does."""

    def make_day_tables(self, app: str, days: Sequence[int]) -> Sequence[str]:
        """Make the tables for these days. Returns the names of those that are new."""
        missing = [table for day in days if not self._has(table := day_table(app, day))]
        for table in missing:
            self._make_job_table(table)
        return missing

    def old_days(self, app: str, before_ms: int) -> Sequence[int]:
        """The days with a table that ended before this moment, and before which every shard of the app is settled."""
        lows = self._select("SELECT MIN(low_ms) FROM scheduler_shards WHERE app = ?", (app,))
        low_ms = lows[0][0]
        if low_ms is None:
            return []
        return [day for day in self._catalog.days(app, self._cursor) if (day + 1) * DAY_MS <= min(before_ms, low_ms)]

    def find_ended(self, table: str, start: bytes, end: bytes, before_ms: int) -> tuple[bytes | None, bytes | None]:
        """The next job that ended before this moment, if one is near; and where to go on looking, if none is."""
        if not self._has(table):
            return None, None
        ahead = self._select(_STRIDE.format(table=table), (start, end, STRIDE))
        bound = ahead[0][0] if ahead else end
        found = self._select(
            f"SELECT id FROM {table} WHERE {_ENDED} ORDER BY id LIMIT 1",
            (start, bound, before_ms),
        )
        return (found[0][0], None) if found else (None, bound if ahead else None)

    def prune_jobs(self, table: str, start: bytes, end: bytes, before_ms: int) -> tuple[int, bytes | None]:
        """Delete the next jobs that ended before this moment. Returns how many, and where to go on."""
        if not self._has(table):
            return 0, None
        ahead = self._select(_STRIDE.format(table=table), (start, end, SLICE))
        bound = ahead[0][0] if ahead else end
        count = self._run(f"DELETE FROM {table} WHERE {_ENDED}", (start, bound, before_ms))
        return count, bound if ahead else None

    def drop_day(self, app: str, day: int, before_ms: int) -> bool:
        """Drop the table of a day that is over and settled, if no job is left in it."""
        table = day_table(app, day)
        if day not in self.old_days(app, before_ms) or self._select(f"SELECT 1 FROM {table} LIMIT 1"):
            return False
        self._cursor.execute(f"DROP TABLE {table}")
        self.forget()
        return True

    def prune_entries(self, app: str, start: bytes) -> tuple[int, bytes | None]:
        """Delete entries that lie before the low of their shard and do not lead to a pending job any more.

        Judged and deleted under the lock of the shards: a job may come back to the moment of a stale entry at any time.
        """
        wanted = [info.shard for info in self.read_shards() if info.shard.app == app]
        lows = {shard.number: info.low_ms for shard, info in self.lock_shards(wanted, exclusive=True).items()}
        entries: list[tuple[bytes, bytes]] = self._select(
            f"SELECT position, id FROM {moved_table(app)} WHERE position >= ? AND position < ?"
            " ORDER BY position, id LIMIT ?",
            (start, start_of(max(lows.values(), default=0)), SLICE),
        )
        old = [(place, key) for place, key in entries if place < start_of(lows.get(shard_of(place), 0))]
        records = {record.job.key: record for record in self.read_jobs(app, {key for _, key in old})}
        stale = [
            (place, key)
            for place, key in old
            if key not in records
            or records[key].status is not Status.PENDING
            or position(key, records[key].job.due_ms) != place
        ]
        self.delete_entries(app, stale)
        return len(stale), entries[-1][0] if len(entries) == SLICE and entries[-1][0] > start else None

    def prune_attempts(self, start: bytes, before_ms: int) -> tuple[int, bytes | None]:
        """Delete attempts of jobs that are gone, among those kept under a moment before this one."""
        rows = self._select(
            "SELECT id, app FROM scheduler_attempts WHERE id >= ? AND id < ? ORDER BY id, attempt LIMIT ?",
            (start, start_of(before_ms), SLICE),
        )
        apps: dict[str, set[bytes]] = {}
        for key, app in rows:
            apps.setdefault(app, set()).add(key)
        gone = [
            (key,)
            for app, keys in apps.items()
            for key in keys - {record.job.key for record in self.read_jobs(app, keys)}
        ]
        count = self._run_many("DELETE FROM scheduler_attempts WHERE id = ?", gone)
        return count, rows[-1][0] if len(rows) == SLICE and rows[-1][0] > start else None

    def prune_keys(self, before_ms: int) -> int:
        """Delete the next idempotency keys that were claimed before this moment."""
        return self._dialect.prune_keys(self._cursor, before_ms, SLICE)

    def old_verdicts(self, before_ms: int) -> Sequence[bytes]:
        """The next verdicts that nobody waits for any more."""
        rows = self._select("SELECT request FROM scheduler_verdicts WHERE at_ms < ? LIMIT ?", (before_ms, SLICE))
        return [row[0] for row in rows]

    def delete_verdicts(self, requests: Collection[bytes]) -> int:
        """Delete these verdicts."""
        count = 0
        for chunk in in_chunks(requests):
            some = padded(chunk)
            count += self._run(f"DELETE FROM scheduler_verdicts WHERE request IN ({places(len(some))})", some)
        return count

    def fold_counters(self, today: int, before_day: int) -> int:
        """Add up the counters of past days over all processes; delete those before a day. Returns how many rows went.

        Counters are deltas: a process that is still alive simply begins a new row.
        """
        count = self._run("DELETE FROM scheduler_counters WHERE day < ?", (before_day,))
        rows: list[Any] = self._select(
            "SELECT process, app, day, what, n FROM scheduler_counters WHERE process <> ? AND day < ? LIMIT ?",
            (FOLDED, today, SLICE),
        )
        sums: dict[tuple[str, int, str], int] = {}
        for _, app, day, what, n in rows:
            sums[app, day, what] = sums.get((app, day, what), 0) + n
        self._run_many(
            "DELETE FROM scheduler_counters WHERE process = ? AND app = ? AND day = ? AND what = ?",
            [r[:4] for r in rows],
        )
        self._run_many(
            self._dialect.upsert("scheduler_counters", COUNTER, COUNTER[:4], add=("n",)),
            [(FOLDED, *name, n) for name, n in sorted(sums.items())],
        )
        return count + len(rows)

    def forget_nodes(self, before_ms: int) -> int:
        """Delete the nodes that were not heard of since this moment and own nothing."""
        return self._run(
            "DELETE FROM scheduler_nodes WHERE beat_ms < ? AND nonce NOT IN (SELECT owner_nonce FROM scheduler_shards)",
            (before_ms,),
        )

    def known_nonces(self) -> frozenset[str]:
        """The nonces that nodes or shards name."""
        rows = self._select("SELECT nonce FROM scheduler_nodes UNION SELECT owner_nonce FROM scheduler_shards")
        return frozenset(row[0] for row in rows)
