"""What a user's function answered, read into one outcome or error for each of its jobs."""

import asyncio
from collections.abc import Sequence
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Final

from infinite_scheduler.model import Cancelled, Done, Expired, Failed, Outcome, Retry

Answer = Outcome | BaseException
"""How the delivery of one job ended; an exception leaves it to the app's retry policy what follows."""

OUTCOMES: Final = (Done, Retry, Failed, Expired, Cancelled)
DONE: Final = Done()


def read_answer(value: object) -> Answer:
    """The answer of a function that takes one job.

    None is done, an outcome is passed on, an exception that was returned counts as raised. Any other value is ignored:
    functions return whatever they like, and what they were asked to do is done.
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
        return TypeError(
            f"the handler returned a {type(value).__name__}, of which nothing ran; await it or run it to its end"
        )
    return DONE


def read_answers(value: object, count: int) -> Sequence[Answer]:
    """The answers of a function that takes a list of jobs: None, or one answer each in the same order."""
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
    """What a function raised, as an error of its job: an exit or a cancellation of its own must not end the node."""
    if isinstance(raised, Exception):
        return raised
    name = "asyncio.CancelledError" if isinstance(raised, asyncio.CancelledError) else type(raised).__name__
    error = RuntimeError(f"the handler raised {name}{_arguments(raised)}, which counts as a failed attempt")
    error.__cause__ = raised
    return error


def _arguments(raised: BaseException) -> str:
    text = ", ".join(map(repr, raised.args))
    return f"({text})" if text else ""
