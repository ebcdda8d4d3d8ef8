"""JSON as it is written: what msgspec leaves aside, namely names that occur twice, and where a value ends."""

import json
from typing import Any, Final, NamedTuple

import msgspec

from infinite_scheduler.api.refusal import MALFORMED, Refusal
from infinite_scheduler.errors import InvalidPayload, InvalidRequest


def _names_of(pairs: list[tuple[str, Any]]) -> list[str]:
    """All that is kept of an object, so that a long text needs little memory; a repeated name is seen."""
    return [name for name, _ in pairs]


def _nothing(text: str) -> None:
    """Numbers are not kept: they may have any length."""
    del text


_scan: Final = json.JSONDecoder(
    object_pairs_hook=_names_of,
    parse_int=_nothing,
    parse_float=_nothing,
    parse_constant=_nothing,
    strict=False,  # msgspec is stricter, and decides
).raw_decode


def text_of(body: bytes) -> str:
    """The body as text."""
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise Refusal(MALFORMED, f"the body is not UTF-8: {error.reason} at byte {error.start}; send UTF-8") from None


class Scanned(NamedTuple):
    """A value in a text: where it ends, and the first name that occurs twice in it, if it is an object.

    Names inside of its own values do not count: the data of a job is kept as it is written.
    """

    end: int
    repeated: str | None


def scan(text: str, start: int = 0) -> Scanned:
    """Find the end of the value that begins here. Raises Refusal if it is not JSON."""
    try:
        names, end = _scan(text, start)
    except RecursionError:
        raise too_deep() from None
    except ValueError as error:
        raise Refusal(MALFORMED, f"the body is not JSON: {error}") from None
    return Scanned(end, _first_repeated(names) if text[start] == "{" else None)


def _first_repeated(names: list[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def check_names(repeated: str | None) -> None:
    """Refuse an object in which a name occurs twice: readers differ in which of the two they take."""
    if repeated is not None:
        raise InvalidRequest(f"the name {repeated!a:.60} occurs twice in one object: leave one of them out")


def decode(body: bytes | str, decoder: msgspec.json.Decoder[Any]) -> Any:
    """The body, or item of a body, as its operation expects it.

    Raises Refusal if it is not JSON, and InvalidRequest if it is JSON of another shape.
    """
    try:
        value = decoder.decode(body)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the body is not as expected: {error}") from None
    except UnicodeDecodeError as error:
        raise Refusal(MALFORMED, f"the body is not UTF-8: {error.reason}; send UTF-8") from None
    except RecursionError:
        raise too_deep() from None
    except msgspec.DecodeError as error:
        raise Refusal(MALFORMED, f"the body is not JSON: {error}") from None
    return value


def too_deep() -> InvalidPayload:
    """The refusal of JSON that is nested too deeply to be read."""
    return InvalidPayload("the body is nested too deeply: make it flatter")
