"""Transactions that any process may run: insert jobs, and request changes of waiting jobs.

The rules that are named here are those of docs/concepts/line-protocol.md.
"""

import enum
import os
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from infinite_scheduler.errors import IdRefused, KeyConflict, UnknownApp
from infinite_scheduler.model import DAY_MS, Change, Shard, Status, key_text, position, shard_of, start_of
from infinite_scheduler.store.accepting import Holder
from infinite_scheduler.store.cluster_state import ShardInfo
from infinite_scheduler.store.ownership import Request
from infinite_scheduler.store.sql.statements import Head, NewRow, Statements, Update

Chunks = Mapping[Shard, Sequence[NewRow]]
"""New rows, by the shard in their keys."""


class Inserted(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an insert."""

    repeats: Mapping[tuple[str, str], Holder]  # (app, idempotency key) → the job that already has it
    woken: frozenset[Shard]  # shards whose owners were asked to look


def insert(tx: Statements, chunks: Chunks, now_ms: int, *, strict: bool = True) -> Inserted:
    """Insert rows; if they are due before the line, ask the owner to look.

    Rules: insert_wakes_owner, wake_names_every_row, every_shard_is_woken.
    """
    shards = lock_known(tx, chunks)
    fresh, repeats = claim_keys(tx, chunks, strict=strict)
    new = insert_rows(tx, fresh)
    lines = {shard: start_of(shards[shard].line_ms) for shard in fresh}
    early = {shard: [row.key for row in rows if row.key < lines[shard]] for shard, rows in fresh.items()}
    wakes = [wake(shard, keys) for shard, keys in early.items() if keys]
    tx.insert_requests(wakes)
    count_accepted(tx, new, now_ms)
    return Inserted(repeats=repeats, woken=frozenset(q.shard for q in wakes))


def enqueue(tx: Statements, chunks: Chunks, now_ms: int) -> Inserted:
    """Insert rows in a transaction of the user's own: it takes no lock, so it always asks the owner to look.

    Rule: user_transaction_always_wakes.
    """
    fresh, repeats = claim_keys(tx, chunks, strict=True)
    new = insert_rows(tx, fresh)
    tx.insert_requests([wake(shard, [row.key for row in rows]) for shard, rows in fresh.items() if rows])
    count_accepted(tx, new, now_ms)
    return Inserted(repeats=repeats, woken=frozenset(shard for shard, rows in fresh.items() if rows))


def lock_known(tx: Statements, chunks: Chunks) -> Mapping[Shard, ShardInfo]:
    """Lock the shards in share mode until the commit.

    Rules: insert_holds_lock, line_is_read_under_lock.
    """
    shards = tx.lock_shards(chunks.keys(), exclusive=False)
    for shard in chunks:
        if shard not in shards:
            raise UnknownApp(shard.app, [app.name for app in tx.read_apps()])
    return shards


def claim_keys(tx: Statements, chunks: Chunks, *, strict: bool) -> tuple[Chunks, Mapping[tuple[str, str], Holder]]:
    """Leave out the rows whose idempotency key belongs to another job; if strict, its content must be equal."""
    repeats: dict[tuple[str, str], Holder] = {}
    for app, rows in by_app(chunks).items():
        keyed = [row for row in rows if row.spec.idempotency_key is not None]
        others = tx.claim_keys(app, keyed) if keyed else {}
        for row in keyed:
            key = row.spec.idempotency_key or ""
            if key in others:
                repeats[app, key] = first = Holder(*others[key])
                if strict and first.digest != row.spec.digest:
                    raise KeyConflict(app, key, key_text(first.key))
    if not repeats:
        return chunks, repeats
    fresh = {
        shard: [row for row in rows if (shard.app, row.spec.idempotency_key) not in repeats]
        for shard, rows in chunks.items()
    }
    return fresh, repeats


def by_app(chunks: Chunks) -> Mapping[str, Sequence[NewRow]]:
    """All rows of each app, in the order of their keys: concurrent transactions then lock in the same order."""
    apps: dict[str, list[NewRow]] = {}
    for shard, rows in chunks.items():
        apps.setdefault(shard.app, []).extend(rows)
    return {app: sorted(rows, key=_key) for app, rows in sorted(apps.items()) if rows}


def _key(row: NewRow) -> bytes:
    return row.key


def insert_rows(tx: Statements, chunks: Chunks) -> Mapping[str, Sequence[NewRow]]:
    """Insert rows. Returns those of each app that are new: some may be from an earlier try whose answer was lost."""
    new: dict[str, Sequence[NewRow]] = {}
    for app, rows in by_app(chunks).items():
        known = tx.insert_jobs(app, rows)
        check_drawn(tx, app, [row for row in rows if row.spec.key is not None and row.key in known] if known else ())
        new[app] = [row for row in rows if row.key not in known] if known else rows
    return new


def check_drawn(tx: Statements, app: str, rows: Sequence[NewRow]) -> None:
    """Refuse an id from outside that another job has: what comes again must be the same job."""
    payloads = {record.job.key: record.job.payload for record in tx.read_jobs(app, [row.key for row in rows])}
    for row in rows:
        if payloads.get(row.key) != row.spec.payload:
            raise IdRefused(f"the id {key_text(row.key)} belongs to another job, so nothing was accepted: draw another")


def count_accepted(tx: Statements, new: Mapping[str, Sequence[NewRow]], now_ms: int) -> None:
    """Count the jobs that became rows, and that they wait."""
    waiting = {(app, day): n for app, rows in new.items() for day, n in due_days(rows)}
    tx.add_counts({(app, "accepted"): len(rows) for app, rows in new.items()}, now_ms, waiting)


def due_days(rows: Sequence[NewRow]) -> Iterator[tuple[int, int]]:
    """The days on which rows are due, given in the order of their keys, and how many on each."""
    start = 0
    while start < len(rows):
        day = int.from_bytes(rows[start].key[:6], "big") // DAY_MS
        end = bisect_left(rows, start_of((day + 1) * DAY_MS), lo=start, key=_key)
        yield day, end - start
        start = end


def wake(shard: Shard, keys: Sequence[bytes]) -> Request:
    """A request to look at these jobs."""
    return Request(id=os.urandom(16), shard=shard, change=None, keys=tuple(keys))


class ChangeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to change one job; `due_ms` is the new moment, unless it is a cancel."""

    id: bytes
    change: Change
    app: str
    key: bytes
    due_ms: int | None
    now_ms: int

    @property
    def shard(self) -> Shard:
        return Shard(self.app, shard_of(self.key))


class RequestState(enum.Enum):
    """How far a request has come."""

    GRANTED = "granted"
    TOO_LATE = "too late"
    MISSING = "no such job"
    ASKED = "the owner was asked"
    RELEASED = "the shard has no owner: decide under the exclusive lock"
    AGAIN = "the row has changed in the meantime"
    NOTHING_TO_RETRY = "only a job that ended without success can be retried by hand"


def ask(
    tx: Statements, change_requests: Sequence[ChangeRequest], *, exclusive: bool, doubtful: Collection[bytes] = ()
) -> Mapping[bytes, RequestState]:
    """Decide requests that need no owner; for the rest, write a request to the owner.

    At or after the line the row decides, before it the owner. A released shard has no owner to ask, so the caller
    decides under the exclusive lock, if it is still released. The requests of `doubtful` ones, which may have been
    written before, are withdrawn first; if the owner has already answered, its decision counts.

    Rules: change_holds_lock, released_change_locks_exclusively, released_shard_is_checked_again.
    """
    shards = tx.lock_shards({change_request.shard for change_request in change_requests}, exclusive=exclusive)
    answered = _answered(tx, doubtful)
    state = dict(answered)
    requests = []
    for change_request in change_requests:
        if change_request.id in state:
            continue
        shard = shards.get(change_request.shard)
        found = tx.read_heads(change_request.app, [change_request.key]) if shard else ()
        if not shard or not found:
            state[change_request.id] = RequestState.MISSING
            continue
        head = found[0]
        if change_request.change is Change.RETRY and head.status in (Status.PENDING, Status.DONE):
            state[change_request.id] = RequestState.NOTHING_TO_RETRY
        elif head.status.final or head.due_ms >= shard.line_ms or (exclusive and shard.released):
            state[change_request.id] = change_row(tx, change_request, head, shard)
        elif shard.released:
            state[change_request.id] = RequestState.RELEASED
        else:
            requests.append(
                Request(
                    id=change_request.id,
                    shard=change_request.shard,
                    change=change_request.change,
                    keys=(change_request.key,),
                    due_ms=change_request.due_ms,
                )
            )
            state[change_request.id] = RequestState.ASKED
    tx.insert_requests(requests)
    _record_granted(tx, [q for q in change_requests if state[q.id] is RequestState.GRANTED and q.id not in answered])
    return state


def _record_granted(tx: Statements, granted: Sequence[ChangeRequest]) -> None:
    """Write the decisions, in case the answer to this transaction is lost, and delete the marks of ended attempts."""
    if granted:
        tx.write_decisions({change_request.id: True for change_request in granted}, granted[0].now_ms)
    tx.delete_marks((q.shard, q.key) for q in granted if q.change in (Change.CANCEL, Change.RETRY))


def _answered(tx: Statements, doubtful: Collection[bytes]) -> Mapping[bytes, RequestState]:
    """What was decided about these requests before; the requests of the others are withdrawn."""
    if not doubtful:
        return {}
    tx.delete_requests(doubtful)
    decisions = tx.read_decisions(doubtful)
    return {
        change_request: RequestState.GRANTED if granted else RequestState.TOO_LATE
        for change_request, granted in decisions.items()
    }


def change_row(tx: Statements, change_request: ChangeRequest, head: Head, shard: ShardInfo) -> RequestState:
    """Compare and set the row; write an entry at its new moment, and a wake if that is before the line.

    Rule: reschedule_wakes_owner.
    """
    update = changed(head, change_request.change, change_request.due_ms, change_request.now_ms)
    if update is None:
        return state_of(head, change_request.change)
    if tx.update_jobs(change_request.app, [update]):
        return RequestState.AGAIN
    write_entries(tx, change_request.app, head, update)
    if shard.released and head.status is Status.PENDING:
        tx.delete_unfinished([(head.key, head.attempt)])  # that an owner has left which is gone
    if update.status is Status.PENDING and update.due_ms < shard.line_ms:
        tx.insert_requests([wake(change_request.shard, [change_request.key])])
    counts = {(change_request.app, counted(change_request.change)): 1}
    tx.add_counts(counts, change_request.now_ms, waiting_after(change_request.app, update))
    return RequestState.GRANTED


def state_of(head: Head, change: Change) -> RequestState:
    """The answer when there is nothing to write: the job is already so, or it is too late."""
    already = head.status is Status.CANCELLED if change is Change.CANCEL else head.status is Status.PENDING
    return RequestState.GRANTED if already else RequestState.TOO_LATE


def changed(head: Head, change: Change, due_ms: int | None, now_ms: int) -> Update | None:
    """The new values of the row, or None if there is nothing to write."""
    if head.status.final and change is not Change.RETRY:
        return None
    if change is Change.RUN_NOW and head.due_ms <= now_ms:
        return None
    return Update(
        key=head.key,
        was_status=head.status,
        was_attempt=head.attempt,
        was_due_ms=head.due_ms,
        status=Status.CANCELLED if change is Change.CANCEL else Status.PENDING,
        attempt=head.attempt + 1 if change is Change.RETRY else head.attempt,
        due_ms=head.due_ms if due_ms is None else due_ms,
        scheduled_ms=due_ms if change is Change.RESCHEDULE else None,
        finished_ms=now_ms if change is Change.CANCEL else None,
    )


def write_entries(tx: Statements, app: str, head: Head, update: Update) -> None:
    """Write an entry at the new moment of a pending row; the entry at the old one becomes stale.

    Rules: reschedule_writes_entry, existing_entry_is_ignored.
    """
    if update.due_ms != head.due_ms or update.status is not Status.PENDING:
        tx.delete_entries(app, [(head.position, head.key)])
    if update.status is Status.PENDING:
        tx.insert_entries(app, [(position(head.key, update.due_ms), head.key)])


def waiting_after(app: str, update: Update) -> Mapping[tuple[str, int], int]:
    """How an update changes what waits, by app and the day on which it is due."""
    was, is_now = (app, update.was_due_ms // DAY_MS), (app, update.due_ms // DAY_MS)
    deltas = {was: -1} if update.was_status is Status.PENDING else {}
    if update.status is Status.PENDING:
        deltas[is_now] = deltas.get(is_now, 0) + 1
    return deltas


def counted(change: Change) -> str:
    """The name under which a granted change is counted."""
    match change:
        case Change.CANCEL:
            return "cancelled"
        case Change.RETRY:
            return "revived"
        case Change.RESCHEDULE | Change.RUN_NOW:
            return "rescheduled"


def give_up(
    tx: Statements, change_requests: Sequence[ChangeRequest], *, doubtful: bool = False
) -> Mapping[bytes, bool | None]:
    """Withdraw requests from an owner that does not answer; None: withdrawn, otherwise its decision counts.

    If it is doubtful whether they were written, their transaction may still be open at the server: the exclusive lock
    waits for its end.

    Rule: decided_request_is_not_withdrawn.
    """
    tx.lock_shards({change_request.shard for change_request in change_requests}, exclusive=doubtful)
    taken_back = tx.delete_requests([change_request.id for change_request in change_requests])
    decisions = tx.read_decisions(
        [change_request.id for change_request in change_requests if change_request.id not in taken_back]
    )
    return {
        change_request.id: decisions.get(change_request.id) for change_request in change_requests
    }  # a request that never arrived was not decided either
