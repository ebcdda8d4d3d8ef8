"""A job and its attempts as people see them."""

from collections.abc import Sequence

import msgspec

from infinite_scheduler.model import Accepted, Attempt, JobRecord, Status
from infinite_scheduler.store.ledger import AuditRecord
from infinite_scheduler.views.audit_record import AuditRecordView, audit_record_view
from infinite_scheduler.views.timeline import TimelineEntry, timeline
from infinite_scheduler.views.times import IsoTime, iso, iso_or_none


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    """One delivery that failed, or that has run long enough to be shown.

    `finished_at` is None while it runs, and if its node has ended meanwhile until the job is handed over again.
    """

    attempt: int
    started_at: IsoTime
    finished_at: IsoTime | None
    node: str
    error: str | None


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """A job as a list shows it."""

    id: str
    app: str
    status: Status
    due_at: IsoTime
    due_ms: int
    scheduled_time: IsoTime  # as it was asked for; `due_at` is also moved by retries
    data: msgspec.Raw  # the payload byte for byte: numbers beyond 2^53 stay what they are
    attempt: int
    priority: str
    job_name: str | None
    group: str | None
    tags: tuple[str, ...]
    request_id: str | None
    idempotency_key: str | None
    created_at: IsoTime
    finished_at: IsoTime | None
    error: str | None


class JobDetails(JobView, frozen=True, kw_only=True):
    """A job with what was tried so far, its time line, and what operators did to it (the last 100 records)."""

    attempts: tuple[AttemptView, ...]
    timeline: tuple[TimelineEntry, ...]
    audit: tuple[AuditRecordView, ...]
    kept_in: str | None  # where it is, in the words of the store: a table


class AcceptedView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a job that was accepted; `repeated`: by its idempotency key it is the job of an earlier request."""

    id: str
    due_ms: int
    repeated: bool


def job_view(record: JobRecord) -> JobView:
    """A job without its attempts."""
    job = record.job
    return JobView(
        id=job.id,
        app=job.app,
        status=record.status,
        due_at=iso(job.due_ms),
        due_ms=job.due_ms,
        scheduled_time=iso(job.scheduled_ms),
        data=msgspec.Raw(job.payload),
        attempt=job.attempt,
        priority=job.priority.name.lower(),
        job_name=job.job_name,
        group=job.group,
        tags=job.tags,
        request_id=job.request_id,
        idempotency_key=record.idempotency_key,
        created_at=iso(job.created_ms),
        finished_at=iso_or_none(record.finished_ms),
        error=record.error,
    )


def job_details(record: JobRecord, audit: Sequence[AuditRecord] = ()) -> JobDetails:
    """A job with its attempts and the audit of what was done to it, newest first."""
    return JobDetails(
        **msgspec.structs.asdict(job_view(record)),
        attempts=tuple(_attempt_view(attempt) for attempt in record.attempts),
        timeline=timeline(record, audit),
        audit=tuple(audit_record_view(one) for one in audit),
        kept_in=record.kept_in,
    )


def accepted_view(accepted: Accepted) -> AcceptedView:
    """What the sender of a job is told."""
    return AcceptedView(id=accepted.id, due_ms=accepted.due_ms, repeated=accepted.repeated)


def _attempt_view(attempt: Attempt) -> AttemptView:
    return AttemptView(
        attempt=attempt.attempt,
        started_at=iso(attempt.started_ms),
        finished_at=iso_or_none(attempt.finished_ms),
        node=attempt.node,
        error=attempt.error,
    )
