"""The parameters of a request, in its query or its headers, read into the struct that its operation names."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
from multidict import MultiMapping

from infinite_scheduler.errors import InvalidRequest

_PLACE: Final = re.compile(r" - at `\$\.?(?P<name>[^`]*)`$")


def read_query(query: MultiMapping[str], shape: type[msgspec.Struct]) -> Any:
    """The query parameters; one that is unknown, repeated or not of its type is refused."""
    values: dict[str, str] = {}
    for name, value in query.items():
        if name in values:
            raise InvalidRequest(f"the query parameter {name!a:.60} is given twice: leave one of them out")
        values[name] = value
    return _converted(values, shape, "query parameter")


def header_reader(shape: type[msgspec.Struct]) -> Callable[[MultiMapping[str]], Any]:
    """A function that reads those headers that the struct names, and leaves all others alone."""
    names = [field.encode_name for field in msgspec.structs.fields(shape)]

    def read(headers: MultiMapping[str]) -> Any:
        given = {name: value for name in names if (value := headers.get(name)) is not None}
        return _converted(given, shape, "header")

    return read


def _converted(values: Mapping[str, str], shape: type[msgspec.Struct], what: str) -> Any:
    try:
        return msgspec.convert(values, shape, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{_explained(str(error), what, values, _names(shape))}") from None


def _explained(error: str, what: str, values: Mapping[str, str], known: Iterable[str]) -> str:
    place = _PLACE.search(error)
    if place is None:
        unknown = next((name for name in values if name not in known), None)
        if unknown is not None:
            return f"the {what} {unknown!a:.60} is unknown: use {', '.join(known)}"
        return f"a {what} cannot be read: {error}"
    name = place["name"]
    return f"the {what} {name} is {values.get(name, '')!a:.60}: {_lower(error[: place.start()])}"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _names(shape: type[msgspec.Struct]) -> Iterable[str]:
    return [field.encode_name for field in msgspec.structs.fields(shape)]
