"""Commands that look at jobs: list, show, explain."""

from collections.abc import Mapping, Sequence
from typing import Any

from infinite_scheduler.cli.store_session import StoreSession
from infinite_scheduler.store.abilities import Ability
from infinite_scheduler.store.ledger import AuditQuery, AuditRecord
from infinite_scheduler.views.explain import Explanation, explain
from infinite_scheduler.views.job import JobDetails, JobView, job_details, job_view
from infinite_scheduler.views.times import iso, ms_of, relative, when

PAGE = 1000
"""How many jobs are read at a time, so that a long list needs little memory."""

QUIET_MS = 2000
"""How long to look without a word."""


async def list_jobs(session: StoreSession, filters: Mapping[str, Any], limit: int, cursor: str | None) -> None:
    """Print up to `limit` jobs; as JSON, a long list is printed while it is read."""
    rows: list[JobView] = []
    left, said_ms = limit, session.now_ms
    searched_to_ms: int | None = None
    while left:
        found = await session.client.find(**filters, limit=min(left, PAGE), cursor=cursor)
        left -= len(found.records)
        cursor, searched_to_ms = found.cursor, found.searched_to_ms
        for record in found.records:
            if session.out.as_json:
                session.out.record(job_view(record))
            else:
                rows.append(job_view(record))
        if cursor is None or searched_to_ms is None:
            break
        if session.now_ms - said_ms >= QUIET_MS:
            said_ms = session.now_ms
            session.out.note(f"looked up to {iso(searched_to_ms)}, and goes on")
    if not session.out.as_json:
        print_jobs(session, rows)
    if cursor is not None and searched_to_ms is not None:
        session.out.note(f"looked up to {iso(searched_to_ms)}; there are more: --cursor {cursor}")


def print_jobs(session: StoreSession, jobs: Sequence[JobView]) -> None:
    """Jobs as a table."""
    if not jobs:
        session.out.note("no jobs match")
        return
    now_ms = session.now_ms
    session.out.table(
        ("job", "app", "status", "due", "when", "attempt", "priority", "name", "tags"),
        [
            (
                job.id,
                job.app,
                job.status,
                job.due_at,
                relative(job.due_ms, now_ms),
                job.attempt,
                job.priority,
                job.job_name,
                ", ".join(job.tags),
            )
            for job in jobs
        ],
        whole=("job", "status", "due", "when"),
        spare=("tags", "name", "priority", "attempt", "due", "app"),
    )


async def show_job(session: StoreSession, job_id: str) -> None:
    """Print one job with its attempts, and what operators did to it."""
    client = session.client
    audit: Sequence[AuditRecord] = ()
    record = await client.get(job_id)
    if Ability.AUDIT in client.abilities:
        audit = (await client.ledger.records(AuditQuery(target=record.id))).records
    job = job_details(record, audit)
    if session.out.as_json:
        session.out.record(job)
    else:
        _print_job(session, job)


def _print_job(session: StoreSession, job: JobDetails) -> None:
    now_ms = session.now_ms
    session.out.facts(
        {
            "job": job.id,
            "app": job.app,
            "status": job.status,
            "due": when(job.due_ms, now_ms),
            "scheduled for": when(ms_of(job.scheduled_time), now_ms) if job.scheduled_time != job.due_at else None,
            "attempt": job.attempt,
            "priority": job.priority,
            "name": job.job_name,
            "group": job.group,
            "tags": ", ".join(job.tags),
            "request id": job.request_id,
            "idempotency key": job.idempotency_key,
            "created": when(ms_of(job.created_at), now_ms),
            "finished": None if job.finished_at is None else when(ms_of(job.finished_at), now_ms),
            "error": job.error,
            "data": bytes(job.data).decode(),
        }
    )
    if job.attempts:
        session.out.table(
            ("attempt", "started", "ended", "node", "error"),
            [(a.attempt, a.started_at, a.finished_at or "runs", a.node, a.error) for a in job.attempts],
            whole=("attempt",),
        )
    if job.audit:
        session.out.table(
            ("at", "who", "from", "verb", "result"),
            [(a.at, a.who, a.address, a.verb, a.result) for a in job.audit],
            whole=("at",),
        )


async def explain_job(session: StoreSession, job_id: str) -> None:
    """Say where a job is, which node owns it, and why it has not been handed over."""
    record = await session.client.get(job_id)
    survey = await session.client.survey()
    answer = explain(record, survey, now_ms=session.now_ms, lease_ms=session.lease_ms)
    if session.out.as_json:
        session.out.record(answer)
    else:
        _print_explanation(session, answer)


def _print_explanation(session: StoreSession, answer: Explanation) -> None:
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
