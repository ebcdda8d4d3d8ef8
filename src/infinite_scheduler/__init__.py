"""Give it a message and a moment: it hands the message over at that moment, never early, never lost."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from infinite_scheduler.client import Client, NewJob
    from infinite_scheduler.errors import (
        ConfigError,
        DestinationAway,
        HandlerError,
        HandlerTimeout,
        IntakeFull,
        InvalidPayload,
        InvalidRequest,
        InvalidTime,
        KeyConflict,
        NotSupported,
        PayloadTooLarge,
        SchedulerError,
        SendError,
        StoreBroken,
        StoreBusy,
        StoreMismatch,
        StoreUnavailable,
        TooLate,
        Unavailable,
        UnknownApp,
        UnknownJob,
        UnknownNode,
        WorkerDied,
    )
    from infinite_scheduler.handlers.kafka import KafkaHandler
    from infinite_scheduler.handlers.sms_retry import SmsRetryJobHandler
    from infinite_scheduler.ingest.config import KafkaIngestConfig
    from infinite_scheduler.ingest.schedule_request import ScheduleJobRequest
    from infinite_scheduler.model import Accepted, Done, Failed, Job, JobId, JobRecord, Priority, Retry, Status
    from infinite_scheduler.multi_app import MultiAppScheduler, MultiAppSchedulerManager
    from infinite_scheduler.policy.misfire import ExpireAfter, FireNow, Skip
    from infinite_scheduler.policy.retry import RetryPolicy
    from infinite_scheduler.scheduler import Scheduler
    from infinite_scheduler.sms import SmsRetryProducer, retry_time_after
    from infinite_scheduler.status_api import JobStatusApi
    from infinite_scheduler.sync_client import SyncClient

_HOME = {
    "client": ("Client", "NewJob"),
    "errors": (
        "ConfigError",
        "DestinationAway",
        "HandlerError",
        "HandlerTimeout",
        "IntakeFull",
        "InvalidPayload",
        "InvalidRequest",
        "InvalidTime",
        "KeyConflict",
        "NotSupported",
        "PayloadTooLarge",
        "SchedulerError",
        "SendError",
        "StoreBroken",
        "StoreBusy",
        "StoreMismatch",
        "StoreUnavailable",
        "TooLate",
        "Unavailable",
        "UnknownApp",
        "UnknownJob",
        "UnknownNode",
        "WorkerDied",
    ),
    "handlers.kafka": ("KafkaHandler",),
    "handlers.sms_retry": ("SmsRetryJobHandler",),
    "ingest.schedule_request": ("ScheduleJobRequest",),
    "ingest.config": ("KafkaIngestConfig",),
    "model": ("Accepted", "Done", "Failed", "Job", "JobId", "JobRecord", "Priority", "Retry", "Status"),
    "multi_app": ("MultiAppScheduler", "MultiAppSchedulerManager"),
    "policy.misfire": ("ExpireAfter", "FireNow", "Skip"),
    "policy.retry": ("RetryPolicy",),
    "scheduler": ("Scheduler",),
    "sms": ("SmsRetryProducer", "retry_time_after"),
    "status_api": ("JobStatusApi",),
    "sync_client": ("SyncClient",),
}
_MODULES = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Accepted",
    "Client",
    "ConfigError",
    "DestinationAway",
    "Done",
    "ExpireAfter",
    "Failed",
    "FireNow",
    "HandlerError",
    "HandlerTimeout",
    "IntakeFull",
    "InvalidPayload",
    "InvalidRequest",
    "InvalidTime",
    "Job",
    "JobId",
    "JobRecord",
    "JobStatusApi",
    "KafkaHandler",
    "KafkaIngestConfig",
    "KeyConflict",
    "MultiAppScheduler",
    "MultiAppSchedulerManager",
    "NewJob",
    "NotSupported",
    "PayloadTooLarge",
    "Priority",
    "Retry",
    "RetryPolicy",
    "ScheduleJobRequest",
    "Scheduler",
    "SchedulerError",
    "SendError",
    "Skip",
    "SmsRetryJobHandler",
    "SmsRetryProducer",
    "Status",
    "StoreBroken",
    "StoreBusy",
    "StoreMismatch",
    "StoreUnavailable",
    "SyncClient",
    "TooLate",
    "Unavailable",
    "UnknownApp",
    "UnknownJob",
    "UnknownNode",
    "WorkerDied",
    "retry_time_after",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: importing the package alone stays cheap."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
