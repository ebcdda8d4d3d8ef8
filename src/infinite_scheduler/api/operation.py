"""One operation of the API: how it is asked for, by whom, what it answers, and the function that does it."""

import enum
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Literal

import msgspec

from infinite_scheduler.api.api_context import ApiContext
from infinite_scheduler.errors import SchedulerError
from infinite_scheduler.store.ledger import Role

JSON = "application/json"
NDJSON = "application/x-ndjson"


class Subject(enum.StrEnum):
    """What an operation is about: the chapters of the reference."""

    JOBS = "Jobs"
    MANY_JOBS = "Many jobs"
    CLUSTER = "The cluster"
    APPS = "Apps"
    NODES = "Nodes and shards"
    TOPICS = "Topics and dead letters"
    STORE = "The store"
    STATUS = "The status API of the Java scheduler"
    ACCESS = "Access"
    HEALTH = "Health"
    DESCRIPTION = "Description"


LOCAL = "local"
"""The name of whoever comes in without a token, where none is needed."""


class Actor(msgspec.Struct, frozen=True):
    """Who asks."""

    name: str  # of the token, or LOCAL
    role: Role
    address: str


class ApiRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was admitted and read: its parts are of the types that its operation names."""

    actor: Actor
    path: Mapping[str, str]
    query: Any = None
    headers: Any = None
    body: Any = None
    body_type: str = JSON


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that is more than a value with the operation's own status."""

    value: Any
    status: int | None = None
    headers: Mapping[str, str] = {}


class RawAnswer(msgspec.Struct, frozen=True):
    """An answer that is already written: its bytes and their type."""

    content: bytes
    content_type: str


OperationCall = Callable[[ApiContext, ApiRequest], Awaitable[Any]]
"""The function that does what an operation is for."""


class EventAnswer(msgspec.Struct, frozen=True):
    """An answer that goes on: server-sent events, as they are to be written."""

    events: AsyncGenerator[bytes, None]


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table.

    `call` is given a request that was read as described here: `query` and `headers` are structs whose fields are the
    parameters, `body` is decoded, unless it is `raw_body`. What it returns is written as JSON.
    """

    name: str  # in OpenAPI: the operationId
    subject: Subject
    method: Literal["GET", "POST"]
    path: str
    summary: str
    role: Role | None  # None: no token is needed
    by_page: bool = False  # only a page of this server may ask
    call: OperationCall
    query: type[msgspec.Struct] | None = None
    headers: type[msgspec.Struct] | None = None
    body: Any = None
    optional_body: bool = False
    raw_body: bool = False
    body_types: tuple[str, ...] = (JSON,)
    answer: Any
    other_answers: tuple[Any, ...] = ()  # of the same status, if the request asks for something else: a preview
    answer_type: str = JSON
    status: int = 200
    more_statuses: tuple[int, ...] = ()  # that answers of the same shape may have
    errors: tuple[type[SchedulerError], ...] = ()

    @property
    def changes(self) -> bool:
        """Does it change anything?"""
        return self.method != "GET"
