"""Statements of maintenance: each is a short slice, and none ever deletes a pending row."""

# ruff: noqa: S608 - table names come from checked app names, columns from this package

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from infinite_scheduler.model import Change, Shard, position, shard_of, start_of
from infinite_scheduler.store.cluster_state import NodeInfo
from infinite_scheduler.store.inbox import LetterState
from infinite_scheduler.store.ownership import Scan
from infinite_scheduler.store.sql.dialect import placeholders
from infinite_scheduler.store.sql.job_rows import PENDING
from infinite_scheduler.store.sql.protocol import anybody
from infinite_scheduler.store.sql.request_rows import COUNTER, FOLDED, ONCE, WAITING, SqlStatements, keys_in
from infinite_scheduler.store.sql.rows import RunAgain, in_chunks, padded
from infinite_scheduler.store.sql.schema import AUDIT_TABLE, LETTERS_TABLE
from infinite_scheduler.store.sql.statements import Entries
from infinite_scheduler.store.sql.tables import moved_table

SLICE: Final = 1000
"""Rows that one maintenance transaction looks at: a few ms under the write lock."""

SLICE_BYTES: Final = 8 << 20
"""Bytes of dead letters that one transaction of maintenance deletes."""

STRIDE: Final = 20 * SLICE
"""Rows that one reading transaction of maintenance looks at: it blocks no other, but the log grows meanwhile."""

_STRIDE: Final = "SELECT id FROM {table} WHERE id >= ? AND id < ? ORDER BY id LIMIT 1 OFFSET ?"
_ENDED: Final = f"id >= ? AND id < ? AND status <> '{PENDING}' AND finished_ms < ?"

UNSENT: Final = str(LetterState.UNSENT.value)

FIRST: Final = bytes(16)
LAST: Final = b"\xff" * 16


class Blocker(NamedTuple):
    """A job because of which its table must stay."""

    finished_ms: int | None  # None: it is pending


class UpkeepRows(SqlStatements):
    """What maintenance needs from the database, besides the statements of the protocol."""

    def make_tables(self, tables: Sequence[str]) -> None:
        """Create these tables for jobs, unless they exist."""
        self._make_job_tables(tables)

    def periods(self, app: str) -> frozenset[int]:
        """The periods for which the app has a table."""
        return frozenset(self._periods(app))

    def idle_apps(self, apps: Sequence[str]) -> tuple[Collection[str], Collection[str]]:
        """The apps that have nothing to maintain, and those that have no jobs, so that no tables need be made ahead."""
        without_jobs = self.empty(
            [Scan(app=app, shards=frozenset({0}), start=FIRST, end=LAST, limit=1, room=1) for app in apps]
        )
        return [app for app in without_jobs if not self._periods(app)], without_jobs

    def missing_ahead(self, app: str, now_ms: int, days: int) -> Sequence[str]:
        """The names of the missing tables for this many days from now."""
        span = self._span(app)
        return [table for period in span.ahead(now_ms, days) if not self._has(table := span.table(app, period))]

    def old_periods(self, app: str, before_ms: int) -> Sequence[int]:
        """The periods with a table that ended before this moment, and up to whose end every shard is settled."""
        lows = self._select("SELECT MIN(low_ms) FROM scheduler_shards WHERE app = ?", (app,))
        low_ms = lows[0][0]
        if low_ms is None:
            return []
        span = self._span(app)
        return [period for period in self._periods(app) if span.ends_ms(period) <= min(before_ms, low_ms)]

    def find_ended(self, table: str, start: bytes, end: bytes, before_ms: int) -> tuple[bytes | None, bytes | None]:
        """The next job that ended before this moment, if one is near; else where to continue the search."""
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
        """Delete the next jobs that ended before this moment. Returns how many, and where to continue."""
        if not self._has(table):
            return 0, None
        ahead = self._select(_STRIDE.format(table=table), (start, end, SLICE))
        bound = ahead[0][0] if ahead else end
        count = self._run(f"DELETE FROM {table} WHERE {_ENDED}", (start, bound, before_ms))
        return count, bound if ahead else None

    def drop_period(self, app: str, period: int, before_ms: int) -> bool:
        """Drop the table of a period that is over and settled, if no job is left in it."""
        table = self._span(app).table(app, period)
        if period not in self.old_periods(app, before_ms) or self._select(f"SELECT 1 FROM {table} LIMIT 1"):
            return False
        self._cursor.execute(f"DROP TABLE {table}")
        self.forget()
        return True

    def unsettled(self, table: str, below: bytes, after_ms: int) -> tuple[Blocker | None, bytes | None]:
        """The next job that is pending or ended at or after this moment, from the largest keys down.

        Returns it, if one is near; and where to continue the search, if there is more.
        """
        if not self._has(table):
            return None, None
        behind = self._select(f"SELECT id FROM {table} WHERE id < ? ORDER BY id DESC LIMIT 1 OFFSET {STRIDE}", (below,))
        floor = behind[0][0] if behind else FIRST
        found = self._select(
            f"SELECT status, finished_ms FROM {table}{self._dialect.by_key} WHERE id >= ? AND id < ?"
            f" AND (status = '{PENDING}' OR finished_ms >= ?) LIMIT 1",
            (floor, below, after_ms),
        )
        blocker = Blocker(None if found[0][0] == PENDING else found[0][1]) if found else None
        return blocker, floor if behind else None

    def revivals(self, app: str) -> Mapping[int, int]:
        """How many jobs of the app were retried by hand, per day that is still counted."""
        rows = self._select(
            "SELECT day, SUM(n) FROM scheduler_counters WHERE app = ? AND what = ? GROUP BY day",
            (app, anybody.counted(Change.RETRY)),
        )
        return {day: int(n) for day, n in rows}

    def may_drop(self, app: str, period: int, before_ms: int, revivals: Mapping[int, int]) -> bool:
        """May the table of this period be dropped, in which no job was pending when these were all the revivals?

        Only two things lead to a pending job in it. An ended job was retried by hand: that was counted. Or a job was
        inserted late: it is before the line, so its owner was asked to look, and lowers `low` when it does.
        """
        start, end = self._span(app).keys(period)
        asked = self._select("SELECT job_ids FROM scheduler_requests WHERE app = ?", (app,))
        return (
            period in self.old_periods(app, before_ms)
            and not any(start <= key < end for (keys,) in asked for key in keys_in(keys))
            and all(revivals.get(day) == n for day, n in self.revivals(app).items())
        )

    def stale_entries(self, app: str, start: bytes) -> tuple[Mapping[Shard, Entries], bytes | None]:
        """The next entries, by shard, that seem to lead to no pending job any more; and where to continue."""
        lows = {info.shard: info.low_ms for info in self.read_shards() if info.shard.app == app}
        entries: list[tuple[bytes, bytes]] = self._select(
            f"SELECT position, id FROM {moved_table(app)} WHERE position >= ? AND position < ?"
            " ORDER BY position, id LIMIT ?",
            (start, start_of(max(lows.values(), default=0)), SLICE),
        )
        following = entries[-1][0] if len(entries) == SLICE and entries[-1][0] > start else None
        shards: dict[Shard, list[tuple[bytes, bytes]]] = {}
        for entry in self._stale(app, entries, lows):
            shards.setdefault(Shard(app, shard_of(entry[0])), []).append(entry)
        return shards, following

    def prune_entries(self, shard: Shard, entries: Entries) -> int:
        """Delete those of these entries that are before the low of their shard and lead to no pending job.

        Checked and deleted under the lock of the shard: a job may move back to the moment of a stale entry at any time.
        """
        lows = {shard: info.low_ms for shard, info in self.lock_shards([shard], exclusive=True).items()}
        stale = self._stale(shard.app, entries, lows)
        self.delete_entries(shard.app, stale)
        return len(stale)

    def _stale(self, app: str, entries: Entries, lows: Mapping[Shard, int]) -> Entries:
        old = [(at, key) for at, key in entries if at < start_of(lows.get(Shard(app, shard_of(at)), 0))]
        pending = self._read_by_key(app, {key for _, key in old}, "id, due_ms", f" AND status = '{PENDING}'")
        current = {(position(key, due_ms), key) for key, due_ms in pending}
        return [entry for entry in old if entry not in current]

    def attempts_of_gone(self, start: bytes, before_ms: int) -> tuple[Sequence[bytes], bytes | None]:
        """The next deleted jobs that have left attempts behind, among those stored under a moment before this one."""
        rows = self._select(
            "SELECT id, app FROM scheduler_attempts WHERE id >= ? AND id < ? ORDER BY id, attempt LIMIT ?",
            (start, start_of(before_ms), SLICE),
        )
        apps: dict[str, set[bytes]] = {}
        for key, app in rows:
            apps.setdefault(app, set()).add(key)
        gone = [
            key
            for app, keys in apps.items()
            for key in keys - {row[0] for row in self._read_by_key(app, keys, "id", "")}
        ]
        return sorted(gone), rows[-1][0] if len(rows) == SLICE and rows[-1][0] > start else None

    def delete_attempts(self, keys: Sequence[bytes]) -> int:
        """Delete all attempts of these jobs."""
        return self._delete_in("scheduler_attempts", "id", keys)

    def prune_keys(self, before_ms: int) -> int:
        """Delete the next idempotency keys that were claimed before this moment."""
        return self._dialect.prune_keys(self._cursor, before_ms, SLICE)

    def old_letters(self, start: bytes, before_ms: int) -> tuple[Sequence[bytes], bytes | None]:
        """The next dead letters that failed before this moment and need not be sent any more; and where to continue.

        As many as may be deleted at once: deleting large ones takes time.
        """
        rows = self._select(
            f"SELECT id, message_bytes FROM {LETTERS_TABLE} WHERE id > ? AND id < ? AND state <> '{UNSENT}'"
            " ORDER BY id LIMIT ?",
            (start, start_of(before_ms), SLICE),
        )
        old: list[bytes] = []
        room = SLICE_BYTES
        for key, size in rows:
            if old and size > room:
                break
            old.append(key)
            room -= size
        return old, old[-1] if len(old) < len(rows) or len(rows) == SLICE else None

    def delete_letters(self, keys: Collection[bytes]) -> int:
        """Delete these dead letters."""
        return self._delete_in(LETTERS_TABLE, "id", keys)

    def prune_audit(self, before_ms: int) -> int:
        """Delete the next records of the audit that are older than this moment. Returns how many were deleted."""
        rows = self._select(
            f"SELECT id FROM {AUDIT_TABLE} WHERE id < ? ORDER BY id LIMIT ?", (start_of(before_ms), SLICE)
        )
        return self._delete_in(AUDIT_TABLE, "id", [row[0] for row in rows])

    def old_decisions(self, before_ms: int) -> Sequence[bytes]:
        """The next decisions that no caller waits for any more."""
        rows = self._select("SELECT request FROM scheduler_verdicts WHERE at_ms < ? LIMIT ?", (before_ms, SLICE))
        return [row[0] for row in rows]

    def delete_decisions(self, requests: Collection[bytes]) -> int:
        """Delete these decisions."""
        return self._delete_in("scheduler_verdicts", "request", requests)

    def _delete_in(self, table: str, column: str, values: Collection[bytes]) -> int:
        """Delete by the first column of the primary key: a join could read the table from end to end."""
        count = 0
        for chunk in in_chunks(values):
            some = padded(chunk)
            count += self._run(f"DELETE FROM {table} WHERE {column} IN ({placeholders(len(some))})", some)
        return count

    def delete_counters(self, before_day: int) -> int:
        """Delete the next counters of days before this one, and those of what waits that have come to 0.

        Returns how many were deleted.
        """
        rows = self._select(
            f"SELECT {', '.join(COUNTER)} FROM scheduler_counters"
            " WHERE (what <> ? AND day < ?) OR (what = ? AND process = ? AND n = 0) LIMIT ?",
            (WAITING, before_day, WAITING, FOLDED, SLICE),
        )
        return self._delete_many("scheduler_counters", COUNTER, sorted(rows))

    def fold_counters(self, today: int, idle_ms: int) -> int:
        """Add up the next counters over all processes that are not written any more.

        Those are of past days, of processes that write once, and, of what waits, those not written since `idle_ms`.
        Returns how many rows were deleted. Counters are deltas: a process that is still alive simply begins a new row.
        A row that was changed or deleted by another process since it was read is left alone.
        """
        rows: list[Any] = sorted(
            self._select(
                f"SELECT {', '.join(COUNTER)} FROM scheduler_counters WHERE process <> ?"
                " AND (process LIKE ? OR (what <> ? AND day < ?) OR (what = ? AND at_ms < ?)) LIMIT ?",
                (FOLDED, f"{ONCE}%", WAITING, today, WAITING, idle_ms, SLICE),
            )
        )
        if self._row_by_row:
            rows = [row for row in rows if self._delete_many("scheduler_counters", COUNTER, [row])]
        elif self._delete_many("scheduler_counters", COUNTER, rows) != len(rows):
            self._row_by_row = True  # which rows were deleted is not known
            raise RunAgain
        sums: dict[tuple[str, int, str], int] = {}
        for _, app, day, what, n in rows:
            sums[app, day, what] = sums.get((app, day, what), 0) + n
        self._add_to_counters([(FOLDED, *name, n, None) for name, n in sorted(sums.items())])
        return len(rows)

    def silent_nodes(self, before_ms: int) -> Sequence[tuple[str, int]]:
        """The nodes that were silent since this moment and own nothing, each with its last heartbeat."""
        owners = {info.owner.nonce for info in self.read_shards()}
        return [(n.nonce, n.beat) for n in self.read_nodes() if _heard_ms(n) < before_ms and n.nonce not in owners]

    def delete_nodes(self, nodes: Sequence[tuple[str, int]]) -> int:
        """Delete those of these nodes that are still silent."""
        return sum(self._run("DELETE FROM scheduler_nodes WHERE nonce = ? AND beat = ?", node) for node in nodes)

    def known_nonces(self) -> frozenset[str]:
        """The nonces that nodes or shards have."""
        rows = self._select("SELECT nonce FROM scheduler_nodes UNION SELECT owner_nonce FROM scheduler_shards")
        return frozenset(row[0] for row in rows)


def _heard_ms(node: NodeInfo) -> int:
    """When the last heartbeat of a node was, by the store's clock if it has one: the node's may be far off."""
    return node.beat_ms + (node.clock_offset_ms or 0)
