"""The API as OpenAPI 3.1 describes it: made from the table, with the schemas that msgspec writes."""

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final

import msgspec

from infinite_scheduler.api.operation import JSON, Operation
from infinite_scheduler.api.problem import CONTENT_TYPE, PREFIX, STATUSES, Problem, problem_type
from infinite_scheduler.api.refusal import (
    FORBIDDEN,
    LARGE_BODY,
    MALFORMED,
    NO_TOKEN,
    SLOW_BODY,
    TOO_MANY_FAILURES,
    UNEXPECTED,
    WRONG_HOST,
    WRONG_ORIGIN,
    WRONG_TYPE,
)
from infinite_scheduler.api.session_cookie import COOKIE

_REFS: Final = "#/components/schemas/{name}"
_PATH_PARAMETER: Final = re.compile(r"\{(\w+)\}")

Schemas = Mapping[Any, Mapping[str, Any]]


def openapi_document(operations: Sequence[Operation], root_path: str = "") -> dict[str, Any]:
    """The whole document."""
    types = list(_types(operations))
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFS)
    by_type = dict(zip(map(_key, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, by_type)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Infinite Scheduler",
            "version": version("infinite-scheduler"),
            "description": "Give it a message and a time: it hands the message over at that time.",
        },
        "servers": [{"url": root_path or "/"}],
        "security": [{"token": []}, {"session": []}, {}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": COOKIE},
            },
        },
    }


def parameters_of(shape: type[msgspec.Struct]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The parameters that a struct names, each with its schema. One that is not given is left out, and never null."""
    _, components = msgspec.json.schema_components([shape], ref_template=_REFS)
    for name, described in components[shape.__name__]["properties"].items():
        schema = {key: value for key, value in described.items() if (key, value) != ("default", None)}
        kinds = [kind for kind in schema.pop("anyOf", []) if kind != {"type": "null"}]
        if len(kinds) == 1:
            schema |= kinds[0]
        elif kinds:
            schema["anyOf"] = kinds
        if ref := schema.pop("$ref", None):  # a list of words, which is short enough to stand here
            schema |= {key: value for key, value in components[ref.rpartition("/")[2]].items() if key != "description"}
        yield name, schema


def statuses_of(operation: Operation) -> Mapping[int, Sequence[str]]:
    """Which statuses a refusal may have, each with the types of its problems."""
    found: dict[int, list[str]] = {}
    for error in operation.errors:
        found.setdefault(STATUSES[error.kind], []).append(problem_type(error))
    kinds = [WRONG_HOST, UNEXPECTED]
    if operation.role is not None:
        kinds += [NO_TOKEN, FORBIDDEN]
    if operation.by_page:
        kinds += [NO_TOKEN, WRONG_ORIGIN, TOO_MANY_FAILURES]
    if operation.changes:
        kinds += [MALFORMED, SLOW_BODY, LARGE_BODY, WRONG_TYPE]
    for kind in kinds:
        found.setdefault(kind.status, []).append(PREFIX + kind.word)
    return found


def _types(operations: Sequence[Operation]) -> Iterator[Any]:
    yield Problem
    for operation in operations:
        yield from (operation.answer, *operation.other_answers)
        if operation.body is not None:
            yield operation.body


def _key(kind: Any) -> str:
    return repr(kind)


def _operation(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    shapes = [schemas[_key(one)] for one in (operation.answer, *operation.other_answers)]
    answer = {
        "description": "Success.",
        "content": {operation.answer_type: {"schema": shapes[0] if len(shapes) == 1 else {"anyOf": shapes}}},
    }
    problem = {"schema": schemas[_key(Problem)]}
    described: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [operation.subject],
        "summary": operation.summary,
        "responses": {
            **{str(status): answer for status in (operation.status, *operation.more_statuses)},
            **{
                str(status): {"description": ", ".join(types), "content": {CONTENT_TYPE: problem}}
                for status, types in sorted(statuses_of(operation).items())
                if status not in operation.more_statuses
            },
            "default": {"description": "A problem.", "content": {CONTENT_TYPE: problem}},
        },
    }
    if operation.role is None:
        described["security"] = []
    else:
        described["x-role"] = operation.role
    if parameters := [*_parameters(operation)]:
        described["parameters"] = parameters
    if operation.body is not None:
        described["requestBody"] = {
            "required": not operation.optional_body,
            "content": {kind: {"schema": _body_schema(operation, kind, schemas)} for kind in operation.body_types},
        }
    return described


def _body_schema(operation: Operation, kind: str, schemas: Schemas) -> Any:
    """NDJSON has no schema of its own: each line is an item."""
    schema = schemas[_key(operation.body)]
    return schema if kind == JSON else {"type": "string", "description": "One JSON object per line."}


def _parameters(operation: Operation) -> Iterator[dict[str, Any]]:
    for name in _PATH_PARAMETER.findall(operation.path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
    for place, shape in (("query", operation.query), ("header", operation.headers)):
        if shape is not None:
            for name, schema in parameters_of(shape):
                words = schema.pop("description", None)
                yield {"name": name, "in": place, **({"description": words} if words else {}), "schema": schema}
