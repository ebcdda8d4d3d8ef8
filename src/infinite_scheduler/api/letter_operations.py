"""Operations on topics that bring jobs, and on messages of theirs that could not become jobs."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta

from infinite_scheduler.api.api_context import ApiContext
from infinite_scheduler.api.job_operations import shows_data
from infinite_scheduler.api.operation import ApiRequest, Operation, Subject
from infinite_scheduler.bulk_change.letter_changes import ROOM
from infinite_scheduler.errors import InvalidRequest, NotSupported, StoreUnavailable, UnknownLetter
from infinite_scheduler.ingest.status import look
from infinite_scheduler.policy.calendar import parse_moment
from infinite_scheduler.store.inbox import DeadLetter, LetterQuery, LetterState
from infinite_scheduler.store.ledger import Role
from infinite_scheduler.views.app import app_views, held_back_views
from infinite_scheduler.views.dead_letter import LetterDetails, LetterView, letter_details, letter_view
from infinite_scheduler.views.topic import TopicView, topic_view


class TopicList(msgspec.Struct, frozen=True, kw_only=True):
    """The topics in the configuration of the process that answers."""

    topics: Sequence[TopicView]


class LetterFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters are meant: those that meet all that is given."""

    topic: Annotated[str | None, Meta(description="Only messages of this topic.")] = None
    group: Annotated[str | None, Meta(description="Only messages that this consumer group has read.")] = None
    state: Annotated[LetterState | None, Meta(description="Only letters in this state.")] = None
    before: Annotated[str | None, Meta(description="Only letters that failed before this time.")] = None


class LetterFilters(LetterFilter, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters to list, and how."""

    oldest: Annotated[bool, Meta(description="The oldest first.")] = False
    limit: Annotated[int, Meta(ge=1, le=1000, description="How many letters a page has at most.")] = 100
    cursor: Annotated[str | None, Meta(description="Continue where the page that had this cursor ended.")] = None


class LetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of dead letters; `cursor` asks for the next, and is null at the end."""

    letters: Sequence[LetterView]
    cursor: str | None


async def list_topics(api: ApiContext, request: ApiRequest) -> TopicList:
    """The state of each configured topic."""
    del request
    held_back = held_back_views(app_views(await api.client.survey(), api.now_ms, api.lease_ms))
    inbox = api.client.inbox
    return TopicList(topics=[topic_view(await look(config, inbox), held_back) for config in api.topics])


async def list_letters(api: ApiContext, request: ApiRequest) -> LetterPage:
    """One page of dead letters."""
    asked: LetterFilters = request.query
    before_ms = None if asked.before is None else parse_moment(asked.before, now_ms=api.now_ms, zone=api.zone)
    query = LetterQuery(
        topic=asked.topic,
        group=asked.group,
        state=asked.state,
        before_ms=before_ms,
        oldest_first=asked.oldest,
        limit=asked.limit,
        cursor=asked.cursor,
        room=ROOM,
    )
    found = await api.client.inbox.letters(query)
    return LetterPage(letters=[letter_view(letter) for letter in found.letters], cursor=found.cursor)


async def show_letter(api: ApiContext, request: ApiRequest) -> LetterDetails:
    """One dead letter with its message."""
    details = letter_details(await known_letter(api, request.path["id"]))
    if shows_data(api, request.actor):
        return details
    return msgspec.structs.replace(details, key=None, key_base64=UNSET, value=None, value_base64=UNSET, headers=())


async def known_letter(api: ApiContext, letter_id: str) -> DeadLetter:
    """A letter that exists; UnknownLetter otherwise."""
    letter = await api.client.inbox.letter(letter_id)
    if letter is None:
        raise UnknownLetter(letter_id)
    return letter


LETTER_OPERATIONS = (
    Operation(
        name="listTopics",
        subject=Subject.TOPICS,
        method="GET",
        path="/v1/topics",
        summary="List the configured topics: are they read, by whom, how far, and what is wrong.",
        role=Role.READ,
        call=list_topics,
        answer=TopicList,
        errors=(NotSupported, StoreUnavailable),
    ),
    Operation(
        name="listLetters",
        subject=Subject.TOPICS,
        method="GET",
        path="/v1/dlq",
        summary="List dead letters, newest first, a page at a time.",
        role=Role.READ,
        call=list_letters,
        query=LetterFilters,
        answer=LetterPage,
        errors=(InvalidRequest, NotSupported, StoreUnavailable),
    ),
    Operation(
        name="showLetter",
        subject=Subject.TOPICS,
        method="GET",
        path="/v1/dlq/{id}",
        summary="Show one dead letter with its message.",
        role=Role.READ,
        call=show_letter,
        answer=LetterDetails,
        errors=(UnknownLetter, InvalidRequest, NotSupported, StoreUnavailable),
    ),
)
