"""Promises about records of the audit and about tokens."""

import asyncio
from typing import Any

import pytest

from infinite_scheduler.errors import InvalidRequest
from infinite_scheduler.model import DAY_MS
from infinite_scheduler.store.abilities import Ability
from infinite_scheduler.store.ledger import AuditQuery, AuditRecord, Ledger, Role, Token
from infinite_scheduler.store.sortable_id import sortable_id
from infinite_scheduler.testing.store_contract.contract_bench import Bench, Promises, refused


def done(bench: Bench, **fields: Any) -> AuditRecord:
    """Somebody did something now."""
    known: dict[str, Any] = {"id": sortable_id(bench.now), "at_ms": bench.now, "who": "ops", "address": "::1"}
    return AuditRecord(**{**known, "verb": "pause", "target": "mail", "result": "ok", **fields})


async def listed(ledger: Ledger, **filters: Any) -> list[AuditRecord]:
    """All records that a query lists, page after page."""
    found: list[AuditRecord] = []
    cursor: str | None = None
    while True:
        page = await ledger.records(AuditQuery(**filters, cursor=cursor))
        found += page.records
        cursor = page.cursor
        if cursor is None:
            return found


class AuditingContract(Promises):
    """What `record` and `records` promise; where a store only speaks for another, that one keeps the records."""

    needs = frozenset({Ability.AUDIT})

    async def test_a_record_is_seen_by_every_process_as_it_was_made(self, bench: Bench) -> None:
        keeper = (await bench.node_store()).ledger()
        made = done(bench, who="näme 'x'", verb="cancel", target="status=failed", count=700, result="700 of 900 ☕")
        await keeper.record([made])
        assert await listed((await bench.process()).ledger()) == [made]

    async def test_a_record_that_is_made_twice_is_there_once(self, bench: Bench) -> None:
        keeper = (await bench.node_store()).ledger()
        made = done(bench)
        for _ in range(2):
            await keeper.record([made])
        assert await listed(bench.store.ledger()) == [made]

    async def test_records_are_listed_newest_first_page_after_page(self, bench: Bench) -> None:
        keeper = (await bench.node_store()).ledger()
        made = []
        for n in range(7):
            made.append(done(bench, count=n))
            bench.clock.advance(1000 * (n % 2))
        await keeper.record(made[:3])
        await keeper.record(made[3:])
        for limit in (1, 3, 7, 50):
            assert await listed(bench.store.ledger(), limit=limit) == made[::-1]

    async def test_records_are_listed_by_who_verb_target_and_time(self, bench: Bench) -> None:
        keeper = (await bench.node_store()).ledger()
        ledger, start = bench.store.ledger(), bench.now
        first, second = done(bench), done(bench, who="local", verb="drain", target="n1")
        bench.clock.advance(5000)
        third = done(bench, who="local", target="n1")
        await keeper.record([first, second, third])
        assert await listed(ledger, who="local", limit=1) == [third, second]
        assert await listed(ledger, verb="pause") == [third, first]
        assert await listed(ledger, target="n1", verb="drain") == [second]
        assert await listed(ledger, from_ms=start + 5000) == [third]
        assert await listed(ledger, to_ms=start + 5000, limit=1) == [second, first]
        assert not await listed(ledger, who="nobody")

    @pytest.mark.parametrize("cursor", ["", "x", "00", "0" * 31, "z" * 32])
    async def test_a_cursor_that_is_not_one_is_refused(self, bench: Bench, cursor: str) -> None:
        with refused(InvalidRequest, repr(cursor), "use the cursor of the last page"):
            await bench.store.ledger().records(AuditQuery(cursor=cursor))

    async def test_texts_that_no_database_takes_are_kept_as_far_as_possible(self, bench: Bench) -> None:
        keeper = (await bench.node_store()).ledger()
        await keeper.record([done(bench, target="t" * 5000, result="a\0b\udcff" + "r" * 9000)])
        (kept,) = await listed(bench.store.ledger())
        assert kept.target == "t" * 255
        assert kept.result.startswith("a\\0b\\udcffr")

    async def test_maintenance_keeps_records_for_the_retention_and_no_longer(self, bench: Bench) -> None:
        keeper = (await bench.node_store()).ledger()
        node = await bench.node()
        await keeper.record([done(bench)])
        bench.clock.advance(6 * DAY_MS)
        await keeper.record([young := done(bench)])
        await node.ownership.maintain()
        assert len(await listed(bench.store.ledger())) == 2
        bench.clock.advance(2 * DAY_MS)
        await node.ownership.maintain()
        assert await listed(bench.store.ledger()) == [young]


def token(name: str = "ops", **fields: Any) -> Token:
    """A valid token, unless the fields say otherwise."""
    known: dict[str, Any] = {"name": name, "role": Role.OPERATE, "digest": bytes(range(32)), "created_ms": 1}
    return Token(**{**known, **fields})


class TokensContract(Promises):
    """What `tokens`, `add_token` and `revoke_token` promise."""

    needs = frozenset({Ability.TOKENS})

    async def test_a_token_is_seen_by_every_process(self, bench: Bench) -> None:
        kept = [token("reader", role=Role.READ), token("shop", role=Role.SUBMIT, digest=b"\xff\0" * 16)]
        for one in reversed(kept):
            assert await bench.store.ledger().add_token(one)
        assert await (await bench.process()).ledger().tokens() == kept

    async def test_a_name_is_taken_once_and_for_all(self, bench: Bench) -> None:
        ledger = bench.store.ledger()
        assert await ledger.add_token(token())
        assert not await ledger.add_token(token(digest=bytes(32)))
        assert await ledger.revoke_token("ops", bench.now)
        assert not await ledger.add_token(token(digest=bytes(32)))
        assert [one.digest for one in await ledger.tokens()] == [token().digest]

    async def test_a_token_that_is_added_twice_is_added(self, bench: Bench) -> None:
        for _ in range(2):
            assert await bench.store.ledger().add_token(token(), only_first=True)
        assert await bench.store.ledger().tokens() == [token()]

    async def test_a_first_token_is_added_only_if_none_is_valid(self, bench: Bench) -> None:
        ledger = bench.store.ledger()
        assert await ledger.add_token(token("a"))
        assert not await ledger.add_token(token("b", digest=bytes(32)), only_first=True)
        await ledger.revoke_token("a", bench.now)
        assert await ledger.add_token(token("b", digest=bytes(32)), only_first=True)

    async def test_of_processes_that_add_their_first_token_at_once_one_does(self, bench: Bench) -> None:
        ledgers = [(await bench.process()).ledger() for _ in range(4)]
        tokens = [token(f"t{n}", digest=bytes([n]) * 32) for n in range(4)]
        added = await asyncio.gather(
            *(ledger.add_token(one, only_first=True) for ledger, one in zip(ledgers, tokens, strict=True))
        )
        assert sorted(added) == [False, False, False, True]
        assert await bench.store.ledger().tokens() == [tokens[added.index(True)]]

    async def test_a_revoked_token_is_revoked_for_every_process_and_from_then_on(self, bench: Bench) -> None:
        elsewhere = (await bench.process()).ledger()
        assert await bench.store.ledger().add_token(token())
        assert await elsewhere.revoke_token("ops", 5)
        assert await elsewhere.revoke_token("ops", 9), "it stays revoked"
        assert [one.revoked_ms for one in await bench.store.ledger().tokens()] == [5]
        assert not await elsewhere.revoke_token("nobody", 5)
