"""The domain of the scheduler as frozen values: no I/O, no clock."""

from __future__ import annotations

import enum
import functools
import os
import re
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec

from infinite_scheduler.errors import InvalidRequest

MAX_DUE_MS: Final = 253_402_300_799_999
"""The last moment of the year 9999: `datetime` has no later one, though an id could carry it."""

APP_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
_ID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
DAY_MS: Final = 86_400_000

LATER_MS: Final = 35 * DAY_MS
"""The id of a job further ahead says so: a store may keep such jobs apart, so that few tables are open at a time."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Priority(enum.IntEnum):
    """Which of several due jobs goes out first."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


_PRIORITIES: Final = tuple(Priority)
"""By number: the priority of a job is read several times on its way."""


class Status(enum.StrEnum):
    """The state of a job: the same words in the database, on the command line and in JSON."""

    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self is not Status.PENDING


class Shard(NamedTuple):
    """The unit of ownership: one slice of one app."""

    app: str
    number: int

    def __str__(self) -> str:
        return f"{self.app}/{self.number}"


class Owner(NamedTuple):
    """The fencing token of a shard: which process owns it, and its epoch."""

    nonce: str
    epoch: int


class JobId(bytes):
    """A UUID of version 8 that sorts by the moment under which a job is stored.

    48 bits of due time in ms, the version, 12 bits (shard 8, priority 2, later 1, reserved 1), the variant and 62
    random bits.
    The same layout serves as a *position*: where a scan finds a job that was moved to another moment.
    """

    __slots__ = ()

    @classmethod
    def make(
        cls, due_ms: int, shard: int, priority: int, *, later: bool = False, entropy: bytes | None = None
    ) -> JobId:
        """A new id; `entropy` is 8 bytes, of which the last 62 bits make it unique."""
        return cls(new_key(due_ms, shard, priority, later, entropy or os.urandom(8)))

    @classmethod
    def parse(cls, text: str) -> JobId:
        """Read the printed form of an id."""
        value = uuid.UUID(text) if isinstance(text, str) and _ID.fullmatch(text) else None  # type: ignore[redundant-expr]
        if value is None or value.version != 8 or value.variant != uuid.RFC_4122:
            raise InvalidRequest(f"{text!r} is not a job id; one looks like 019a8b7c-3d20-8014-9f3a-5c1e2b7d4a60")
        return cls(value.bytes)

    @property
    def due_ms(self) -> int:
        """The moment under which the row is stored; a retry or reschedule does not change it."""
        return int.from_bytes(self[:6], "big")

    @property
    def shard(self) -> int:
        return shard_of(self)

    @property
    def priority(self) -> Priority:
        return _PRIORITIES[(self[7] >> 2) & 3]

    @property
    def later(self) -> bool:
        """Is the row in the table for jobs far in the future?"""
        return bool(self[7] & 2)

    def __str__(self) -> str:
        return key_text(self)


def new_key(due_ms: int, shard: int, priority: int, later: bool, entropy: bytes) -> bytes:
    """The bytes of a new id; see `JobId.make`."""
    random = entropy[:1].translate(VARIANT) + entropy[1:8]
    return due_ms.to_bytes(6, "big") + flags_of(shard, priority, later).to_bytes(2, "big") + random


def flags_of(shard: int, priority: int, later: bool) -> int:
    """The 16 bits of an id between its moment and its random part: the version, shard, priority, later."""
    return 0x8000 | shard << 4 | priority << 2 | later << 1


VARIANT: Final = bytes(0x80 | (byte & 0x3F) for byte in range(256))
"""Maps a random byte to one that begins with the variant of a UUID."""


def shard_of(key: bytes) -> int:
    """The number of the shard that the id `key` belongs to."""
    return ((key[6] & 0x0F) << 4) | (key[7] >> 4)


def priority_of(key: bytes) -> int:
    """The priority in the id or position `key`."""
    return (key[7] >> 2) & 3


def position(key: bytes, due_ms: int) -> bytes:
    """Where a scan finds the job `key` when it is due at `due_ms`."""
    return due_ms.to_bytes(6, "big") + key[6:]


def start_of(due_ms: int) -> bytes:
    """The smallest position of this moment."""
    return due_ms.to_bytes(6, "big") + bytes(10)


def key_text(key: bytes) -> str:
    """The id as people see it."""
    h = key.hex()
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def datetime_of(ms: int) -> datetime:
    """Milliseconds since the epoch as an aware UTC datetime, exact."""
    return _EPOCH + timedelta(milliseconds=ms)


class Job(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One payload to hand over at one moment: what a handler receives."""

    key: bytes
    app: str
    due_ms: int
    scheduled_ms: int
    payload: bytes
    created_ms: int
    attempt: int = 1
    request_id: str | None = None
    job_name: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The id, as it is printed everywhere."""
        return key_text(self.key)

    @property
    def due_at(self) -> datetime:
        """When the job is due now: a retry or reschedule changes it; for a past time, when it was accepted."""
        return datetime_of(self.due_ms)

    @property
    def scheduled_time(self) -> datetime:
        """The time that was asked for; only a reschedule changes it."""
        return datetime_of(self.scheduled_ms)

    @property
    def data(self) -> Any:
        """The payload, decoded."""
        return msgspec.json.decode(self.payload)

    @property
    def priority(self) -> Priority:
        return _PRIORITIES[(self.key[7] >> 2) & 3]

    @property
    def shard(self) -> int:
        key = self.key
        return ((key[6] & 0x0F) << 4) | (key[7] >> 4)

    @property
    def position(self) -> bytes:
        """Where a scan finds this job."""
        return position(self.key, self.due_ms)

    @property
    def size(self) -> int:
        """What this job costs in memory, in bytes: its fixed parts as measured, plus the text and data it carries."""
        size = JOB_BYTES + len(self.payload)
        if self.request_id:
            size += _text_size(self.request_id)
        if self.job_name or self.group or self.tags:
            size += sum(map(_text_size, filter(None, (self.job_name, self.group, *self.tags))))
        return size


def _text_size(text: str) -> int:
    return TEXT_BYTES + len(text) * (1 if text.isascii() else 4)


TEXT_BYTES: Final = 80
"""The size of an empty text."""

JOB_BYTES: Final = 700
"""A job on the wheel without its payload: struct, key, two index entries, its small strings (measured, rounded up)."""


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job as a door accepts it: validated, but without an id yet."""

    app: str
    scheduled_ms: int
    payload: bytes
    priority: Priority = Priority.NORMAL
    idempotency_key: str | None = None
    digest: bytes = b""  # of what must be equal when the idempotency key is used again
    request_id: str | None = None
    job_name: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()
    key: bytes | None = None  # its id, drawn by who sends it, so that sending it again makes no second job


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """The answer of a door: the job is durable."""

    key: bytes
    due_ms: int
    repeated: bool = False  # the idempotency key was used before: this is the id of the first job
    differs: bool = False  # and the first job has other content

    @property
    def id(self) -> str:
        return key_text(self.key)


class Attempt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One delivery that failed, or that has run long enough to be shown."""

    attempt: int
    started_ms: int
    finished_ms: int | None = None
    node: str
    error: str | None = None


class JobRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job as the store has it: for people and doors, not for handlers."""

    job: Job
    status: Status
    finished_ms: int | None = None
    error: str | None = None
    idempotency_key: str | None = None
    attempts: tuple[Attempt, ...] = ()
    kept_in: str | None = None  # where it is, in the words of the store: a table; told of a job that is looked up alone

    @property
    def id(self) -> str:
        return self.job.id


class Done(msgspec.Struct, frozen=True, gc=False):
    """The job was handed over."""


class Retry(msgspec.Struct, frozen=True, gc=False):
    """Try again: after a delay, at a moment, or when the app's policy says so."""

    after: timedelta | None = None
    at: datetime | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        if self.after is not None and not isinstance(self.after, timedelta):
            raise TypeError(f"Retry(after={self.after!r}): use a timedelta")
        if self.at is not None and getattr(self.at, "tzinfo", None) is None:
            raise TypeError(f"Retry(at={self.at!r}): use a datetime with a time zone")


class Failed(msgspec.Struct, frozen=True, gc=False):
    """Give up: no further attempt."""

    reason: str = ""


class Expired(msgspec.Struct, frozen=True, gc=False):
    """Too late to be of use, so it was not handed over."""

    reason: str = ""


class Cancelled(msgspec.Struct, frozen=True, gc=False):
    """It was cancelled before its moment."""


Outcome = Done | Retry | Failed | Expired | Cancelled
"""Every way a delivery can end."""


class Change(enum.StrEnum):
    """What can be asked for a waiting job."""

    CANCEL = "cancel"
    RESCHEDULE = "reschedule"
    RUN_NOW = "run_now"
    RETRY = "retry"


def read_status(status: Status | str | None) -> Status | None:
    """The status of this name; None stays None."""
    if status is None:
        return None
    try:
        return Status(status)
    except ValueError:
        raise InvalidRequest(f"unknown status {status!r}; use one of {', '.join(Status)}") from None


def check_app_name(name: object) -> str:
    """Return the name if it is allowed for an app: it becomes part of table names."""
    if not isinstance(name, str) or not _is_app_name(name):
        raise InvalidRequest(
            f"app name {name!r} is not allowed: use a lower-case letter, then up to 31 lower-case letters, digits or _"
        )
    return name


@functools.lru_cache
def _is_app_name(name: str) -> bool:
    return APP_NAME.fullmatch(name) is not None
