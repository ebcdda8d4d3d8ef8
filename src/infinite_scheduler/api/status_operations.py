"""The status API of the Java scheduler, for programs and pages that were written for it."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from infinite_scheduler.api.api_context import ApiContext
from infinite_scheduler.api.operation import ApiRequest, Operation, Subject
from infinite_scheduler.errors import NotSupported, StoreUnavailable
from infinite_scheduler.model import JobRecord, Status
from infinite_scheduler.store.abilities import Ability
from infinite_scheduler.store.ledger import Role
from infinite_scheduler.views.java_status import (
    JavaTables,
    JobStats,
    PastJob,
    ScheduledJob,
    java_tables,
    job_stats,
    past_job,
    scheduled_job,
)
from infinite_scheduler.views.vitals import living_beats

PAST: Final = (Status.DONE, Status.FAILED, Status.EXPIRED)


class StatusLimit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much to show."""

    limit: Annotated[int, Meta(ge=1, le=1000, description="How many jobs at most.")] = 100


async def scheduled_jobs(api: ApiContext, request: ApiRequest) -> Sequence[ScheduledJob]:
    """Jobs that wait, the next one first."""
    asked: StatusLimit = request.query
    return [scheduled_job(one, api.zone) for one in await _found(api, Status.PENDING, asked.limit, newest=False)]


async def past_jobs(api: ApiContext, request: ApiRequest) -> Sequence[PastJob]:
    """Jobs that have ended, the newest first."""
    asked: StatusLimit = request.query
    found = [one for status in PAST for one in await _found(api, status, asked.limit, newest=True)]
    found.sort(key=lambda one: one.finished_ms or 0, reverse=True)
    return [past_job(one, api.zone) for one in found[: asked.limit]]


async def _found(api: ApiContext, status: Status, limit: int, *, newest: bool) -> Sequence[JobRecord]:
    return (await api.client.find(status=status, limit=limit, newest_first=newest, attempts=True)).records


async def stats(api: ApiContext, request: ApiRequest) -> JobStats:
    """How many jobs wait, run and have ended, over all apps; those that run as of the nodes' last heartbeats."""
    del request
    counts: Counter[str] = Counter()
    survey = await api.client.survey()
    for app in survey.counts.values():
        counts.update(app)
    beats = living_beats(survey, api.now_ms, api.lease_ms)
    running = sum(beat.vitals.total.in_flight for beat in beats.values())
    waiting = 0
    if Ability.WAITING in api.client.abilities:
        waiting = sum(sum(days.values()) for days in (await api.client.ledger.waiting()).values())
    return job_stats(waiting, running, counts)


async def show_tables(api: ApiContext, request: ApiRequest) -> JavaTables:
    """The tables of the store."""
    del request
    return java_tables(api.client.abilities.store, await api.client.ledger.tables(), api.zone)


def _status(name: str, path: str, summary: str, call: object, answer: object, **more: object) -> Operation:
    return Operation(
        name=name,
        subject=Subject.STATUS,
        method="GET",
        path=path,
        summary=summary,
        role=Role.READ,
        call=call,  # type: ignore[arg-type]
        answer=answer,
        errors=(NotSupported, StoreUnavailable),
        **more,  # type: ignore[arg-type]
    )


STATUS_OPERATIONS = (
    _status(
        "scheduledJobs",
        "/api/jobs/scheduled",
        "Jobs that wait, the next one first.",
        scheduled_jobs,
        Sequence[ScheduledJob],
        query=StatusLimit,
    ),
    _status(
        "pastJobs",
        "/api/jobs/history",
        "Jobs that have ended, the newest first.",
        past_jobs,
        Sequence[PastJob],
        query=StatusLimit,
    ),
    _status("jobStats", "/api/jobs/stats", "How many jobs there are, over all apps.", stats, JobStats),
    _status("javaTables", "/api/tables", "The tables of the store.", show_tables, JavaTables),
)
