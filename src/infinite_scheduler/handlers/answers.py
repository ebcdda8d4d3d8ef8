"""What a user's function returned, read as one outcome or error per job."""

import asyncio
from collections.abc import Sequence
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Final

from infinite_scheduler.model import Cancelled, Done, Expired, Failed, Outcome, Retry

Answer = Outcome | BaseException
"""How the delivery of one job ended; after an exception the app's retry policy decides."""

OUTCOMES: Final = (Done, Retry, Failed, Expired, Cancelled)
DONE: Final = Done()


def read_answer(value: object) -> Answer:
    """Read the return value of a function that takes one job.

    None means done, an outcome is passed on, and a returned exception counts as raised. Any other value is ignored, and
    the job is done: functions may return what they like.
    """
    if value is None:
        return DONE
    if isinstance(value, (*OUTCOMES, Exception)):
        return value
    if isinstance(value, BaseException):
        return as_error(value)
    if isinstance(value, type) and issubclass(value, OUTCOMES):
        return TypeError(f"the handler returned the class {value.__name__}; return an instance: {value.__name__}()")
    if isinstance(value, CoroutineType | GeneratorType | AsyncGeneratorType):
        if not isinstance(value, AsyncGeneratorType):
            value.close()
        return TypeError(f"the handler returned a {type(value).__name__} that never ran; await it or run it to its end")
    return DONE


def read_answers(value: object, count: int) -> Sequence[Answer]:
    """Read the return value of a function that takes a list of jobs: None, or one answer per job in the same order."""
    if value is None:
        return [DONE] * count
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray):
        got = type(value).__name__
    elif len(value) != count:
        got = f"{len(value)} of them"
    else:
        return [read_answer(one) for one in value]
    expected = f"one outcome for each of the {count} jobs of the batch"
    return [TypeError(f"the handler returned {got}; expected None or {expected}")] * count


def as_error(raised: BaseException) -> BaseException:
    """What a function raised, as an error of its job: its own exit or cancellation must not end the node."""
    if isinstance(raised, Exception):
        return raised
    name = "asyncio.CancelledError" if isinstance(raised, asyncio.CancelledError) else type(raised).__name__
    error = RuntimeError(f"the handler raised {name}{_arguments(raised)}, which counts as a failed attempt")
    error.__cause__ = raised
    return error


def _arguments(raised: BaseException) -> str:
    text = ", ".join(map(repr, raised.args))
    return f"({text})" if text else ""
