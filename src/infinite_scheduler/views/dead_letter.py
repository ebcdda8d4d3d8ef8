"""A dead letter as people see it: where it came from, why it did not become a job, and what has become of it."""

import base64
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from infinite_scheduler.errors import SchedulerError
from infinite_scheduler.model import Accepted
from infinite_scheduler.store.inbox import DeadLetter, LetterState
from infinite_scheduler.views.times import IsoTime, iso


class LetterView(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter without its message, as a list shows it."""

    id: str
    state: LetterState
    topic: str
    partition: int
    offset: int
    group: str
    failed_at: IsoTime
    error: str
    dlq_topic: str | None
    note: str | None  # the id of the job that it became, or why its topic refused it
    size: int  # bytes of the value
    cut_bytes: int  # of the message that the store could not take


class HeaderView(msgspec.Struct, frozen=True, kw_only=True):
    """One header: text in `value`, anything else in `value_base64`."""

    name: str
    value: str | UnsetType | None = UNSET
    value_base64: str | UnsetType = UNSET


class LetterDetails(LetterView, frozen=True, kw_only=True):
    """A dead letter with its message: what is text as text, anything else in base64, under another name."""

    key: str | UnsetType | None = UNSET
    key_base64: str | UnsetType = UNSET
    value: str | UnsetType | None = UNSET
    value_base64: str | UnsetType = UNSET
    headers: tuple[HeaderView, ...] = ()


class ReplayView(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a dead letter that was tried again: a job, or an error that says why not."""

    letter: str
    job: str | None
    due_ms: int | UnsetType | None = UNSET
    repeated: bool | UnsetType = UNSET  # it was a job before
    error: str | UnsetType = UNSET


def letter_view(letter: DeadLetter) -> LetterView:
    """A dead letter without its message."""
    return LetterView(
        id=letter.id,
        state=letter.state,
        topic=letter.source.topic,
        partition=letter.source.partition,
        offset=letter.offset,
        group=letter.source.group,
        failed_at=iso(letter.failed_ms),
        error=letter.error,
        dlq_topic=letter.dlq_topic,
        note=letter.note,
        size=len(letter.value or b""),
        cut_bytes=letter.cut_bytes,
    )


def letter_details(letter: DeadLetter) -> LetterDetails:
    """A dead letter with its message."""
    return LetterDetails(
        **msgspec.structs.asdict(letter_view(letter)),
        **_content("key", letter.key),
        **_content("value", letter.value),
        headers=tuple(HeaderView(name=name, **_content("value", value)) for name, value in letter.headers),
    )


def replayed(letter: DeadLetter, accepted: Accepted) -> ReplayView:
    """It became a job."""
    return ReplayView(letter=letter.id, job=accepted.id, due_ms=accepted.due_ms, repeated=accepted.repeated)


def replayed_before(letter: DeadLetter) -> ReplayView:
    """It is a job since an earlier replay, which the letter remembers by its id alone."""
    return ReplayView(letter=letter.id, job=letter.note, due_ms=None, repeated=True)


class DropView(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a dead letter that was to be dropped: it is, or an error says why not."""

    letter: str
    dropped: bool
    error: str | UnsetType = UNSET


def drop_view(letter: DeadLetter, error: SchedulerError | None) -> DropView:
    """It was dropped unless there is an error."""
    return DropView(letter=letter.id, dropped=error is None, error=UNSET if error is None else str(error))


def still_bad(letter: DeadLetter, error: str) -> ReplayView:
    """It cannot become a job, by the rules of today either."""
    return ReplayView(letter=letter.id, job=None, error=error)


def _content(name: str, content: bytes | None) -> Mapping[str, Any]:
    """Bytes for JSON, under the name that says in which form they are."""
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}
