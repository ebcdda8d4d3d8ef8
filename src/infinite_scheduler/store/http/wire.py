"""What goes over the wire: jobs, dead letters and the books as API v1 writes them, and as the port knows them.

Fields that a newer server adds are ignored.
"""

import base64
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from infinite_scheduler.errors import InvalidTime
from infinite_scheduler.model import (
    MAX_DUE_MS,
    Accepted,
    Attempt,
    Job,
    JobId,
    JobRecord,
    JobSpec,
    Status,
    datetime_of,
    key_text,
)
from infinite_scheduler.store.cluster_state import View
from infinite_scheduler.store.inbox import DeadLetter, LetterState, Source
from infinite_scheduler.store.ledger import AuditRecord, TableInfo, TableKind

_MILLISECOND: Final = timedelta(milliseconds=1)


def moment_text(ms: int) -> str:
    """A moment as requests carry it, exact."""
    if not 0 <= ms <= MAX_DUE_MS:
        raise InvalidTime(f"the time {ms} is out of range: use one in the years 1970 to 9999")
    return datetime_of(ms).isoformat(timespec="milliseconds")


def moment_ms(text: str) -> int:
    """The moment in an answer."""
    return (datetime.fromisoformat(text) - datetime_of(0)) // _MILLISECOND


def _ms_or_none(text: str | None) -> int | None:
    return None if text is None else moment_ms(text)


# Jobs


class SentJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job to accept."""

    app: str
    at: str
    data: msgspec.Raw
    priority: str = "normal"
    idempotency_key: str | None = None
    digest: str | None = None
    request_id: str | None = None
    job_name: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()
    id: str | None = None


def sent_job(spec: JobSpec, key: bytes | None = None) -> SentJob:
    """A job as it is sent, with the id that was drawn for it."""
    return SentJob(
        app=spec.app,
        at=moment_text(spec.scheduled_ms),
        data=msgspec.Raw(spec.payload),
        priority=spec.priority.name.lower(),
        idempotency_key=spec.idempotency_key,
        digest=None if spec.idempotency_key is None else spec.digest.hex(),
        request_id=spec.request_id,
        job_name=spec.job_name,
        group=spec.group,
        tags=spec.tags,
        id=None if key is None else key_text(key),
    )


class AcceptedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that is durable."""

    id: str
    due_ms: int
    repeated: bool = False

    def accepted(self) -> Accepted:
        return Accepted(bytes(JobId.parse(self.id)), self.due_ms, repeated=self.repeated)


class AcceptedJobs(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a list of jobs."""

    results: Sequence[AcceptedJob]


class ShownAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One delivery."""

    attempt: int
    started_at: str
    finished_at: str | None = None
    node: str
    error: str | None = None


class ShownJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the server shows it."""

    id: str
    app: str
    status: Status
    due_ms: int
    scheduled_time: str
    data: msgspec.Raw
    attempt: int
    job_name: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()
    request_id: str | None = None
    idempotency_key: str | None = None
    created_at: str
    finished_at: str | None = None
    error: str | None = None
    attempts: tuple[ShownAttempt, ...] = ()
    kept_in: str | None = None

    def record(self) -> JobRecord:
        return JobRecord(
            job=Job(
                key=bytes(JobId.parse(self.id)),
                app=self.app,
                due_ms=self.due_ms,
                scheduled_ms=moment_ms(self.scheduled_time),
                payload=bytes(self.data),
                created_ms=moment_ms(self.created_at),
                attempt=self.attempt,
                request_id=self.request_id,
                job_name=self.job_name,
                group=self.group,
                tags=self.tags,
            ),
            status=self.status,
            finished_ms=_ms_or_none(self.finished_at),
            error=self.error,
            idempotency_key=self.idempotency_key,
            attempts=tuple(_attempt(one) for one in self.attempts),
            kept_in=self.kept_in,
        )


def _attempt(shown: ShownAttempt) -> Attempt:
    return Attempt(
        attempt=shown.attempt,
        started_ms=moment_ms(shown.started_at),
        finished_ms=_ms_or_none(shown.finished_at),
        node=shown.node,
        error=shown.error,
    )


class ShownPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a list of jobs."""

    jobs: Sequence[ShownJob]
    cursor: str | None = None
    searched_to: str | None = None


class ShownHolder(msgspec.Struct, frozen=True, kw_only=True):
    """The job that has an idempotency key."""

    id: str
    digest: str


class ShownHolders(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs that have idempotency keys."""

    holders: Mapping[str, ShownHolder]


# The cluster


class ShownSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster at one moment, and the clock of the process that has answered."""

    now_ms: int
    view: View
    counts: Mapping[str, Mapping[str, int]]


class ShownDrain(msgspec.Struct, frozen=True, kw_only=True):
    """How many nodes were asked."""

    nodes: int


class Anything(msgspec.Struct, frozen=True):
    """An answer of which only the status counts."""


# Dead letters


class ShownHeader(msgspec.Struct, frozen=True, kw_only=True):
    """One header of a message."""

    name: str
    value: str | UnsetType | None = UNSET
    value_base64: str | UnsetType = UNSET


class ShownLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter with its message."""

    id: str
    state: LetterState
    topic: str
    partition: int
    offset: int
    group: str
    failed_at: str
    error: str
    dlq_topic: str | None = None
    note: str | None = None
    cut_bytes: int = 0
    key: str | UnsetType | None = UNSET
    key_base64: str | UnsetType = UNSET
    value: str | UnsetType | None = UNSET
    value_base64: str | UnsetType = UNSET
    headers: tuple[ShownHeader, ...] = ()

    def letter(self) -> DeadLetter:
        return DeadLetter(
            id=self.id,
            source=Source(self.group, self.topic, self.partition),
            offset=self.offset,
            key=_content(self.key, self.key_base64),
            value=_content(self.value, self.value_base64),
            headers=tuple((one.name, _content(one.value, one.value_base64)) for one in self.headers),
            error=self.error,
            failed_ms=moment_ms(self.failed_at),
            dlq_topic=self.dlq_topic,
            state=self.state,
            note=self.note,
            cut_bytes=self.cut_bytes,
        )


def _content(text: str | UnsetType | None, in_base64: str | UnsetType) -> bytes | None:
    if isinstance(in_base64, str):
        return base64.b64decode(in_base64)
    return text.encode() if isinstance(text, str) else None


class ShownLetters(msgspec.Struct, frozen=True, kw_only=True):
    """One page of dead letters."""

    letters: Sequence[ShownLetter]
    cursor: str | None = None


class ShownStates(msgspec.Struct, frozen=True, kw_only=True):
    """The states of dead letters, by their ids."""

    states: dict[str, LetterState]


# The books


class ShownWaiting(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs of an app wait, by day."""

    app: str
    days: Mapping[str, int]


class ShownWaitingList(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs wait."""

    apps: Sequence[ShownWaiting]


class ShownTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table of the store."""

    name: str
    kind: TableKind
    app: str | None = None
    starts_at: str | None = None
    ends_at: str | None = None
    created_at: str | None = None
    rows: int | None = None
    data_bytes: int | None = None
    index_bytes: int | None = None

    def table(self) -> TableInfo:
        return TableInfo(
            name=self.name,
            kind=self.kind,
            app=self.app,
            starts_ms=_ms_or_none(self.starts_at),
            ends_ms=_ms_or_none(self.ends_at),
            created_ms=_ms_or_none(self.created_at),
            rows=self.rows,
            data_bytes=self.data_bytes,
            index_bytes=self.index_bytes,
        )


class ShownTables(msgspec.Struct, frozen=True, kw_only=True):
    """The tables of the store."""

    tables: Sequence[ShownTable]


class ShownRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Something that somebody did."""

    id: str
    at: str
    who: str
    address: str
    verb: str
    target: str
    count: int = 1
    result: str

    def record(self) -> AuditRecord:
        return AuditRecord(
            id=self.id,
            at_ms=moment_ms(self.at),
            who=self.who,
            address=self.address,
            verb=self.verb,
            target=self.target,
            count=self.count,
            result=self.result,
        )


class ShownRecords(msgspec.Struct, frozen=True, kw_only=True):
    """One page of records."""

    records: Sequence[ShownRecord]
    cursor: str | None = None
