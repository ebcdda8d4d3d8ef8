"""The job that the running code works for: what the log lines of handlers carry."""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar

import msgspec

from infinite_scheduler.model import Job

current_job: ContextVar[Job | None] = ContextVar("current_job", default=None)
"""The job whose handler runs; a function that takes batches may set it while it works on one of them."""

current_batch: ContextVar[Sequence[Job]] = ContextVar("current_batch", default=())
"""The jobs of the batch whose handler runs."""


def job_fields() -> dict[str, str | int]:
    """What a log line says about the job, or the batch, that the running code works for."""
    job = current_job.get()
    batch = current_batch.get()
    if job is None and len(batch) == 1:
        job = batch[0]
    if job is not None:
        fields: dict[str, str | int] = {"job_id": job.id, "app": job.app, "attempt": job.attempt}
        if job.request_id is not None:
            fields["request_id"] = job.request_id
        return fields
    return {"app": batch[0].app, "batch": len(batch)} if batch else {}


class LogConfig(msgspec.Struct, frozen=True):
    """How log lines are written: kept so that worker processes write in the same way."""

    level: str
    format: str
    modules: Mapping[str, str]


_log_config: list[LogConfig] = []


def remember_log_config(settings: LogConfig) -> None:
    """Keep how this process writes its log lines."""
    _log_config[:] = [settings]


def log_config() -> LogConfig | None:
    """How this process writes its log lines, if that was configured."""
    return _log_config[0] if _log_config else None
