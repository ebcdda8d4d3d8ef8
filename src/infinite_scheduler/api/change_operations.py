"""Operations that change many jobs: those of a list of ids, or all that match a filter."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from infinite_scheduler.api.access import check_role
from infinite_scheduler.api.api_context import ApiContext
from infinite_scheduler.api.audit import DONE, record
from infinite_scheduler.api.job_operations import JobFilter, shown_job, shows_data
from infinite_scheduler.api.job_request import DelayText, Moment
from infinite_scheduler.api.operation import ApiRequest, Operation, OperationCall, Subject
from infinite_scheduler.api.problem import Problem, problem_of
from infinite_scheduler.bulk_change.job_changes import MOST_JOBS, BulkResult, change_each
from infinite_scheduler.errors import (
    InvalidRequest,
    NotSupported,
    SchedulerError,
    StoreUnavailable,
    Unavailable,
    UnknownApp,
)
from infinite_scheduler.ingest.request import due_time
from infinite_scheduler.model import Change, JobRecord, datetime_of
from infinite_scheduler.store.ledger import Role
from infinite_scheduler.views.job import JobView
from infinite_scheduler.views.times import IsoTime, iso_or_none

Preview = Annotated[bool, Meta(description="With a filter: only say how many match, and show ten.")]
StepCursorText = Annotated[str | None, Meta(description="With a filter: go on where the call that had it ended.")]
StepLimit = Annotated[
    Annotated[int, Meta(ge=1, le=MOST_JOBS)] | None,
    Meta(description="With a filter: how many one call changes at most; 1,000 if left out."),
]


class ChangeJobs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The jobs to change: either ids or a filter. A filter needs the role operate."""

    ids: Annotated[tuple[str, ...], Meta(min_length=1, max_length=MOST_JOBS)] | None = None
    filter: JobFilter | None = None
    preview: Preview = False
    cursor: StepCursorText = None
    limit: StepLimit = None


class RescheduleJobs(ChangeJobs, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The jobs to move, and the moment: either a time or a delay from now, by a filter from the first call."""

    at: Moment | None = None
    delay: DelayText | None = None


class ChangedItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one job: how it is now, or an error."""

    id: str
    job: JobView | None = None
    error: Problem | None = None


class ChangedJobs(msgspec.Struct, frozen=True, kw_only=True):
    """What was changed. By ids, `results` has each job in the order of the request; by a filter, those refused.

    By a filter, go on with `cursor` until it is null. `stopped` says why some changes were not decided, such as a store
    that did not answer in the middle: what is counted was changed, and the cursor leads to the rest.
    """

    changed: int
    refused: int
    results: Sequence[ChangedItem]
    cursor: str | None = None
    searched_to: IsoTime | None = None  # null: there is nothing more to look at
    stopped: Problem | UnsetType = UNSET


class JobPreview(msgspec.Struct, frozen=True, kw_only=True):
    """What a change by a filter would meet: how many, at least if the look had to end before all was seen, and ten."""

    count: int
    at_least: bool
    jobs: Sequence[JobView]


async def cancel_jobs(api: ApiContext, request: ApiRequest) -> ChangedJobs | JobPreview:
    """Cancel many jobs."""
    return await _change(api, request, Change.CANCEL, api.client.cancel)


async def reschedule_jobs(api: ApiContext, request: ApiRequest) -> ChangedJobs | JobPreview:
    """Move many jobs to one moment."""
    asked: RescheduleJobs = request.body
    due_ms, _ = due_time(asked.at, asked.delay, now_ms=api.now_ms, zone=api.zone)
    moment = datetime_of(due_ms)
    return await _change(api, request, Change.RESCHEDULE, lambda job_id: api.client.reschedule(job_id, at=moment))


async def run_jobs_now(api: ApiContext, request: ApiRequest) -> ChangedJobs | JobPreview:
    """Hand many jobs over at once."""
    return await _change(api, request, Change.RUN_NOW, api.client.run_now)


async def retry_jobs(api: ApiContext, request: ApiRequest) -> ChangedJobs | JobPreview:
    """Try many settled jobs again."""
    return await _change(api, request, Change.RETRY, api.client.retry)


ChangeOne = Callable[[str], Awaitable[JobRecord]]


async def _change(
    api: ApiContext, request: ApiRequest, change: Change, change_one: ChangeOne
) -> ChangedJobs | JobPreview:
    asked: ChangeJobs = request.body
    if asked.filter is None and asked.ids is None:
        raise InvalidRequest("say which jobs: either their ids, or a filter")
    if asked.filter is None:
        if asked.preview or asked.cursor is not None or asked.limit is not None:
            raise InvalidRequest("preview, cursor and limit are for a filter: leave them out, since ids were given")
        return await _change_by_ids(api, request, change, change_one)
    if asked.ids is not None:
        raise InvalidRequest("give either ids or a filter, not both")
    check_role(request.actor, Role.OPERATE)
    return await _change_by_filter(api, request, change, asked.filter)


async def _change_by_ids(api: ApiContext, request: ApiRequest, change: Change, change_one: ChangeOne) -> ChangedJobs:
    ids: Sequence[str] = request.body.ids
    shows = shows_data(api, request.actor)
    ends = await change_each(ids, change_one)
    items = [
        ChangedItem(id=job_id, job=shown_job(end, shows=shows))
        if isinstance(end, JobRecord)
        else ChangedItem(id=job_id, error=None if end is None else problem_of(end))
        for job_id, end in zip(ids, ends, strict=True)
    ]
    refused = sum(item.error is not None for item in items)
    changed = len(items) - refused
    await record(api, request.actor, _verb(change), f"{ids[0]} …", count=changed)
    return ChangedJobs(changed=changed, refused=refused, results=items)


async def _change_by_filter(
    api: ApiContext, request: ApiRequest, change: Change, jobs: JobFilter
) -> ChangedJobs | JobPreview:
    asked: ChangeJobs = request.body
    time: dict[str, Any] = {"at": asked.at, "delay": asked.delay} if isinstance(asked, RescheduleJobs) else {}
    bulk = api.client.bulk_change(change, **time, **jobs.criteria)
    if asked.preview:
        found = await bulk.preview()
        shows = shows_data(api, request.actor)
        views = [shown_job(job, shows=shows) for job in found.jobs]
        return JobPreview(count=found.count, at_least=found.at_least, jobs=views)
    done = await bulk.step(asked.cursor, asked.limit)
    await _record_step(api, request, change, jobs, done)
    return ChangedJobs(
        changed=done.changed,
        refused=len(done.refused),
        results=[ChangedItem(id=one.id, error=problem_of(one.error)) for one in done.refused],
        cursor=done.cursor,
        searched_to=iso_or_none(done.searched_to_ms),
        stopped=UNSET if done.stopped is None else problem_of(done.stopped),
    )


async def _record_step(api: ApiContext, request: ApiRequest, change: Change, jobs: JobFilter, done: BulkResult) -> None:
    """One record per call. If the store has gone away, it may take none: the answer says what was done."""
    target = filter_text(jobs)
    if done.stopped is None:
        result = f"{DONE}; {len(done.refused):,} refused" if done.refused else DONE
        await record(api, request.actor, _verb(change), target, count=done.changed, result=result)
        return
    with suppress(SchedulerError):
        await record(api, request.actor, _verb(change), target, count=done.changed, result=f"stopped: {done.stopped}")


def filter_text(chosen: msgspec.Struct) -> str:
    """A filter as the audit has it: its fields as JSON, without those that were not given."""
    given = {name: value for name, value in msgspec.to_builtins(chosen).items() if value is not None}
    return msgspec.json.encode(given).decode()


def _verb(change: Change) -> str:
    return f"{change.replace('_', ' ')} jobs"


_HOW: Final = (
    f"Either at most {MOST_JOBS:,} ids, with one answer per id in their order; or a filter, which needs the role "
    "operate: a preview, or a change of one bounded look per call, until the cursor is null."
)


def _operation(
    name: str, path: str, summary: str, call: OperationCall, body: type[ChangeJobs] = ChangeJobs
) -> Operation:
    return Operation(
        name=name,
        subject=Subject.MANY_JOBS,
        method="POST",
        path=f"/v1/jobs/{path}",
        summary=f"{summary} {_HOW}",
        role=Role.SUBMIT,
        call=call,
        body=body,
        answer=ChangedJobs,
        other_answers=(JobPreview,),
        errors=(UnknownApp, InvalidRequest, NotSupported, StoreUnavailable, Unavailable),
    )


CHANGE_OPERATIONS: Final = (
    _operation("cancelJobs", "cancel", "Cancel jobs.", cancel_jobs),
    _operation("rescheduleJobs", "reschedule", "Move waiting jobs to another time.", reschedule_jobs, RescheduleJobs),
    _operation("runJobsNow", "run-now", "Hand waiting jobs over at once.", run_jobs_now),
    _operation("retryJobs", "retry", "Try failed, expired or cancelled jobs again.", retry_jobs),
)
