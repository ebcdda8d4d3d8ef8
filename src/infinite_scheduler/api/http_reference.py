"""Writes docs/reference/http.md from the table: `python -m infinite_scheduler.api.http_reference > FILE`."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from infinite_scheduler.api.described import ApiWords, FieldWords, OperationWords, described
from infinite_scheduler.api.operations import OPERATIONS

WIDTH: Final = 120

_INTRODUCTION: Final = """\
This page is written from the code: `python -m infinite_scheduler.api.http_reference`. How to run the server, and who
may come in, is in [HTTP](../how-to/http.md). A running server shows the same at `/docs`, and as OpenAPI 3.1 at
`/openapi.json`.

- Bodies and answers are JSON in UTF-8. A request that changes something needs `Content-Type: application/json`, also if
  its body is empty. Compressed bodies are not read.
- Unknown fields and parameters are refused, and so is a name that occurs twice in one object. The data of a job is kept
  byte for byte: numbers of any size come back as they were sent.
- An answer of 2xx to a change means that it is durable. After 503, or if no answer came, it is unknown whether the
  request took effect: repeat it, a new job with the same `Idempotency-Key`.
- Errors are problems (RFC 9457, `application/problem+json`): `type` is stable, `detail` is for people, `retryable` says
  whether the same request may succeed later. With 429 and 503 comes `Retry-After`, in seconds.
- Roles include each other: `operate` may do what `submit` may, and `submit` what `read` may.
"""


def http_reference() -> str:
    """The whole page."""
    return "\n".join(_lines(described(OPERATIONS)))


def _lines(api: ApiWords) -> Iterator[str]:
    yield "# HTTP API"
    yield ""
    yield _INTRODUCTION
    for chapter, operations in api.chapters.items():
        yield f"## {chapter}"
        yield ""
        for operation in operations:
            yield from _operation(operation)
    yield "## Shapes"
    yield ""
    for shape in api.shapes:
        yield f"### {shape.name}"
        yield ""
        yield from _wrapped(shape.words)
        yield from _table(("field", "type", "meaning"), shape.fields)
    yield "## Problems"
    yield ""
    yield "The types begin with `urn:infinite-scheduler:problem:`."
    yield ""
    yield "| type | status | meaning |"
    yield "|---|---|---|"
    for problem in api.problems:
        yield f"| `{problem.type.rpartition(':')[2]}` | {problem.status} | {problem.title} |"
    yield ""


def _operation(operation: OperationWords) -> Iterator[str]:
    yield f"### {operation.method} {operation.path}"
    yield ""
    yield from _wrapped(operation.summary)
    facts = [f"Role: {operation.role}."]
    if operation.body:
        facts.append(f"Body: {operation.body}.")
    facts.append(f"Answer: {operation.answer}.")
    if operation.problems:
        facts.append(f"Problems: {operation.problems}.")
    yield from _wrapped(" ".join(facts))
    yield from _table(("parameter", "type", "meaning"), operation.parameters)


def _wrapped(text: str) -> Iterator[str]:
    if text:
        yield from textwrap.wrap(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False)
        yield ""


def _table(head: Sequence[str], fields: Sequence[FieldWords]) -> Iterator[str]:
    if not fields:
        return
    yield f"| {' | '.join(head)} |"
    yield "|---|---|---|"
    for field in fields:
        name = f"`{field.name}`" if field.name else ""
        yield f"| {name} | {field.kind} | {field.words} |"
    yield ""


if __name__ == "__main__":
    print(http_reference())  # noqa: T201 - that is what it is run for
