"""Turns the table of operations into routes: each request is admitted, read, done and answered in one place."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from aiohttp import web

from infinite_scheduler.api.access import Access
from infinite_scheduler.api.api_context import ApiContext
from infinite_scheduler.api.body import BodyReader
from infinite_scheduler.api.event_writer import EventWriter
from infinite_scheduler.api.happenings import event
from infinite_scheduler.api.json_text import check_names, decode, scan, text_of
from infinite_scheduler.api.operation import ApiRequest, EventAnswer, Operation, RawAnswer, Reply
from infinite_scheduler.api.parameters import header_reader, read_query
from infinite_scheduler.api.problem import (
    CONTENT_TYPE,
    RETRY_AFTER_S,
    Problem,
    problem_of,
    problem_of_refusal,
    unexpected_problem,
)
from infinite_scheduler.api.refusal import LARGE_BODY, NO_PATH, TOO_MANY_FAILURES, WRONG_METHOD, Refusal
from infinite_scheduler.api.traffic import Traffic
from infinite_scheduler.errors import SchedulerError, Unavailable
from infinite_scheduler.observe.events import Observer, RequestFailed

ENVELOPE: Final = 64 * 1024
"""How many bytes a body may have besides the data of a job."""

BULK: Final = 64 * 1024 * 1024
"""How many bytes the jobs of one body may have together."""

SECURITY_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "Referrer-Policy": "no-referrer",
    "Server": "infinite-scheduler",  # without the versions of what it is made of
    "X-Content-Type-Options": "nosniff",
}

Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]
ReadRequest = Callable[[web.Request], Awaitable[ApiRequest]]

_encode: Final = msgspec.json.Encoder().encode


class Router:
    """The routes of one server."""

    def __init__(self, api: ApiContext, access: Access, bodies: BodyReader, tell: Observer, traffic: Traffic) -> None:
        self._api = api
        self._access = access
        self._bodies = bodies
        self._tell = tell
        self._traffic = traffic
        self._events = EventWriter(tell, traffic)

    def application(self, operations: Sequence[Operation]) -> web.Application:
        """A web application with these operations, at their paths and below the root path."""
        app = web.Application(middlewares=[self._answer_problems])
        for operation in operations:
            handle = self._handle(operation)
            for root in {"", self._api.root_path}:
                if operation.method == "GET":
                    app.router.add_get(root + operation.path, handle)
                else:
                    app.router.add_route(operation.method, root + operation.path, handle)
        return app

    def _handle(self, operation: Operation) -> Handle:
        read = self._reader(operation)
        clock, traffic = self._api.clock, self._traffic

        async def handle(request: web.Request) -> web.StreamResponse:
            began_us = clock.steady_us()
            traffic.in_progress += 1
            status = 500
            try:
                response = await self._answered(operation, read, request)
                status = response.status
            except asyncio.CancelledError:
                traffic.abandoned += 1
                raise
            finally:
                traffic.in_progress -= 1
                traffic.answered.add(operation.method, operation.path, status, clock.steady_us() - began_us)
            return response

        return handle

    async def _answered(self, operation: Operation, read: ReadRequest, request: web.Request) -> web.StreamResponse:
        try:
            value = await operation.call(self._api, await read(request))
            if isinstance(value, EventAnswer):
                events = self._while_admitted(request, operation, value.events)
                return await self._events.write(request, events, SECURITY_HEADERS)
            return _answer(operation, value)
        except SchedulerError as error:
            return problem_response(problem_of(error))
        except Refusal as refusal:
            return problem_response(problem_of_refusal(refusal), refusal.headers)

    async def _while_admitted(
        self, request: web.Request, operation: Operation, events: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[bytes, None]:
        """Events until whoever listens may not any more: a token is revoked, or a session ends."""
        async with contextlib.aclosing(events):
            async for one in events:
                try:
                    await self._access.admit(request, operation)
                except Unavailable:
                    pass  # the store does not say
                except Refusal as refusal:
                    if refusal.kind is not TOO_MANY_FAILURES:  # others at this address have failed
                        yield event("end", {"reason": str(refusal)})
                        return
                yield one

    def _reader(self, operation: Operation) -> ReadRequest:
        """How requests for an operation are read: decided once, for all of them."""
        decoder = None if operation.body is None or operation.raw_body else msgspec.json.Decoder(operation.body)
        read_headers = header_reader(operation.headers) if operation.headers is not None else None
        most = BULK if operation.raw_body else self._api.limits.payload + ENVELOPE

        async def read(request: web.Request) -> ApiRequest:
            actor = await self._access.admit(request, operation)
            body: Any = None
            if operation.changes:
                body = await self._bodies.read(request, operation.body_types, most)
                if not operation.raw_body:
                    body = _decoded(body, decoder, optional=operation.optional_body)
            return ApiRequest(
                actor=actor,
                path=request.match_info,
                query=None if operation.query is None else read_query(request.query, operation.query),
                headers=None if read_headers is None else read_headers(request.headers),
                body=body,
                body_type=request.content_type,
            )

        return read

    @web.middleware
    async def _answer_problems(self, request: web.Request, handler: Handle) -> web.StreamResponse:
        """What no operation has answered: paths and methods that are not there, and errors that nobody foresaw."""
        try:
            return await handler(request)
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods))
            refusal = Refusal(WRONG_METHOD, f"{request.method} is not allowed at {request.path}: use {allowed}")
            return problem_response(problem_of_refusal(refusal), {"Allow": allowed})
        except web.HTTPRequestEntityTooLarge:
            return problem_response(problem_of_refusal(Refusal(LARGE_BODY, "the body is too large: send less")))
        except web.HTTPException as error:
            if error.status != NO_PATH.status:
                raise
            refusal = Refusal(NO_PATH, f"there is nothing at {request.path!a:.200}: /docs lists what is there")
            return problem_response(problem_of_refusal(refusal))
        except Exception as error:  # noqa: BLE001 - whoever asked learns where to look, and nothing else
            incident = secrets.token_hex(6)
            self._tell(RequestFailed(method=request.method, path=request.path, incident=incident, cause=error))
            return problem_response(unexpected_problem(incident))


def _answer(operation: Operation, value: Any) -> web.Response:
    status, headers = operation.status, SECURITY_HEADERS
    if isinstance(value, Reply):
        status, headers = value.status or status, {**headers, **value.headers}
        value = value.value
    if isinstance(value, RawAnswer):
        return web.Response(body=value.content, status=status, headers={**headers, "Content-Type": value.content_type})
    return web.Response(body=_encode(value), status=status, headers=headers, content_type=operation.answer_type)


def _decoded(body: bytes, decoder: msgspec.json.Decoder[Any] | None, *, optional: bool) -> Any:
    if decoder is None or (optional and not body):
        return None
    value = decode(body, decoder)
    check_names(scan(text_of(body).lstrip()).repeated)
    return value


def problem_response(problem: Problem, headers: Mapping[str, str] | None = None) -> web.Response:
    """A problem as an answer."""
    all_headers = {**SECURITY_HEADERS, **(headers or {})}
    if problem.retryable and problem.status in RETRY_AFTER_S:
        all_headers.setdefault("Retry-After", str(RETRY_AFTER_S[problem.status]))
    return web.Response(body=_encode(problem), status=problem.status, headers=all_headers, content_type=CONTENT_TYPE)
