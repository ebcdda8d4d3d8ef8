"""The API in words: what the page and the reference say of each operation and shape, made from the table."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from infinite_scheduler.api.openapi import openapi_document, statuses_of
from infinite_scheduler.api.operation import Operation, Subject
from infinite_scheduler.api.problem import PREFIX as PROBLEM_PREFIX
from infinite_scheduler.api.problem import STATUSES, problem_type, title_of
from infinite_scheduler.api.refusal import REFUSALS
from infinite_scheduler.errors import ErrorKind, SchedulerError


class FieldWords(msgspec.Struct, frozen=True):
    """One field or parameter."""

    name: str
    kind: str
    words: str


class ShapeWords(msgspec.Struct, frozen=True):
    """One struct of bodies or answers."""

    name: str
    words: str
    fields: Sequence[FieldWords]


class OperationWords(msgspec.Struct, frozen=True):
    """One operation."""

    method: str
    path: str
    summary: str
    role: str
    parameters: Sequence[FieldWords]
    body: str
    answer: str
    problems: str


class ProblemWords(msgspec.Struct, frozen=True):
    """One type of problem."""

    type: str
    status: int
    title: str


class ApiWords(msgspec.Struct, frozen=True):
    """All there is to say."""

    chapters: Mapping[str, Sequence[OperationWords]]
    shapes: Sequence[ShapeWords]
    problems: Sequence[ProblemWords]


def described(operations: Sequence[Operation]) -> ApiWords:
    """The table in words."""
    document = openapi_document(operations)
    chapters = {
        str(subject): [_operation(one, document) for one in operations if one.subject is subject] for subject in Subject
    }
    schemas = document["components"]["schemas"]
    return ApiWords(
        chapters={name: found for name, found in chapters.items() if found},
        shapes=[_shape(name, schemas[name]) for name in sorted(schemas)],
        problems=sorted(_problems(), key=lambda one: (one.status, one.type)),
    )


def _operation(operation: Operation, document: Mapping[str, Any]) -> OperationWords:
    drawn = document["paths"][operation.path][operation.method.lower()]
    bodies = drawn.get("requestBody", {}).get("content", {})
    body = ", or ".join(f"{_kind(content['schema'])} as {name}" for name, content in bodies.items())
    parameters = [
        FieldWords(f"{one['name']} ({one['in']})", _kind(one["schema"]), one.get("description", ""))
        for one in drawn.get("parameters", ())
        if one["in"] != "path"
    ]
    statuses = "/".join(str(status) for status in (operation.status, *operation.more_statuses))
    problems = "; ".join(
        f"{status}: {', '.join(kind.removeprefix(PROBLEM_PREFIX) for kind in kinds)}"
        for status, kinds in sorted(statuses_of(operation).items())
        if any(error for error in operation.errors if STATUSES[error.kind] == status)
    )
    return OperationWords(
        operation.method,
        operation.path,
        operation.summary,
        "none" if operation.role is None else str(operation.role),
        parameters,
        body if not operation.optional_body or not body else f"{body}; may be empty",
        f"{statuses}: {_kind(drawn['responses'][str(operation.status)]['content'][operation.answer_type]['schema'])}",
        problems,
    )


def _shape(name: str, schema: Mapping[str, Any]) -> ShapeWords:
    if "enum" in schema:
        return ShapeWords(name, schema.get("description", ""), [FieldWords("", _kind(schema), "")])
    required = schema.get("required", ())
    fields = [
        FieldWords(field, _kind(one) if field in required else f"{_kind(one)}, optional", one.get("description", ""))
        for field, one in schema.get("properties", {}).items()
    ]
    return ShapeWords(name, schema.get("description", ""), fields)


def _kind(schema: Mapping[str, Any]) -> str:
    """The type of a value, as short as it can be said."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return " or ".join(f'"{value}"' for value in schema["enum"])
    if "anyOf" in schema:
        kinds = [_kind(one) for one in schema["anyOf"]]
        return " or ".join(dict.fromkeys(kinds))
    match schema.get("type"):
        case "array":
            return f"list of {_kind(schema.get('items', {}))}"
        case "object":
            return f"object of {_kind(schema.get('additionalProperties') or {})}"
        case str(word):
            bounds = [f"{sign} {schema[key]}" for key, sign in _BOUNDS if key in schema]
            return " ".join([schema.get("format", word), *bounds])
        case _:
            return "any JSON"


_BOUNDS = (("minimum", ">="), ("maximum", "<="))


def _problems() -> Iterator[ProblemWords]:
    for kind in REFUSALS:
        yield ProblemWords(PROBLEM_PREFIX + kind.word, kind.status, kind.title)
    for error in _classes(SchedulerError):
        if error.kind is not ErrorKind.FAILED:
            yield ProblemWords(problem_type(error), STATUSES[error.kind], title_of(error))


def _classes(root: type[SchedulerError]) -> Iterator[type[SchedulerError]]:
    for error in root.__subclasses__():
        if error.__module__ == SchedulerError.__module__:
            yield error
            yield from _classes(error)
