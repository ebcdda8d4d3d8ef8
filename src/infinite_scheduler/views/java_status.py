"""Jobs and tables as the status API of the Java scheduler shows them: its names, its words, its times."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal
from zoneinfo import ZoneInfo

import msgspec

from infinite_scheduler.model import Attempt, JobRecord, Status, datetime_of
from infinite_scheduler.store.ledger import TableInfo

JavaStatus = Literal["SCHEDULED", "STARTED", "COMPLETED", "FAILED"]

MIB = 1024 * 1024

_WORDS: Mapping[Status, JavaStatus] = {
    Status.PENDING: "SCHEDULED",
    Status.DONE: "COMPLETED",
    Status.FAILED: "FAILED",
    Status.EXPIRED: "FAILED",
}


class ScheduledJob(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A job that waits."""

    id: str
    job_id: str
    job_name: str | None
    job_group: str | None
    app_name: str
    entity_id: str
    scheduled_time: str
    status: JavaStatus
    created_at: str
    queue_type: str | None = None
    topic_name: str | None = None
    broker_address: str | None = None


class PastJob(ScheduledJob, frozen=True, kw_only=True, rename="camel"):
    """A job that was handed over, or came too late for that."""

    started_at: str | None
    completed_at: str | None
    execution_duration_ms: int  # 0: below a second, which is not stored
    error_message: str | None


class JobStats(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How many jobs there are."""

    total_jobs: int
    status_counts: Mapping[JavaStatus, int]


class JavaTable(msgspec.Struct, frozen=True, kw_only=True):
    """One table."""

    table_name: str = msgspec.field(name="tableName")
    create_time: str | None = msgspec.field(name="createTime")
    row_count: int | None = msgspec.field(name="rowCount")
    data_length: int | None = msgspec.field(name="dataLength")
    index_length: int | None = msgspec.field(name="indexLength")
    total_size_mb: float | None = msgspec.field(name="totalSizeMB")
    table_date: str | None = msgspec.field(name="tableDate")


class JavaTables(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The tables of the store."""

    database: str
    table_count: int
    tables: Sequence[JavaTable]


def scheduled_job(record: JobRecord, zone: ZoneInfo) -> ScheduledJob:
    """A waiting job."""
    job = record.job
    return ScheduledJob(
        id=job.id,
        job_id=job.id,
        job_name=job.job_name,
        job_group=job.group,
        app_name=job.app,
        entity_id=job.id,
        scheduled_time=java_time(job.due_ms, zone),
        status="STARTED" if _runs(record) else _WORDS[record.status],
        created_at=java_time(job.created_ms, zone),
    )


def past_job(record: JobRecord, zone: ZoneInfo) -> PastJob:
    """A settled job."""
    ended_ms, started_ms = record.finished_ms, record.finished_ms
    last = _last_attempt(record)
    if last is not None and last.finished_ms is not None:
        started_ms, ended_ms = last.started_ms, last.finished_ms
    return PastJob(
        **msgspec.structs.asdict(scheduled_job(record, zone)),
        started_at=None if started_ms is None else java_time(started_ms, zone),
        completed_at=None if ended_ms is None else java_time(ended_ms, zone),
        execution_duration_ms=(ended_ms or 0) - (started_ms or 0),
        error_message=record.error,
    )


def _runs(record: JobRecord) -> bool:
    """Is an attempt recorded as running? That is so when it takes longer than a second."""
    last = _last_attempt(record)
    return record.status is Status.PENDING and last is not None and last.finished_ms is None


def _last_attempt(record: JobRecord) -> Attempt | None:
    """The attempt that the job is at, if it is recorded."""
    return next((one for one in reversed(record.attempts) if one.attempt == record.job.attempt), None)


def job_stats(waiting: int, running: int, counts: Mapping[str, int]) -> JobStats:
    """What waits or runs, and what has ended within the retention; jobs that run are among those that wait."""
    started = min(running, waiting)
    by_status: dict[JavaStatus, int] = {
        "SCHEDULED": waiting - started,
        "STARTED": started,
        "COMPLETED": counts.get("done", 0),
        "FAILED": counts.get("failed", 0) + counts.get("expired", 0),
    }
    return JobStats(total_jobs=sum(by_status.values()), status_counts=by_status)


def java_tables(database: str, tables: Sequence[TableInfo], zone: ZoneInfo) -> JavaTables:
    """All tables of a store."""
    return JavaTables(database=database, table_count=len(tables), tables=[_java_table(table, zone) for table in tables])


def _java_table(table: TableInfo, zone: ZoneInfo) -> JavaTable:
    known = table.data_bytes is not None and table.index_bytes is not None
    size = (table.data_bytes or 0) + (table.index_bytes or 0)
    return JavaTable(
        table_name=table.name,
        create_time=None if table.created_ms is None else java_time(table.created_ms, zone),
        row_count=table.rows,
        data_length=table.data_bytes,
        index_length=table.index_bytes,
        total_size_mb=round(size / MIB, 2) if known else None,
        table_date=None
        if table.starts_ms is None
        else datetime.fromtimestamp(table.starts_ms / 1000, UTC).date().isoformat(),
    )


def java_time(ms: int, zone: ZoneInfo) -> str:
    """A time as Java's Timestamp writes it: 2025-10-28 04:10:15.0."""
    fraction = f"{ms % 1000:03}".rstrip("0") or "0"
    return f"{datetime_of(ms).astimezone(zone):%Y-%m-%d %H:%M:%S}.{fraction}"
