"""A store that can do less than the one behind it, and declares so; it notes all that was tried."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from infinite_scheduler.clock import Clock
from infinite_scheduler.model import Accepted, Change, JobRecord, JobSpec
from infinite_scheduler.store import open_store
from infinite_scheduler.store.abilities import Abilities, Ability
from infinite_scheduler.store.accepting import Decision, Holder
from infinite_scheduler.store.base import Store
from infinite_scheduler.store.cluster_state import AppInfo, NodeInfo
from infinite_scheduler.store.inbox import DeadLetter, Inbox, LetterQuery, Letters, LetterState
from infinite_scheduler.store.ledger import (
    AuditPage,
    AuditQuery,
    AuditRecord,
    Forecast,
    ForecastQuery,
    Ledger,
    Recount,
    TableInfo,
    Token,
    Waiting,
)
from infinite_scheduler.store.letters_only import LettersOnly
from infinite_scheduler.store.looking import Found, Query, Survey
from infinite_scheduler.store.ownership import Ownership, Poke
from infinite_scheduler.store.scheme import Options, Preparation, Scheme

NAME: Final = "Paper"

BUCKET: Final = frozenset({Ability(change) for change in Change}) | {
    Ability.WHOLE_BATCHES,
    Ability.OWN_TRANSACTION,
    Ability.INBOX,
    Ability.DEAD_LETTERS,
    Ability.CLOCK,
    Ability.WAITING,
    Ability.FORECAST,
    Ability.TABLES,
}
"""What a store in a bucket lacks."""

REMOTE: Final = frozenset(
    {
        Ability.OWNERSHIP,
        Ability.OWN_TRANSACTION,
        Ability.MARKS,
        Ability.CLOCK,
        Ability.INBOX,
        Ability.RECORDS,
        Ability.TOKENS,
    }
)
"""What a store lacks that only speaks for another one."""


class LimitedStore(Store):
    """Hands on what it declares; everything else is refused as any store refuses it."""

    def __init__(self, inner: Store, without: frozenset[Ability], tried: list[str] | None = None) -> None:
        self._inner = inner
        self._abilities = Abilities(NAME, inner.abilities.can - without)
        self.tried = [] if tried is None else tried

    @property
    def abilities(self) -> Abilities:
        return self._abilities

    def _try(self, what: str, *needed: Ability) -> Store:
        self.tried.append(what)
        for ability in needed:
            self.abilities.require(ability)
        return self._inner

    async def open(self) -> None:
        await self._inner.open()

    async def close(self) -> None:
        await self._inner.close()

    async def register(self, app: str, shards: int | None = None) -> AppInfo:
        return await self._inner.register(app, shards)

    async def add(self, specs: Sequence[JobSpec]) -> Sequence[Accepted]:
        needed = [Ability.WHOLE_BATCHES] if len(specs) > 1 else []
        needed += [Ability.IDEMPOTENCY_KEYS for spec in specs if spec.idempotency_key is not None]
        return await self._try("add", *needed).add(specs)

    def enqueue(self, connection: Any, specs: Sequence[JobSpec]) -> Sequence[Accepted]:
        return self._try("enqueue", Ability.OWN_TRANSACTION).enqueue(connection, specs)

    async def holders(self, app: str, keys: Any) -> Mapping[str, Holder]:
        return await self._try("holders", Ability.IDEMPOTENCY_KEYS).holders(app, keys)

    async def change(self, change: Change, key: bytes, **options: Any) -> Decision:
        return await self._try("change", Ability(change)).change(change, key, **options)

    async def get(self, key: bytes, *, app: str | None = None) -> JobRecord | None:
        return await self._inner.get(key, app=app)

    async def find(self, query: Query) -> Found:
        return await self._try("find", Ability.SEARCH).find(query)

    async def survey(self) -> Survey:
        return await self._inner.survey()

    async def pause(self, app: str, *, paused: bool) -> None:
        await self._inner.pause(app, paused=paused)

    async def drain(self, node_id: str, *, draining: bool) -> int:
        return await self._inner.drain(node_id, draining=draining)

    def inbox(self) -> Inbox:
        inner = self._try("inbox", Ability.DEAD_LETTERS).inbox()
        return inner if Ability.INBOX in self.abilities else LimitedInbox(inner, self.abilities)

    def ledger(self) -> Ledger:
        return LimitedLedger(self._inner.ledger(), self.abilities)

    def ownership(self, node: NodeInfo, poke: Poke) -> Ownership:
        owner = self._try("ownership", Ability.OWNERSHIP).ownership(node, poke)
        if Ability.MARKS not in self.abilities:
            owner.marks = None
        return owner


class LimitedInbox(LettersOnly):
    """The part of a limited store that keeps dead letters."""

    def __init__(self, inner: Inbox, abilities: Abilities) -> None:
        super().__init__(abilities)
        self._inner = inner

    async def letters(self, query: LetterQuery) -> Letters:
        return await self._inner.letters(query)

    async def letter(self, letter_id: str) -> DeadLetter | None:
        return await self._inner.letter(letter_id)

    async def replay(self, letter_id: str, spec: JobSpec) -> Accepted:
        return await self._inner.replay(letter_id, spec)

    async def drop(self, letter_ids: Collection[str]) -> Mapping[str, LetterState]:
        return await self._inner.drop(letter_ids)


class LimitedLedger(Ledger):
    """The part of a limited store that keeps the books."""

    def __init__(self, inner: Ledger, abilities: Abilities) -> None:
        super().__init__(abilities)
        self._inner = inner

    def _try(self, needed: Ability) -> Ledger:
        self._abilities.require(needed)
        return self._inner

    async def waiting(self, app: str | None = None) -> Waiting:
        return await self._try(Ability.WAITING).waiting(app)

    async def recount(self, app: str) -> Recount:
        return await self._try(Ability.WAITING).recount(app)

    async def forecast(self, query: ForecastQuery) -> Forecast:
        return await self._try(Ability.FORECAST).forecast(query)

    async def tables(self) -> Sequence[TableInfo]:
        return await self._try(Ability.TABLES).tables()

    async def record(self, records: Sequence[AuditRecord]) -> None:
        await self._try(Ability.RECORDS).record(records)

    async def records(self, query: AuditQuery) -> AuditPage:
        return await self._try(Ability.AUDIT).records(query)

    async def tokens(self) -> Sequence[Token]:
        return await self._try(Ability.TOKENS).tokens()

    async def add_token(self, token: Token, *, only_first: bool = False) -> bool:
        return await self._try(Ability.TOKENS).add_token(token, only_first=only_first)

    async def revoke_token(self, name: str, now_ms: int) -> bool:
        return await self._try(Ability.TOKENS).revoke_token(name, now_ms)


class LimitedScheme(Scheme):
    """`limited:///FILE?without=cancel,inbox`: a SQLite file with fewer abilities."""

    def __init__(self) -> None:
        self.tried: list[str] = []

    def open(self, url: str, clock: Clock, options: Options) -> Store:
        place, _, without = url.partition("?without=")
        inner = open_store(place.replace("limited", "sqlite", 1), clock, options)
        return LimitedStore(inner, frozenset(map(Ability, without.split(","))), self.tried)

    def lack(self, url: str, options: Options) -> str | None:
        return None

    async def prepare(self, url: str, clock: Clock, options: Options, **wanted: Any) -> Preparation:
        raise AssertionError("nobody asks for this here")


SCHEME: Final = LimitedScheme()
