"""Operations on what is known of all jobs at once: how many wait, when they are due, tables, and the audit."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from infinite_scheduler.api.api_context import ApiContext
from infinite_scheduler.api.operation import ApiRequest, Operation, Subject
from infinite_scheduler.errors import InvalidRequest, NotSupported, StoreUnavailable, UnknownApp
from infinite_scheduler.policy.calendar import parse_moment
from infinite_scheduler.store.ledger import AuditQuery, Role
from infinite_scheduler.views.audit_record import AuditRecordView, audit_record_view
from infinite_scheduler.views.forecast import ForecastView, Zoom, forecast_query
from infinite_scheduler.views.store_table import StoreTableView, store_table_view
from infinite_scheduler.views.times import iso

FORECAST_ROWS: Final = 1_000_000
"""How many rows a forecast looks at; what lies beyond is estimated."""


class WaitingFilters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose jobs to count."""

    app: Annotated[str | None, Meta(description="Only this app.")] = None


class WaitingApp(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs of one app wait."""

    app: str
    jobs: int
    days: Mapping[str, int]  # by the day on which they are due, in UTC


class WaitingList(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs wait: exact, and not counted now."""

    jobs: int
    apps: Sequence[WaitingApp]


class ForecastFilters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which part of the future to look at."""

    zoom: Annotated[Zoom, Meta(description="Days, the hours of one day, or the minutes of one hour.")] = Zoom.DAYS
    at: Annotated[str | None, Meta(description="A moment in the first day, or in the hour; by default now.")] = None
    days: Annotated[int, Meta(ge=1, le=400, description="How many days, if it is days.")] = 8
    app: Annotated[str | None, Meta(description="Only jobs of this app.")] = None


class TableList(msgspec.Struct, frozen=True, kw_only=True):
    """The tables of the store."""

    tables: Sequence[StoreTableView]


class AuditFilters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which records to list."""

    who: Annotated[str | None, Meta(description="Only what this token did; `local` is whoever needed none.")] = None
    verb: Annotated[str | None, Meta(description="Only actions of this kind.")] = None
    target: Annotated[str | None, Meta(description="Only actions on this app, node, letter or job.")] = None
    start: Annotated[str | None, Meta(description="Only from this time on.")] = msgspec.field(name="from", default=None)
    end: Annotated[str | None, Meta(description="Only before this time.")] = msgspec.field(name="to", default=None)
    limit: Annotated[int, Meta(ge=1, le=1000, description="How many records a page has at most.")] = 100
    cursor: Annotated[str | None, Meta(description="Continue where the page that had this cursor ended.")] = None


class AuditList(msgspec.Struct, frozen=True, kw_only=True):
    """One page of records, newest first; `cursor` asks for the next, and is null at the end."""

    records: Sequence[AuditRecordView]
    cursor: str | None


async def show_waiting(api: ApiContext, request: ApiRequest) -> WaitingList:
    """How many jobs wait."""
    asked: WaitingFilters = request.query
    found = await api.client.ledger.waiting(asked.app)
    apps = [
        WaitingApp(app=app, jobs=sum(days.values()), days={iso(day)[:10]: jobs for day, jobs in sorted(days.items())})
        for app, days in sorted(found.items())
    ]
    return WaitingList(jobs=sum(app.jobs for app in apps), apps=apps)


async def show_forecast(api: ApiContext, request: ApiRequest) -> ForecastView:
    """How many jobs are due when."""
    asked: ForecastFilters = request.query
    at_ms = api.now_ms if asked.at is None else parse_moment(asked.at, now_ms=api.now_ms, zone=api.zone)
    query = forecast_query(asked.zoom, at_ms, days=asked.days, app=asked.app, most=FORECAST_ROWS, herd=api.herd)
    return await api.forecasts.forecast(api, asked.zoom, query)


async def list_tables(api: ApiContext, request: ApiRequest) -> TableList:
    """What the store is made of."""
    del request
    return TableList(tables=[store_table_view(table) for table in await api.client.ledger.tables()])


async def list_audit(api: ApiContext, request: ApiRequest) -> AuditList:
    """Who did what."""
    asked: AuditFilters = request.query
    now_ms = api.now_ms
    page = await api.client.ledger.records(
        AuditQuery(
            who=asked.who,
            verb=asked.verb,
            target=asked.target,
            from_ms=None if asked.start is None else parse_moment(asked.start, now_ms=now_ms, zone=api.zone),
            to_ms=None if asked.end is None else parse_moment(asked.end, now_ms=now_ms, zone=api.zone),
            limit=asked.limit,
            cursor=asked.cursor,
        )
    )
    return AuditList(records=[audit_record_view(record) for record in page.records], cursor=page.cursor)


LEDGER_OPERATIONS = (
    Operation(
        name="showWaiting",
        subject=Subject.STORE,
        method="GET",
        path="/v1/waiting",
        summary="How many jobs wait, by app and by the day on which they are due.",
        role=Role.READ,
        call=show_waiting,
        query=WaitingFilters,
        answer=WaitingList,
        errors=(UnknownApp, NotSupported, StoreUnavailable),
    ),
    Operation(
        name="showForecast",
        subject=Subject.STORE,
        method="GET",
        path="/v1/forecast",
        summary=(
            "How many jobs are due when, and the seconds in which very many are (http.herd). The minutes of an hour "
            "are counted anew after 10 s, the hours of a day after a minute."
        ),
        role=Role.READ,
        call=show_forecast,
        query=ForecastFilters,
        answer=ForecastView,
        errors=(UnknownApp, InvalidRequest, NotSupported, StoreUnavailable),
    ),
    Operation(
        name="listTables",
        subject=Subject.STORE,
        method="GET",
        path="/v1/tables",
        summary="List the tables of the store with their sizes, as the database's own catalogue has them.",
        role=Role.READ,
        call=list_tables,
        answer=TableList,
        errors=(NotSupported, StoreUnavailable),
    ),
    Operation(
        name="listAudit",
        subject=Subject.STORE,
        method="GET",
        path="/v1/audit",
        summary="List what operators did, by which token, from where, and how it ended. Newest first.",
        role=Role.READ,
        call=list_audit,
        query=AuditFilters,
        answer=AuditList,
        errors=(InvalidRequest, NotSupported, StoreUnavailable),
    ),
)
