"""New jobs on their way into tables: each gets an id, which names its shard and its table."""

import os
from collections.abc import Mapping, Sequence
from typing import Protocol, Self

import msgspec

from infinite_scheduler.errors import KeyConflict
from infinite_scheduler.model import DAY_MS, Accepted, JobId, JobSpec, Shard, new_key, shard_of
from infinite_scheduler.store.accepting import Holder
from infinite_scheduler.store.sql.statements import NewRow

LATER_MS = 35 * DAY_MS
"""Jobs further ahead wait in the table for later jobs, so that few other tables are open at a time."""

CHUNK = 1000
"""How many jobs of one transaction share a shard: one lock, and at most one wake."""

URGENT_MS = 1000
"""Jobs due this soon should be noticed without waiting for a poll."""

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
        return cls(specs, _keyed(fresh, now_ms, next_shard, has_table), first)

    @property
    def chunks(self) -> Mapping[Shard, Sequence[NewRow]]:
        chunks: dict[Shard, list[NewRow]] = {}
        for row in self.rows:
            chunks.setdefault(Shard(row.spec.app, shard_of(row.key)), []).append(row)
        return chunks

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


def _keyed(specs: Sequence[JobSpec], now_ms: int, next_shard: NextShard, has_table: HasTable) -> list[NewRow]:
    """Rows with new ids: a job with a past time is stored under the current one."""
    rows = []
    entropy = os.urandom(8 * len(specs))
    chunks_left: dict[
        tuple[str, bool], tuple[int, int]
    ] = {}  # (app, urgent) → the shard of this chunk, jobs left in it
    for i, spec in enumerate(specs):
        due_ms = max(spec.scheduled_ms, now_ms)
        urgent = due_ms - now_ms < URGENT_MS
        shard, left = chunks_left.get((spec.app, urgent), (0, 0))
        if not left:
            shard, left = next_shard(spec.app, urgent=urgent), CHUNK
        chunks_left[spec.app, urgent] = shard, left - 1
        later = due_ms - now_ms > LATER_MS or not has_table(spec.app, due_ms)
        key = new_key(due_ms, shard, spec.priority, later, entropy[8 * i : 8 * i + 8])
        rows.append(NewRow(key, spec, now_ms))
    return rows
