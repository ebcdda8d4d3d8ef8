"""A job as a program sends it over HTTP, and as the store accepts it."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from infinite_scheduler.api.api_context import ApiContext
from infinite_scheduler.errors import InvalidRequest
from infinite_scheduler.ingest.request import due_time, make_spec
from infinite_scheduler.kafka.trace import trace_id
from infinite_scheduler.model import JobId, JobSpec

AppText = Annotated[str, Meta(description="The name of an app.")]
Moment = Annotated[
    str | int,
    Meta(
        description=(
            "A time: ISO 8601 with Z, an offset or no zone (then in `time.zone`), `in 5m`, `+90s`, `now`, or epoch "
            "milliseconds. A time in the past means now."
        ),
        examples=["2030-01-31T09:00:00Z"],
    ),
]
DelayText = Annotated[
    str | int | float,
    Meta(description="A length of time: `90s`, `5m`, `1h30m`, `200ms`, `2d`, or a number of seconds.", examples=["5m"]),
]
JobText = Annotated[str, Meta(max_length=200)]


def _no_data() -> msgspec.Raw:
    """A function, since a value of this type cannot be described in a schema."""
    return msgspec.Raw(b"null")


class JobRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A job to schedule: its app, its data, and either a time or a delay."""

    app: AppText
    at: Moment | None = None
    delay: DelayText | None = None
    data: Annotated[
        msgspec.Raw, Meta(description="Any JSON: what the handler receives. Its bytes are kept as they are.")
    ] = msgspec.field(default_factory=_no_data)
    priority: Literal["high", "normal", "low"] = "normal"
    idempotency_key: Annotated[
        JobText | None, Meta(description="A repeated key answers with the first job. Or use the header.")
    ] = None
    request_id: Annotated[JobText | None, Meta(description="An id for log lines. Or use the header.")] = None
    job_name: JobText | None = None
    group: JobText | None = None
    tags: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=64)], ...], Meta(max_length=16)] = ()
    id: Annotated[
        str | None,
        Meta(description="Its id, drawn by a client that sends the same again until it has an answer. Leave it out."),
    ] = None
    digest: Annotated[
        Annotated[str, Meta(pattern="^([0-9a-f]{2}){0,32}$")] | None,
        Meta(
            description=(
                "What must be equal when the idempotency key is used again, in hexadecimal digits; by default made "
                "from the data, and from the time if `at` is given."
            ),
        ),
    ] = None


class JobHeaders(msgspec.Struct, frozen=True, kw_only=True):
    """What may be said of a job in headers."""

    idempotency_key: Annotated[
        JobText | None, Meta(description="Makes repeating the request safe: a repeated key answers with the first job.")
    ] = msgspec.field(name="Idempotency-Key", default=None)
    request_id: Annotated[JobText | None, Meta(description="An id that the job's log lines carry.")] = msgspec.field(
        name="X-Request-ID", default=None
    )
    traceparent: Annotated[
        str | None, Meta(description="The trace that the job continues (W3C), if it has no request id.")
    ] = None


def job_spec(api: ApiContext, job: JobRequest, now_ms: int, headers: JobHeaders | None = None) -> JobSpec:
    """The job as a store accepts it, or an InvalidRequest that says what to change."""
    scheduled_ms, absolute = due_time(job.at, job.delay, now_ms=now_ms, zone=api.zone)
    handler = api.handlers.get(job.app)
    key, request_id = job.idempotency_key, job.request_id
    if headers is not None:
        key = _one("idempotency_key", key, "Idempotency-Key", headers.idempotency_key)
        request_id = _one("request_id", request_id, "X-Request-ID", headers.request_id)
        if request_id is None and headers.traceparent is not None:
            request_id = trace_id([("traceparent", headers.traceparent.encode(errors="surrogateescape"))])
    spec = make_spec(
        job.app,
        scheduled_ms=scheduled_ms,
        absolute=absolute,
        payload=bytes(job.data),
        priority=job.priority,
        idempotency_key=key,
        request_id=request_id,
        job_name=job.job_name,
        group=job.group,
        tags=job.tags,
        max_payload=api.limits.payload,
        check=handler.check if handler is not None and handler.checks else None,
    )
    if job.id is None and job.digest is None:
        return spec
    return msgspec.structs.replace(
        spec,
        key=None if job.id is None else bytes(JobId.parse(job.id)),
        digest=spec.digest if job.digest is None or key is None else bytes.fromhex(job.digest),
    )


def _one(name: str, in_body: str | None, header: str, in_header: str | None) -> str | None:
    if in_body is not None and in_header is not None and in_body != in_header:
        raise InvalidRequest(f"{name} in the body and the header {header} differ: leave one of them out")
    return in_header if in_body is None else in_body
