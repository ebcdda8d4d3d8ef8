"""New jobs on their way into tables: each gets an id, which names its shard and its table."""

import os
import struct
from collections.abc import Mapping, Sequence
from typing import Protocol, Self

import msgspec

from infinite_scheduler.errors import IdRefused, KeyConflict
from infinite_scheduler.model import (
    LATER_MS,
    VARIANT,
    Accepted,
    JobId,
    JobSpec,
    Shard,
    flags_of,
    key_text,
)
from infinite_scheduler.store.accepting import Holder
from infinite_scheduler.store.sql.statements import NewRow

CHUNK = 1000
"""How many jobs of one transaction share a shard: one lock, and at most one wake."""

AHEAD_MS, BEHIND_MS = 1000, 300_000
"""How far ahead of now a drawn id may put a job that is due, and how far behind it any job: clocks differ, tries take
time. Further behind, its table may be gone, or about to be dropped."""

URGENT_MS = 1000
"""Jobs due this soon should be noticed without waiting for a poll."""

_packed = struct.Struct(">QQ").pack

Key = tuple[str, str]
"""An app and an idempotency key."""


class NextShard(Protocol):
    """Chooses the shard of a chunk of jobs."""

    def __call__(self, app: str, *, urgent: bool) -> int: ...


class HasTable(Protocol):
    """Says whether an app has, or can get, a table for the period of a moment."""

    def __call__(self, app: str, due_ms: int) -> bool: ...


def can_be_made(app: str, due_ms: int) -> bool:
    """True: every missing table is created when it is needed."""
    del app, due_ms
    return True


class NewRows(msgspec.Struct, frozen=True):
    """The jobs of one transaction; of those with the same idempotency key only the first becomes a row."""

    specs: Sequence[JobSpec]
    rows: Sequence[NewRow]
    chunks: Mapping[Shard, Sequence[NewRow]]
    first: Mapping[Key, JobSpec]

    @classmethod
    def of(
        cls,
        specs: Sequence[JobSpec],
        now_ms: int,
        next_shard: NextShard,
        has_table: HasTable = can_be_made,
        *,
        strict: bool = True,
    ) -> Self:
        """Give each job an id, in chunks that share a shard.

        A job whose period has no table waits in the table for later jobs, and its id says so permanently. Two contents
        with the same idempotency key are a KeyConflict; unless `strict`, the second is a repeat.
        """
        first = _first_of_keys(specs, strict=strict)
        fresh = specs
        if first and len(first) < len(specs):
            fresh = [
                spec for spec in specs if spec.idempotency_key is None or first[spec.app, spec.idempotency_key] is spec
            ]
        ids = _IdMaker(now_ms, next_shard, has_table)
        return cls(specs, ids.rows(fresh), ids.chunks, first)

    def answers(self, repeats: Mapping[Key, Holder]) -> list[Accepted]:
        """One answer per job, in order; `repeats` are the jobs that had their keys before this batch."""
        if not repeats and len(self.rows) == len(self.specs):
            return [Accepted(row.key, int.from_bytes(row.key[:6], "big")) for row in self.rows]
        by_key = {(r.spec.app, r.spec.idempotency_key): r.key for r in self.rows if r.spec.idempotency_key is not None}
        rows = iter(self.rows)
        answers = []
        for spec in self.specs:
            if spec.idempotency_key is None:
                key = next(rows).key
                answers.append(Accepted(key, JobId(key).due_ms))
                continue
            name = spec.app, spec.idempotency_key
            is_first = self.first[name] is spec
            if is_first:
                next(rows)
            holder = repeats.get(name) or Holder(by_key[name], self.first[name].digest)
            answers.append(
                Accepted(
                    holder.key,
                    JobId(holder.key).due_ms,
                    repeated=name in repeats or not is_first,
                    differs=holder.digest != spec.digest,
                )
            )
        return answers


def _first_of_keys(specs: Sequence[JobSpec], *, strict: bool) -> Mapping[Key, JobSpec]:
    """The first job of each idempotency key in this batch; the others repeat it."""
    first: dict[Key, JobSpec] = {}
    for spec in specs:
        if spec.idempotency_key is not None:
            known = first.setdefault((spec.app, spec.idempotency_key), spec)
            if strict and known.digest != spec.digest:
                raise KeyConflict(spec.app, spec.idempotency_key, "earlier in the same call")
    return first


class Chunk(msgspec.Struct):
    """Rows that share a shard, and how many more may."""

    shard: int
    left: int
    rows: list[NewRow]


class _IdMaker:
    """Gives jobs their ids, in chunks; a job with a past time is stored under the current one."""

    def __init__(self, now_ms: int, next_shard: NextShard, has_table: HasTable) -> None:
        self._now_ms = now_ms
        self._next_shard = next_shard
        self._has_table = has_table
        self._open: dict[tuple[str, bool], Chunk] = {}  # by app, and whether its jobs are urgent
        self._drawn: dict[bytes, NewRow] = {}  # jobs that came with their ids
        self.chunks: dict[Shard, list[NewRow]] = {}

    def rows(self, specs: Sequence[JobSpec]) -> list[NewRow]:
        now_ms, has_table = self._now_ms, self._has_table
        urgent_ms, later_ms = now_ms + URGENT_MS, now_ms + LATER_MS
        rows = []
        for spec, entropy in zip(specs, _entropy(len(specs)), strict=True):
            if spec.key is not None:
                rows.append(self._drawn_row(spec, spec.key))
                continue
            due_ms = max(now_ms, spec.scheduled_ms)
            chunk = self._open.get((spec.app, due_ms < urgent_ms))
            if chunk is None or not chunk.left:
                chunk = self._next_chunk(spec.app, urgent=due_ms < urgent_ms)
            chunk.left -= 1
            later = due_ms > later_ms or not has_table(spec.app, due_ms)
            # The layout of `JobId`, as `new_key` writes it: packed in one call, as every insert does it.
            row = NewRow(_packed(due_ms << 16 | flags_of(chunk.shard, spec.priority, later), entropy), spec, now_ms)
            chunk.rows.append(row)
            rows.append(row)
        return rows

    def _drawn_row(self, spec: JobSpec, key: bytes) -> NewRow:
        """The row of a job that came with its id; if two tries of one call are in here, both have the same."""
        row = self._drawn.get(key)
        if row is None:
            drawn = JobId(key)
            self._check(spec, drawn)
            row = self._drawn[key] = NewRow(key, spec, self._now_ms)
            self.chunks.setdefault(Shard(spec.app, drawn.shard), []).append(row)
        elif row.spec != spec:
            raise IdRefused(f"the id {key_text(key)} is given to two jobs, so nothing was accepted: draw another")
        return row

    def _check(self, spec: JobSpec, drawn: JobId) -> None:
        """Would the store have drawn such an id? A job that is due must be so by the clock of the store's process."""
        now_ms, due_ms = self._now_ms, drawn.due_ms
        on_time = due_ms >= now_ms - BEHIND_MS and (
            due_ms == spec.scheduled_ms or spec.scheduled_ms < due_ms <= now_ms + AHEAD_MS
        )
        kept = drawn.later or (due_ms <= now_ms + LATER_MS and self._has_table(spec.app, due_ms))
        flags = flags_of(drawn.shard, spec.priority, drawn.later).to_bytes(2, "big")
        if not on_time or not kept or drawn[6:8] != flags:
            raise IdRefused(
                f"the id {drawn} does not fit its job, so nothing was accepted: draw another, or leave it out"
            )

    def _next_chunk(self, app: str, *, urgent: bool) -> Chunk:
        shard = self._next_shard(app, urgent=urgent)
        chunk = Chunk(shard, CHUNK, self.chunks.setdefault(Shard(app, shard), []))
        self._open[app, urgent] = chunk
        return chunk


def _entropy(count: int) -> Sequence[int]:
    """The second halves of ids: the variant, and 62 random bits."""
    random = bytearray(os.urandom(8 * count))
    random[::8] = random[::8].translate(VARIANT)
    return struct.unpack(f">{count}Q", random)
