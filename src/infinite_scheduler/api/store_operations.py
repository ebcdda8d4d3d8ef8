"""Operations that answer as the store does, to the millisecond and to the byte: what http:// store URLs stand on."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta

from infinite_scheduler.api.api_context import ApiContext
from infinite_scheduler.api.audit import audited, record
from infinite_scheduler.api.job_operations import ACCEPT_ERRORS, shows_data
from infinite_scheduler.api.job_request import AppText, JobRequest, job_spec
from infinite_scheduler.api.ledger_operations import FORECAST_ROWS
from infinite_scheduler.api.letter_operations import LetterFilters
from infinite_scheduler.api.operation import LOCAL, ApiRequest, Operation, Subject
from infinite_scheduler.bulk_change.letter_changes import ROOM
from infinite_scheduler.errors import (
    InvalidRequest,
    NotSupported,
    StoreMismatch,
    StoreUnavailable,
    UnknownApp,
    UnknownLetter,
)
from infinite_scheduler.model import key_text
from infinite_scheduler.policy.calendar import parse_moment
from infinite_scheduler.store.cluster_state import AppInfo, View
from infinite_scheduler.store.inbox import LetterQuery, LetterState
from infinite_scheduler.store.ledger import Forecast, ForecastQuery, Recount, Role
from infinite_scheduler.store.looking import Query, check_filters
from infinite_scheduler.views.dead_letter import LetterDetails, letter_details
from infinite_scheduler.views.job import AcceptedView, accepted_view

MOST_KEYS: Final = 10_000
MOST_LETTERS: Final = 1000


class StoreSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about the cluster at one moment, as the store has it."""

    now_ms: int  # by the clock of the process that answers
    view: View
    counts: Mapping[str, Mapping[str, int]]


class NewApp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An app to add to the store."""

    app: AppText
    shards: Annotated[int | None, Meta(description="How many shards it gets; by default as the server says.")] = None


class AskedKeys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The idempotency keys to look for."""

    keys: Annotated[tuple[str, ...], Meta(max_length=MOST_KEYS)]


class KeyHolder(msgspec.Struct, frozen=True, kw_only=True):
    """The job that has an idempotency key, and the digest of its content in hexadecimal digits."""

    id: str
    digest: str


class KeyHolders(msgspec.Struct, frozen=True, kw_only=True):
    """Those of the keys that belong to a job; the others are free."""

    holders: Mapping[str, KeyHolder]


class MessageFilters(LetterFilters, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters to list, and how many bytes of them."""

    room: Annotated[
        int, Meta(ge=1, le=ROOM, description="Bytes of messages after which a page ends, but not before its first one.")
    ] = ROOM


class MessagePage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of dead letters with their messages; `cursor` asks for the next, and is null at the end."""

    letters: Sequence[LetterDetails]
    cursor: str | None


class AskedLetters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The dead letters to drop, those that exist."""

    ids: Annotated[tuple[str, ...], Meta(min_length=1, max_length=MOST_LETTERS)]


class LetterStates(msgspec.Struct, frozen=True, kw_only=True):
    """The states of those dead letters that exist."""

    states: Mapping[str, LetterState]


class ForecastRange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which part of the future to look at: from `start_ms` to before `end_ms`, in steps."""

    start_ms: int
    end_ms: int
    step_ms: int
    app: Annotated[str | None, Meta(description="Only jobs of this app.")] = None
    rows: Annotated[
        int, Meta(ge=1, le=FORECAST_ROWS, description="How many rows are counted; what lies beyond is estimated.")
    ] = FORECAST_ROWS
    herd: Annotated[int | None, Meta(description="Name the seconds in which more jobs of an app are due.")] = None


async def survey_store(api: ApiContext, request: ApiRequest) -> StoreSurvey:
    """Apps, nodes, shards and counts."""
    del request
    survey = await api.client.survey()
    return StoreSurvey(now_ms=api.now_ms, view=survey.view, counts=survey.counts)


async def register_app(api: ApiContext, request: ApiRequest) -> AppInfo:
    """Add an app. As with jobs, what is done without a token is not written down."""
    wanted, actor = request.body, request.actor
    if actor.name == LOCAL:
        return await api.client.register(wanted.app, wanted.shards)
    async with audited(api, actor, "add app", wanted.app):
        return await api.client.register(wanted.app, wanted.shards)


async def recount_app(api: ApiContext, request: ApiRequest) -> Recount:
    """Count anew what waits."""
    name = request.path["app"]
    async with audited(api, request.actor, "recount app", name):
        return await api.client.ledger.recount(name)


async def find_holders(api: ApiContext, request: ApiRequest) -> KeyHolders:
    """Whom idempotency keys belong to."""
    asked: AskedKeys = request.body
    for key in asked.keys:
        check_filters(Query(idempotency_key=key))
    found = await api.client.holders(request.path["app"], asked.keys)
    return KeyHolders(
        holders={key: KeyHolder(id=key_text(one.key), digest=one.digest.hex()) for key, one in found.items()}
    )


async def list_messages(api: ApiContext, request: ApiRequest) -> MessagePage:
    """One page of dead letters with their messages."""
    asked: MessageFilters = request.query
    query = LetterQuery(
        topic=asked.topic,
        group=asked.group,
        state=asked.state,
        before_ms=None if asked.before is None else parse_moment(asked.before, now_ms=api.now_ms, zone=api.zone),
        oldest_first=asked.oldest,
        limit=asked.limit,
        cursor=asked.cursor,
        room=asked.room,
    )
    found = await api.client.inbox.letters(query)
    letters = [letter_details(letter) for letter in found.letters]
    if not shows_data(api, request.actor):
        letters = [_without_message(letter) for letter in letters]
    return MessagePage(letters=letters, cursor=found.cursor)


def _without_message(letter: LetterDetails) -> LetterDetails:
    hidden = {"key": None, "key_base64": UNSET, "value": None, "value_base64": UNSET, "headers": ()}
    return msgspec.structs.replace(letter, **hidden)


async def replay_as_job(api: ApiContext, request: ApiRequest) -> AcceptedView:
    """Accept the job that a dead letter has become elsewhere."""
    letter_id, job = request.path["id"], job_spec(api, request.body, api.now_ms)
    async with audited(api, request.actor, "replay dead letter", letter_id):
        return accepted_view(await api.client.inbox.replay(letter_id, job))


async def drop_known_letters(api: ApiContext, request: ApiRequest) -> LetterStates:
    """Drop the dead letters that exist."""
    asked: AskedLetters = request.body
    states = await api.client.inbox.drop(asked.ids)
    dropped = sum(state is LetterState.DROPPED for state in states.values())
    await record(api, request.actor, "drop dead letters", f"{asked.ids[0]} …", count=dropped)
    return LetterStates(states=states)


async def forecast_range(api: ApiContext, request: ApiRequest) -> Forecast:
    """How many jobs are due when."""
    asked: ForecastRange = request.query
    return await api.client.ledger.forecast(
        ForecastQuery(
            start_ms=asked.start_ms,
            end_ms=asked.end_ms,
            step_ms=asked.step_ms,
            app=asked.app,
            most=asked.rows,
            herd=asked.herd,
        )
    )


STORE_OPERATIONS = (
    Operation(
        name="surveyStore",
        subject=Subject.CLUSTER,
        method="GET",
        path="/v1/survey",
        summary="Apps, nodes, shards and counts at one moment, as the store has them.",
        role=Role.READ,
        call=survey_store,
        answer=StoreSurvey,
        errors=(StoreUnavailable,),
    ),
    Operation(
        name="registerApp",
        subject=Subject.APPS,
        method="POST",
        path="/v1/apps",
        summary="Add an app, so that its jobs are accepted before a node runs it; one that exists is shown.",
        role=Role.OPERATE,
        call=register_app,
        body=NewApp,
        answer=AppInfo,
        errors=(InvalidRequest, StoreMismatch, StoreUnavailable),
    ),
    Operation(
        name="recountApp",
        subject=Subject.APPS,
        method="POST",
        path="/v1/apps/{app}/recount",
        summary="Count anew how many jobs of an app wait, and correct what /v1/waiting says.",
        role=Role.OPERATE,
        call=recount_app,
        optional_body=True,
        answer=Recount,
        errors=(UnknownApp, NotSupported, StoreUnavailable),
    ),
    Operation(
        name="findHolders",
        subject=Subject.APPS,
        method="POST",
        path="/v1/apps/{app}/keys",
        summary=f"Say which idempotency keys of an app belong to jobs, and take none. At most {MOST_KEYS:,} keys.",
        role=Role.SUBMIT,
        call=find_holders,
        body=AskedKeys,
        answer=KeyHolders,
        errors=(InvalidRequest, NotSupported, StoreUnavailable),
    ),
    Operation(
        name="listMessages",
        subject=Subject.TOPICS,
        method="GET",
        path="/v1/dlq-messages",
        summary="List dead letters with their messages, newest first, a page at a time.",
        role=Role.READ,
        call=list_messages,
        query=MessageFilters,
        answer=MessagePage,
        errors=(InvalidRequest, NotSupported, StoreUnavailable),
    ),
    Operation(
        name="replayAsJob",
        subject=Subject.TOPICS,
        method="POST",
        path="/v1/dlq/{id}/job",
        summary="Accept a job that a client has made from a dead letter, and mark the letter: both or none, and once.",
        role=Role.OPERATE,
        call=replay_as_job,
        body=JobRequest,
        answer=AcceptedView,
        errors=(UnknownLetter, *ACCEPT_ERRORS),
    ),
    Operation(
        name="dropKnownLetters",
        subject=Subject.TOPICS,
        method="POST",
        path="/v1/dlq-drop",
        summary=(
            f"Drop those of these dead letters that exist, and say in which state each is then. At most "
            f"{MOST_LETTERS:,} ids."
        ),
        role=Role.OPERATE,
        call=drop_known_letters,
        body=AskedLetters,
        answer=LetterStates,
        errors=(InvalidRequest, NotSupported, StoreUnavailable),
    ),
    Operation(
        name="forecastRange",
        subject=Subject.STORE,
        method="GET",
        path="/v1/forecast/range",
        summary="How many jobs are due when, in any range of time and any steps of whole seconds.",
        role=Role.READ,
        call=forecast_range,
        query=ForecastRange,
        answer=Forecast,
        errors=(UnknownApp, InvalidRequest, NotSupported, StoreUnavailable),
    ),
)
