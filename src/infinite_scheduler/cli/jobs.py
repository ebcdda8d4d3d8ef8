"""Commands about jobs: list, show, explain, and change waiting ones."""

from collections.abc import Mapping
from typing import Any

import msgspec

from infinite_scheduler.cli.explain import Explanation, explain
from infinite_scheduler.cli.session import Session
from infinite_scheduler.cli.times import iso, relative, when
from infinite_scheduler.errors import InvalidRequest
from infinite_scheduler.model import Attempt, JobRecord

PAGE = 1000
"""How many jobs are read at a time, so that a long list needs little memory."""


def as_data(record: JobRecord) -> dict[str, Any]:
    """A job as a line of JSON."""
    job = record.job
    return {
        "id": job.id,
        "app": job.app,
        "status": record.status,
        "due_at": iso(job.due_ms),
        "due_ms": job.due_ms,
        "scheduled_time": iso(job.scheduled_ms),
        "data": msgspec.Raw(job.payload),
        "attempt": job.attempt,
        "priority": job.priority.name.lower(),
        "job_name": job.job_name,
        "group": job.group,
        "tags": job.tags,
        "request_id": job.request_id,
        "idempotency_key": record.idempotency_key,
        "created_at": iso(job.created_ms),
        "finished_at": None if record.finished_ms is None else iso(record.finished_ms),
        "error": record.error,
    }


def _attempt_data(attempt: Attempt) -> dict[str, Any]:
    return {
        "attempt": attempt.attempt,
        "started_at": iso(attempt.started_ms),
        "finished_at": None if attempt.finished_ms is None else iso(attempt.finished_ms),
        "node": attempt.node,
        "error": attempt.error,
    }


async def list_jobs(session: Session, filters: Mapping[str, Any], limit: int, cursor: str | None) -> None:
    """Print up to `limit` jobs; as JSON, a long list is printed while it is read."""
    rows: list[JobRecord] = []
    left = limit
    while left:
        found = await session.client.find(**filters, limit=min(left, PAGE), cursor=cursor)
        left -= len(found.records)
        cursor = found.cursor
        if session.out.as_json:
            for record in found.records:
                session.out.record(as_data(record))
        else:
            rows += found.records
        if cursor is None:
            break
    if not session.out.as_json:
        _print_list(session, rows, cursor)


def _print_list(session: Session, records: list[JobRecord], cursor: str | None) -> None:
    if not records:
        session.out.note("no jobs match")
        return
    now_ms = session.now_ms
    session.out.table(
        ("job", "app", "status", "due", "when", "attempt", "priority", "name", "tags"),
        [
            (
                record.id,
                record.job.app,
                record.status,
                iso(record.job.due_ms),
                relative(record.job.due_ms, now_ms),
                record.job.attempt,
                record.job.priority.name.lower(),
                record.job.job_name,
                ", ".join(record.job.tags),
            )
            for record in records
        ],
        whole=("job", "status", "due", "when"),
        spare=("tags", "name", "priority", "attempt", "due", "app"),
    )
    if cursor is not None:
        session.out.note(f"there are more: --cursor {cursor}")


async def show_job(session: Session, job_id: str) -> None:
    """Print one job with its attempts."""
    _print_job(session, await session.client.get(job_id))


def _print_job(session: Session, record: JobRecord) -> None:
    if session.out.as_json:
        session.out.record({**as_data(record), "attempts": [_attempt_data(a) for a in record.attempts]})
        return
    now_ms, job = session.now_ms, record.job
    session.out.facts(
        {
            "job": record.id,
            "app": job.app,
            "status": record.status,
            "due": when(job.due_ms, now_ms),
            "scheduled for": when(job.scheduled_ms, now_ms) if job.scheduled_ms != job.due_ms else None,
            "attempt": job.attempt,
            "priority": job.priority.name.lower(),
            "name": job.job_name,
            "group": job.group,
            "tags": ", ".join(job.tags),
            "request id": job.request_id,
            "idempotency key": record.idempotency_key,
            "created": when(job.created_ms, now_ms),
            "finished": None if record.finished_ms is None else when(record.finished_ms, now_ms),
            "error": record.error,
            "data": job.payload.decode(),
        }
    )
    if record.attempts:
        session.out.table(
            ("attempt", "started", "ended", "node", "error"),
            [
                (a.attempt, iso(a.started_ms), "runs" if a.finished_ms is None else iso(a.finished_ms), a.node, a.error)
                for a in record.attempts
            ],
            whole=("attempt",),
        )


async def cancel_job(session: Session, job_id: str) -> None:
    """Cancel a job."""
    _print_change(session, "cancelled", await session.client.cancel(job_id))


async def reschedule_job(session: Session, job_id: str, at: str | None, delay: str | None) -> None:
    """Move a job to another time."""
    if (at is None) == (delay is None):
        raise InvalidRequest("give the time: either --at MOMENT or --in DELAY")
    _print_change(session, "rescheduled", await session.client.reschedule(job_id, at=at, delay=delay))


async def run_job_now(session: Session, job_id: str) -> None:
    """Hand a job over at once."""
    _print_change(session, "runs now:", await session.client.run_now(job_id))


async def retry_job(session: Session, job_id: str) -> None:
    """Retry a job."""
    _print_change(session, "tried again:", await session.client.retry(job_id))


def _print_change(session: Session, what: str, record: JobRecord) -> None:
    if session.out.as_json:
        session.out.record(as_data(record))
    elif record.status.final:
        session.out.say(f"{what} {record.id}")
    else:
        session.out.say(f"{what} {record.id}, due {when(record.job.due_ms, session.now_ms)}")


async def explain_job(session: Session, job_id: str) -> None:
    """Say where a job is, which node owns it, and why it has not been handed over."""
    record = await session.client.get(job_id)
    survey = await session.client.survey()
    answer = explain(record, survey, session.now_ms, session.lease_ms)
    if session.out.as_json:
        session.out.record(_explanation_data(answer))
    else:
        _print_explanation(session, answer)


def _explanation_data(answer: Explanation) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(answer)
    data["due_at"] = iso(answer.due_ms)
    return data


def _print_explanation(session: Session, answer: Explanation) -> None:
    now_ms, owner = session.now_ms, answer.owner
    session.out.facts(
        {
            "job": answer.id,
            "status": answer.status,
            "due": when(answer.due_ms, now_ms),
            "attempt": answer.attempt,
            "kept in": answer.table,
            "shard": f"{answer.app}/{answer.shard}",
            "owner": f"{owner.node}, {owner.state or 'unknown to the store'} (epoch {owner.epoch})"
            if owner
            else "none",
            "line": None if answer.line_ms is None else f"{when(answer.line_ms, now_ms)}: before it the owner decides",
            "low": None if answer.low_ms is None else f"{when(answer.low_ms, now_ms)}: before it all is settled",
        }
    )
    session.out.say("")
    session.out.say(f"{answer.why[0].upper()}{answer.why[1:]}.", style="bold")
    for note in answer.notes:
        session.out.say(f"- {note}")
