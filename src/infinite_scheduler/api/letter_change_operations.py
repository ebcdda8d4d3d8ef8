"""Operations that replay or drop dead letters: one, those of a list of ids, or all that match a filter."""

import zoneinfo
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from infinite_scheduler.api.api_context import ApiContext
from infinite_scheduler.api.audit import audited, record
from infinite_scheduler.api.change_operations import Preview, StepCursorText, StepLimit, filter_text
from infinite_scheduler.api.job_request import DelayText, Moment
from infinite_scheduler.api.letter_operations import LetterFilter, known_letter
from infinite_scheduler.api.operation import ApiRequest, Operation, Subject
from infinite_scheduler.api.problem import Problem, problem_of
from infinite_scheduler.bulk_change.job_changes import UNDECIDED
from infinite_scheduler.bulk_change.letter_changes import (
    MOST_LETTERS,
    BulkLetters,
    LetterEnd,
    LetterPreview,
    LetterStep,
    bulk_drop,
    bulk_replay,
    drop_each,
)
from infinite_scheduler.errors import (
    InvalidRequest,
    NotSupported,
    SchedulerError,
    StoreUnavailable,
    TooLate,
    UnknownLetter,
)
from infinite_scheduler.ingest.replay import Replayer
from infinite_scheduler.ingest.request import due_time
from infinite_scheduler.store.inbox import DeadLetter, LetterState
from infinite_scheduler.store.ledger import Role
from infinite_scheduler.views.dead_letter import (
    DropView,
    LetterView,
    ReplayView,
    drop_view,
    letter_view,
    replayed,
    replayed_before,
    still_bad,
)
from infinite_scheduler.views.times import IsoTime, iso_or_none

ZoneName = Annotated[
    str | None, Meta(description="The IANA time zone of a time without one, instead of the topic's own.")
]


class ReplayTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For when a letter is replayed: at its own time unless a time or a delay is given."""

    at: Moment | None = None
    delay: DelayText | None = None
    zone: ZoneName = None


class DropLetters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The letters to drop: either ids or a filter. An empty filter means all."""

    ids: Annotated[tuple[str, ...], Meta(min_length=1, max_length=MOST_LETTERS)] | None = None
    filter: LetterFilter | None = None
    preview: Preview = False
    cursor: StepCursorText = None
    limit: StepLimit = None


class ReplayLetters(DropLetters, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The letters to replay, either ids or a filter, and for when: at their own times unless one is given."""

    at: Moment | None = None
    delay: DelayText | None = None
    zone: ZoneName = None


class ReplayedLetters(msgspec.Struct, frozen=True, kw_only=True):
    """What became of each letter; by ids in the order of the request.

    By a filter, go on with `cursor` until it is null. `stopped` says that the store did not answer in the middle: the
    results are of what was done, and the cursor leads to the rest.
    """

    replayed: int
    refused: int
    results: Sequence[ReplayView]
    cursor: str | None = None
    searched_to: IsoTime | None = None  # null: there is nothing more to look at
    stopped: Problem | UnsetType = UNSET


class DroppedLetters(msgspec.Struct, frozen=True, kw_only=True):
    """What became of each letter; by ids in the order of the request. By a filter, go on with `cursor` until null."""

    dropped: int
    refused: int
    results: Sequence[DropView]
    cursor: str | None = None
    searched_to: IsoTime | None = None  # null: there is nothing more to look at


class PreviewedLetters(msgspec.Struct, frozen=True, kw_only=True):
    """What a filter would choose: how many, at least if the look had to end before all was seen, and ten of them."""

    count: int
    at_least: bool
    letters: Sequence[LetterView]


# One


async def replay_letter(api: ApiContext, request: ApiRequest) -> ReplayView:
    """Try one dead letter again."""
    moment: ReplayTime = request.body or ReplayTime()
    letter = await known_letter(api, request.path["id"])
    async with audited(api, request.actor, "replay dead letter", letter.id):
        return await _replay(letter, _replayer(api, moment), _at_ms(api, moment))


async def drop_letter(api: ApiContext, request: ApiRequest) -> LetterView:
    """Drop one dead letter."""
    letter = await known_letter(api, request.path["id"])
    async with audited(api, request.actor, "drop dead letter", letter.id):
        (end,) = await drop_each(api.client.inbox, [letter])
        if end.error is not None:
            raise end.error
    return letter_view(msgspec.structs.replace(letter, state=LetterState.DROPPED))


# Many


async def replay_letters(api: ApiContext, request: ApiRequest) -> ReplayedLetters | PreviewedLetters:
    """Try many dead letters again."""
    asked: ReplayLetters = request.body
    replayer, at_ms = _replayer(api, asked), _at_ms(api, asked)
    if asked.ids is None or asked.filter is not None:
        return await _replay_by_filter(api, request, replayer)
    _check_alone(asked)
    await _check_known(api, asked.ids)
    results, stopped = [], None
    for letter_id in asked.ids:  # one message at a time in memory: each may be large
        try:
            results.append(await _replay(await known_letter(api, letter_id), replayer, at_ms))
        except UNDECIDED as error:
            stopped = error
            break
        except SchedulerError as error:
            results.append(ReplayView(letter=letter_id, job=None, error=str(error)))
    if stopped is not None and not results:
        raise stopped
    good = sum(one.job is not None for one in results)
    await _record(api, request, "replay dead letters", f"{asked.ids[0]} …", good, stopped)
    return ReplayedLetters(
        replayed=good,
        refused=len(results) - good,
        results=results,
        stopped=UNSET if stopped is None else problem_of(stopped),
    )


async def drop_letters(api: ApiContext, request: ApiRequest) -> DroppedLetters | PreviewedLetters:
    """Drop many dead letters."""
    asked: DropLetters = request.body
    if asked.ids is None or asked.filter is not None:
        return await _drop_by_filter(api, request)
    _check_alone(asked)
    letters = [_without_message(await known_letter(api, letter_id)) for letter_id in asked.ids]
    ends = await drop_each(api.client.inbox, letters)
    good = sum(end.error is None for end in ends)
    await record(api, request.actor, "drop dead letters", f"{letters[0].id} …", count=good)
    return DroppedLetters(dropped=good, refused=len(ends) - good, results=_drop_views(ends))


async def _replay_by_filter(
    api: ApiContext, request: ApiRequest, replayer: Replayer
) -> ReplayedLetters | PreviewedLetters:
    asked: ReplayLetters = request.body
    bulk = bulk_replay(
        api.client.inbox,
        replayer,
        _criteria(asked),
        at=asked.at,
        delay=asked.delay,
        now_ms=api.now_ms,
        zone=api.zone,
    )
    if asked.preview:
        return _preview(await bulk.preview())
    done = await _step(api, request, bulk, "replay dead letters")
    results = [
        still_bad(end.letter, str(end.error)) if end.accepted is None else replayed(end.letter, end.accepted)
        for end in done.ends
    ]
    good = sum(one.job is not None for one in results)
    return ReplayedLetters(
        replayed=good,
        refused=len(results) - good,
        results=results,
        cursor=done.cursor,
        searched_to=iso_or_none(done.searched_to_ms),
        stopped=UNSET if done.stopped is None else problem_of(done.stopped),
    )


async def _drop_by_filter(api: ApiContext, request: ApiRequest) -> DroppedLetters | PreviewedLetters:
    asked: DropLetters = request.body
    bulk = bulk_drop(api.client.inbox, _criteria(asked), now_ms=api.now_ms, zone=api.zone)
    if asked.preview:
        return _preview(await bulk.preview())
    done = await _step(api, request, bulk, "drop dead letters")
    good = sum(end.error is None for end in done.ends)
    return DroppedLetters(
        dropped=good,
        refused=len(done.ends) - good,
        results=_drop_views(done.ends),
        cursor=done.cursor,
        searched_to=iso_or_none(done.searched_to_ms),
    )


async def _step(api: ApiContext, request: ApiRequest, bulk: BulkLetters, verb: str) -> LetterStep:
    """One step, with its record in the audit."""
    asked: DropLetters = request.body
    done = await bulk.step(asked.cursor, asked.limit)
    count = sum(end.error is None for end in done.ends)
    await _record(api, request, verb, filter_text(asked.filter or LetterFilter()), count, done.stopped)
    return done


async def _record(
    api: ApiContext, request: ApiRequest, verb: str, target: str, count: int, stopped: SchedulerError | None
) -> None:
    """Write down what was done. A store that has stopped it may take no record: then the answer alone says so."""
    if stopped is None:
        await record(api, request.actor, verb, target, count=count)
        return
    with suppress(SchedulerError):
        await record(api, request.actor, verb, target, count=count, result=f"stopped: {stopped}")


async def _check_known(api: ApiContext, letter_ids: Sequence[str]) -> None:
    """Refuse all if one of them does not exist."""
    known = await api.client.inbox.letter_states(letter_ids)
    for letter_id in letter_ids:
        if letter_id not in known:
            raise UnknownLetter(letter_id)


def _without_message(letter: DeadLetter) -> DeadLetter:
    """What is needed to drop it: a thousand messages may be too large to be held at once."""
    return msgspec.structs.replace(letter, key=None, value=None, headers=())


def _criteria(asked: DropLetters) -> dict[str, object]:
    """The filter, if there is one and no ids."""
    if asked.filter is None:
        raise InvalidRequest("say which letters: either their ids, or a filter")
    if asked.ids is not None:
        raise InvalidRequest("give either ids or a filter, not both")
    return msgspec.structs.asdict(asked.filter)


def _check_alone(asked: DropLetters) -> None:
    if asked.preview or asked.cursor is not None or asked.limit is not None:
        raise InvalidRequest("preview, cursor and limit are for a filter: leave them out, since ids were given")


def _preview(found: LetterPreview) -> PreviewedLetters:
    return PreviewedLetters(
        count=found.count, at_least=found.at_least, letters=[letter_view(letter) for letter in found.letters]
    )


def _drop_views(ends: Sequence[LetterEnd]) -> Sequence[DropView]:
    return [drop_view(end.letter, end.error) for end in ends]


async def _replay(letter: DeadLetter, replayer: Replayer, at_ms: int | None) -> ReplayView:
    if letter.state is LetterState.REPLAYED:
        return replayed_before(letter)
    return replayed(letter, await replayer.replay(letter, at_ms))


def _replayer(api: ApiContext, moment: ReplayTime | ReplayLetters) -> Replayer:
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


def _at_ms(api: ApiContext, moment: ReplayTime | ReplayLetters) -> int | None:
    if moment.at is None and moment.delay is None:
        return None
    return due_time(moment.at, moment.delay, now_ms=api.now_ms, zone=api.zone)[0]


_HOW: Final = (
    f"Either at most {MOST_LETTERS:,} ids, or a filter: a preview, or one bounded look per call, oldest first, until "
    "the cursor is null."
)

LETTER_CHANGE_OPERATIONS: Final = (
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
        name="dropLetter",
        subject=Subject.TOPICS,
        method="POST",
        path="/v1/dlq/{id}/drop",
        summary=(
            "Drop a dead letter that nobody wants: it is not sent to the dead letter topic any more, and can be "
            "replayed until it is deleted after store.retention."
        ),
        role=Role.OPERATE,
        call=drop_letter,
        optional_body=True,
        answer=LetterView,
        errors=(UnknownLetter, TooLate, InvalidRequest, NotSupported, StoreUnavailable),
    ),
    Operation(
        name="replayLetters",
        subject=Subject.TOPICS,
        method="POST",
        path="/v1/dlq/replay",
        summary=f"Try dead letters again; dropped ones by their ids, or by the state dropped. {_HOW}",
        role=Role.OPERATE,
        call=replay_letters,
        body=ReplayLetters,
        answer=ReplayedLetters,
        other_answers=(PreviewedLetters,),
        errors=(UnknownLetter, InvalidRequest, NotSupported, StoreUnavailable),
    ),
    Operation(
        name="dropLetters",
        subject=Subject.TOPICS,
        method="POST",
        path="/v1/dlq/drop",
        summary=f"Drop dead letters; those that were replayed are jobs, and stay so. {_HOW}",
        role=Role.OPERATE,
        call=drop_letters,
        body=DropLetters,
        answer=DroppedLetters,
        other_answers=(PreviewedLetters,),
        errors=(UnknownLetter, InvalidRequest, NotSupported, StoreUnavailable),
    ),
)
