"""Statements on the rows of jobs: insert, read, compare and set."""

# ruff: noqa: S608 - table names come from checked app names, columns from this package

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec

from infinite_scheduler.model import Job, JobRecord, Status
from infinite_scheduler.store.sql.dialect import COMPARE_AND_SET, placeholders
from infinite_scheduler.store.sql.rows import Rows, RunAgain, in_chunks, padded
from infinite_scheduler.store.sql.statements import Head, NewRow, Update
from infinite_scheduler.store.sql.tables import LATER_FLAG, Span, later_table

INSERTED: Final = (
    "id", "due_ms", "scheduled_ms", "status", "attempt", "shard", "priority", "job_data", "job_name", "job_group",
    "tags", "request_id", "idempotency_key", "created_ms",
)  # fmt: skip

WORDS: Final = {status: str(status.value) for status in Status}
STATUSES: Final = {word: status for status, word in WORDS.items()}
PENDING: Final = WORDS[Status.PENDING]

_key_of: Final = attrgetter("key")

SOONER: Final = bytes(byte for byte in range(256) if not byte & LATER_FLAG)
"""The eighth bytes of the ids that are not in the table for later jobs."""

_encode_tags = msgspec.json.Encoder().encode
_decode_tags = msgspec.json.Decoder(tuple[str, ...]).decode


class JobRows(Rows):
    """The rows of jobs, each in the table that its key names."""

    @property
    def _job_columns(self) -> str:
        """The columns that `jobs_of` takes."""
        times = f"{self._dialect.key}, due_ms, scheduled_ms, {self._dialect.payload}, created_ms, attempt"
        return f"{times}, request_id, job_name, job_group, tags"

    @property
    def _record_columns(self) -> str:
        """The columns that `records_of` takes."""
        return f"{self._job_columns}, status, finished_ms, error, idempotency_key"

    def insert_jobs(self, app: str, rows: Sequence[NewRow]) -> Collection[bytes]:
        groups = by_table(app, self._span(app), rows, _key_of)
        self._make_job_tables(table for table, _ in groups)
        insert = self._dialect.insert_many if self._row_by_row else self._dialect.insert_new
        known = self._known(app, rows) if self._row_by_row else frozenset()
        count = sum(insert(self._cursor, table, INSERTED, [_inserted(row) for row in group]) for table, group in groups)
        if count != len(rows) - len(known):
            self._row_by_row = True  # which of them existed is not known
            raise RunAgain
        return known

    def _known(self, app: str, rows: Sequence[NewRow]) -> frozenset[bytes]:
        """The keys of these rows that exist already: an earlier try of this insert was committed, but not answered."""
        return frozenset(row[0] for row in self._read_by_key(app, [row.key for row in rows], "id", ""))

    def read_jobs(self, app: str, keys: Collection[bytes]) -> Sequence[JobRecord]:
        return records_of(app, self._read_by_key(app, keys, self._record_columns, ""))

    def read_heads(self, app: str, keys: Collection[bytes]) -> Sequence[Head]:
        columns = f"{self._dialect.key}, due_ms, attempt, status, {self._dialect.payload_size}"
        return [
            Head(key=key, due_ms=due_ms, attempt=attempt, status=STATUSES[word], size=size)
            for key, due_ms, attempt, word, size in self._read_by_key(app, keys, columns, "")
        ]

    def _read_by_key(
        self, app: str, keys: Collection[bytes], columns: str, condition: str, values: Sequence[Any] = ()
    ) -> list[Any]:
        found: list[Any] = []
        for table, group in by_table(app, self._span(app), keys, bytes):
            if not self._has(table):
                continue
            for chunk in in_chunks(group):
                some = padded(chunk)
                these = placeholders(len(some))
                text = f"SELECT {columns} FROM {table}{self._dialect.by_key} WHERE id IN ({these}){condition}"
                found += self._select(text, [*some, *values])
        return found

    def update_jobs(self, app: str, updates: Sequence[Update]) -> Collection[bytes]:
        missed: set[bytes] = set()
        for table, group in by_table(app, self._span(app), updates, _key_of):
            if not self._has(table):
                missed.update(update.key for update in group)
            elif self._row_by_row:
                missed.update(update.key for update in group if not self._update_one(table, update))
            elif self._dialect.update_many(self._cursor, table, list(map(_set, group))) != len(group):
                # Which rows did not match is not known, so all updates are repeated one by one.
                self._row_by_row = True
                raise RunAgain
        return missed

    def _update_one(self, table: str, update: Update) -> bool:
        return self._run(COMPARE_AND_SET.format(table=table), _set(update)) == 1


def by_table(
    app: str, span: Span, items: Iterable[Any], key: Callable[[Any], bytes]
) -> Collection[tuple[str, list[Any]]]:
    """The items in the order of their keys, by the table that each key names; the table for later jobs comes last."""
    ordered = sorted(items, key=key)
    later: list[Any] = []
    if b"".join(map(key, ordered))[7::16].translate(None, SOONER):
        later = [item for item in ordered if key(item)[7] & LATER_FLAG]
        ordered = [item for item in ordered if not key(item)[7] & LATER_FLAG]
    groups: dict[str, list[Any]] = {}
    start = 0
    while start < len(ordered):
        period = span.period(key(ordered[start]))
        end = bisect_left(ordered, span.keys(period)[1], lo=start, key=key)
        groups[span.table(app, period)] = ordered[start:end]
        start = end
    if later:
        groups[later_table(app)] = later
    return groups.items()


def jobs_of(app: str, rows: Iterable[Sequence[Any]]) -> list[Job]:
    """Jobs from the columns that `_job_columns` names."""
    return [
        Job(
            key=key,
            app=app,
            due_ms=due_ms,
            scheduled_ms=scheduled_ms,
            payload=payload,
            created_ms=created_ms,
            attempt=attempt,
            request_id=request_id,
            job_name=job_name,
            group=group,
            tags=_decode_tags(tags) if tags else (),
        )
        for key, due_ms, scheduled_ms, payload, created_ms, attempt, request_id, job_name, group, tags in rows
    ]


def records_of(app: str, rows: Iterable[Sequence[Any]]) -> list[JobRecord]:
    """Records from the columns that `_record_columns` names."""
    rows = list(rows)
    jobs = jobs_of(app, (row[:10] for row in rows))
    return [
        JobRecord(job=job, status=STATUSES[row[10]], finished_ms=row[11], error=row[12], idempotency_key=row[13])
        for job, row in zip(jobs, rows, strict=True)
    ]


def after(key: bytes) -> bytes:
    """The smallest key that is greater, or the greatest of all."""
    return min(int.from_bytes(key, "big") + 1, (1 << 128) - 1).to_bytes(16, "big")


def _inserted(row: NewRow) -> tuple[Any, ...]:
    key, spec = row.key, row.spec
    flags = int.from_bytes(key[6:8], "big")
    return (
        key,
        int.from_bytes(key[:6], "big"),
        spec.scheduled_ms,
        PENDING,
        1,
        flags >> 4 & 0xFF,
        flags >> 2 & 3,
        spec.payload.decode(),
        spec.job_name,
        spec.group,
        _encode_tags(spec.tags).decode() if spec.tags else None,
        spec.request_id,
        spec.idempotency_key,
        row.created_ms,
    )


def _set(update: Update) -> tuple[Any, ...]:
    return (
        WORDS[update.status],
        update.attempt,
        update.due_ms,
        update.scheduled_ms,
        update.finished_ms,
        update.error,
        update.key,
        WORDS[update.was_status],
        update.was_attempt,
        update.was_due_ms,
    )
