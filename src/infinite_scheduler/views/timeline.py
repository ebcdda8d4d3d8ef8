"""The time line of a job: what happened to it, as far as the store knows, and when it is due."""

import enum
from collections.abc import Iterator, Sequence

import msgspec

from infinite_scheduler.model import Attempt, Job, JobRecord
from infinite_scheduler.store.ledger import AuditRecord
from infinite_scheduler.views.times import IsoTime, iso


class TimelineStep(enum.StrEnum):
    """What happened to a job; in the order of what happens within one millisecond."""

    ACCEPTED = "accepted"
    CHANGED = "changed"
    DUE = "due"
    ATTEMPT_STARTED = "attempt_started"
    ATTEMPT_ENDED = "attempt_ended"
    FINISHED = "finished"


_ORDER = {step: number for number, step in enumerate(TimelineStep)}


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a job.

    Attempts are those that failed or took longer than a second; changes are those that the audit has.
    """

    at: IsoTime
    step: TimelineStep
    attempt: int | None = None
    node: str | None = None
    detail: str | None = None


def timeline(record: JobRecord, audit: Sequence[AuditRecord]) -> tuple[TimelineEntry, ...]:
    """All that is known, in the order of time; the audit is that of this job."""
    job = record.job
    steps = [(job.created_ms, TimelineEntry(at=iso(job.created_ms), step=TimelineStep.ACCEPTED))]
    steps += _moments(job)
    steps += [step for attempt in record.attempts for step in _of_attempt(attempt)]
    for one in audit:
        detail = f"{one.verb} by {one.who}: {one.result}"
        steps.append((one.at_ms, TimelineEntry(at=iso(one.at_ms), step=TimelineStep.CHANGED, detail=detail)))
    if record.finished_ms is not None:
        end = f"{record.status}: {record.error}" if record.error else str(record.status)
        steps.append(
            (record.finished_ms, TimelineEntry(at=iso(record.finished_ms), step=TimelineStep.FINISHED, detail=end))
        )
    steps.sort(key=lambda step: (step[0], _ORDER[step[1].step]))
    return tuple(entry for _, entry in steps)


def _moments(job: Job) -> Iterator[tuple[int, TimelineEntry]]:
    """The moment for which it was accepted, and the one to which a retry or a change has moved it."""
    yield job.scheduled_ms, TimelineEntry(at=iso(job.scheduled_ms), step=TimelineStep.DUE)
    if job.due_ms != job.scheduled_ms:
        yield (
            job.due_ms,
            TimelineEntry(
                at=iso(job.due_ms), step=TimelineStep.DUE, attempt=job.attempt, detail="moved by a retry or a change"
            ),
        )


def _of_attempt(one: Attempt) -> Iterator[tuple[int, TimelineEntry]]:
    started = TimelineEntry(
        at=iso(one.started_ms), step=TimelineStep.ATTEMPT_STARTED, attempt=one.attempt, node=one.node
    )
    yield one.started_ms, started
    if one.finished_ms is not None:
        yield (
            one.finished_ms,
            TimelineEntry(
                at=iso(one.finished_ms),
                step=TimelineStep.ATTEMPT_ENDED,
                attempt=one.attempt,
                node=one.node,
                detail=one.error,
            ),
        )
