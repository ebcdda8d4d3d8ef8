"""Answers on their way from a worker process to the node: plain data, never pickled."""

import sys
import traceback
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec

from infinite_scheduler.errors import DestinationAway
from infinite_scheduler.handlers.answers import OUTCOMES, Answer

_PLAIN: Final = (str, int, float, bool, bytes, type(None))


class _Error(msgspec.Struct):
    """An exception as plain data: its class by name, its arguments, its plain attributes."""

    module: str
    name: str
    arguments: tuple[Any, ...]
    attributes: dict[str, Any]
    text: str
    trace: str
    away: bool = False  # is it a DestinationAway?


_KINDS: Final[dict[str, Any]] = {kind.__name__: kind for kind in (*OUTCOMES, _Error)}
_EncodedAnswer = tuple[str, msgspec.Raw]
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(list[_EncodedAnswer])


def pack(answers: Sequence[Answer]) -> bytes:
    """The answers as bytes."""
    return _encoder.encode([_encoded(answer) for answer in answers])


def unpack(data: bytes) -> list[Answer]:
    """The answers again; an exception keeps its class if this process knows it."""
    answers = []
    for name, raw in _decoder.decode(data):
        answer = msgspec.msgpack.decode(raw, type=_KINDS[name])
        answers.append(_exception(answer) if isinstance(answer, _Error) else answer)
    return answers


def _encoded(answer: Answer) -> _EncodedAnswer:
    try:
        body = _describe(answer) if isinstance(answer, BaseException) else answer
        return type(body).__name__, msgspec.Raw(_encoder.encode(body))
    except Exception as error:  # noqa: BLE001 - such as text that is not Unicode, or a number of 65 bits
        why = ascii(f"the handler's answer {answer!r} cannot be passed on: {error}")
        return _Error.__name__, msgspec.Raw(_encoder.encode(_Error("builtins", "ValueError", (why,), {}, why, "")))


def _describe(error: BaseException) -> _Error:
    kind = type(error)
    return _Error(
        module=kind.__module__,
        name=kind.__qualname__,
        arguments=tuple(value if isinstance(value, _PLAIN) else str(value) for value in error.args),
        attributes={key: value for key, value in vars(error).items() if isinstance(value, _PLAIN)},
        text=str(error),
        trace="".join(traceback.format_exception(error)),
        away=isinstance(error, DestinationAway),
    )


def _exception(described: _Error) -> BaseException:
    error = _same_class(described) or _other_class(described)
    error.add_note(f"In the worker process:\n{described.trace}")
    return error


def _other_class(described: _Error) -> Exception:
    if described.away:
        away = DestinationAway(described.text.strip() or described.name)
        away.retry_after_s = described.attributes.get("retry_after_s")
        return away
    return RuntimeError(f"{described.name}: {described.text}")


def _same_class(described: _Error) -> Exception | None:
    """An exception of the class that was raised, made without its constructor, if that gives the same text."""
    module = (
        "__main__" if described.module == "__mp_main__" else described.module
    )  # the name of the user's script in a worker
    try:
        kind = attrgetter(described.name)(sys.modules[module])
        for arguments in (described.arguments, (described.text,)):
            error = kind.__new__(kind, *arguments)
            vars(error).update(described.attributes)
            if isinstance(error, Exception) and str(error) == described.text:
                return error
    except Exception:  # noqa: BLE001 - a class may do anything; the text is kept in any case
        return None
    return None
