"""Transactions that are altered on their way to the database: so does a body behave that lacks a rule."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from infinite_scheduler.errors import StoreUnavailable
from infinite_scheduler.model import JobRecord, Owner, Shard
from infinite_scheduler.store.cluster_state import NodeInfo, ShardInfo
from infinite_scheduler.store.ownership import Request, Scan
from infinite_scheduler.store.sql.statements import Statements, Update

FAR_MS = 1 << 47
"""A moment after all others that an id can name."""


class Passing:
    """A transaction that passes on whatever it does not change."""

    def __init__(self, tx: Statements) -> None:
        self.tx = tx

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tx, name)


class Unlocked(Passing):
    """Takes no shard locks."""

    def lock_shards(self, shards: Collection[Shard], *, exclusive: bool) -> Mapping[Shard, ShardInfo]:
        return {row.shard: row for row in self.tx.read_shards() if row.shard in shards}


class FirstLocked(Passing):
    """Locks the first of its shards only."""

    def lock_shards(self, shards: Collection[Shard], *, exclusive: bool) -> Mapping[Shard, ShardInfo]:
        self.tx.lock_shards(sorted(shards)[:1], exclusive=exclusive)
        return {row.shard: row for row in self.tx.read_shards() if row.shard in shards}


class Hasty(Passing):
    """Reads the shard rows first, and waits for their locks then."""

    def lock_shards(self, shards: Collection[Shard], *, exclusive: bool) -> Mapping[Shard, ShardInfo]:
        seen = {row.shard: row for row in self.tx.read_shards() if row.shard in shards}
        self.tx.lock_shards(shards, exclusive=exclusive)
        return seen


class Silent(Passing):
    """Writes no requests."""

    def insert_requests(self, requests: object) -> None:
        """Leave them out."""


class FirstWoken(Passing):
    """Writes the first of several requests only."""

    def insert_requests(self, requests: Iterable[Request]) -> None:
        self.tx.insert_requests(list(requests)[:1])


class Unlisted(Passing):
    """Writes no entries."""

    def insert_entries(self, app: str, entries: object) -> None:
        """Leave them out."""


class Particular(Passing):
    """Fails when an entry is there already."""

    def insert_entries(self, app: str, entries: Sequence[tuple[bytes, bytes]]) -> None:
        for place, key in entries:
            behind = (int.from_bytes(place, "big") + 1).to_bytes(len(place), "big")
            found, _ = self.tx.scan_entries(
                Scan(app=app, shards=frozenset(range(256)), start=place, end=behind, limit=1000, room=8 << 20)
            )
            if any(job.key == key for _, job in found):
                raise StoreUnavailable("the entry is there already")
        self.tx.insert_entries(app, entries)


class Released(Passing):
    """Believes that nobody owns any shard."""

    def lock_shards(self, shards: Collection[Shard], *, exclusive: bool) -> Mapping[Shard, ShardInfo]:
        rows = self.tx.lock_shards(shards, exclusive=exclusive)
        return {shard: msgspec.structs.replace(row, owner=Owner("", 0)) for shard, row in rows.items()}


class Stubborn(Passing):
    """Never lowers low."""

    def write_shards(self, rows: Iterable[ShardInfo]) -> None:
        known = {row.shard: row for row in self.tx.read_shards()}
        self.tx.write_shards(
            [msgspec.structs.replace(row, low_ms=max(row.low_ms, known[row.shard].low_ms)) for row in rows]
        )


class Lineless(Passing):
    """Believes that every moment is before the line, and leaves the line where it is."""

    def lock_shards(self, shards: Collection[Shard], *, exclusive: bool) -> Mapping[Shard, ShardInfo]:
        rows = self.tx.lock_shards(shards, exclusive=exclusive)
        self.lines = {shard: row.line_ms for shard, row in rows.items()}
        return {shard: msgspec.structs.replace(row, line_ms=FAR_MS) for shard, row in rows.items()}

    def write_shards(self, rows: Iterable[ShardInfo]) -> None:
        self.tx.write_shards([msgspec.structs.replace(row, line_ms=self.lines[row.shard]) for row in rows])


class Credulous(Passing):
    """Believes that every request is still there."""

    def delete_requests(self, ids: Collection[bytes]) -> Collection[bytes]:
        self.tx.delete_requests(ids)
        return ids


class Sweeping(Passing):
    """Deletes all requests of its shards, whether they were read or not."""

    def lock_shards(self, shards: Collection[Shard], *, exclusive: bool) -> Mapping[Shard, ShardInfo]:
        self.shards = shards
        return self.tx.lock_shards(shards, exclusive=exclusive)

    def delete_requests(self, ids: Collection[bytes]) -> Collection[bytes]:
        every = {request.id for request in self.tx.read_requests(self.shards, 1000)} | set(ids)
        return set(self.tx.delete_requests(every)) & set(ids)


class Blind(Passing):
    """Reads none of the rows that requests name."""

    def read_jobs(self, app: str, keys: Collection[bytes]) -> Sequence[JobRecord]:
        return ()

    def read_heads(self, app: str, keys: Collection[bytes]) -> Sequence[Any]:
        return ()


class AnyAttempt(Passing):
    """Updates a row whatever attempt it has."""

    def update_jobs(self, app: str, updates: Sequence[Update]) -> Collection[bytes]:
        records = self.tx.read_jobs(app, [update.key for update in updates])
        attempts = {record.job.key: record.job.attempt for record in records}
        return self.tx.update_jobs(
            app, [msgspec.structs.replace(update, was_attempt=attempts[update.key]) for update in updates]
        )


class Foreseeing(Passing):
    """Looks at the heartbeats before it waits for its locks."""

    def lock_shards(self, shards: Collection[Shard], *, exclusive: bool) -> Mapping[Shard, ShardInfo]:
        self.nodes = self.tx.read_nodes()
        return self.tx.lock_shards(shards, exclusive=exclusive)

    def read_nodes(self) -> Sequence[NodeInfo]:
        return self.nodes
