"""Operations on one job, and the list of jobs."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from infinite_scheduler.api.api_context import ApiContext
from infinite_scheduler.api.audit import audited, records_of
from infinite_scheduler.api.job_request import DelayText, JobHeaders, JobRequest, Moment, job_spec
from infinite_scheduler.api.operation import (
    LOCAL,
    Actor,
    ApiRequest,
    Operation,
    OperationCall,
    RawAnswer,
    Reply,
    Subject,
)
from infinite_scheduler.api.refusal import HIDDEN_DATA, Refusal
from infinite_scheduler.client import CHANGE_TIMEOUT_MS, LOOK_ROWS, PAGE_BYTES
from infinite_scheduler.errors import (
    IdRefused,
    IntakeFull,
    InvalidRequest,
    KeyConflict,
    NotSupported,
    PayloadTooLarge,
    StoreUnavailable,
    TooLate,
    Unavailable,
    UnknownApp,
    UnknownJob,
)
from infinite_scheduler.ingest.request import due_time
from infinite_scheduler.model import Change, JobId, JobRecord, Status
from infinite_scheduler.policy.calendar import parse_moment
from infinite_scheduler.store.ledger import AuditRecord, Role
from infinite_scheduler.store.looking import Query
from infinite_scheduler.views.explain import Explanation, explain
from infinite_scheduler.views.job import AcceptedView, JobDetails, JobView, accepted_view, job_details, job_view
from infinite_scheduler.views.times import IsoTime, iso_or_none

_NOTHING = msgspec.Raw(b"null")

CHANGE_ERRORS = (InvalidRequest, UnknownJob, TooLate, NotSupported, Unavailable)
ACCEPT_ERRORS = (
    UnknownApp,
    KeyConflict,
    PayloadTooLarge,
    InvalidRequest,
    IdRefused,
    NotSupported,
    IntakeFull,
    StoreUnavailable,
)


class JobFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which jobs are meant: those that meet all that is given."""

    app: Annotated[str | None, Meta(description="Only jobs of this app.")] = None
    status: Annotated[Status | None, Meta(description="Only jobs in this state.")] = None
    start: Annotated[str | None, Meta(description="Only jobs for this time or later.")] = msgspec.field(
        name="from", default=None
    )
    end: Annotated[str | None, Meta(description="Only jobs for a time before this.")] = msgspec.field(
        name="to", default=None
    )
    tag: Annotated[str | None, Meta(description="Only jobs with this tag.")] = None
    job_name: Annotated[str | None, Meta(description="Only jobs of this name.")] = msgspec.field(
        name="name", default=None
    )
    group: Annotated[str | None, Meta(description="Only jobs of this group.")] = None
    request_id: Annotated[str | None, Meta(description="Only jobs with this request id.")] = None
    idempotency_key: Annotated[
        str | None, Meta(description="Only the job that has this idempotency key, while the key is remembered.")
    ] = None
    error: Annotated[str | None, Meta(description="Only jobs whose last error has this text in it.")] = None

    @property
    def criteria(self) -> Mapping[str, Any]:
        """What is given, by the names that a client has for it."""
        names = JobFilter.__struct_fields__
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class JobListing(JobFilter, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which jobs to list, how, and how much may be looked at for it."""

    newest: Annotated[bool, Meta(description="The latest times first.")] = False
    limit: Annotated[int, Meta(ge=1, le=1000, description="How many jobs a page has at most.")] = 100
    cursor: Annotated[str | None, Meta(description="Continue where the page that had this cursor ended.")] = None

    attempts: Annotated[bool, Meta(description="Show the attempts of each job, as its details do.")] = False
    rows: Annotated[
        int, Meta(ge=1, le=LOOK_ROWS, description="How many rows of the store this request may look at.")
    ] = LOOK_ROWS
    room: Annotated[
        int,
        Meta(ge=1, le=PAGE_BYTES, description="Bytes of data after which a page ends, but not before its first job."),
    ] = PAGE_BYTES


class JobChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which job is meant."""

    app: Annotated[str | None, Meta(description="The app of the job, if it is known: then no other is looked at.")] = (
        None
    )


class ChangeOptions(JobChoice, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which job to change, and how long that may take."""

    timeout_ms: Annotated[
        int, Meta(ge=1, le=60_000, description="How long the owner of the job may take to decide.")
    ] = CHANGE_TIMEOUT_MS


class JobPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a list of jobs; `cursor` asks for the next, and is null at the end.

    A look has a bound: a page may have few jobs, or none, and still a cursor. `searched_to` says how far it came.
    """

    jobs: Sequence[JobView]
    cursor: str | None
    searched_to: IsoTime | None  # null: there is nothing more to look at


class Reschedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The moment to which a job is moved: either a time or a delay from now."""

    at: Moment | None = None
    delay: DelayText | None = None


async def schedule_job(api: ApiContext, request: ApiRequest) -> Reply:
    """Accept one job: durable when it is answered. Calls that come at once share a commit."""
    job: JobRequest = request.body
    spec = job_spec(api, job, api.now_ms, request.headers)
    api.check_room(1, len(spec.payload))
    (accepted,) = await api.client.submit([spec])
    return Reply(
        value=accepted_view(accepted),
        status=200 if accepted.repeated else 201,
        headers={"Location": f"{api.root_path}/v1/jobs/{accepted.id}"},
    )


async def list_jobs(api: ApiContext, request: ApiRequest) -> JobPage:
    """One page of jobs."""
    asked: JobListing = request.query
    found = await api.client.search(_query(api, asked))
    shows = shows_data(api, request.actor)
    return JobPage(
        jobs=[
            _shown_details(record, (), shows=shows) if asked.attempts else shown_job(record, shows=shows)
            for record in found.records
        ],
        cursor=found.cursor,
        searched_to=iso_or_none(found.searched_to_ms),
    )


def _query(api: ApiContext, asked: JobListing) -> Query:
    """What is asked for, as a store takes it."""
    return Query(
        app=asked.app,
        status=asked.status,
        from_ms=None if asked.start is None else parse_moment(asked.start, now_ms=api.now_ms, zone=api.zone),
        to_ms=None if asked.end is None else parse_moment(asked.end, now_ms=api.now_ms, zone=api.zone),
        tag=asked.tag,
        job_name=asked.job_name,
        group=asked.group,
        request_id=asked.request_id,
        idempotency_key=asked.idempotency_key,
        error=asked.error,
        newest_first=asked.newest,
        limit=asked.limit,
        attempts=asked.attempts,
        most=asked.rows,
        room=asked.room,
        cursor=asked.cursor,
    )


async def show_job(api: ApiContext, request: ApiRequest) -> JobDetails:
    """Everything about one job."""
    asked: JobChoice = request.query
    record = await api.client.get(request.path["id"], app=asked.app)
    return _shown_details(record, await records_of(api, record.id), shows=shows_data(api, request.actor))


async def show_payload(api: ApiContext, request: ApiRequest) -> RawAnswer:
    """The data of a job, byte for byte."""
    record = await api.client.get(request.path["id"])
    if not shows_data(api, request.actor):
        raise Refusal(HIDDEN_DATA, f"the data of jobs is not shown to {request.actor.role} (http.payloads)")
    return RawAnswer(record.job.payload, "application/json")


async def explain_job(api: ApiContext, request: ApiRequest) -> Explanation:
    """Why a job has not been handed over."""
    record = await api.client.get(request.path["id"])
    return explain(record, await api.client.survey(), now_ms=api.now_ms, lease_ms=api.lease_ms)


async def cancel_job(api: ApiContext, request: ApiRequest) -> JobDetails:
    """Cancel a job."""
    return await _changed(api, request, Change.CANCEL)


async def reschedule_job(api: ApiContext, request: ApiRequest) -> JobDetails:
    """Move a job to another time."""
    to: Reschedule = request.body
    due_ms, _ = due_time(to.at, to.delay, now_ms=api.now_ms, zone=api.zone)
    return await _changed(api, request, Change.RESCHEDULE, due_ms)


async def run_job_now(api: ApiContext, request: ApiRequest) -> JobDetails:
    """Hand a job over at once."""
    return await _changed(api, request, Change.RUN_NOW)


async def retry_job(api: ApiContext, request: ApiRequest) -> JobDetails:
    """Try a settled job again."""
    return await _changed(api, request, Change.RETRY)


async def _changed(api: ApiContext, request: ApiRequest, change: Change, due_ms: int | None = None) -> JobDetails:
    """The job after the change. What people do with a token for operators is written down; what programs do is not."""
    actor, asked, job_id = request.actor, request.query, request.path["id"]
    changing = api.client.change(change, job_id, due_ms=due_ms, app=asked.app, timeout_ms=asked.timeout_ms)
    if actor.role is Role.OPERATE and actor.name != LOCAL:
        async with audited(api, actor, f"{change.replace('_', ' ')} job", _spelled(job_id)):
            record = await changing
    else:
        record = await changing
    return _shown_details(record, (), shows=shows_data(api, actor))


def _shown_details(record: JobRecord, audit: Sequence[AuditRecord], *, shows: bool) -> JobDetails:
    details = job_details(record, audit)
    return details if shows else msgspec.structs.replace(details, data=_NOTHING)


def _spelled(job_id: str) -> str:
    """An id as it is printed, so that the audit of a job finds it; what is not an id stays as it is."""
    with suppress(InvalidRequest):
        return str(JobId.parse(job_id))
    return job_id


def shown_job(record: JobRecord, *, shows: bool) -> JobView:
    """A job as it may be shown."""
    view = job_view(record)
    return view if shows else msgspec.structs.replace(view, data=_NOTHING)


def shows_data(api: ApiContext, actor: Actor) -> bool:
    """May whoever asks see the data of jobs?"""
    return api.payloads == "shown" or (api.payloads == "operators" and actor.role is Role.OPERATE)


def _change(name: str, path: str, summary: str, call: OperationCall, body: object = None) -> Operation:
    return Operation(
        name=name,
        subject=Subject.JOBS,
        method="POST",
        path=f"/v1/jobs/{{id}}/{path}",
        summary=summary,
        role=Role.SUBMIT,
        call=call,
        query=ChangeOptions,
        body=body,
        optional_body=body is None,
        answer=JobDetails,
        errors=CHANGE_ERRORS,
    )


JOB_OPERATIONS = (
    Operation(
        name="scheduleJob",
        subject=Subject.JOBS,
        method="POST",
        path="/v1/jobs",
        summary="Schedule a job. When this is answered, the job is durable.",
        role=Role.SUBMIT,
        call=schedule_job,
        headers=JobHeaders,
        body=JobRequest,
        answer=AcceptedView,
        status=201,
        more_statuses=(200,),
        errors=ACCEPT_ERRORS,
    ),
    Operation(
        name="listJobs",
        subject=Subject.JOBS,
        method="GET",
        path="/v1/jobs",
        summary=(
            "List jobs, a page at a time: pending ones by the time at which they are due, all others by the time for "
            "which they were accepted."
        ),
        role=Role.READ,
        call=list_jobs,
        query=JobListing,
        answer=JobPage,
        errors=(UnknownApp, InvalidRequest, NotSupported, StoreUnavailable),
    ),
    Operation(
        name="showJob",
        subject=Subject.JOBS,
        method="GET",
        path="/v1/jobs/{id}",
        summary="Show everything about one job: its failed attempts, its time line, and what operators did to it.",
        role=Role.READ,
        call=show_job,
        query=JobChoice,
        answer=JobDetails,
        errors=(InvalidRequest, UnknownJob, StoreUnavailable),
    ),
    Operation(
        name="showPayload",
        subject=Subject.JOBS,
        method="GET",
        path="/v1/jobs/{id}/payload",
        summary="The data of a job, byte for byte as it was accepted.",
        role=Role.READ,
        call=show_payload,
        answer=msgspec.Raw,
        errors=(InvalidRequest, UnknownJob, StoreUnavailable),
    ),
    Operation(
        name="explainJob",
        subject=Subject.JOBS,
        method="GET",
        path="/v1/jobs/{id}/explain",
        summary="Say where a job is, which node owns it, and why it has not been handed over.",
        role=Role.READ,
        call=explain_job,
        answer=Explanation,
        errors=(InvalidRequest, UnknownJob, StoreUnavailable),
    ),
    _change("cancelJob", "cancel", "Cancel a job: after this it is never handed over.", cancel_job),
    _change("rescheduleJob", "reschedule", "Move a waiting job to another time.", reschedule_job, Reschedule),
    _change("runJobNow", "run-now", "Hand a waiting job over at once.", run_job_now),
    _change("retryJob", "retry", "Try a failed, expired or cancelled job again.", retry_job),
)
