"""Operations that describe the API: OpenAPI for programs, a page for people. Nothing is loaded from elsewhere."""

from collections.abc import Sequence
from functools import lru_cache
from html import escape
from typing import Any, Final

import msgspec

from infinite_scheduler.api.api_context import ApiContext
from infinite_scheduler.api.described import FieldWords, OperationWords, described
from infinite_scheduler.api.openapi import openapi_document
from infinite_scheduler.api.operation import ApiRequest, Operation, OperationCall, RawAnswer, Subject
from infinite_scheduler.store.ledger import Role

HTML: Final = "text/html; charset=utf-8"
CSS: Final = "text/css; charset=utf-8"

NEWLINE: Final = "\n"
_HEAD: Final = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    '<link rel="stylesheet" href="docs.css"><title>HTTP API</title></head>'
)
_STYLE: Final = b"""\
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; }
h3 { font-family: ui-monospace, monospace; font-size: 1rem; margin-top: 2rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
td, th { border-bottom: 1px solid #8886; padding: 0.2rem 0.8rem 0.2rem 0; text-align: left; vertical-align: top; }
code { font-family: ui-monospace, monospace; }
"""


def description_operations(others: Sequence[Operation]) -> tuple[Operation, ...]:
    """The operations that describe these and themselves."""

    def every() -> tuple[Operation, ...]:
        return (*others, *own)

    async def show_openapi(api: ApiContext, request: ApiRequest) -> RawAnswer:
        """The API for programs."""
        del request
        return RawAnswer(_document(every(), api.root_path), "application/json")

    async def show_page(api: ApiContext, request: ApiRequest) -> RawAnswer:
        """The API for people."""
        del api, request
        return RawAnswer(_page(every()), HTML)

    async def show_style(api: ApiContext, request: ApiRequest) -> RawAnswer:
        """How the page looks."""
        del api, request
        return RawAnswer(_STYLE, CSS)

    own = (
        _described("openapi", "/openapi.json", "This API as OpenAPI 3.1.", show_openapi, "application/json"),
        _described("docs", "/docs", "This API as a page.", show_page, "text/html"),
        _described("docsStyle", "/docs.css", "The style of the page.", show_style, "text/css"),
    )
    return own


def _described(name: str, path: str, summary: str, call: OperationCall, answer_type: str) -> Operation:
    return Operation(
        name=name,
        subject=Subject.DESCRIPTION,
        method="GET",
        path=path,
        summary=summary,
        role=Role.READ,
        call=call,
        answer=Any if answer_type == "application/json" else str,
        answer_type=answer_type,
    )


@lru_cache(maxsize=4)
def _document(operations: tuple[Operation, ...], root_path: str) -> bytes:
    return msgspec.json.encode(openapi_document(operations, root_path))


@lru_cache(maxsize=4)
def _page(operations: tuple[Operation, ...]) -> bytes:
    api = described(operations)
    parts = ["<h1>Infinite Scheduler: HTTP API</h1>", '<p>For programs: <a href="openapi.json">openapi.json</a></p>']
    for chapter, found in api.chapters.items():
        parts.append(f"<h2>{escape(chapter)}</h2>")
        parts += map(_operation_html, found)
    parts.append("<h2>Shapes</h2>")
    for shape in api.shapes:
        parts.append(f'<h3 id="{escape(shape.name)}">{escape(shape.name)}</h3><p>{escape(shape.words)}</p>')
        parts.append(_table_html(shape.fields))
    rows = "".join(
        f"<tr><td><code>{escape(one.type)}</code></td><td>{one.status}</td><td>{escape(one.title)}</td></tr>"
        for one in api.problems
    )
    parts.append(f"<h2>Problems</h2><table>{rows}</table>")
    return f"{_HEAD}<body>{NEWLINE.join(parts)}</body></html>".encode()


def _operation_html(operation: OperationWords) -> str:
    facts = [f"Role: {operation.role}.", f"Answer: {operation.answer}."]
    if operation.body:
        facts.insert(1, f"Body: {operation.body}.")
    if operation.problems:
        facts.append(f"Problems: {operation.problems}.")
    return (
        f"<h3>{operation.method} {escape(operation.path)}</h3><p>{escape(operation.summary)}</p>"
        f"<p>{escape(' '.join(facts))}</p>{_table_html(operation.parameters)}"
    )


def _table_html(fields: Sequence[FieldWords]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(one.name)}</code></td><td>{escape(one.kind)}</td><td>{escape(one.words)}</td></tr>"
        for one in fields
    )
    return f"<table>{rows}</table>" if rows else ""
