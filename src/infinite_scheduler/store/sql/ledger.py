"""The ledger of a SQL store: counters, the catalogue of the database, the audit and tokens."""

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from infinite_scheduler.clock import Clock
from infinite_scheduler.errors import InvalidRequest
from infinite_scheduler.model import DAY_MS
from infinite_scheduler.store.abilities import Abilities
from infinite_scheduler.store.ledger import (
    AuditPage,
    AuditQuery,
    AuditRecord,
    Forecast,
    ForecastQuery,
    Ledger,
    Recount,
    TableInfo,
    TableKind,
    Token,
    Waiting,
)
from infinite_scheduler.store.sql.dialect import TableSize
from infinite_scheduler.store.sql.forecasting import check_forecast, forecast
from infinite_scheduler.store.sql.inbox import readable
from infinite_scheduler.store.sql.schema import SHARED_PREFIX
from infinite_scheduler.store.sql.statements import Session, Statements
from infinite_scheduler.store.sql.tables import JOBS_INFIX, SqlApp, later_table, moved_table, span_of

LONGEST_NAME: Final = 255
"""Characters of a name or a target that are kept: what every database can index."""


KnownApp = Callable[[str], Coroutine[Any, Any, object]]
"""Raises UnknownApp unless the store has the app."""


class LedgerSessions(NamedTuple):
    """Where a ledger writes, reads what is there at once, and looks for what may take long."""

    door: Session
    reader: Session
    looks: Session


class SqlLedger(Ledger):
    """The books in tables beside those of the jobs."""

    def __init__(self, abilities: Abilities, sessions: LedgerSessions, clock: Clock, known: KnownApp) -> None:
        super().__init__(abilities)
        self._session, self._reader, self._looks = sessions
        self._clock = clock
        self._known = known

    async def waiting(self, app: str | None = None) -> Waiting:
        found = await self._reader.read(lambda tx: tx.read_waiting(app))
        return {name: {day * DAY_MS: n for day, n in sorted(days.items())} for name, days in sorted(found.items())}

    async def recount(self, app: str) -> Recount:
        """Count rows and counters in one snapshot: their difference stays what it is, whatever happens meanwhile."""
        await self._known(app)
        counted, before = await self._looks.read(lambda tx: tx.count_waiting(app))
        deltas = {day: counted.get(day, 0) - before.get(day, 0) for day in counted.keys() | before.keys()}
        await self._session.write(lambda tx: tx.correct_waiting(app, deltas))
        return Recount(app=app, before=sum(before.values()), counted=sum(counted.values()))

    async def forecast(self, query: ForecastQuery) -> Forecast:
        check_forecast(query)
        if query.app is not None:
            await self._known(query.app)
        return await self._looks.read(lambda tx: forecast(tx, query))

    async def tables(self) -> Sequence[TableInfo]:
        return await self._looks.read(lambda tx: described(tx.table_sizes(), tx.read_apps()))

    async def record(self, records: Sequence[AuditRecord]) -> None:
        fitting = [_fitting(one) for one in records]
        await self._session.write(lambda tx: tx.insert_audit(fitting))

    async def records(self, query: AuditQuery) -> AuditPage:
        before = None if query.cursor is None else audit_key(query.cursor)
        found = await self._reader.read(lambda tx: tx.find_audit(query, before, query.limit + 1))
        page = found[: query.limit]
        return AuditPage(records=page, cursor=page[-1].id if len(found) > len(page) else None)

    async def tokens(self) -> Sequence[Token]:
        return await self._reader.read(lambda tx: tx.read_tokens())

    async def add_token(self, token: Token, *, only_first: bool = False) -> bool:
        return await self._session.write(lambda tx: add_token(tx, token, only_first=only_first))

    async def revoke_token(self, name: str, now_ms: int) -> bool:
        def body(tx: Statements) -> bool:
            tx.revoke_token(name, now_ms)
            return any(token.name == name for token in tx.read_tokens())

        return await self._session.write(body)


def described(sizes: Iterable[TableSize], apps: Iterable[SqlApp]) -> Sequence[TableInfo]:
    """The tables of the store; others may live in its database."""
    known = {app.name: app for app in apps}
    found = ((size, _purpose(size.name, known)) for size in sizes)
    return [
        TableInfo(
            name=size.name,
            rows=size.rows,
            data_bytes=size.data_bytes,
            index_bytes=size.index_bytes,
            created_ms=size.created_ms,
            **purpose,
        )
        for size, purpose in sorted(found, key=lambda one: one[0].name)
        if purpose
    ]


def _purpose(table: str, apps: Mapping[str, SqlApp]) -> Mapping[str, Any]:
    """What a table is for, as fields of `TableInfo`; nothing if it is not of this store."""
    name, infix, date = table.rpartition(JOBS_INFIX)
    if infix and name in apps and table == later_table(name):
        return {"kind": TableKind.LATER, "app": name}
    if infix and name in apps:
        span = span_of(apps[name].span)
        period = span.parse(date)
        if period is None:
            return {}
        starts_ms, ends_ms = span.starts_ms(period), span.ends_ms(period)
        return {"kind": TableKind.JOBS, "app": name, "starts_ms": starts_ms, "ends_ms": ends_ms}
    for name in apps:
        if table == moved_table(name):
            return {"kind": TableKind.MOVED, "app": name}
    return {"kind": TableKind.SHARED} if table.startswith(SHARED_PREFIX) else {}


def add_token(tx: Statements, token: Token, *, only_first: bool) -> bool:
    """Compare and set: the tokens are looked at under a lock, so that two processes do not both find none."""
    tx.lock_tokens()
    known = tx.read_tokens()
    if any((one.name, one.digest, one.revoked_ms) == (token.name, token.digest, None) for one in known):
        return True
    if only_first and any(one.revoked_ms is None for one in known):
        return False
    return tx.insert_token(token)


def audit_key(cursor: str) -> bytes:
    """The id of a record as stored."""
    try:
        key = bytes.fromhex(cursor)
    except ValueError:
        key = b""
    if len(key) != 16:
        raise InvalidRequest(f"cursor {cursor!r} is not from a page of the audit; use the cursor of the last page")
    return key


def _fitting(record: AuditRecord) -> AuditRecord:
    """The record with texts that every database can store."""
    names = {name: _kept(getattr(record, name)) for name in ("who", "address", "verb", "target")}
    return msgspec.structs.replace(record, **names, result=readable(record.result))


def _kept(text: str) -> str:
    return (readable(text) or "")[:LONGEST_NAME]
