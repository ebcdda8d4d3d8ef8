"""Everything infinite_scheduler raises.

SchedulerError
├── InvalidRequest            the caller must change something
│   ├── InvalidTime             a time or a delay that cannot be read
│   ├── InvalidPayload          not JSON
│   │   └── PayloadTooLarge       more bytes than are allowed
│   ├── UnknownApp              the store has no app of this name
│   ├── KeyConflict             an idempotency key was used before, with other content
│   ├── IdRefused               the id that was drawn for a job cannot be used
│   ├── HandlerError            a handler that cannot be found, imported or registered
│   ├── ConfigError             a setting that is wrong or unknown
│   ├── NotSupported            this kind of store cannot do it
│   └── StoreMismatch           the store has another schema, or was created with other settings
├── UnknownJob                the store has no such job
├── UnknownNode               the store has no such node
├── UnknownLetter             the store has no such dead letter
├── TooLate                   the job is already handed over or settled
├── PositionsMoved            another consumer has read on in the same partition
├── Unavailable               worth trying again                             (retryable)
│   ├── StoreUnavailable        the store does not answer, or its answer was lost
│   │   └── StoreBusy             locks were held for too long; nothing was written
│   ├── IntakeFull              too many jobs wait to be stored
│   ├── BrokerUnavailable       no Kafka broker answers, or the broker refuses the request
│   ├── DestinationAway         what a handler hands over to takes nothing at the moment
│   ├── HandlerTimeout          the handler exceeded its time-out
│   └── WorkerDied              the handler ended its worker process
├── SendError                 Kafka did not take a message                   (retryable or not: see its attribute)
├── StoreBroken               the store cannot be used until it is repaired
└── ShardLost                 another node owns the shard now
"""

import enum
import re
from collections.abc import Iterable
from datetime import timedelta
from typing import ClassVar, Final

_SECOND = timedelta(seconds=1)


class ErrorKind(enum.StrEnum):
    """What is wrong, in one word; a door takes from it what it answers with, the command line its exit code."""

    INVALID = "invalid"  # the request cannot be understood, or asks for what is not allowed
    TOO_LARGE = "too_large"  # the request has more bytes than are allowed
    UNKNOWN_APP = "unknown_app"  # the request names an app that the store does not know
    KEY_CONFLICT = "key_conflict"  # the request contradicts an earlier one with the same idempotency key
    NOT_SUPPORTED = "not_supported"  # this kind of store cannot do it
    MISCONFIGURED = "misconfigured"  # an operator must change settings, a handler or the store
    NOT_FOUND = "not_found"  # the store has no such job, node or dead letter
    TOO_LATE = "too_late"  # it was possible, but something else happened before
    UNAVAILABLE = "unavailable"  # nothing was decided, and trying again may help
    OVERLOADED = "overloaded"  # nothing was decided, since too much is asked for at once
    BROKEN = "broken"  # somebody must repair the store
    FAILED = "failed"  # something inside of a node failed that whoever asks cannot change


class SchedulerError(Exception):
    """The root of all errors of infinite_scheduler."""

    kind: ClassVar[ErrorKind] = ErrorKind.FAILED
    retryable = False


PROBLEM_PREFIX: Final = "urn:infinite-scheduler:problem:"
"""How the type of a problem begins that a server answers with; the word of its class follows."""


def error_word(error: type[SchedulerError]) -> str:
    """The stable name of a class of errors where programs of any language read it: unknown-app."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", error.__name__).lower()


class InvalidRequest(SchedulerError):
    """The caller must change something before trying again."""

    kind = ErrorKind.INVALID


class InvalidTime(InvalidRequest):
    """A time or a delay cannot be read."""


class InvalidPayload(InvalidRequest):
    """The data of a job is not JSON."""


class PayloadTooLarge(InvalidPayload):
    """The data of a job has more bytes than are allowed."""

    kind = ErrorKind.TOO_LARGE


class UnknownApp(InvalidRequest):
    """The store has no app of this name."""

    kind = ErrorKind.UNKNOWN_APP

    def __init__(self, app: str, known: Iterable[str]) -> None:
        self.app = app
        self.known = tuple(sorted(known))
        names = ", ".join(self.known) if self.known else "none yet: start a node that has a handler for it"
        super().__init__(f"unknown app {app!r}; known apps: {names}")


class KeyConflict(InvalidRequest):
    """An idempotency key was used before, for a job with other content."""

    kind = ErrorKind.KEY_CONFLICT

    def __init__(self, app: str, key: str, job_id: str) -> None:
        self.app = app
        self.key = key
        self.job_id = job_id
        super().__init__(
            f"idempotency key {key!r} of app {app!r} already belongs to job {job_id}, which has another time or other "
            "data: use a new key"
        )


class IdRefused(InvalidRequest):
    """The id that was drawn for a job outside of the store cannot be used there; nothing was accepted."""


class HandlerError(InvalidRequest):
    """A handler cannot be found, imported or registered."""

    kind = ErrorKind.MISCONFIGURED


class ConfigError(InvalidRequest):
    """A setting is wrong or unknown."""

    kind = ErrorKind.MISCONFIGURED


class NotSupported(InvalidRequest):
    """The store cannot do what is asked for, and says so before anything is tried."""

    kind = ErrorKind.NOT_SUPPORTED

    def __init__(self, store: str, deed: str, instead: str) -> None:
        self.store = store
        super().__init__(f"a store in {store} cannot {deed}: {instead}")


class StoreMismatch(InvalidRequest):
    """The store has another schema, or was created with other settings."""

    kind = ErrorKind.MISCONFIGURED


class UnknownJob(SchedulerError):
    """The store has no such job."""

    kind = ErrorKind.NOT_FOUND

    def __init__(self, job_id: str) -> None:
        super().__init__(f"no job {job_id}: never accepted by this store, or older than its retention")


class UnknownNode(SchedulerError):
    """The store has no node of this name."""

    kind = ErrorKind.NOT_FOUND

    def __init__(self, node_id: str, known: Iterable[str]) -> None:
        names = ", ".join(sorted(known)) or "none: no node runs"
        super().__init__(f"no node {node_id!r}; known nodes: {names}")


class UnknownLetter(SchedulerError):
    """The store has no such dead letter."""

    kind = ErrorKind.NOT_FOUND

    def __init__(self, letter_id: str) -> None:
        super().__init__(f"no dead letter {letter_id}: never written by this store, or older than its retention")


class PositionsMoved(SchedulerError):
    """The position in a partition has changed: another consumer of the group has read on, or it was reset."""

    kind = ErrorKind.TOO_LATE


class TooLate(SchedulerError):
    """The job is already handed over or settled, so it can no longer be changed."""

    kind = ErrorKind.TOO_LATE


class Unavailable(SchedulerError):
    """Nothing was decided; the same call may succeed a moment later."""

    kind = ErrorKind.UNAVAILABLE
    retryable = True


class StoreUnavailable(Unavailable):
    """The store does not answer, or the answer to a commit was lost."""


class StoreBusy(StoreUnavailable):
    """Another transaction held the locks that the call needs for longer than it waits. Nothing was written."""


class IntakeFull(Unavailable):
    """Too many jobs wait to be stored, so this one was not taken."""

    kind = ErrorKind.OVERLOADED


class BrokerUnavailable(Unavailable):
    """No Kafka broker answers, or the broker refuses the request."""


class DestinationAway(Unavailable):
    """What a handler hands jobs over to takes none at the moment, whatever the job: raised, or reported, by handlers.

    It is not an error of the job, so no attempt is counted. The node holds the app back: it probes with one job at a
    time, after `retry_after` if that is given, and goes on by itself when a probe succeeds.

    The reason may be the exception that was caught. Wrong arguments raise a TypeError or a ValueError, which are errors
    of the job like any other of its handler: an InvalidRequest would never be tried again.
    """

    retry_after_s: float | None = None

    def __init__(self, reason: str | BaseException, retry_after: timedelta | float | None = None) -> None:
        super().__init__(_reason(reason))
        if retry_after is not None:  # kept as a number: plain values pass from a worker process to the node
            self.retry_after_s = _seconds(retry_after)


NO_REASON: Final = "the handler gave no reason: pass the exception that was caught, DestinationAway(error)"
"""For `DestinationAway(str(error))`: the text of most time-outs is empty, and no job should fail because of that."""


def _reason(given: object) -> str:
    if isinstance(given, BaseException):  # its text alone may be empty, as that of most time-outs is
        text = str(given).strip()
        return f"{type(given).__name__}: {text}" if text else type(given).__name__
    if not isinstance(given, str):
        raise TypeError(
            f"the reason of DestinationAway is {given!r}, which is not text: write "
            "DestinationAway('the gateway is closed') or DestinationAway(error)"
        )
    return given if given.strip() else NO_REASON


def _seconds(given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, timedelta | int | float):
        raise TypeError(
            f"the retry_after of DestinationAway is {given!r}, which is not a length of time: use a timedelta or a "
            "number of seconds, such as retry_after=30"
        )
    seconds = given / _SECOND if isinstance(given, timedelta) else given
    if not 0 <= seconds <= timedelta.max / _SECOND:
        wrong = "negative" if seconds < 0 else "not a length of time"
        raise ValueError(
            f"the retry_after of DestinationAway is {given!r}, which is {wrong}: use a timedelta or a number of "
            "seconds, such as retry_after=30"
        )
    return float(seconds)


class HandlerTimeout(Unavailable):
    """A handler exceeded its time-out."""

    kind = ErrorKind.FAILED


class WorkerDied(Unavailable):
    """A handler ended the worker process it ran in."""

    kind = ErrorKind.FAILED


class SendError(SchedulerError):
    """Kafka did not take a message. `retryable` says whether the same message may be accepted later.

    `refused` says whether it is this message that is not taken; if not, the topic takes none at the moment.
    """

    def __init__(
        self, message: str, *, code: str, retryable: bool, too_large: bool = False, refused: bool = False
    ) -> None:
        super().__init__(message)
        self.code = code  # Kafka's name of the error
        self.retryable = retryable
        self.too_large = too_large
        self.refused = refused or too_large


class StoreBroken(SchedulerError):
    """The store cannot be used until it is repaired: it is read-only, corrupt or full."""

    kind = ErrorKind.BROKEN


class ShardLost(SchedulerError):
    """Another node owns the shard now."""
