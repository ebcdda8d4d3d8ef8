"""The books of a store elsewhere: read here, kept there."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from infinite_scheduler.store.abilities import Abilities
from infinite_scheduler.store.http.http_session import HttpRequest, HttpSession, path
from infinite_scheduler.store.http.wire import (
    ShownRecords,
    ShownTables,
    ShownWaitingList,
    moment_ms,
    moment_text,
)
from infinite_scheduler.store.ledger import (
    AuditPage,
    AuditQuery,
    Forecast,
    ForecastQuery,
    Ledger,
    Recount,
    TableInfo,
    Waiting,
)

MOST_RECORDS: Final = 1000
MOST_ROWS: Final = 1_000_000
"""What one request may ask for: the server takes no larger numbers."""

COUNTING_MS: Final = 600_000
"""How long counting all jobs of an app may take."""

_waiting = msgspec.json.Decoder(ShownWaitingList)
_recount = msgspec.json.Decoder(Recount)
_forecast = msgspec.json.Decoder(Forecast)
_tables = msgspec.json.Decoder(ShownTables)
_records = msgspec.json.Decoder(ShownRecords)


class HttpLedger(Ledger):
    """What API v1 says of all jobs at once. Tokens and records are for the process that has the store."""

    def __init__(self, abilities: Abilities, session: HttpSession) -> None:
        super().__init__(abilities)
        self._session = session

    async def waiting(self, app: str | None = None) -> Waiting:
        found = await self._session.ask(_get("waiting", {"app": app}), _waiting)
        return {
            one.app: {moment_ms(f"{day}T00:00:00+00:00"): jobs for day, jobs in one.days.items()} for one in found.apps
        }

    async def recount(self, app: str) -> Recount:
        request = HttpRequest(method="POST", path=path("apps", app, "recount"), waits_ms=COUNTING_MS)
        return await self._session.ask(request, _recount)

    async def forecast(self, query: ForecastQuery) -> Forecast:
        said = {
            "start_ms": str(query.start_ms),
            "end_ms": str(query.end_ms),
            "step_ms": str(query.step_ms),
            "app": query.app,
            "rows": str(min(query.most, MOST_ROWS)),
            "herd": None if query.herd is None else str(query.herd),
        }
        request = HttpRequest(method="GET", path="/v1/forecast/range", query=_said(said))
        return await self._session.ask(request, _forecast)

    async def tables(self) -> Sequence[TableInfo]:
        return [one.table() for one in (await self._session.ask(_get("tables"), _tables)).tables]

    async def records(self, query: AuditQuery) -> AuditPage:
        said = {
            "who": query.who,
            "verb": query.verb,
            "target": query.target,
            "from": None if query.from_ms is None else moment_text(query.from_ms),
            "to": None if query.to_ms is None else moment_text(query.to_ms),
            "limit": str(min(query.limit, MOST_RECORDS)),
            "cursor": query.cursor,
        }
        found = await self._session.ask(_get("audit", said), _records)
        return AuditPage(records=[one.record() for one in found.records], cursor=found.cursor)


def _get(name: str, said: Mapping[str, str | None] | None = None) -> HttpRequest:
    return HttpRequest(method="GET", path=path(name), query=_said(said or {}))


def _said(query: Mapping[str, str | None]) -> Mapping[str, str]:
    return {name: value for name, value in query.items() if value is not None}
