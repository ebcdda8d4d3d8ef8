"""Errors as RFC 9457 describes them: each class of the error tree has a stable type, each kind a status."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from infinite_scheduler.api.refusal import BUSY, NOT_READY, TOO_MANY_FAILURES, UNEXPECTED, Refusal, RefusalKind
from infinite_scheduler.errors import PROBLEM_PREFIX, ErrorKind, SchedulerError, error_word
from infinite_scheduler.secrets import without_secrets

CONTENT_TYPE: Final = "application/problem+json"
PREFIX: Final = PROBLEM_PREFIX

STATUSES: Final[Mapping[ErrorKind, int]] = {
    ErrorKind.INVALID: 422,
    ErrorKind.TOO_LARGE: 413,
    ErrorKind.UNKNOWN_APP: 404,
    ErrorKind.KEY_CONFLICT: 409,
    ErrorKind.NOT_SUPPORTED: 501,  # 405 would say that the path is wrong for every store
    ErrorKind.MISCONFIGURED: 500,
    ErrorKind.NOT_FOUND: 404,
    ErrorKind.TOO_LATE: 409,
    ErrorKind.UNAVAILABLE: 503,
    ErrorKind.OVERLOADED: 429,
    ErrorKind.BROKEN: 503,
    ErrorKind.FAILED: 500,
}

RETRY_AFTER_S: Final = {429: 1, 503: 2}
"""When trying again may help: a full intake needs a commit or two, a store that is away a little longer."""

_RETRYABLE: Final = (BUSY.word, NOT_READY.word, TOO_MANY_FAILURES.word)


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What went wrong: `type` is stable and for programs, `detail` says it in words."""

    type: str
    title: str
    status: int
    detail: str
    retryable: bool = False
    """The same request may succeed later."""
    about: Mapping[str, Any] = {}
    """What the error is about, by name: the app, the idempotency key, the job that has it."""
    incident: str | None = None
    """The word to look for in the log of the process, if the error is unexpected."""


def problem_of(error: SchedulerError) -> Problem:
    """An error of the tree as a problem."""
    return Problem(
        type=problem_type(type(error)),
        title=title_of(type(error)),
        status=STATUSES[error.kind],
        detail=without_secrets(str(error)),
        retryable=error.retryable,
        about={name: _shown(value) for name, value in vars(error).items() if name != "retryable"},
    )


def _shown(value: Any) -> Any:
    return without_secrets(value) if isinstance(value, str) else value


def problem_of_refusal(refusal: Refusal) -> Problem:
    """A refusal of HTTP's own as a problem."""
    return _problem(refusal.kind, without_secrets(str(refusal)))


def unexpected_problem(incident: str) -> Problem:
    """An error that nobody foresaw: its text may be anything, so it is in the log only."""
    detail = f"an unexpected error has ended this request: look for {incident} in the log of the process that answered"
    return msgspec.structs.replace(_problem(UNEXPECTED, detail), incident=incident)


def _problem(kind: RefusalKind, detail: str) -> Problem:
    return Problem(
        type=PREFIX + kind.word,
        title=kind.title,
        status=kind.status,
        detail=detail,
        retryable=kind.word in _RETRYABLE,
    )


def problem_type(error: type[SchedulerError]) -> str:
    """The stable type of an error: `urn:infinite-scheduler:problem:unknown-app`."""
    return PREFIX + error_word(error)


def title_of(error: type[SchedulerError]) -> str:
    """What an error means, in one sentence: the first line of its description."""
    return (error.__doc__ or error.__name__).partition("\n")[0]
