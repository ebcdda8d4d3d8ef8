"""Operations on topics that bring jobs, and on messages of theirs that could not become jobs."""

import zoneinfo
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta

from infinite_scheduler.api.api_context import ApiContext
from infinite_scheduler.api.audit import audited, record
from infinite_scheduler.api.job_operations import shows_data
from infinite_scheduler.api.job_request import DelayText, Moment
from infinite_scheduler.api.operation import ApiRequest, Operation, Subject
from infinite_scheduler.errors import InvalidRequest, NotSupported, StoreUnavailable, UnknownLetter
from infinite_scheduler.ingest.replay import Replayer
from infinite_scheduler.ingest.request import due_time
from infinite_scheduler.ingest.status import look
from infinite_scheduler.policy.calendar import parse_moment
from infinite_scheduler.store.inbox import DeadLetter, LetterQuery, LetterState
from infinite_scheduler.store.ledger import Role
from infinite_scheduler.views.app import app_views, held_back_views
from infinite_scheduler.views.dead_letter import (
    LetterDetails,
    LetterView,
    ReplayView,
    letter_details,
    letter_view,
    replayed,
    replayed_before,
    still_bad,
)
from infinite_scheduler.views.topic import TopicView, topic_view

MOST_LETTERS: Final = 1000
ROOM: Final = 8 << 20
"""Bytes of messages that a page may have; the next page has the others."""


class TopicList(msgspec.Struct, frozen=True, kw_only=True):
    """The topics in the configuration of the process that answers."""

    topics: Sequence[TopicView]


class LetterFilters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters to list."""

    topic: Annotated[str | None, Meta(description="Only messages of this topic.")] = None
    group: Annotated[str | None, Meta(description="Only messages that this consumer group has read.")] = None
    state: Annotated[LetterState | None, Meta(description="Only letters in this state.")] = None
    before: Annotated[str | None, Meta(description="Only letters that failed before this time.")] = None
    oldest: Annotated[bool, Meta(description="The oldest first.")] = False
    limit: Annotated[int, Meta(ge=1, le=1000, description="How many letters a page has at most.")] = 100
    cursor: Annotated[str | None, Meta(description="Continue where the page that had this cursor ended.")] = None


class LetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of dead letters; `cursor` asks for the next, and is null at the end."""

    letters: Sequence[LetterView]
    cursor: str | None


class ReplayTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For when a letter is replayed: at its own time unless a time or a delay is given."""

    at: Moment | None = None
    delay: DelayText | None = None
    zone: Annotated[
        str | None, Meta(description="The IANA time zone of a time without one, instead of the topic's own.")
    ] = None


class ReplayLetters(ReplayTime, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The letters to replay, and for when."""

    ids: Annotated[tuple[str, ...], Meta(min_length=1, max_length=MOST_LETTERS)]


class ReplayedLetters(msgspec.Struct, frozen=True, kw_only=True):
    """What became of each letter, in the order of the request."""

    replayed: int
    refused: int
    results: Sequence[ReplayView]


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
    details = letter_details(await _letter(api, request.path["id"]))
    if shows_data(api, request.actor):
        return details
    return msgspec.structs.replace(details, key=None, key_base64=UNSET, value=None, value_base64=UNSET, headers=())


async def replay_letter(api: ApiContext, request: ApiRequest) -> ReplayView:
    """Try one dead letter again."""
    moment: ReplayTime = request.body or ReplayTime()
    letter = await _letter(api, request.path["id"])
    async with audited(api, request.actor, "replay dead letter", letter.id):
        return await _replay(api, letter, _replayer(api, moment), _at_ms(api, moment))


async def replay_letters(api: ApiContext, request: ApiRequest) -> ReplayedLetters:
    """Try the dead letters of a list again."""
    asked: ReplayLetters = request.body
    replayer, at_ms = _replayer(api, asked), _at_ms(api, asked)
    letters = [await _letter(api, letter_id) for letter_id in asked.ids]
    results = []
    for letter in letters:
        try:
            results.append(await _replay(api, letter, replayer, at_ms))
        except InvalidRequest as error:
            results.append(still_bad(letter, str(error)))
    good = sum(one.job is not None for one in results)
    await record(api, request.actor, "replay dead letters", f"{letters[0].id} …", count=good)
    return ReplayedLetters(replayed=good, refused=len(results) - good, results=results)


async def _letter(api: ApiContext, letter_id: str) -> DeadLetter:
    letter = await api.client.inbox.letter(letter_id)
    if letter is None:
        raise UnknownLetter(letter_id)
    return letter


async def _replay(api: ApiContext, letter: DeadLetter, replayer: Replayer, at_ms: int | None) -> ReplayView:
    del api
    if letter.state is LetterState.REPLAYED:
        return replayed_before(letter)
    return replayed(letter, await replayer.replay(letter, at_ms))


def _replayer(api: ApiContext, moment: ReplayTime) -> Replayer:
    zones = {(config.group_id, config.topic): config.zone_info or api.zone for config in api.topics}
    return Replayer(
        api.client.inbox,
        api.handlers,
        zone=None if moment.zone is None else _zone(moment.zone),
        zones=zones if moment.zone is None else {},
        max_payload=api.limits.payload,
    )


def _zone(name: str) -> zoneinfo.ZoneInfo:
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidRequest(f"zone {name!a:.60} is unknown: use an IANA time zone, such as Europe/Berlin") from None


def _at_ms(api: ApiContext, moment: ReplayTime) -> int | None:
    if moment.at is None and moment.delay is None:
        return None
    return due_time(moment.at, moment.delay, now_ms=api.now_ms, zone=api.zone)[0]


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
    Operation(
        name="replayLetter",
        subject=Subject.TOPICS,
        method="POST",
        path="/v1/dlq/{id}/replay",
        summary="Try a dead letter again: it becomes a job if it is valid by the rules of today.",
        role=Role.OPERATE,
        call=replay_letter,
        body=ReplayTime,
        optional_body=True,
        answer=ReplayView,
        errors=(UnknownLetter, InvalidRequest, NotSupported, StoreUnavailable),
    ),
    Operation(
        name="replayLetters",
        subject=Subject.TOPICS,
        method="POST",
        path="/v1/dlq/replay",
        summary=f"Try dead letters again by their ids. At most {MOST_LETTERS:,}, one answer per id in their order.",
        role=Role.OPERATE,
        call=replay_letters,
        body=ReplayLetters,
        answer=ReplayedLetters,
        errors=(UnknownLetter, InvalidRequest, NotSupported, StoreUnavailable),
    ),
)
