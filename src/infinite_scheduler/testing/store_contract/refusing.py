"""What a store promises of what it cannot do."""

from infinite_scheduler.errors import NotSupported
from infinite_scheduler.model import Change, JobId
from infinite_scheduler.store.abilities import EVERYTHING, Abilities, Ability
from infinite_scheduler.store.cluster_state import NodeInfo
from infinite_scheduler.store.inbox import LetterState
from infinite_scheduler.store.ledger import AuditQuery, ForecastQuery
from infinite_scheduler.store.looking import Query
from infinite_scheduler.testing.store_contract.contract_bench import APP, Bench, Promises, refused

CHANGES = {Ability(change) for change in Change}


class RefusingContract(Promises):
    """Abilities are declared, never imitated: what a store has not declared it refuses in words."""

    async def test_what_a_store_declares_that_it_cannot_do_it_refuses_in_words(self, bench: Bench) -> None:
        able = bench.abilities
        for ability in sorted(EVERYTHING - able.can - {Ability.MARKS, Ability.CLOCK}):
            with refused(NotSupported, able.store, str(able.refusal(ability))):
                await self._try(bench, ability)
        assert await bench.accepted() == 0

    async def test_a_store_says_what_it_can_do_before_it_is_opened(self, bench: Bench) -> None:
        assert isinstance(self.make_store(bench.clock).abilities, Abilities)
        assert self.make_store(bench.clock).abilities == bench.abilities

    async def test_a_store_that_cannot_mark_jobs_has_nothing_to_mark_them_with(self, bench: Bench) -> None:
        if Ability.OWNERSHIP in bench.abilities:
            node = await bench.node()
            assert (node.ownership.marks is not None) == (Ability.MARKS in bench.abilities)

    async def _try(self, bench: Bench, ability: Ability) -> None:
        store, key = bench.store, JobId.make(bench.now + 1000, 0, 1)
        if ability in CHANGES:
            await store.change(Change(ability), key, app=APP, timeout_ms=1000)
        match ability:
            case Ability.WHOLE_BATCHES:
                await store.add([bench.spec(), bench.spec()])
            case Ability.IDEMPOTENCY_KEYS:
                with refused(NotSupported):
                    await store.holders(APP, ["k"])
                await store.add([bench.spec(idempotency_key="k")])
            case Ability.OWN_TRANSACTION:
                store.enqueue(object(), [bench.spec()])
            case Ability.SEARCH:
                await store.find(Query())
            case Ability.DEAD_LETTERS:
                store.inbox()
            case Ability.INBOX:
                await self._try_inbox(bench)
            case Ability.OWNERSHIP:
                store.ownership(
                    NodeInfo(nonce="n", node_id="n", apps=frozenset(), started_ms=bench.now), lambda _: None
                )
            case _:
                await self._try_ledger(bench, ability)

    async def _try_inbox(self, bench: Bench) -> None:
        if Ability.DEAD_LETTERS not in bench.abilities:
            raise bench.abilities.refusal(Ability.INBOX)  # it has no inbox at all, as is tried for itself
        inbox = bench.store.inbox()
        for call in (inbox.positions(), inbox.reset([]), inbox.mark([], LetterState.SENT), inbox.live_keys()):
            with refused(NotSupported):
                await call
        with refused(NotSupported):
            await inbox.letter_counts()
        await inbox.take([], [], [])

    async def _try_ledger(self, bench: Bench, ability: Ability) -> None:
        ledger = bench.store.ledger()
        match ability:
            case Ability.WAITING:
                with refused(NotSupported):
                    await ledger.recount(APP)
                await ledger.waiting()
            case Ability.FORECAST:
                wanted = ForecastQuery(start_ms=bench.now, end_ms=bench.now + 1000, step_ms=1000, most=1)
                await ledger.forecast(wanted)
            case Ability.TABLES:
                await ledger.tables()
            case Ability.AUDIT:
                await ledger.records(AuditQuery())
            case Ability.RECORDS:
                await ledger.record([])
            case Ability.TOKENS:
                with refused(NotSupported):
                    await ledger.revoke_token("ops", bench.now)
                await ledger.tokens()
            case _:
                raise AssertionError(f"nothing to try for {ability}")
