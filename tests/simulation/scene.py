"""What interleavings are made of: an app whose shards an old owner has, its transactions, and what becomes of them."""

import os
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from infinite_scheduler.model import (
    Change,
    Job,
    JobId,
    JobRecord,
    JobSpec,
    Owner,
    Priority,
    Shard,
    Status,
    shard_of,
    start_of,
)
from infinite_scheduler.store.cluster_state import NodeInfo, ShardInfo
from infinite_scheduler.store.ownership import Answers, Claim, Grant, Request, Scan, Settlement, SettleResult, Step
from infinite_scheduler.store.sql.protocol import anybody, owner
from infinite_scheduler.store.sql.protocol.anybody import RequestState
from infinite_scheduler.store.sql.statements import Body, NewRow, Statements
from infinite_scheduler.store.sql.tables import SqlApp
from tests.simulation.interleave import Act, Stage

T = TypeVar("T")

NOW = 1_794_787_200_000
LOW = NOW - 1000
LINE = NOW + 10_000
LATER = NOW + 20_000
APP = "mail"
SHARD, OTHER = Shard(APP, 0), Shard(APP, 1)
OLD, NEW, NOBODY = Owner("old", 7), Owner("new", 8), Owner("", 7)


class Broken(AssertionError):
    """A promise of the protocol does not hold."""


def promise(holds: bool, words: str) -> None:
    if not holds:
        raise Broken(words)


def prepare(stage: Stage) -> None:
    """An app of two shards, which the old owner has from low to the line."""

    def body(tx: Statements) -> None:
        tx.insert_app(SqlApp(name=APP, shards=2, paused=False, created_ms=NOW), NOW)
        tx.lock_shards([SHARD, OTHER], exclusive=True)
        tx.write_shards(ShardInfo(shard=s, owner=OLD, line_ms=LINE, low_ms=LOW) for s in (SHARD, OTHER))

    stage.do(body)


# Transactions


def new_row(due_ms: int, shard: Shard = SHARD) -> NewRow:
    spec = JobSpec(app=APP, scheduled_ms=due_ms, payload=b"{}")
    return NewRow(bytes(JobId.make(due_ms, shard.number, Priority.NORMAL)), spec, NOW)


def chunks(rows: Sequence[NewRow]) -> anybody.Chunks:
    shards = {Shard(APP, shard_of(row.key)) for row in rows}
    return {shard: [row for row in rows if shard_of(row.key) == shard.number] for shard in sorted(shards)}


def inserts(*rows: NewRow) -> Body[anybody.Inserted]:
    return lambda tx: anybody.insert(tx, chunks(rows), NOW)


def enqueues(*rows: NewRow) -> Body[anybody.Inserted]:
    return lambda tx: anybody.enqueue(tx, chunks(rows), NOW)


def change_request(key: bytes, change: Change = Change.CANCEL, due_ms: int | None = None) -> anybody.ChangeRequest:
    return anybody.ChangeRequest(id=os.urandom(16), change=change, app=APP, key=key, due_ms=due_ms, now_ms=NOW)


def asks(asked: anybody.ChangeRequest, *, exclusive: bool = False) -> Body[RequestState]:
    return lambda tx: anybody.ask(tx, [asked], exclusive=exclusive)[asked.id]


def gives_up(asked: anybody.ChangeRequest) -> Body[bool | None]:
    return lambda tx: anybody.give_up(tx, [asked])[asked.id]


def takes(
    nonce: str = NEW.nonce, *, seen: Owner = OLD, beat: int | None = None, shard: Shard = SHARD
) -> Body[Sequence[Grant]]:
    return lambda tx: owner.take(tx, nonce, [Claim(shard=shard, seen=seen, beat=beat)])


def releases() -> Body[None]:
    return lambda tx: owner.release(tx, {SHARD: OLD}, {SHARD: LOW}, {})


def reloads() -> Body[Sequence[Grant]]:
    return lambda tx: owner.reload(tx, {SHARD: OLD}, (), {})


def advances(line_ms: int, low_ms: int = LOW) -> Body[frozenset[Shard]]:
    return lambda tx: owner.advance(tx, [Step(shard=SHARD, owner=OLD, line_ms=line_ms, low_ms=low_ms)])


def answers(requests: Sequence[Request], by: Owner = OLD) -> Body[Answers]:
    owners = {SHARD: by} | {request.shard: by for request in requests}
    return lambda tx: owner.answer(tx, owners, requests, (), NOW, 8 << 20)


def settles(*outcomes: Settlement, exclusive: bool = False) -> Body[SettleResult | None]:
    owners = {outcome.shard: OLD for outcome in outcomes}
    return lambda tx: owner.settle(tx, owners, "n1", outcomes, (), exclusive=exclusive)


def done(of: Job) -> Settlement:
    return Settlement(job=of, status=Status.DONE, started_ms=NOW, finished_ms=NOW)


def again(of: Job, due_ms: int) -> Settlement:
    return Settlement(job=of, status=Status.PENDING, started_ms=NOW, finished_ms=NOW, due_ms=due_ms)


def renews(beat: int) -> Body[None]:
    node = NodeInfo(nonce=OLD.nonce, node_id="n1", apps=frozenset({APP}), started_ms=NOW, beat=beat)
    return lambda tx: tx.write_node(node)


# What the tables and the memory of nodes hold


def requests_of(stage: Stage) -> Sequence[Request]:
    return stage.look(lambda tx: tx.read_requests([SHARD, OTHER], 1000))


def named(stage: Stage) -> set[bytes]:
    """The jobs that requests name."""
    return {key for request in requests_of(stage) for key in request.keys}


def record(stage: Stage, key: bytes) -> JobRecord:
    (found,) = stage.look(lambda tx: tx.read_jobs(APP, [key]))
    return found


def shard_row(stage: Stage, shard: Shard = SHARD) -> ShardInfo:
    return next(row for row in stage.look(lambda tx: tx.read_shards()) if row.shard == shard)


def scanned(stage: Stage, start_ms: int, end_ms: int, shard: Shard = SHARD) -> dict[bytes, Job]:
    """What a scan of this range puts onto the wheel."""
    found: dict[bytes, Job] = {}
    start: bytes | None = start_of(start_ms)
    while start is not None:
        wanted = Scan(
            app=APP, shards=frozenset({shard.number}), start=start, end=start_of(end_ms), limit=1000, room=8 << 20
        )
        page = stage.look(lambda tx, wanted=wanted: owner.scan(tx, wanted))  # type: ignore[misc]
        found |= {job.key: job for job in page.jobs}
        start = page.next
    return found


def loaded(stage: Stage, shard: Shard = SHARD) -> dict[bytes, Job]:
    """What an owner has on its wheel after it has scanned [low, line)."""
    row = shard_row(stage, shard)
    return scanned(stage, row.low_ms, row.line_ms, shard)


def waiting(stage: Stage, due_ms: int, shard: Shard = SHARD) -> bytes:
    """A job on the wheel of the old owner, or in the store if it is due after the line."""
    row = new_row(due_ms, shard)
    stage.do(inserts(row))
    stage.do(answers(requests_of(stage)))
    return row.key


def as_soon_as(this: Act[object], then: Callable[[], T], *, beside: Act[object]) -> T:
    """What follows one transaction as early as it can: while the other still stands, unless this one waits for it."""
    if this.ended:
        this.result()
        seen = then()
        beside.result()
    else:
        beside.result()
        this.result()
        seen = then()
    return seen


def cancelled(stage: Stage, key: bytes) -> bool:
    """Ask until it is decided or the owner must decide, as change requests do; says whether it was granted."""
    asked = change_request(key)
    state = stage.do(asks(asked))
    if state is RequestState.RELEASED:
        state = stage.do(asks(asked, exclusive=True))
    return state is RequestState.GRANTED


def granted(stage: Stage, asked: anybody.ChangeRequest) -> bool:
    """Does the caller hear yes from the owner?"""
    return stage.look(lambda tx: tx.read_decisions([asked.id])).get(asked.id, False)


# Promises


def found(key: bytes, *places: Collection[bytes]) -> None:
    promise(any(key in place for place in places), "never lost")


def respected(granted: bool, key: bytes, held: Collection[bytes]) -> None:
    promise(not (granted and key in held), "an acknowledged cancel never fires")


def fenced(stage: Stage, key: bytes, held: Collection[bytes]) -> None:
    """What the next owner holds, nobody else has settled."""
    promise(key not in held or record(stage, key).status is Status.PENDING, "nothing settled is handed over")


def told_the_truth(stage: Stage, key: bytes, decision: bool | None) -> None:
    """Unavailable (None) means that nothing was and nothing will be decided."""
    promise((record(stage, key).status is Status.CANCELLED) == bool(decision), "Unavailable means undecided for good")
