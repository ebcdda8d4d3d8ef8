"""Rules of the line protocol, each with a way to take it out of the code: what remains must break a promise.

The model (tests/model) has the same rules, partly under other names. Some of them are not here, since no seed shows
their absence: `from_memory` and `advance_fenced` (either is enough); `stale_entry` (an entry is deleted when its job
moves); `settle_attempt` (the due moment is compared too); `retry_lowers` (no retry is due in the past unless a clock
steps back); `miss_reloads`. Named tests show those (tests/unit/test_engine_rules.py, tests/contract). `low_now`,
`lapse_reload` and `excl_low` only save work.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import msgspec
import pytest

from infinite_scheduler.engine import lane, lease, tenure, window
from infinite_scheduler.engine.dispatch import Desk
from infinite_scheduler.model import Owner, Shard, start_of
from infinite_scheduler.store.base import Claim, ShardInfo
from infinite_scheduler.store.sql import door, owner
from infinite_scheduler.store.sql.statements import Statements
from tests.simulation.statements import SimStatements

Patch = Callable[[pytest.MonkeyPatch], None]

RULES: dict[str, Patch] = {}


@contextlib.contextmanager
def without(name: str) -> Iterator[None]:
    """The code without this rule."""
    with pytest.MonkeyPatch.context() as patch:
        RULES[name](patch)
        yield


def rule(take_out: Patch) -> Patch:
    RULES[take_out.__name__] = take_out
    return take_out


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


class Silent(Passing):
    """Writes no requests."""

    def insert_requests(self, requests: object) -> None:
        """Leave them out."""


class Unlisted(Passing):
    """Writes no entries."""

    def insert_entries(self, app: str, entries: object) -> None:
        """Leave them out."""


class Released(Passing):
    """Believes that nobody owns any shard."""

    def lock_shards(self, shards: Collection[Shard], *, exclusive: bool) -> Mapping[Shard, ShardInfo]:
        rows = self.tx.lock_shards(shards, exclusive=exclusive)
        return {shard: msgspec.structs.replace(row, owner=Owner("", 0)) for shard, row in rows.items()}


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


def unfenced(name: str) -> Patch:
    """Let one transaction body not check that its node still owns the shard."""

    def owned(
        tx: Statements, owners: Mapping[Shard, Owner], *, exclusive: bool
    ) -> tuple[dict[Shard, ShardInfo], frozenset[Shard]]:
        return dict(tx.lock_shards(owners.keys(), exclusive=exclusive)), frozenset()

    def take_out(patch: pytest.MonkeyPatch) -> None:
        body: FunctionType = getattr(owner, name)
        careless = FunctionType(body.__code__, {**vars(owner), "owned": owned}, name, body.__defaults__)
        careless.__kwdefaults__ = body.__kwdefaults__
        patch.setattr(owner, name, careless)

    return take_out


RULES["wake"] = changed(door, "insert", Silent)
RULES["cas_wake"] = changed(door, "change_row", Silent)
RULES["retry_entry"] = changed(owner, "record_outcomes", Unlisted)
RULES["change_entry"] = changed(door, "write_entries", Unlisted)
RULES["settle_fenced"] = unfenced("settle")
RULES["consume_fenced"] = unfenced("answer")


@rule
def wake_names_all(patch: pytest.MonkeyPatch) -> None:
    made = door.wake
    patch.setattr(door, "wake", lambda shard, keys: made(shard, keys[:1]))


@rule
def stale_row(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(owner, "current_row", lambda job: True)


@rule
def consume_lowers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimStatements, "write_shards", _no_lower(SimStatements.write_shards))


def _no_lower(write: Callable[..., None]) -> Callable[..., None]:
    def keep(self: SimStatements, rows: Sequence[ShardInfo]) -> None:
        known = {row.shard: row for row in self.read_shards()}
        write(
            self,
            [msgspec.structs.replace(row, low_ms=max(row.low_ms, known[row.shard].low_ms)) for row in rows],
        )

    return keep


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
def takeover_heartbeat(patch: pytest.MonkeyPatch) -> None:
    take = owner.take

    def trusting(tx: Statements, nonce: str, claims: Sequence[Claim]) -> Any:
        return take(tx, nonce, [msgspec.structs.replace(claim, dead=True) for claim in claims])

    patch.setattr(owner, "take", trusting)


@rule
def in_flight_too_late(patch: pytest.MonkeyPatch) -> None:
    answer = owner.answer
    patch.setattr(owner, "answer", lambda tx, owners, asked, out, now_ms: answer(tx, owners, asked, (), now_ms))


@rule
def unwheel_first(patch: pytest.MonkeyPatch) -> None:
    def leave_it(self: window.Window, key: bytes, of: tenure.Tenure) -> Any:
        return of.held.get(key)

    patch.setattr(window.Window, "take_off", leave_it)


@rule
def decide_claims(patch: pytest.MonkeyPatch) -> None:
    delete = SimStatements.delete_requests

    def all_there(self: SimStatements, ids: Collection[bytes]) -> Collection[bytes]:
        delete(self, ids)
        return ids

    patch.setattr(SimStatements, "delete_requests", all_there)


@rule
def decide_returns(patch: pytest.MonkeyPatch) -> None:
    follow = lane.Lane._follow
    patch.setattr(lane.Lane, "_follow", lambda self, answers, out, off: follow(self, answers, out, {}))


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
    async def trusting(self: lane.Lane, owners: object, call: Any) -> Any:
        return await call

    patch.setattr(lane.Lane, "_written", trusting)


@rule
def reload_tracks(patch: pytest.MonkeyPatch) -> None:
    load = tenure.Tenure.load

    def forgetful(self: tenure.Tenure, grant: Any) -> None:
        self.out.clear()
        load(self, grant)

    patch.setattr(tenure.Tenure, "load", forgetful)


@rule
def lapse_stops(patch: pytest.MonkeyPatch) -> None:
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
        for held in self.tenures.values():
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
