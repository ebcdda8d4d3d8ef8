"""The statements of the store, over the tables of the simulated server."""

import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from types import GeneratorType
from typing import Any, ParamSpec, TypeVar

import msgspec
from greenlet import GreenletExit, getcurrent

from infinite_scheduler.model import DAY_MS, Attempt, Job, JobRecord, Owner, Shard, Status
from infinite_scheduler.store.cluster_state import NodeInfo, ShardInfo
from infinite_scheduler.store.inbox import DeadLetter, LetterQuery, LetterState, Move, TopicPosition
from infinite_scheduler.store.ledger import AuditQuery, AuditRecord, Token
from infinite_scheduler.store.ownership import Request, Scan, named
from infinite_scheduler.store.sql.dialect import TableSize
from infinite_scheduler.store.sql.job_rows import after
from infinite_scheduler.store.sql.statements import (
    DueCount,
    DueCounted,
    Head,
    LookAt,
    NewRow,
    Probe,
    Probed,
    Statements,
    Update,
)
from infinite_scheduler.store.sql.tables import SqlApp
from tests.simulation.server import Transaction, Work

P = ParamSpec("P")
T = TypeVar("T")


class Pause:
    """A statement of tests: the transaction stays open for a while and does nothing."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self) -> None:
        raise AssertionError("the server does not execute it")


def ask(transaction: Transaction, statement: Callable[[], Any]) -> Any:
    """Send a statement to the server and wait for its answer; called in the greenlet of a transaction."""
    if transaction.server.world.closed:
        raise GreenletExit
    hub = getcurrent().parent
    assert hub is not None
    return hub.switch(statement)


def reads(look: Callable[P, T]) -> Callable[P, T]:
    """A statement that looks at one snapshot."""

    @functools.wraps(look)
    def sent(*args: P.args, **kwargs: P.kwargs) -> T:
        statements: Any = args[0]
        result: T = ask(statements.transaction, functools.partial(look, *args, **kwargs))
        return result

    return sent


def writes(work: Callable[P, Work[T]]) -> Callable[P, T]:
    """A statement that locks what it writes, row after row."""

    @functools.wraps(work)
    def sent(*args: P.args, **kwargs: P.kwargs) -> T:
        # Rows that are made on the way are made by the client, so before the statement is sent.
        made = [list(arg) if isinstance(arg, GeneratorType) else arg for arg in args]
        statements: Any = args[0]
        result: T = ask(statements.transaction, functools.partial(work, *made, **kwargs))  # type: ignore[arg-type]
        return result

    return sent


class SimStatements(Statements):
    """One open transaction."""

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction

    def hold(self, seconds: float) -> None:
        """Keep the transaction open for a while, as a user's own code may."""
        ask(self.transaction, Pause(seconds))

    @writes
    def lock_shards(self, shards: Collection[Shard], *, exclusive: bool) -> Work[Mapping[Shard, ShardInfo]]:
        for shard in sorted(shards):
            yield from self.transaction.lock(("shard lock", shard), exclusive=exclusive)
        found = {shard: self.transaction.get("shards", shard) for shard in sorted(shards)}
        return {shard: row for shard, row in found.items() if row is not None}

    @reads
    def ownership_version(self) -> object:
        return [(row.shard, row.owner) for row in self.transaction.rows("shards").values()]

    @reads
    def read_shards(self) -> Sequence[ShardInfo]:
        rows = self.transaction.rows("shards")
        return [rows[shard] for shard in sorted(rows)]

    @writes
    def write_shards(self, rows: Iterable[ShardInfo]) -> Work[None]:
        for row in rows:
            if self.transaction.server.strict and not self.transaction.held.get(("shard lock", row.shard)):
                raise AssertionError(f"shard {row.shard} is written without the exclusive lock")
            yield from self.transaction.put("shards", row.shard, row)

    @writes
    def insert_jobs(self, app: str, rows: Sequence[NewRow]) -> Work[Collection[bytes]]:
        known: list[bytes] = []
        for row in rows:
            new = yield from self.transaction.insert("jobs", (app, row.key), record_of(app, row))
            known += [] if new else [row.key]
        return known

    @reads
    def read_jobs(self, app: str, keys: Collection[bytes]) -> Sequence[JobRecord]:
        found = (self.transaction.get("jobs", (app, key)) for key in sorted(keys))
        return [fresh(record) for record in found if record is not None]

    @reads
    def read_heads(self, app: str, keys: Collection[bytes]) -> Sequence[Head]:
        found = [self.transaction.get("jobs", (app, key)) for key in sorted(keys)]
        heavy = self.transaction.server.world.rng.random() < self.transaction.server.weather.heavy
        return [head(record, heavy=heavy) for record in found if record is not None]

    @reads
    def scan_rows(self, scan: Scan) -> tuple[Sequence[Job], bytes | None]:
        limit, room = self._page(scan.limit), scan.room
        found: list[Job] = []
        for place in self.transaction.between("jobs", scan.app, scan.start, scan.end):
            record = self.transaction.get("jobs", place)
            if record.status is Status.PENDING and wanted(scan, record.job):
                if found and (len(found) >= limit or room <= 0):
                    return found, record.job.key
                found.append(copy(record.job))
                room -= len(record.job.payload)
        return found, None

    @reads
    def apps_without_jobs(self, scans: Sequence[Scan]) -> Collection[str]:
        return {
            scan.app
            for scan in scans
            if not any(
                any(True for _ in self.transaction.between(table, scan.app, scan.start, scan.end))
                for table in ("jobs", "entries")
            )
        }

    @reads
    def scan_entries(self, scan: Scan) -> tuple[Sequence[tuple[bytes, Job]], bytes | None]:
        limit, room = self._page(scan.limit), scan.room
        found: list[tuple[bytes, Job]] = []
        for app, at, key in self.transaction.between("entries", scan.app, scan.start, scan.end):
            record = self.transaction.get("jobs", (app, key))
            if record is not None and record.status is Status.PENDING and wanted(scan, record.job):
                full = found and (len(found) >= limit or room <= 0)
                if full and found[-1][0] != at:  # a position that several jobs share is read whole
                    return found, at
                found.append((at, copy(record.job)))
                room -= len(record.job.payload)
        return found, None

    def _page(self, limit: int) -> int:
        """A server may give less than asked for."""
        rng = self.transaction.server.world.rng
        return min(limit, rng.randrange(1, 6)) if rng.random() < 0.1 else limit

    @writes
    def update_jobs(self, app: str, updates: Sequence[Update]) -> Work[Collection[bytes]]:
        missed = []
        for update in updates:
            changed = yield from self.transaction.change("jobs", (app, update.key), functools.partial(updated, update))
            if not changed:
                missed.append(update.key)
        return missed

    @writes
    def insert_entries(self, app: str, entries: Sequence[tuple[bytes, bytes]]) -> Work[None]:
        for at, key in entries:
            yield from self.transaction.insert("entries", (app, at, key), True)

    @writes
    def delete_entries(self, app: str, entries: Sequence[tuple[bytes, bytes]]) -> Work[None]:
        for at, key in entries:
            yield from self.transaction.change("entries", (app, at, key), gone)

    @reads
    def look(self, probe: Probe) -> Probed:
        newest_first = probe.query.newest_first
        places = sorted(self._places(probe), reverse=newest_first)
        some = places[: probe.most]
        found = [
            (place, key) for place, key in some if sought(probe, place, self.transaction.get("jobs", (probe.app, key)))
        ]
        left = None if len(some) == len(places) else (some[-1][0] if newest_first else after(some[-1][0]))
        return Probed(found=list(dict.fromkeys(found)), rows=len(some), left=left)

    def _places(self, probe: Probe) -> list[tuple[bytes, bytes]]:
        match probe.at:
            case LookAt.ROWS:
                rows = self.transaction.between("jobs", probe.app, probe.start, probe.end)
                return [(key, key) for _, key in rows]
            case LookAt.LATER:
                return []
            case LookAt.MOVED:
                return [
                    (at, key) for _, at, key in self.transaction.between("entries", probe.app, probe.start, probe.end)
                ]
            case LookAt.ENDED:
                keys = [key for app, key, _ in self.transaction.rows("attempts") if app == probe.app]
                return [(key, key) for key in keys if probe.start <= key < probe.end]

    @reads
    def count_due(self, wanted: DueCount) -> DueCounted:
        dues = [
            record.job.due_ms
            for (app, _), record in self.transaction.rows("jobs").items()
            if app == wanted.app and wanted.at is LookAt.ROWS and record.status is Status.PENDING
        ]
        inside = [due_ms - wanted.start_ms for due_ms in dues if wanted.start_ms <= due_ms < wanted.end_ms]
        units = Counter(after_ms // wanted.unit_ms for after_ms in inside)
        return DueCounted(units=units, rows=len(dues), to_ms=wanted.end_ms)

    @reads
    def table_sizes(self) -> Sequence[TableSize]:
        return []

    @reads
    def ends_known_from(self) -> int:
        return 0

    @reads
    def lows(self, app: str | None = None) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for row in self.transaction.rows("shards").values():
            if app in (None, row.shard.app):
                found[row.shard.app] = min(row.low_ms, found.get(row.shard.app, row.low_ms))
        return found

    @writes
    def insert_requests(self, requests: Iterable[Request]) -> Work[None]:
        for request in requests:
            yield from self.transaction.insert("requests", request.id, request)

    @reads
    def read_requests(self, shards: Collection[Shard], limit: int) -> Sequence[Request]:
        found = [request for request in self.transaction.rows("requests").values() if request.shard in shards]
        if len(found) > 1:
            self.transaction.server.world.rng.shuffle(found)
        enough = (i for i in range(len(found)) if named(found[:i]) >= limit)
        return found[: next(enough, None)]

    @writes
    def delete_requests(self, ids: Collection[bytes]) -> Work[Collection[bytes]]:
        deleted = []
        for request in sorted(ids):
            was_there = yield from self.transaction.change("requests", request, gone)
            deleted += [request] * was_there
        return deleted

    @writes
    def write_decisions(self, decisions: Mapping[bytes, bool], now_ms: int) -> Work[None]:
        for request, granted in decisions.items():
            yield from self.transaction.put("verdicts", request, (granted,))

    @reads
    def read_decisions(self, requests: Collection[bytes]) -> Mapping[bytes, bool]:
        found = {request: self.transaction.get("verdicts", request) for request in requests}
        return {request: decision[0] for request, decision in found.items() if decision is not None}

    @writes
    def claim_keys(self, app: str, rows: Sequence[NewRow]) -> Work[Mapping[str, tuple[bytes, bytes]]]:
        others: dict[str, tuple[bytes, bytes]] = {}
        for row in sorted(rows, key=lambda row: row.spec.idempotency_key or ""):
            key = row.spec.idempotency_key
            assert key is not None
            yield from self.transaction.insert("keys", (app, key), (row.key, row.spec.digest))
            first = self.transaction.get("keys", (app, key))
            if first[0] != row.key:
                others[key] = first
        return others

    @reads
    def read_keys(self, app: str, keys: Collection[str]) -> Mapping[str, tuple[bytes, bytes]]:
        found = {key: self.transaction.get("keys", (app, key)) for key in sorted(keys)}
        return {key: holder for key, holder in found.items() if holder is not None}

    @writes
    def write_attempts(
        self, app: str, attempts: Iterable[tuple[bytes, Attempt]], ended: Mapping[bytes, Status] | None = None
    ) -> Work[None]:
        for key, attempt in attempts:
            yield from self.transaction.put("attempts", (app, key, attempt.attempt), attempt)

    @writes
    def delete_unfinished(self, attempts: Iterable[tuple[bytes, int]]) -> Work[None]:
        wanted = set(attempts)
        for place in list(self.transaction.rows("attempts")):
            if place[1:] in wanted:
                yield from self.transaction.change("attempts", place, gone)

    @reads
    def read_attempts_of(self, app: str, keys: Collection[bytes]) -> Mapping[bytes, Sequence[Attempt]]:
        found: dict[bytes, list[Attempt]] = {}
        for place, row in sorted(self.transaction.rows("attempts").items()):
            if place[0] == app and place[1] in keys:
                found.setdefault(place[1], []).append(row)
        return found

    @writes
    def write_marks(self, marks: Iterable[tuple[Shard, bytes, int]]) -> Work[None]:
        for shard, key, size in marks:
            yield from self.transaction.put("marks", (shard, key), size)

    @reads
    def read_marks(self, shards: Collection[Shard]) -> Mapping[Shard, Mapping[bytes, int]]:
        marks: dict[Shard, dict[bytes, int]] = {}
        for (shard, key), size in self.transaction.rows("marks").items():
            if shard in shards:
                marks.setdefault(shard, {})[key] = size
        return marks

    @writes
    def delete_marks(self, keys: Iterable[tuple[Shard, bytes]]) -> Work[None]:
        for shard, key in keys:
            yield from self.transaction.change("marks", (shard, key), gone)

    @writes
    def add_counts(
        self,
        deltas: Mapping[tuple[str, str], int],
        now_ms: int,
        waiting: Mapping[tuple[str, int], int] | None = None,
    ) -> Work[None]:
        process = self.transaction.process.name
        for (app, what), delta in sorted(deltas.items()):
            yield from self._count((process, app, what), delta)
        for (app, day), delta in sorted((waiting or {}).items()):
            yield from self._count((process, app, day), delta)

    def _count(self, place: tuple[str, str, str | int], delta: int) -> Work[None]:
        """Add to a counter: of what happened, or of what waits for a day."""
        yield from self.transaction.lock(("counts", place), exclusive=True)
        count = self.transaction.get("counts", place) or 0
        yield from self.transaction.put("counts", place, count + delta)

    @reads
    def read_counts(self) -> Mapping[str, Mapping[str, int]]:
        counts: dict[str, dict[str, int]] = {}
        for (_, app, what), count in self.transaction.rows("counts").items():
            if isinstance(what, str):
                of_app = counts.setdefault(app, {})
                of_app[what] = of_app.get(what, 0) + count
        return counts

    def _waiting(self) -> dict[str, dict[int, int]]:
        found: dict[str, dict[int, int]] = {}
        for (_, app, day), count in self.transaction.rows("counts").items():
            if isinstance(day, int):
                of_app = found.setdefault(app, {})
                of_app[day] = of_app.get(day, 0) + count
        return found

    @reads
    def read_waiting(self, app: str | None = None) -> Mapping[str, Mapping[int, int]]:
        found = {name: {day: n for day, n in days.items() if n} for name, days in self._waiting().items()}
        return {name: days for name, days in found.items() if days and app in (None, name)}

    @reads
    def count_waiting(self, app: str) -> tuple[Mapping[int, int], Mapping[int, int]]:
        counted: dict[int, int] = {}
        for (of, _), record in self.transaction.rows("jobs").items():
            if of == app and record.status is Status.PENDING:
                day = record.job.due_ms // DAY_MS
                counted[day] = counted.get(day, 0) + 1
        return counted, self._waiting().get(app, {})

    @writes
    def correct_waiting(self, app: str, deltas: Mapping[int, int]) -> Work[None]:
        for day, delta in sorted(deltas.items()):
            yield from self._count(("", app, day), delta)

    @reads
    def read_apps(self) -> Sequence[SqlApp]:
        return list(self.transaction.rows("apps").values())

    @reads
    def has_tables_of(self, app: str) -> bool:
        return True

    @writes
    def insert_app(self, app: SqlApp, now_ms: int) -> Work[None]:
        if not (yield from self.transaction.insert("apps", app.name, app)):
            return
        for number in range(app.shards):
            shard = Shard(app.name, number)
            row = ShardInfo(shard=shard, owner=Owner("", 0), line_ms=now_ms, low_ms=now_ms)
            yield from self.transaction.insert("shards", shard, row)

    @writes
    def set_paused(self, app: str, *, paused: bool) -> Work[bool]:
        exists = self.transaction.get("apps", app) is not None
        yield from self.transaction.change(
            "apps", app, lambda row: row if row.paused is paused else msgspec.structs.replace(row, paused=paused)
        )
        return exists

    @reads
    def read_nodes(self, *, vitals: bool = False) -> Sequence[NodeInfo]:
        rows = list(self.transaction.rows("nodes").values())
        return rows if vitals else [msgspec.structs.replace(row, vitals=None) for row in rows]

    @writes
    def write_node(self, node: NodeInfo) -> Work[None]:
        yield from self.transaction.lock(("nodes", node.nonce), exclusive=True)
        known = self.transaction.get("nodes", node.nonce)
        asked = known is not None and known.drain_asked
        yield from self.transaction.put("nodes", node.nonce, msgspec.structs.replace(node, drain_asked=asked))

    @writes
    def set_drain(self, node_id: str, *, asked: bool) -> Work[int]:
        named = [nonce for nonce, node in self.transaction.rows("nodes").items() if node.node_id == node_id]
        for nonce in named:
            yield from self.transaction.change(
                "nodes", nonce, lambda row: msgspec.structs.replace(row, drain_asked=asked)
            )
        return len(named)

    @reads
    def now_ms(self) -> int:
        return int(self.transaction.server.world.now_ms())

    @writes
    def delete_node(self, nonce: str) -> Work[None]:
        yield from self.transaction.change("nodes", nonce, gone)

    @writes
    def move_position(self, move: Move, now_ms: int) -> Work[bool]:
        if move.seen is None:
            place = TopicPosition(source=move.source, next=move.next, topic_id=move.topic_id, moved_ms=now_ms)
            return (yield from self.transaction.insert("places", move.source, place))
        return (yield from self.transaction.change("places", move.source, functools.partial(moved, move, now_ms)))

    @reads
    def read_positions(self, group: str | None, topic: str | None) -> Sequence[TopicPosition]:
        rows = self.transaction.rows("places")
        found = [rows[source] for source in sorted(rows)]
        return [p for p in found if group in (None, p.source.group) and topic in (None, p.source.topic)]

    @reads
    def letter_room(self) -> int | None:
        return self.transaction.server.letter_room

    @writes
    def insert_letters(self, letters: Sequence[DeadLetter]) -> Work[None]:
        for letter in letters:
            yield from self.transaction.insert("letters", bytes.fromhex(letter.id), letter)

    @reads
    def find_letters(self, query: LetterQuery, after: bytes | None, limit: int) -> Sequence[tuple[bytes, int]]:
        found = [
            (key, letter.size)
            for key, letter in sorted(self.transaction.rows("letters").items(), reverse=not query.oldest_first)
            if letter_wanted(query, letter) and (after is None or (key > after if query.oldest_first else key < after))
        ]
        return found[:limit]

    @reads
    def read_letters(self, keys: Collection[bytes]) -> Sequence[DeadLetter]:
        found = (self.transaction.get("letters", key) for key in keys)
        return [letter for letter in found if letter is not None]

    @reads
    def read_letter_states(self, keys: Collection[bytes]) -> Mapping[bytes, LetterState]:
        found = {key: self.transaction.get("letters", key) for key in keys}
        return {key: letter.state for key, letter in found.items() if letter is not None}

    @writes
    def mark_letters(
        self, keys: Collection[bytes], state: LetterState, note: str | None, *, among: Collection[LetterState]
    ) -> Work[int]:
        def marked(letter: DeadLetter) -> DeadLetter:
            if letter.state not in among:
                return letter
            return msgspec.structs.replace(letter, state=state, note=letter.note if note is None else note)

        count = 0
        for key in sorted(keys):
            count += yield from self.transaction.change("letters", key, marked)
        return count

    @reads
    def count_letters(self) -> Mapping[tuple[str, str], int]:
        counts: dict[tuple[str, str], int] = {}
        for letter in self.transaction.rows("letters").values():
            name = letter.source.topic, str(letter.state.value)
            counts[name] = counts.get(name, 0) + 1
        return counts

    @reads
    def count_keys(self) -> int:
        return len(self.transaction.rows("keys"))

    @writes
    def insert_audit(self, records: Sequence[AuditRecord]) -> Work[None]:
        for record in records:
            yield from self.transaction.insert("audit", bytes.fromhex(record.id), record)

    @reads
    def find_audit(self, query: AuditQuery, before: bytes | None, limit: int) -> Sequence[AuditRecord]:
        found = [
            record
            for key, record in sorted(self.transaction.rows("audit").items(), reverse=True)
            if audit_wanted(query, record) and (before is None or key < before)
        ]
        return found[:limit]

    @writes
    def lock_tokens(self) -> Work[None]:
        yield from self.transaction.lock(("tokens",), exclusive=True)

    @reads
    def read_tokens(self) -> Sequence[Token]:
        return [token for _, token in sorted(self.transaction.rows("tokens").items())]

    @writes
    def insert_token(self, token: Token) -> Work[bool]:
        return (yield from self.transaction.insert("tokens", token.name, token))

    @writes
    def revoke_token(self, name: str, now_ms: int) -> Work[None]:
        def revoked(token: Token) -> Token:
            return token if token.revoked_ms is not None else msgspec.structs.replace(token, revoked_ms=now_ms)

        yield from self.transaction.change("tokens", name, revoked)


def moved(move: Move, now_ms: int, place: TopicPosition) -> TopicPosition:
    """The place after the move, or the same object if it is not as it was seen."""
    if place.next != move.seen:
        return place
    topic_id = place.topic_id if move.topic_id is None else move.topic_id
    return msgspec.structs.replace(place, next=move.next, topic_id=topic_id, moved_ms=now_ms)


def letter_wanted(query: LetterQuery, letter: DeadLetter) -> bool:
    return (
        query.group in (None, letter.source.group)
        and query.topic in (None, letter.source.topic)
        and query.state in (None, letter.state)
        and (query.before_ms is None or letter.failed_ms < query.before_ms)
    )


def audit_wanted(query: AuditQuery, record: AuditRecord) -> bool:
    return (
        query.who in (None, record.who)
        and query.verb in (None, record.verb)
        and query.target in (None, record.target)
        and (query.from_ms is None or record.at_ms >= query.from_ms)
        and (query.to_ms is None or record.at_ms < query.to_ms)
    )


def gone(row: object) -> None:
    """What becomes of a row that is deleted."""
    del row


def fresh(record: JobRecord) -> JobRecord:
    """The record as a database gives it: with every read another object."""
    return msgspec.structs.replace(record, job=copy(record.job))


HEAVY = 8 << 20
"""Bytes: as much as is read at a time."""


def head(record: JobRecord, *, heavy: bool) -> Head:
    """The row without what it carries; a heavy one leaves no room for others."""
    job = record.job
    size = HEAVY if heavy else len(job.payload)
    return Head(key=job.key, due_ms=job.due_ms, attempt=job.attempt, status=record.status, size=size)


def wanted(scan: Scan, job: Job) -> bool:
    return job.shard in scan.shards and scan.priority in (None, job.priority)


def sought(probe: Probe, place: bytes, record: JobRecord | None) -> bool:
    query = probe.query
    if record is None or (query.status is Status.PENDING and record.job.position != place):
        return False
    job = record.job
    return (
        query.status in (None, record.status)
        and (query.tag is None or query.tag in job.tags)
        and (query.job_name, query.group, query.request_id)
        == (query.job_name and job.job_name, query.group and job.group, query.request_id and job.request_id)
        and (query.error is None or query.error in (record.error or ""))
    )


def record_of(app: str, row: NewRow) -> JobRecord:
    """A new row, pending."""
    spec = row.spec
    job = Job(
        key=row.key,
        app=app,
        due_ms=int.from_bytes(row.key[:6], "big"),
        scheduled_ms=spec.scheduled_ms,
        payload=spec.payload,
        created_ms=row.created_ms,
        request_id=spec.request_id,
        job_name=spec.job_name,
        group=spec.group,
        tags=spec.tags,
    )
    return JobRecord(job=job, status=Status.PENDING, idempotency_key=spec.idempotency_key)


def updated(update: Update, record: JobRecord) -> JobRecord:
    """The row after the update, or the same object if it is not as remembered."""
    job = record.job
    if (record.status, job.attempt, job.due_ms) != (update.was_status, update.was_attempt, update.was_due_ms):
        return record
    scheduled = job.scheduled_ms if update.scheduled_ms is None else update.scheduled_ms
    job = msgspec.structs.replace(job, attempt=update.attempt, due_ms=update.due_ms, scheduled_ms=scheduled)
    return msgspec.structs.replace(
        record, job=job, status=update.status, finished_ms=update.finished_ms, error=update.error
    )
