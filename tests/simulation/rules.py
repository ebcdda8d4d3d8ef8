"""Rules of the line protocol, each with a way to take it out of the code: what remains must break a promise.

The model (tests/model) has the same rules, partly under other names. Each is shown to be needed by scenarios that are
drawn by lot (test_rules.py), by interleavings (interleavings.py), or by an order of events in one node
(tests/unit/test_engine_rules.py). `low_before_now`, `lapse_reloads` and `low_exclusive` of the model are not here: it
shows that nothing breaks without them.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import msgspec
import pytest

from infinite_scheduler.engine import answerer, holdings, lane, lease, settler, tenure, window
from infinite_scheduler.engine.dispatch import Desk
from infinite_scheduler.errors import SchedulerError
from infinite_scheduler.model import Job, Owner, Shard, start_of
from infinite_scheduler.store.cluster import ShardInfo
from infinite_scheduler.store.ownership import Claim, Request, Scan, Settled
from infinite_scheduler.store.sql import door, owner
from infinite_scheduler.store.sql.relational import SqlStatements
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


def rule(take_out: Patch) -> Patch:
    RULES[take_out.__name__] = take_out
    return take_out


def changed(module: Any, name: str, how: type[Passing]) -> Patch:
    """Let one transaction body run on a transaction that is changed."""

    def take_out(patch: pytest.MonkeyPatch) -> None:
        body = getattr(module, name)
        patch.setattr(module, name, lambda tx, *args, **kwargs: body(how(tx), *args, **kwargs))

    return take_out


RULES["share_insert"] = changed(door, "insert", Unlocked)
RULES["share_cas"] = changed(door, "ask", Unlocked)
RULES["share_settle"] = changed(owner, "settle", Unlocked)
RULES["lock_consume"] = changed(owner, "answer", Unlocked)
RULES["excl_advance"] = changed(owner, "advance", Unlocked)
RULES["excl_take"] = changed(owner, "take", Unlocked)
RULES["excl_release"] = changed(owner, "release", Unlocked)
RULES["reload_waits"] = changed(owner, "reload", Unlocked)
RULES["locks_every_shard"] = changed(owner, "settle", FirstLocked)
RULES["line_under_lock"] = changed(door, "insert", Hasty)
RULES["heartbeat_under_locks"] = changed(owner, "take", Foreseeing)
RULES["wake"] = changed(door, "insert", Silent)
RULES["wake_every_shard"] = changed(door, "insert", FirstWoken)
RULES["cas_wake"] = changed(door, "change_row", Silent)
RULES["retry_entry"] = changed(owner, "record_outcomes", Unlisted)
RULES["change_entry"] = changed(door, "write_entries", Unlisted)
RULES["entry_or_ignored"] = changed(owner, "record_outcomes", Particular)
RULES["consume_lowers"] = changed(owner, "answer", Stubborn)
RULES["retry_lowers"] = changed(owner, "settle", Stubborn)
RULES["consume_read"] = changed(owner, "answer", Sweeping)
RULES["consume_rows"] = changed(owner, "answer", Blind)
RULES["consume_before_line"] = changed(owner, "answer", Lineless)
RULES["decide_claims"] = changed(owner, "answer", Credulous)
RULES["settle_attempt"] = changed(owner, "settle", AnyAttempt)


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


RULES["settle_fenced"] = fenced_by(unchecked, "settle")
RULES["consume_fenced"] = fenced_by(unchecked, "answer")
RULES["advance_fenced"] = fenced_by(unchecked, "advance")
RULES["fence_every_shard"] = fenced_by(one_for_all, "settle")
RULES["lost_stands_alone"] = fenced_by(all_or_none, "settle")


@rule
def user_wakes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(door, "enqueue", lambda tx, chunks, now_ms: door.insert(Unlocked(tx), chunks, now_ms))  # type: ignore[arg-type]


@rule
def wake_names_all(patch: pytest.MonkeyPatch) -> None:
    made = door.wake
    patch.setattr(door, "wake", lambda shard, keys: made(shard, keys[:1]))


@rule
def no_cursor(patch: pytest.MonkeyPatch) -> None:
    """Wakes are numbered when they are written, and read from the largest number that was seen."""
    made = door.wake
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

    patch.setattr(door, "wake", numbered)
    for kind in (SimStatements, SqlStatements):
        patch.setattr(kind, "read_requests", onwards(kind.read_requests))


@rule
def stale_row(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(owner, "current_row", lambda job: True)


@rule
def stale_entry(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(owner, "current_entry", lambda place, job: True)


@rule
def from_memory(patch: pytest.MonkeyPatch) -> None:
    advance = lane.Lane._advance

    async def trusting(self: lane.Lane) -> bool:
        for info in (await self._ownership.beat(renew=False)).shards:
            held = self.holdings.tenures.get(info.shard)
            if held is not None and held.scanned:
                held.cursors = [start_of(max(held.line_ms, info.line_ms))] * len(held.cursors)
        return await advance(self)

    patch.setattr(lane.Lane, "_advance", trusting)


@rule
def line_before_scan(patch: pytest.MonkeyPatch) -> None:
    advance = lane.Lane._advance

    async def scanning_first(self: lane.Lane) -> bool:
        found: list[Job] = []
        steps = [step for of in self._windows.values() for step in of.next_steps(self._clock.wall_ms())]
        for step in steps:
            end, app = self.holdings.tenures[step.shard].end, step.shard.app
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
            held = self.holdings.tenures[step.shard]
            held.cursors = [held.end] * len(held.cursors)
        for job in found:
            self.holdings.put(job)
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
RULES["decide_in_lane"] = beside(answerer.Answerer)


@rule
def low_unscanned(patch: pytest.MonkeyPatch) -> None:
    safe_low = tenure.Tenure.safe_low

    def careless(self: tenure.Tenure, now_ms: int, oldest_ready_ms: int | None) -> int:
        cursors, self.cursors = self.cursors, [self.end] * len(self.cursors)
        try:
            return safe_low(self, now_ms, oldest_ready_ms)
        finally:
            self.cursors = cursors

    patch.setattr(tenure.Tenure, "safe_low", careless)


@rule
def low_held(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Desk, "oldest_waiting_ms", lambda self: None)


@rule
def low_in_flight(patch: pytest.MonkeyPatch) -> None:
    safe_low = tenure.Tenure.safe_low

    def careless(self: tenure.Tenure, now_ms: int, oldest_ready_ms: int | None) -> int:
        out, self.out = self.out, {}
        try:
            return safe_low(self, now_ms, oldest_ready_ms)
        finally:
            self.out = out

    patch.setattr(tenure.Tenure, "safe_low", careless)


@rule
def full_range(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tenure.Tenure, "rejoin", lambda self, job: None)


@rule
def takeover_scan(patch: pytest.MonkeyPatch) -> None:
    load = tenure.Tenure.load

    def blind(self: tenure.Tenure, grant: Any) -> None:
        load(self, grant)
        self.cursors = [start_of(self.line_ms)] * len(self.cursors)

    patch.setattr(tenure.Tenure, "load", blind)


@rule
def takeover_requests(patch: pytest.MonkeyPatch) -> None:
    load = tenure.Tenure.load

    def rude(self: tenure.Tenure, grant: Any) -> None:
        load(self, grant)
        self.greeted = True

    patch.setattr(tenure.Tenure, "load", rude)


@rule
def takeover_heartbeat(patch: pytest.MonkeyPatch) -> None:
    take = owner.take

    def trusting(tx: Statements, nonce: str, claims: Sequence[Claim]) -> Any:
        return take(tx, nonce, [msgspec.structs.replace(claim, dead=True) for claim in claims])

    patch.setattr(owner, "take", trusting)


@rule
def in_flight_too_late(patch: pytest.MonkeyPatch) -> None:
    answer = owner.answer
    patch.setattr(owner, "answer", lambda tx, owners, asked, out, *rest: answer(tx, owners, asked, (), *rest))


@rule
def unwheel_first(patch: pytest.MonkeyPatch) -> None:
    def leave_it(self: window.Window, key: bytes, of: tenure.Tenure) -> Any:
        return of.held.get(key)

    patch.setattr(window.Window, "take_off", leave_it)


@rule
def decide_returns(patch: pytest.MonkeyPatch) -> None:
    follow = answerer.Answerer._follow
    patch.setattr(answerer.Answerer, "_follow", lambda self, answers, out, off: follow(self, answers, out, {}))


@rule
def give_up_claims(patch: pytest.MonkeyPatch) -> None:
    give_up = door.give_up
    patch.setattr(door, "give_up", lambda tx, wishes: dict.fromkeys(give_up(tx, wishes)))


@rule
def released_check(patch: pytest.MonkeyPatch) -> None:
    ask = door.ask

    def careless(tx: Statements, *args: Any, exclusive: bool, **kwargs: Any) -> Any:
        return ask(Released(tx) if exclusive else tx, *args, exclusive=exclusive, **kwargs)  # type: ignore[arg-type]

    patch.setattr(door, "ask", careless)


@rule
def doubt_reload(patch: pytest.MonkeyPatch) -> None:
    async def trusting(self: holdings.Holdings, owners: object, call: Any) -> Any:
        return await call

    patch.setattr(holdings.Holdings, "written", trusting)


@rule
def reload_tracks(patch: pytest.MonkeyPatch) -> None:
    load = tenure.Tenure.load

    def forgetful(self: tenure.Tenure, grant: Any) -> None:
        self.out.clear()
        load(self, grant)

    patch.setattr(tenure.Tenure, "load", forgetful)


@rule
def miss_reloads(patch: pytest.MonkeyPatch) -> None:
    settled = settler.Settler._settled

    def trusting(self: settler.Settler, batch: Any, recorded: Settled) -> None:
        settled(self, batch, msgspec.structs.replace(recorded, missed=frozenset()))

    patch.setattr(settler.Settler, "_settled", trusting)


@rule
def last_look(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Desk, "_still_may", lambda self, batch: True)


@rule
def lapse_stops(patch: pytest.MonkeyPatch) -> None:
    """Both looks at the lease: the last one alone is enough, the gate before it only saves work."""
    last_look(patch)
    patch.setattr(lease.Gate, "open", property(lambda self: not self.held_shut))


@rule
def lapse_recheck(patch: pytest.MonkeyPatch) -> None:
    renewed = lease.Lease.renewed

    def forgive(self: lease.Lease, asked_ms: int) -> bool:
        renewed(self, asked_ms)
        return False

    patch.setattr(lease.Lease, "renewed", forgive)


@rule
def drain_no_fire(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tenure.Tenure, "may_fire", property(lambda self: self.doubt is None))


@rule
def drain_settles(patch: pytest.MonkeyPatch) -> None:
    release = lane.Lane._release

    async def hasty(self: lane.Lane) -> bool:
        for held in self.holdings.tenures.values():
            if held.draining:
                held.out.clear()
        return await release(self)

    patch.setattr(lane.Lane, "_release", hasty)


@rule
def held_once(patch: pytest.MonkeyPatch) -> None:
    def forgetful(self: window.Window, job: Any) -> Any:
        found = self.tenures.get(job.shard)
        return None if found is None or job.key in found.held else found

    patch.setattr(window.Window, "_wanted_by", forgetful)


@rule
def not_early(patch: pytest.MonkeyPatch) -> None:
    tick, next_batch = Desk.tick, Desk._next_batch
    patch.setattr(Desk, "tick", lambda self, now_ms: tick(self, now_ms + 50))
    patch.setattr(Desk, "_next_batch", lambda self, now_ms: next_batch(self, now_ms + 50))
