"""Everything infinite_scheduler raises.

SchedulerError
├── InvalidRequest            the caller must change something
│   ├── InvalidTime             a moment or delay that cannot be read
│   ├── InvalidPayload          not JSON, or too large
│   ├── UnknownApp              the store knows no such app
│   ├── KeyConflict             an idempotency key came back with another content
│   ├── HandlerError            a handler that cannot be found, imported or registered
│   ├── ConfigError             a setting that is wrong or unknown
│   └── StoreMismatch           the store is of another schema or was made with other settings
├── UnknownJob                the store has no such job
├── UnknownNode               the store has no such node
├── TooLate                   the job is handed over or settled already
├── Unavailable               worth trying again                             (retryable)
│   ├── StoreUnavailable        the store does not answer, or its answer was lost
│   ├── HandlerTimeout          the handler ran past its time-out
│   └── WorkerDied              the handler ended its worker process
├── StoreBroken               the store cannot be used until somebody repairs it
└── ShardLost                 another node owns the shard now
"""

from collections.abc import Iterable


class SchedulerError(Exception):
    """The root of all errors of infinite_scheduler."""

    retryable = False


class InvalidRequest(SchedulerError):
    """The caller must change something before trying again."""


class InvalidTime(InvalidRequest):
    """A moment or a delay cannot be read."""


class InvalidPayload(InvalidRequest):
    """The data of a job is no JSON or is too large."""


class UnknownApp(InvalidRequest):
    """The store knows no app of this name."""

    def __init__(self, app: str, known: Iterable[str]) -> None:
        self.app = app
        self.known = tuple(sorted(known))
        names = ", ".join(self.known) if self.known else "none yet: start a node that has a handler for it"
        super().__init__(f"unknown app {app!r}; known apps: {names}")


class KeyConflict(InvalidRequest):
    """An idempotency key was used before for a job with another content."""

    def __init__(self, app: str, key: str, job_id: str) -> None:
        self.app = app
        self.key = key
        self.job_id = job_id
        super().__init__(
            f"idempotency key {key!r} of app {app!r} belongs to job {job_id}, which has another time or data: "
            "use a new key"
        )


class HandlerError(InvalidRequest):
    """A handler cannot be found, imported or registered."""


class ConfigError(InvalidRequest):
    """A setting is wrong or unknown."""


class StoreMismatch(InvalidRequest):
    """The store has another schema, or was made with other settings."""


class UnknownJob(SchedulerError):
    """The store has no such job."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"no job {job_id}: never accepted by this store, or older than its retention")


class UnknownNode(SchedulerError):
    """The store has no node of this name."""

    def __init__(self, node_id: str, known: Iterable[str]) -> None:
        names = ", ".join(sorted(known)) or "none: no node runs"
        super().__init__(f"no node {node_id!r}; known nodes: {names}")


class TooLate(SchedulerError):
    """The job is handed over or settled, so it cannot be changed any more."""


class Unavailable(SchedulerError):
    """Nothing was decided; the same call may work a moment later."""

    retryable = True


class StoreUnavailable(Unavailable):
    """The store does not answer, or the answer to a commit was lost."""


class HandlerTimeout(Unavailable):
    """A handler ran past its time-out."""


class WorkerDied(Unavailable):
    """A handler ended the worker process it ran in."""


class StoreBroken(SchedulerError):
    """The store cannot be used until somebody repairs it: read-only, corrupt, no space."""


class ShardLost(SchedulerError):
    """Another node owns the shard now."""
