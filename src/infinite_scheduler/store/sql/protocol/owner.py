"""Transactions of the node that owns a shard: each checks, under the lock, that it still does.

The rules that are named here are those of docs/concepts/line-protocol.md.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from infinite_scheduler.errors import StoreUnavailable
from infinite_scheduler.model import DAY_MS, Attempt, Change, Job, Owner, Shard, Status, key_text, position, shard_of
from infinite_scheduler.store.cluster_state import ShardInfo
from infinite_scheduler.store.marks import Lifted
from infinite_scheduler.store.ownership import (
    Answers,
    Claim,
    Grant,
    OwnerDecision,
    Page,
    Request,
    Running,
    Scan,
    Settlement,
    SettleResult,
    Step,
)
from infinite_scheduler.store.sql.protocol import anybody
from infinite_scheduler.store.sql.statements import Entries, Head, Statements, Update

Owners = Mapping[Shard, Owner]
Place = tuple[str, int]
"""Where waiting jobs are counted: an app and a day."""

SHOWN_MS = 1000
"""A longer delivery is kept as an attempt for people to see, even if it succeeded."""

UNSUCCESSFUL = frozenset({Status.FAILED, Status.EXPIRED})
"""Jobs that ended so are found by their attempts: they are few among many."""

NO_OWNER = ""


def owned(tx: Statements, owners: Owners, *, exclusive: bool) -> tuple[dict[Shard, ShardInfo], frozenset[Shard]]:
    """Lock the shards and split them: those still owned as `owners` says, and those that are lost.

    Rules: every_shard_is_locked, every_shard_is_fenced, lost_shard_costs_no_other.
    """
    rows = tx.lock_shards(owners.keys(), exclusive=exclusive)
    mine = {shard: row for shard, row in rows.items() if row.owner == owners[shard]}
    return mine, frozenset(owners.keys() - mine.keys())


def take(tx: Statements, nonce: str, claims: Sequence[Claim]) -> Sequence[Grant]:
    """Own shards by compare-and-set of nonce and epoch, if their owner's heartbeat is still the one seen before.

    Rules: takeover_locks_exclusively, takeover_checks_heartbeat_again, heartbeat_is_read_under_locks,
    unclean_takeover_makes_suspects.
    """
    rows = tx.lock_shards({claim.shard for claim in claims}, exclusive=True)
    beats = {node.nonce: node.beat for node in tx.read_nodes()}
    taken = []
    for claim in claims:
        row = rows.get(claim.shard)
        if row is None or row.owner != claim.seen:
            continue
        abandoned = row.released or row.owner.nonce == nonce or claim.dead
        if not abandoned and beats.get(row.owner.nonce) != claim.beat:
            continue  # its heartbeat has changed since, or it sent its first one
        taken.append(msgspec.structs.replace(row, owner=Owner(nonce, row.owner.epoch + 1)))
    tx.write_shards(taken)
    return grants(tx, taken, unclean={row.shard for row in taken if not rows[row.shard].released})


def grants(tx: Statements, rows: Collection[ShardInfo], unclean: Collection[Shard] = ()) -> Sequence[Grant]:
    """Shards as their new or old owner gets them."""
    marks = tx.read_marks({row.shard for row in rows})
    return [
        Grant(
            shard=row.shard,
            owner=row.owner,
            line_ms=row.line_ms,
            low_ms=row.low_ms,
            unclean=row.shard in unclean,
            suspects=marks.get(row.shard, {}),
        )
        for row in rows
    ]


def release(tx: Statements, owners: Owners, low_ms: Mapping[Shard, int], lifted: Lifted) -> None:
    """Leave shards without an owner; the epoch stays, so that the next owner's is new.

    Rules: release_locks_exclusively, release_puts_mark_back.
    """
    mine, _ = owned(tx, owners, exclusive=True)
    lift_marks(tx, mine, (), lifted)
    tx.write_shards(
        msgspec.structs.replace(row, owner=Owner(NO_OWNER, row.owner.epoch), low_ms=low_ms[shard])
        for shard, row in mine.items()
    )


def reload(tx: Statements, owners: Owners, handed_over: Collection[bytes], lifted: Lifted) -> Sequence[Grant]:
    """Wait for the exclusive lock, and so for open transactions on the shards; then read those still owned.

    Rules: reload_waits_for_lock, reload_puts_mark_back.
    """
    mine, _ = owned(tx, owners, exclusive=True)
    lift_marks(tx, mine, handed_over, lifted)
    return grants(tx, mine.values())


def lift_marks(tx: Statements, shards: Collection[Shard], handed_over: Collection[bytes], lifted: Lifted) -> None:
    """Weaken the marks of jobs that were not handed over after all: they must not be blamed for what others do."""
    tx.write_marks(
        [
            (shard, key, lifted[size])
            for shard, marks in tx.read_marks(shards).items()
            for key, size in marks.items()
            if size in lifted and key not in handed_over
        ]
    )


def advance(tx: Statements, steps: Sequence[Step]) -> frozenset[Shard]:
    """Move lines and lows under the exclusive lock; what the line passed is scanned after the commit.

    Rules: advance_locks_exclusively, advance_is_fenced, line_moves_before_scan, low_write_locks_exclusively.
    """
    mine, lost = owned(tx, {step.shard: step.owner for step in steps}, exclusive=True)
    tx.write_shards(
        msgspec.structs.replace(
            mine[step.shard], line_ms=max(step.line_ms, mine[step.shard].line_ms), low_ms=step.low_ms
        )
        for step in steps
        if step.shard in mine
    )
    return lost


def scan(tx: Statements, wanted: Scan) -> Page:
    """Read rows by their keys and by their entries; what does not agree with `row.due` is stale and skipped.

    Rules: stale_row_is_skipped, stale_entry_is_skipped.
    """
    rows, rows_end = tx.scan_rows(wanted)
    entries, entries_end = tx.scan_entries(msgspec.structs.replace(wanted, end=rows_end or wanted.end))
    current = [job for job in rows if current_row(job)]
    if not entries and entries_end is None:
        return Page(jobs=current, next=rows_end)
    ends = [end for end in (rows_end, entries_end) if end is not None]
    found = {job.key: job for job in current}
    found.update((job.key, job) for position, job in entries if current_entry(position, job))
    jobs = sorted(found.values(), key=_position)
    if not ends:
        return Page(jobs=jobs, next=None)
    end = min(ends)
    return Page(jobs=[job for job in jobs if job.position < end], next=end)


def current_row(job: Job) -> bool:
    """Is the row due at the moment of its key?"""
    return job.position == job.key


def current_entry(position: bytes, job: Job) -> bool:
    """Is the row that an entry names due at the entry's moment?"""
    return job.position == position


def _position(job: Job) -> bytes:
    return job.position


def answer(
    tx: Statements,
    owners: Owners,
    requests: Sequence[Request],
    handed_over: Collection[bytes],
    now_ms: int,
    room: int,
) -> Answers:
    """Consume requests by deleting them, lower `low` to the jobs named by wakes, and decide changes.

    Rules: answer_holds_lock, answer_is_fenced, answer_lowers_low, low_write_locks_exclusively,
    only_read_requests_are_deleted, wake_reads_its_rows, wake_takes_only_before_line.
    """
    mine, lost = owned(tx, owners, exclusive=True)
    waiting = [request for request in requests if request.shard in mine]
    claimed = tx.delete_requests([request.id for request in waiting])
    heads = read_named(tx, [request for request in waiting if request.id in claimed])
    low_ms = {shard: row.low_ms for shard, row in mine.items()}
    decisions = [
        decide(tx, request, heads, request.id in claimed, handed_over, now_ms)
        for request in waiting
        if request.change is not None
    ]
    tx.write_decisions({decision.request.id: decision.granted for decision in decisions if decision.claimed}, now_ms)
    wanted: dict[bytes, tuple[Shard, Head]] = {}
    for request in waiting:
        if request.id in claimed:
            for head in pending_of(heads, request):
                low_ms[request.shard] = min(low_ms[request.shard], head.due_ms)
                if head.due_ms < mine[request.shard].line_ms and head.key not in handed_over:
                    wanted[head.key] = request.shard, head
    tx.write_shards(msgspec.structs.replace(row, low_ms=low_ms[shard]) for shard, row in mine.items())
    jobs, left = load(tx, wanted.values(), room)
    decided = {decision.request.keys[0] for decision in decisions if decision.claimed}
    return Answers(
        lost=lost,
        woken=[job for key, job in jobs.items() if key not in decided],
        left=left,
        decisions=[msgspec.structs.replace(decision, job=jobs.get(decision.request.keys[0])) for decision in decisions],
        low_ms=low_ms,
    )


def read_named(tx: Statements, requests: Iterable[Request]) -> dict[bytes, Head]:
    """The rows that requests name."""
    keys: dict[str, set[bytes]] = {}
    for request in requests:
        keys.setdefault(request.shard.app, set()).update(request.keys)
    return {head.key: head for app, named in keys.items() for head in tx.read_heads(app, named)}


def pending_of(heads: Mapping[bytes, Head], request: Request) -> Iterable[Head]:
    """The pending jobs among those that a request names."""
    for key in request.keys:
        head = heads.get(key)
        if head and head.status is Status.PENDING:
            yield head


def load(
    tx: Statements, wanted: Collection[tuple[Shard, Head]], room: int
) -> tuple[dict[bytes, Job], Sequence[tuple[Shard, bytes]]]:
    """Read the earliest of these jobs, as many as there is room for; and the positions of the others."""
    keys: dict[str, list[bytes]] = {}
    left: list[tuple[Shard, bytes]] = []
    ordered = sorted(wanted, key=_place) if sum(head.size for _, head in wanted) > room else wanted
    for shard, head in ordered:
        if keys and room < head.size:
            left.append((shard, head.position))
        else:
            keys.setdefault(shard.app, []).append(head.key)
            room -= head.size
    return {record.job.key: record.job for app, some in keys.items() for record in tx.read_jobs(app, some)}, left


def _place(item: tuple[Shard, Head]) -> bytes:
    return item[1].position


def decide(
    tx: Statements,
    request: Request,
    heads: dict[bytes, Head],
    claimed: bool,
    handed_over: Collection[bytes],
    now_ms: int,
) -> OwnerDecision:
    """If handed over: too late; otherwise the row decides. A withdrawn request is not decided.

    Rules: handed_over_is_too_late, withdrawn_request_is_not_decided.
    """
    change, (key,) = request.change, request.keys
    head = heads.get(key)
    if not claimed or head is None or change is None or key in handed_over:
        return OwnerDecision(request=request, claimed=claimed, granted=False)
    update = anybody.changed(head, change, request.due_ms, now_ms)
    if update is None:
        granted = anybody.state_of(head, change) is anybody.RequestState.GRANTED
        return OwnerDecision(request=request, claimed=True, granted=granted)
    apply_change(tx, request.shard.app, head, update, change, now_ms)
    heads[key] = msgspec.structs.replace(head, due_ms=update.due_ms, attempt=update.attempt, status=update.status)
    return OwnerDecision(request=request, claimed=True, granted=True)


def apply_change(tx: Statements, app: str, head: Head, update: Update, change: Change, now_ms: int) -> None:
    """Write a decided change: row, entries, count."""
    if tx.update_jobs(app, [update]):
        raise StoreUnavailable(f"job {key_text(head.key)} changed under the exclusive lock of its shard")
    anybody.write_entries(tx, app, head, update)
    if update.status.final:
        tx.delete_marks([(Shard(app, shard_of(head.key)), head.key)])
    tx.add_counts({(app, anybody.counted(change)): 1}, now_ms, anybody.waiting_after(app, update))


def settle(
    tx: Statements,
    owners: Owners,
    node: str,
    settlements: Sequence[Settlement],
    running: Sequence[Running],
    *,
    exclusive: bool,
) -> SettleResult | None:
    """Record outcomes by compare-and-set on the attempt; a retry leaves an entry.

    Returns None, with nothing written, if `low` would have to be lowered without the exclusive lock.

    Rules: settle_holds_lock, settle_is_fenced, retry_lowers_low, low_write_locks_exclusively, exclusive_from_start.
    """
    mine, lost = owned(tx, owners, exclusive=exclusive)
    low_ms = lowered(mine, settlements)
    if low_ms and not exclusive:
        return None
    missed: set[Shard] = set()
    for app, group in settlements_by_app(settlements, mine).items():
        gone = tx.update_jobs(app, [update_of(s) for s in group])
        missed.update(s.shard for s in group if s.job.key in gone)
        recorded = [s for s in group if s.job.key not in gone] if gone else group
        record_outcomes(tx, app, node, recorded)
    tx.write_shards(msgspec.structs.replace(mine[shard], low_ms=low) for shard, low in low_ms.items())
    for app, shown in running_by_app(running, mine, node).items():
        tx.write_attempts(app, shown)
    return SettleResult(lost=lost, missed=frozenset(missed), low_ms=low_ms)


def lowered(mine: Mapping[Shard, ShardInfo], settlements: Sequence[Settlement]) -> dict[Shard, int]:
    """Where `low` must move back, because a retry leaves an entry before it."""
    low_ms: dict[Shard, int] = {}
    for s in settlements:
        if s.status is Status.PENDING and s.shard in mine and s.due_ms < low_ms.get(s.shard, mine[s.shard].low_ms):
            low_ms[s.shard] = s.due_ms
    return low_ms


def settlements_by_app(
    settlements: Sequence[Settlement], mine: Mapping[Shard, ShardInfo]
) -> dict[str, list[Settlement]]:
    """The settlements of shards still owned, by app, in the order of their keys."""
    groups: dict[str, list[Settlement]] = {}
    for s in sorted(settlements, key=_settled_key):
        if s.shard in mine:
            groups.setdefault(s.job.app, []).append(s)
    return groups


def running_by_app(
    running: Sequence[Running], mine: Mapping[Shard, ShardInfo], node: str
) -> dict[str, list[tuple[bytes, Attempt]]]:
    """Unfinished deliveries in shards still owned, by app: one statement writes many."""
    groups: dict[str, list[tuple[bytes, Attempt]]] = {}
    for r in running:
        if Shard(r.job.app, r.job.shard) in mine:
            attempt = Attempt(attempt=r.job.attempt, started_ms=r.started_ms, node=node)
            groups.setdefault(r.job.app, []).append((r.job.key, attempt))
    return groups


def _settled_key(s: Settlement) -> tuple[str, bytes]:
    return s.job.app, s.job.key


def update_of(s: Settlement) -> Update:
    """The new values of the row of a settled delivery, set if it is still as it was handed over.

    Rule: settle_compares_attempt.
    """
    again = s.status is Status.PENDING
    return Update(
        key=s.job.key,
        was_status=Status.PENDING,
        was_attempt=s.job.attempt,
        was_due_ms=s.job.due_ms,
        status=s.status,
        attempt=s.job.attempt + 1 if again else s.job.attempt,
        due_ms=s.due_ms if again else s.job.due_ms,
        finished_ms=None if again else s.finished_ms,
        error=s.error,
    )


def record_outcomes(tx: Statements, app: str, node: str, group: Sequence[Settlement]) -> None:
    """Write entries, attempts, marks and counts of outcomes that changed their rows.

    Rules: retry_writes_entry, existing_entry_is_ignored, settle_deletes_mark.
    """
    stale, entries, attempts, marks = [], [], [], []
    ended: dict[bytes, Status] = {}
    counts: dict[tuple[str, str], int] = {}
    for s in group:
        job = s.job
        what = "retried" if s.status is Status.PENDING else str(s.status)
        counts[app, what] = counts.get((app, what), 0) + 1
        if job.position != job.key:
            stale.append((job.position, job.key))
        if s.status is Status.PENDING:
            entries.append((position(job.key, s.due_ms), job.key))
        if s.status in UNSUCCESSFUL:
            ended[job.key] = s.status
        if s.error is not None or s.finished_ms - s.started_ms >= SHOWN_MS or job.key in ended:
            attempts.append((job.key, attempt_of(s, node)))
        if s.marked:
            marks.append((s.shard, job.key))
    tx.delete_entries(app, stale)
    tx.insert_entries(app, entries)
    tx.write_attempts(app, attempts, ended)
    tx.delete_marks(marks)
    tx.add_counts(counts, max((s.finished_ms for s in group), default=0), waiting_after(app, group, stale, entries))


def waiting_after(app: str, group: Sequence[Settlement], stale: Entries, entries: Entries) -> Mapping[Place, int]:
    """How outcomes, in the order of their keys, change what waits: `stale` are moved jobs, `entries` those that retry.

    A job that was never moved is due on the day of its key; mostly that is one day for all of them.
    """
    deltas: Counter[Place] = Counter()
    moved = {key for _, key in stale}
    if group and _day(group[0].job.key) == _day(group[-1].job.key):
        deltas[app, _day(group[0].job.key)] -= len(group) - len(moved)
    else:
        deltas.subtract((app, _day(s.job.key)) for s in group if s.job.key not in moved)
    deltas.subtract((app, _day(place)) for place, _ in stale)
    deltas.update((app, _day(place)) for place, _ in entries)
    return deltas


def _day(place: bytes) -> int:
    """The day of the moment in a key or position."""
    return int.from_bytes(place[:6], "big") // DAY_MS


def attempt_of(s: Settlement, node: str) -> Attempt:
    """The delivery as people see it."""
    return Attempt(attempt=s.job.attempt, started_ms=s.started_ms, finished_ms=s.finished_ms, node=node, error=s.error)


def mark(tx: Statements, owners: Owners, jobs: Sequence[Job], size: int) -> frozenset[Shard]:
    """Record which jobs are about to be handed over together."""
    mine, lost = owned(tx, owners, exclusive=False)
    marked = ((Shard(job.app, job.shard), job.key) for job in jobs)
    tx.write_marks((shard, key, size) for shard, key in marked if shard in mine)
    return lost
