"""Statements on requests, decisions, idempotency keys, attempts, marks and counters; with its bases all of them."""

# ruff: noqa: S608 - table names come from checked app names, columns from this package

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from infinite_scheduler.model import DAY_MS, Attempt, Change, Shard, Status
from infinite_scheduler.store.ownership import Request
from infinite_scheduler.store.sql.cluster_rows import ClusterRows
from infinite_scheduler.store.sql.dialect import Blob, placeholders
from infinite_scheduler.store.sql.inbox_rows import InboxRows
from infinite_scheduler.store.sql.job_rows import WORDS
from infinite_scheduler.store.sql.ledger_rows import LedgerRows
from infinite_scheduler.store.sql.looks import Looks
from infinite_scheduler.store.sql.rows import in_chunks, padded, where
from infinite_scheduler.store.sql.scans import Scans
from infinite_scheduler.store.sql.schema import KEYS_TABLE
from infinite_scheduler.store.sql.statements import NewRow
from infinite_scheduler.store.sql.tables import later_table

REQUEST: Final = ("id", "app", "shard", "wish", "job_ids", "due_ms")
DECISION: Final = ("request", "granted", "at_ms")
KEY: Final = ("app", "idempotency_key", "id", "digest", "created_ms")
ATTEMPT: Final = ("id", "attempt", "app", "started_ms", "finished_ms", "node", "error")
MARK: Final = ("app", "shard", "id", "size")
COUNTER: Final = ("process", "app", "day", "what", "n")
WAITING: Final = "waiting"
"""The counter whose day is the one on which jobs are due; all others are of the day on which something happened."""

FOLDED: Final = ""
"""The process name under which the counters of all others are added up."""

KEY_BYTES: Final = 16

APP_OF: Final = REQUEST.index("app")
SHARD_OF: Final = REQUEST.index("shard")
JOB_IDS: Final = REQUEST.index("job_ids")

SMALL: Final = 64 * KEY_BYTES
"""The keys of a request are read with it up to this size: a page of small ones is cheap, one of large ones is not."""

MANY_SHARDS: Final = 1000
"""An owner of more reads whatever requests there are, usually none, instead of naming all of its shards."""

ONCE: Final = "once-"
"""The prefix of process names whose counters are written once: they can be folded at any time."""


class SqlStatements(Scans, Looks, ClusterRows, InboxRows, LedgerRows):
    """All statements: jobs, cluster, inbox and ledger from the base classes, here those between doors and owners."""

    def insert_requests(self, requests: Iterable[Request]) -> None:
        self._run_many(
            self._dialect.insert("scheduler_requests", REQUEST),
            [
                (q.id, q.shard.app, q.shard.number, q.change and str(q.change.value), Blob(b"".join(q.keys)), q.due_ms)
                for q in requests
            ],
        )

    def read_requests(self, shards: Collection[Shard], limit: int) -> Sequence[Request]:
        """The keys of requests that name many jobs are left out until it is known how many requests are read."""
        columns = ", ".join(REQUEST).replace("job_ids", f"CASE WHEN LENGTH(job_ids) <= {SMALL} THEN job_ids END")
        if len(shards) > MANY_SHARDS:
            rows = self._select(f"SELECT {columns}, LENGTH(job_ids) FROM scheduler_requests LIMIT {limit:d}")
            if len(rows) < limit:
                mine = [row for row in rows if Shard(row[APP_OF], row[SHARD_OF]) in shards]
                return self._with_keys(_naming(mine, limit))
        rows = []
        for numbers, apps in _alike(shards).items():
            some = padded(apps)
            text = (
                f"SELECT {columns}, LENGTH(job_ids) FROM scheduler_requests WHERE app IN ({placeholders(len(some))})"
                f" AND shard IN ({', '.join(map(str, numbers))}) LIMIT {limit - len(rows):d}"
            )
            rows += self._select(text, some)
            if len(rows) == limit:
                break
        return self._with_keys(_naming(rows, limit))

    def _with_keys(self, rows: Sequence[Any]) -> list[Request]:
        """The requests of these rows, with the keys that were left out."""
        large = [row[0] for row in rows if row[JOB_IDS] is None]
        keys: dict[bytes, bytes] = {row[0]: row[JOB_IDS] for row in rows if row[JOB_IDS] is not None}
        for chunk in in_chunks(large):
            some = padded(chunk)
            text = f"SELECT id, job_ids FROM scheduler_requests WHERE id IN ({placeholders(len(some))})"
            keys.update(self._select(text, some))
        return [_request(row, keys[row[0]]) for row in rows if row[0] in keys]

    def delete_requests(self, ids: Collection[bytes]) -> Collection[bytes]:
        return {request for request in ids if self._run("DELETE FROM scheduler_requests WHERE id = ?", (request,))}

    def write_decisions(self, decisions: Mapping[bytes, bool], now_ms: int) -> None:
        self._run_many(
            self._dialect.upsert("scheduler_verdicts", DECISION, ("request",)),
            [(request, granted, now_ms) for request, granted in sorted(decisions.items())],
        )

    def read_decisions(self, requests: Collection[bytes]) -> Mapping[bytes, bool]:
        found: dict[bytes, bool] = {}
        for chunk in in_chunks(requests):
            some = padded(chunk)
            text = f"SELECT request, granted FROM scheduler_verdicts WHERE request IN ({placeholders(len(some))})"
            found.update((request, bool(granted)) for request, granted in self._select(text, some))
        return found

    def claim_keys(self, app: str, rows: Sequence[NewRow]) -> Mapping[str, tuple[bytes, bytes]]:
        claims = sorted(
            (app, row.spec.idempotency_key, row.key, Blob(row.spec.digest), row.created_ms)
            for row in rows
            if row.spec.idempotency_key is not None
        )
        if self._dialect.copies and self._bold:
            self._dialect.insert_new(self._cursor, KEYS_TABLE, KEY, claims)
            return {}
        others: dict[str, tuple[bytes, bytes]] = {}
        while claims and self._dialect.insert_many(self._cursor, KEYS_TABLE, KEY, claims) < len(claims):
            held = self.read_keys(app, {key for _, key, *_ in claims})
            others |= {key: held[key] for _, key, id_, *_ in claims if key in held and held[key][0] != id_}
            claims = [claim for claim in claims if claim[1] not in held]  # pruned between the two statements
        return others

    def read_keys(self, app: str, keys: Collection[str]) -> Mapping[str, tuple[bytes, bytes]]:
        found: dict[str, tuple[bytes, bytes]] = {}
        for chunk in in_chunks(keys):
            some = padded(chunk)
            text = (
                f"SELECT idempotency_key, id, digest FROM {KEYS_TABLE}{self._dialect.by_key}"
                f" WHERE app = ? AND idempotency_key IN ({placeholders(len(some))}){self._dialect.newest}"
            )
            found.update((key, (id_, digest)) for key, id_, digest in self._select(text, [app, *some]))
        return found

    def write_attempts(
        self, app: str, attempts: Iterable[tuple[bytes, Attempt]], ended: Mapping[bytes, Status] | None = None
    ) -> None:
        words = {key: WORDS[status] for key, status in ended.items()} if ended else {}
        self._run_many(
            self._dialect.upsert("scheduler_attempts", (*ATTEMPT, "ended"), ("id", "attempt")),
            [
                (key, a.attempt, app, a.started_ms, a.finished_ms, a.node, a.error, words.get(key))
                for key, a in attempts
            ],
        )

    def delete_unfinished(self, attempts: Iterable[tuple[bytes, int]]) -> None:
        self._delete_many("scheduler_attempts", ("id", "attempt"), attempts)

    def read_attempts_of(self, app: str, keys: Collection[bytes]) -> Mapping[bytes, Sequence[Attempt]]:
        found: dict[bytes, list[Attempt]] = {}
        for chunk in in_chunks(keys):
            some = padded(chunk)
            rows = self._select(
                "SELECT id, attempt, started_ms, finished_ms, node, error FROM scheduler_attempts"
                f" WHERE id IN ({placeholders(len(some))}) AND app = ? ORDER BY id, attempt",
                [*some, app],
            )
            for key, a, s, f, n, e in rows:
                attempt = Attempt(attempt=a, started_ms=s, finished_ms=f, node=n, error=e)
                found.setdefault(bytes(key), []).append(attempt)
        return found

    def write_marks(self, marks: Iterable[tuple[Shard, bytes, int]]) -> None:
        self._run_many(
            self._dialect.upsert("scheduler_marks", MARK, ("app", "shard", "id")),
            [(shard.app, shard.number, key, size) for shard, key, size in marks],
        )

    def read_marks(self, shards: Collection[Shard]) -> Mapping[Shard, Mapping[bytes, int]]:
        marks: dict[Shard, dict[bytes, int]] = {}
        for chunk in in_chunks({shard.app for shard in shards}):
            some = padded(chunk)
            text = f"SELECT app, shard, id, size FROM scheduler_marks WHERE app IN ({placeholders(len(some))})"
            for app, number, key, size in self._select(text, some):
                if (shard := Shard(app, number)) in shards:
                    marks.setdefault(shard, {})[key] = size
        return marks

    def delete_marks(self, keys: Iterable[tuple[Shard, bytes]]) -> None:
        self._delete_many(
            "scheduler_marks", ("app", "shard", "id"), ((shard.app, shard.number, key) for shard, key in keys)
        )

    def add_counts(
        self,
        deltas: Mapping[tuple[str, str], int],
        now_ms: int,
        waiting: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        day = now_ms // DAY_MS
        rows = [(self._process, app, day, what, n, now_ms) for (app, what), n in deltas.items() if n]
        if waiting:
            rows += [(self._process, app, due, WAITING, n, now_ms) for (app, due), n in waiting.items() if n]
        self._add_to_counters(sorted(rows))

    def _add_to_counters(self, rows: Sequence[tuple[str, str, int, str, int, int | None]]) -> None:
        """Add to counters: (process, app, day, what, how many, and when, unless they are folded)."""
        self._run_many(self._dialect.upsert("scheduler_counters", (*COUNTER, "at_ms"), COUNTER[:4], add=("n",)), rows)

    def read_counts(self) -> Mapping[str, Mapping[str, int]]:
        counts: dict[str, dict[str, int]] = {}
        rows = self._select(
            "SELECT app, what, SUM(n) FROM scheduler_counters WHERE what <> ? GROUP BY app, what", (WAITING,)
        )
        for app, what, n in rows:
            counts.setdefault(app, {})[what] = int(n)
        return counts

    def read_waiting(self, app: str | None = None) -> Mapping[str, Mapping[int, int]]:
        condition, values = where({"what = ?": WAITING, "app = ?": app})
        found: dict[str, dict[int, int]] = {}
        for name, day, n in self._select(
            f"SELECT app, day, SUM(n) FROM scheduler_counters{condition} GROUP BY app, day", values
        ):
            if n > 0:  # less: jobs from before the counter have ended; counting anew mends that
                found.setdefault(name, {})[day] = int(n)
        return found

    def count_waiting(self, app: str) -> tuple[Mapping[int, int], Mapping[int, int]]:
        """All on one snapshot: no job that is inserted or ends meanwhile is counted on one side only."""
        counted: dict[int, int] = {}
        with self._dialect.snapshot(self._cursor):
            span = self._span(app)
            for table in [*(span.table(app, period) for period in self._periods(app)), later_table(app)]:
                if self._has(table):
                    self.count_pending(table, counted)
            rows = self._select(
                "SELECT day, SUM(n) FROM scheduler_counters WHERE app = ? AND what = ? GROUP BY day", (app, WAITING)
            )
        return counted, {day: int(n) for day, n in rows}

    def correct_waiting(self, app: str, deltas: Mapping[int, int]) -> None:
        self._add_to_counters([(FOLDED, app, day, WAITING, n, None) for day, n in sorted(deltas.items()) if n])


def _alike(shards: Iterable[Shard]) -> dict[tuple[int, ...], list[str]]:
    """Group the shards: apps with the same shard numbers, by those numbers."""
    numbers: dict[str, list[int]] = {}
    for shard in sorted(shards):
        numbers.setdefault(shard.app, []).append(shard.number)
    alike: dict[tuple[int, ...], list[str]] = {}
    for app, some in numbers.items():
        alike.setdefault(tuple(some), []).append(app)
    return alike


def _naming(rows: Sequence[Any], limit: int) -> Sequence[Any]:
    """Requests up to the one with which they name `limit` jobs."""
    named = 0
    for i, row in enumerate(rows):
        named += row[-1] // KEY_BYTES or 1
        if named >= limit:
            return rows[: i + 1]
    return rows


def _request(row: Sequence[Any], keys: bytes) -> Request:
    id_, app, number, change, _, due_ms, _ = row
    return Request(
        id=id_,
        shard=Shard(app, number),
        change=Change(change) if change else None,
        keys=keys_in(keys),
        due_ms=due_ms,
    )


def keys_in(joined: bytes) -> tuple[bytes, ...]:
    """Split concatenated job keys."""
    return tuple(joined[i : i + KEY_BYTES] for i in range(0, len(joined), KEY_BYTES))
