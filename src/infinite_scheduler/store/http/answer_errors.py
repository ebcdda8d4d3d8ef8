"""What a server refuses, as the errors that its store has raised: the problems of RFC 9457, translated back once."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from infinite_scheduler import errors
from infinite_scheduler.errors import (
    PROBLEM_PREFIX,
    ConfigError,
    InvalidRequest,
    PayloadTooLarge,
    SchedulerError,
    StoreMismatch,
    Unavailable,
    error_word,
)

SETTING_HINT: Final = "store.token, or INFINITE_SCHEDULER_STORE__TOKEN, names the token"

_CARRIED: Final = ("app", "known", "key", "job_id", "store")
"""The attributes of errors that go with their problems."""

_UNAUTHORIZED, _FORBIDDEN, _TOO_MANY, _SERVER_ERROR = 401, 403, 429, 500


class NoAnswer(Exception):
    """The server has not answered; if the request was `sent`, it is unknown whether it took effect.

    Only the session sees it, and tries again or says so.
    """

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class _Problem(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    detail: str
    about: Mapping[str, Any] = {}


def _classes(root: type[SchedulerError]) -> Iterator[type[SchedulerError]]:
    yield root
    for below in root.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from _classes(below)


_TREE: Final[Mapping[str, type[SchedulerError]]] = {error_word(one): one for one in _classes(SchedulerError)}

_REFUSALS: Final[Mapping[str, type[SchedulerError]]] = {
    "malformed": InvalidRequest,
    "no-token": ConfigError,
    "forbidden": ConfigError,
    "data-hidden": ConfigError,
    "wrong-host": ConfigError,
    "no-such-path": StoreMismatch,
    "wrong-method": StoreMismatch,
    "wrong-content-type": StoreMismatch,
    "body-too-large": PayloadTooLarge,
    "slow-body": Unavailable,
    "too-many-failures": Unavailable,
    "busy": Unavailable,
    "not-ready": Unavailable,
}
"""What HTTP itself refuses, by the word of its problem."""

_decode: Final = msgspec.json.Decoder(_Problem).decode


def error_of(status: int, content: bytes, place: str) -> SchedulerError | NoAnswer:
    """The error that an answer tells; `place` is the server as people see it."""
    try:
        problem = _decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _of_status(status, place)
    if not problem.type.startswith(PROBLEM_PREFIX):
        return _of_status(status, place)
    word = problem.type.removeprefix(PROBLEM_PREFIX)
    if word in _TREE:
        return _made(_TREE[word], problem)
    if word in _REFUSALS:
        return _refusal(word, problem.detail, place)
    if status >= _SERVER_ERROR:
        return NoAnswer(f"{place}: {problem.detail}", sent=True)
    return InvalidRequest(problem.detail)


def _made(kind: type[SchedulerError], problem: _Problem) -> SchedulerError:
    """An error of this class with the message of the other one, and what it is about."""
    error = kind.__new__(kind)
    error.args = (problem.detail,)
    for name in _CARRIED:
        if name in problem.about:
            value = problem.about[name]
            setattr(error, name, tuple(value) if isinstance(value, list) else value)
    return error


def _refusal(word: str, detail: str, place: str) -> SchedulerError:
    kind = _REFUSALS[word]
    if kind is StoreMismatch:
        return StoreMismatch(f"{place}: {detail}; is it of another version? Then update one of the two")
    hint = f" ({SETTING_HINT})" if word in {"no-token", "forbidden"} else ""
    return kind(f"{place}: {detail}{hint}" if kind is ConfigError else detail)


def _of_status(status: int, place: str) -> SchedulerError | NoAnswer:
    """What an answer means that no Infinite Scheduler has written: a proxy is in between, or it is another server."""
    if status in {_UNAUTHORIZED, _FORBIDDEN}:
        return ConfigError(f"{place} lets nobody in with this token, and answers {status}: {SETTING_HINT}")
    if status == _TOO_MANY:
        return Unavailable(f"{place} lets nobody in for the moment, and answers {status}: try again later")
    if status >= _SERVER_ERROR:
        return NoAnswer(f"{place} answers {status}, as a proxy does whose server is away", sent=True)
    return not_a_server(place, f"it answers {status}")


def not_a_server(place: str, why: str) -> StoreMismatch:
    """The error for an address at which something else answers."""
    return StoreMismatch(
        f"{place} does not answer as an Infinite Scheduler does ({why}): correct store.url, which names the address "
        "that `serve` or `infinite-scheduler http` prints"
    )
