"""Rules of the line protocol, each with a way to take it out of the code: what remains must break a promise.

Names are those of docs/concepts/line-protocol.md, which the models (tests/model) use too; its last table tells what is
taken out in one place only, or in parts (`rule.part`), and test_rule_names.py holds it to that. Each is shown to be
needed by scenarios that are drawn by lot (test_rules.py), by interleavings (interleavings.py), or by an order of events
in one node (tests/unit/test_engine_rules.py).
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import msgspec
import pytest

from infinite_scheduler.engine import answerer, lane, lease, owned_shard, owned_shards, settler, window
from infinite_scheduler.engine.dispatcher import Dispatcher
from infinite_scheduler.errors import SchedulerError
from infinite_scheduler.model import Job, Owner, Shard, priority_of, start_of
from infinite_scheduler.store.cluster_state import ShardInfo
from infinite_scheduler.store.ownership import Claim, Request, Scan, SettleResult
from infinite_scheduler.store.sql.protocol import anybody, owner
from infinite_scheduler.store.sql.request_rows import SqlStatements
from infinite_scheduler.store.sql.statements import Statements
from tests.simulation.altered import (
    AnyAttempt,
    Blind,
    Credulous,
    FirstLocked,
    FirstWoken,
    Foreseeing,
    Hasty,
    Lineless,
    Particular,
    Passing,
    Released,
    Silent,
    Stubborn,
    Sweeping,
    Unlisted,
    Unlocked,
)
from tests.simulation.statements import SimStatements

Patch = Callable[[pytest.MonkeyPatch], None]

RULES: dict[str, Patch] = {}


@contextlib.contextmanager
def without(*names: str) -> Iterator[None]:
    """The code without these rules."""
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            RULES[name](patch)
        yield


def rule(name: str) -> Callable[[Patch], Patch]:
    """Note down how this rule is taken out."""

    def note(take_out: Patch) -> Patch:
        RULES[name] = take_out
        return take_out

    return note


def changed(module: Any, name: str, how: type[Passing]) -> Patch:
    """Let one transaction body run on a transaction that is changed."""

    def take_out(patch: pytest.MonkeyPatch) -> None:
        body = getattr(module, name)
        patch.setattr(module, name, lambda tx, *args, **kwargs: body(how(tx), *args, **kwargs))

    return take_out


RULES["insert_holds_lock"] = changed(anybody, "insert", Unlocked)
RULES["settle_holds_lock"] = changed(owner, "settle", Unlocked)
RULES["answer_holds_lock"] = changed(owner, "answer", Unlocked)
RULES["advance_locks_exclusively"] = changed(owner, "advance", Unlocked)
RULES["takeover_locks_exclusively"] = changed(owner, "take", Unlocked)
RULES["release_locks_exclusively"] = changed(owner, "release", Unlocked)
RULES["reload_waits_for_lock"] = changed(owner, "reload", Unlocked)
RULES["every_shard_is_locked"] = changed(owner, "settle", FirstLocked)
RULES["line_is_read_under_lock"] = changed(anybody, "insert", Hasty)
RULES["heartbeat_is_read_under_locks"] = changed(owner, "take", Foreseeing)
RULES["insert_wakes_owner"] = changed(anybody, "insert", Silent)
RULES["every_shard_is_woken"] = changed(anybody, "insert", FirstWoken)
RULES["reschedule_wakes_owner"] = changed(anybody, "change_row", Silent)
RULES["retry_writes_entry"] = changed(owner, "record_outcomes", Unlisted)
RULES["reschedule_writes_entry"] = changed(anybody, "write_entries", Unlisted)
RULES["existing_entry_is_ignored"] = changed(owner, "record_outcomes", Particular)
RULES["answer_lowers_low"] = changed(owner, "answer", Stubborn)
RULES["retry_lowers_low"] = changed(owner, "settle", Stubborn)
RULES["only_read_requests_are_deleted"] = changed(owner, "answer", Sweeping)
RULES["wake_reads_its_rows"] = changed(owner, "answer", Blind)
RULES["wake_takes_only_before_line"] = changed(owner, "answer", Lineless)
RULES["withdrawn_request_is_not_decided"] = changed(owner, "answer", Credulous)
RULES["settle_compares_attempt"] = changed(owner, "settle", AnyAttempt)


Split = tuple[dict[Shard, ShardInfo], frozenset[Shard]]
"""Shards that are still owned, and those that are lost."""


def unchecked(tx: Statements, owners: Mapping[Shard, Owner], *, exclusive: bool) -> Split:
    """As if every shard were still owned."""
    return dict(tx.lock_shards(owners.keys(), exclusive=exclusive)), frozenset()


def one_for_all(tx: Statements, owners: Mapping[Shard, Owner], *, exclusive: bool) -> Split:
    """As if all shards were still owned because one is."""
    rows = dict(tx.lock_shards(owners.keys(), exclusive=exclusive))
    one = any(row.owner == owners[shard] for shard, row in rows.items())
    return (rows, frozenset()) if one else ({}, frozenset(owners))


def all_or_none(tx: Statements, owners: Mapping[Shard, Owner], *, exclusive: bool) -> Split:
    """As if no shard were owned any more because one is lost."""
    rows = dict(tx.lock_shards(owners.keys(), exclusive=exclusive))
    every = all(row.owner == owners[shard] for shard, row in rows.items())
    return (rows, frozenset()) if every else ({}, frozenset(owners))


def fenced_by(owned: Callable[..., Split], name: str) -> Patch:
    """Let one transaction body check in another way whether its node still owns the shards."""

    def take_out(patch: pytest.MonkeyPatch) -> None:
        body: FunctionType = getattr(owner, name)
        careless = FunctionType(body.__code__, {**vars(owner), "owned": owned}, name, body.__defaults__)
        careless.__kwdefaults__ = body.__kwdefaults__
        patch.setattr(owner, name, careless)

    return take_out


RULES["settle_is_fenced"] = fenced_by(unchecked, "settle")
RULES["answer_is_fenced"] = fenced_by(unchecked, "answer")
RULES["advance_is_fenced"] = fenced_by(unchecked, "advance")
RULES["every_shard_is_fenced"] = fenced_by(one_for_all, "settle")
RULES["lost_shard_costs_no_other"] = fenced_by(all_or_none, "settle")


def asked_with(how: type[Passing], *, at_released: bool) -> Patch:
    """Let the transaction of a caller who wants a change run on one that is changed: the first one, or the second one
    at a shard that was found released.
    """

    def take_out(patch: pytest.MonkeyPatch) -> None:
        ask = anybody.ask

        def careless(tx: Statements, *args: Any, exclusive: bool, **kwargs: Any) -> Any:
            altered: Any = how(tx) if exclusive == at_released else tx
            return ask(altered, *args, exclusive=exclusive, **kwargs)

        patch.setattr(anybody, "ask", careless)

    return take_out


RULES["change_holds_lock"] = asked_with(Unlocked, at_released=False)
RULES["released_change_locks_exclusively"] = asked_with(Unlocked, at_released=True)
RULES["released_shard_is_checked_again"] = asked_with(Released, at_released=True)


@rule("user_transaction_always_wakes")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(anybody, "enqueue", lambda tx, chunks, now_ms: anybody.insert(Unlocked(tx), chunks, now_ms))  # type: ignore[arg-type]


@rule("wake_names_every_row")
def _(patch: pytest.MonkeyPatch) -> None:
    made = anybody.wake
    patch.setattr(anybody, "wake", lambda shard, keys: made(shard, keys[:1]))


@rule("requests_are_read_without_cursor")
def _(patch: pytest.MonkeyPatch) -> None:
    """Wakes are numbered when they are written, and read from the largest number that was seen."""
    made = anybody.wake
    numbers = itertools.count(1)
    seen = [b""]

    def numbered(shard: Shard, keys: Sequence[bytes]) -> Request:
        return msgspec.structs.replace(made(shard, keys), id=next(numbers).to_bytes(16, "big"))

    def onwards(read: Callable[..., Sequence[Request]]) -> Callable[..., Sequence[Request]]:
        def reading(self: Statements, shards: Collection[Shard], *limit: int) -> Sequence[Request]:
            found = [request for request in read(self, shards, *limit) if request.id > max(seen)]
            seen.extend(request.id for request in found)
            return found

        return reading

    patch.setattr(anybody, "wake", numbered)
    for kind in (SimStatements, SqlStatements):
        patch.setattr(kind, "read_requests", onwards(kind.read_requests))


@rule("stale_row_is_skipped")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(owner, "current_row", lambda job: True)


@rule("stale_entry_is_skipped")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(owner, "current_entry", lambda place, job: True)


@rule("scan_starts_at_remembered_line")
def _(patch: pytest.MonkeyPatch) -> None:
    advance = lane.Lane._advance

    async def trusting(self: lane.Lane) -> bool:
        for info in (await self._ownership.beat(renew=False)).shards:
            held = self.owned_shards.by_shard.get(info.shard)
            if held is not None and held.scanned:
                held.cursors = [start_of(max(held.line_ms, info.line_ms))] * len(held.cursors)
        return await advance(self)

    patch.setattr(lane.Lane, "_advance", trusting)


@rule("line_moves_before_scan")
def _(patch: pytest.MonkeyPatch) -> None:
    advance = lane.Lane._advance

    async def scanning_first(self: lane.Lane) -> bool:
        found: list[Job] = []
        steps = [step for of in self._windows.values() for step in of.next_steps(self._clock.wall_ms())]
        for step in steps:
            end, app = self.owned_shards.by_shard[step.shard].end, step.shard.app
            wanted = Scan(
                app=app,
                shards=frozenset({step.shard.number}),
                start=end,
                end=start_of(step.line_ms),
                limit=1000,
                room=8 << 20,
            )
            found += (await self._ownership.scan(wanted)).jobs
        moved = await advance(self)
        for step in steps:
            held = self.owned_shards.by_shard[step.shard]
            held.cursors = [held.end] * len(held.cursors)
        for job in found:
            self.owned_shards.put(job)
        return moved

    patch.setattr(lane.Lane, "_advance", scanning_first)


def beside(part: type[settler.Settler | answerer.Answerer]) -> Patch:
    """Let the step of one part of a lane run beside the others."""

    def take_out(patch: pytest.MonkeyPatch) -> None:
        inner = part.step
        under_way: set[asyncio.Task[None]] = set()

        async def alone(self: Any) -> None:
            with contextlib.suppress(SchedulerError):
                await inner(self)

        async def begun(self: Any) -> bool:
            under_way.add(asyncio.create_task(alone(self)))
            return False

        patch.setattr(part, "step", begun)

    return take_out


RULES["settle_in_lane"] = beside(settler.Settler)
RULES["answer_in_lane"] = beside(answerer.Answerer)


@rule("low_stays_before_unscanned")
def _(patch: pytest.MonkeyPatch) -> None:
    safe_low = owned_shard.OwnedShard.safe_low

    def careless(self: owned_shard.OwnedShard, now_ms: int, oldest_ready_ms: int | None) -> int:
        cursors, self.cursors = self.cursors, [self.end] * len(self.cursors)
        try:
            return safe_low(self, now_ms, oldest_ready_ms)
        finally:
            self.cursors = cursors

    patch.setattr(owned_shard.OwnedShard, "safe_low", careless)


@rule("low_stays_before_unsettled.waiting")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Dispatcher, "oldest_waiting_ms", lambda self: None)


@rule("low_stays_before_unsettled.handed_over")
def _(patch: pytest.MonkeyPatch) -> None:
    safe_low = owned_shard.OwnedShard.safe_low

    def careless(self: owned_shard.OwnedShard, now_ms: int, oldest_ready_ms: int | None) -> int:
        out, self.handed_over = self.handed_over, {}
        try:
            return safe_low(self, now_ms, oldest_ready_ms)
        finally:
            self.handed_over = out

    patch.setattr(owned_shard.OwnedShard, "safe_low", careless)


@rule("job_without_room_is_left_to_scan")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(owned_shard.OwnedShard, "leave_to_scan", lambda self, job: None)


@rule("smaller_cursor_wins")
def _(patch: pytest.MonkeyPatch) -> None:
    def replaced(self: owned_shard.OwnedShard, place: bytes) -> None:
        self.cursors[priority_of(place)] = place

    patch.setattr(owned_shard.OwnedShard, "leave_to_scan", replaced)


@rule("left_to_scan_of_own_priority")
def _(patch: pytest.MonkeyPatch) -> None:
    def by_the_first(self: owned_shard.OwnedShard, place: bytes) -> None:
        self.cursors[0] = min(self.cursors[0], place)

    patch.setattr(owned_shard.OwnedShard, "leave_to_scan", by_the_first)


@rule("left_to_scan_at_due_position")
def _(patch: pytest.MonkeyPatch) -> None:
    put = window.Window.put

    def at_its_key(self: window.Window, job: Job) -> bool:
        found = self.owned_shards.get(job.shard)
        before = found and list(found.cursors)
        if put(self, job):
            return True
        assert found
        assert before
        found.cursors = before
        found.leave_to_scan(job.key)
        return False

    patch.setattr(window.Window, "put", at_its_key)


@rule("every_shard_is_in_doubt")
def _(patch: pytest.MonkeyPatch) -> None:
    written = owned_shards.OwnedShards.written

    async def of_the_first(self: owned_shards.OwnedShards, owners: Collection[Shard], call: Any) -> Any:
        return await written(self, sorted(owners)[:1], call)

    patch.setattr(owned_shards.OwnedShards, "written", of_the_first)


@rule("takeover_scans_from_low")
def _(patch: pytest.MonkeyPatch) -> None:
    load = owned_shard.OwnedShard.load

    def blind(self: owned_shard.OwnedShard, grant: Any) -> None:
        load(self, grant)
        self.cursors = [start_of(self.line_ms)] * len(self.cursors)

    patch.setattr(owned_shard.OwnedShard, "load", blind)


@rule("takeover_answers_requests_first")
def _(patch: pytest.MonkeyPatch) -> None:
    load = owned_shard.OwnedShard.load

    def rude(self: owned_shard.OwnedShard, grant: Any) -> None:
        load(self, grant)
        self.requests_read = True

    patch.setattr(owned_shard.OwnedShard, "load", rude)


@rule("takeover_checks_heartbeat_again")
def _(patch: pytest.MonkeyPatch) -> None:
    take = owner.take

    def trusting(tx: Statements, nonce: str, claims: Sequence[Claim]) -> Any:
        return take(tx, nonce, [msgspec.structs.replace(claim, dead=True) for claim in claims])

    patch.setattr(owner, "take", trusting)


@rule("handed_over_is_too_late")
def _(patch: pytest.MonkeyPatch) -> None:
    answer = owner.answer
    patch.setattr(owner, "answer", lambda tx, owners, asked, out, *rest: answer(tx, owners, asked, (), *rest))


@rule("off_wheel_before_decision")
def _(patch: pytest.MonkeyPatch) -> None:
    def leave_it(self: window.Window, key: bytes, of: owned_shard.OwnedShard) -> Any:
        return of.held.get(key)

    patch.setattr(window.Window, "take_off", leave_it)


@rule("undecided_job_returns_to_wheel")
def _(patch: pytest.MonkeyPatch) -> None:
    follow = answerer.Answerer._follow
    patch.setattr(answerer.Answerer, "_follow", lambda self, answers, out, off: follow(self, answers, out, {}))


@rule("decided_request_is_not_withdrawn")
def _(patch: pytest.MonkeyPatch) -> None:
    give_up = anybody.give_up
    patch.setattr(anybody, "give_up", lambda *args, **more: dict.fromkeys(give_up(*args, **more)))


@rule("doubt_reloads")
def _(patch: pytest.MonkeyPatch) -> None:
    async def trusting(self: owned_shards.OwnedShards, owners: object, call: Any) -> Any:
        return await call

    patch.setattr(owned_shards.OwnedShards, "written", trusting)


@rule("reload_keeps_handed_over")
def _(patch: pytest.MonkeyPatch) -> None:
    load = owned_shard.OwnedShard.load

    def forgetful(self: owned_shard.OwnedShard, grant: Any) -> None:
        self.handed_over.clear()
        load(self, grant)

    patch.setattr(owned_shard.OwnedShard, "load", forgetful)


@rule("missed_settle_reloads")
def _(patch: pytest.MonkeyPatch) -> None:
    settled = settler.Settler._settled

    def trusting(self: settler.Settler, batch: Any, recorded: SettleResult) -> None:
        settled(self, batch, msgspec.structs.replace(recorded, missed=frozenset()))

    patch.setattr(settler.Settler, "_settled", trusting)


@rule("lapse_stops_firing.last_look")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Dispatcher, "_last_look", lambda self, batch: batch)


@rule("lapse_stops_firing")
def _(patch: pytest.MonkeyPatch) -> None:
    """Both looks at the lease: the last one alone is enough, the gate before it only saves work."""
    RULES["lapse_stops_firing.last_look"](patch)
    patch.setattr(lease.Gate, "open", property(lambda self: not self.held_shut))


@rule("lapsed_node_renews_then_checks")
def _(patch: pytest.MonkeyPatch) -> None:
    renewed = lease.Lease.renewed

    def forgive(self: lease.Lease, asked_ms: int) -> bool:
        renewed(self, asked_ms)
        return False

    patch.setattr(lease.Lease, "renewed", forgive)


@rule("drain_stops_firing")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(owned_shard.OwnedShard, "may_fire", property(lambda self: self.doubt is None))


@rule("drain_waits_for_settles")
def _(patch: pytest.MonkeyPatch) -> None:
    release = lane.Lane._release

    async def hasty(self: lane.Lane) -> bool:
        for held in self.owned_shards.by_shard.values():
            if held.draining:
                held.handed_over.clear()
        return await release(self)

    patch.setattr(lane.Lane, "_release", hasty)


@rule("held_job_is_not_taken_again.handed_over")
def _(patch: pytest.MonkeyPatch) -> None:
    def forgetful(self: window.Window, job: Any) -> Any:
        found = self.owned_shards.get(job.shard)
        return None if found is None or job.key in found.held else found

    patch.setattr(window.Window, "_wanted_by", forgetful)


@rule("fires_when_due")
def _(patch: pytest.MonkeyPatch) -> None:
    tick, next_batch, last_look = Dispatcher.tick, Dispatcher._next_batch, Dispatcher._last_look

    def look_at_the_lease_only(self: Dispatcher, batch: Sequence[Job]) -> Sequence[Job]:
        return batch if self._gate.lease.valid() else last_look(self, batch)

    patch.setattr(Dispatcher, "tick", lambda self, now_ms: tick(self, now_ms + 50))
    patch.setattr(Dispatcher, "_next_batch", lambda self, now_ms, most: next_batch(self, now_ms + 50, most))
    patch.setattr(Dispatcher, "_last_look", look_at_the_lease_only)
