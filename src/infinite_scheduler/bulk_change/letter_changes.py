"""Replays or drops all dead letters that match a filter, oldest first, a thousand per step.

Their list is by the time at which they failed, which never changes, so the cursor is the last letter that was dealt
with: none is met twice and none is skipped. Letters that were replayed are left alone, and dropped ones too, unless it
is a replay of those in state dropped.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from zoneinfo import ZoneInfo

import msgspec

from infinite_scheduler.bulk_change.job_changes import AHEAD_MS, SHOWN, UNDECIDED
from infinite_scheduler.bulk_change.step_cursor import StepCursor
from infinite_scheduler.errors import InvalidRequest, SchedulerError, TooLate, UnknownLetter
from infinite_scheduler.ingest.replay import Replayer
from infinite_scheduler.ingest.request import due_time
from infinite_scheduler.model import Accepted
from infinite_scheduler.policy.calendar import Delay, parse_moment
from infinite_scheduler.store.inbox import DeadLetter, Inbox, LetterQuery, Letters, LetterState

MOST_LETTERS: Final = 1000
"""Letters that one step deals with at most."""

ROOM: Final = 8 << 20
"""Bytes of messages that one step reads; the next one has the others."""


class LetterEnd(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one letter: a job if it was replayed, nothing more if it was dropped, or an error."""

    letter: DeadLetter
    accepted: Accepted | None = None
    error: SchedulerError | None = None


class LetterPreview(msgspec.Struct, frozen=True, kw_only=True):
    """What would be dealt with: one look, with the first letters that it found."""

    count: int
    at_least: bool  # the look had a bound, and there may be more
    letters: Sequence[DeadLetter]


class LetterStep(msgspec.Struct, frozen=True, kw_only=True):
    """What one step has done; `cursor` goes on, and is None when all letters were met."""

    ends: Sequence[LetterEnd]
    cursor: str | None
    searched_to_ms: int | None  # letters that failed before this moment were looked at; None: there is nothing more
    stopped: SchedulerError | None = None  # why the rest was not decided: go on with the cursor later


Deal = Callable[[Sequence[DeadLetter], int], Awaitable[tuple[Sequence[LetterEnd], SchedulerError | None]]]
"""Deals with letters in order: what became of those that it came to, and why it stopped before the last."""


class BulkLetters:
    """A replay or a drop of all dead letters that match a filter: topic, group, state, before."""

    def __init__(
        self, inbox: Inbox, deal: Deal, change: Any, filters: Mapping[str, Any], *, now_ms: int, zone: ZoneInfo
    ) -> None:
        self._inbox = inbox
        self._deal = deal
        self._change = change
        self._filters = {name: value for name, value in filters.items() if value is not None}
        self._started_ms = now_ms
        self._zone = zone
        self._state = _state(self._filters.get("state"))
        self._query(StepCursor(now_ms), 1)

    async def preview(self) -> LetterPreview:
        """Look at the first page of what would be dealt with, and change nothing."""
        page = await self._inbox.letters(self._query(StepCursor(self._started_ms), MOST_LETTERS))
        wanted = self._wanted(page)
        return LetterPreview(count=len(wanted), at_least=page.cursor is not None, letters=wanted[:SHOWN])

    async def step(self, cursor: str | None = None, limit: int | None = None) -> LetterStep:
        """Deal with the letters of one page; go on with the cursor until it is None.

        Raises StoreUnavailable if the store does not answer before anything is done, and StoreBroken likewise.
        """
        described = (self._change, self._filters)
        place = StepCursor(self._started_ms) if cursor is None else StepCursor.parse(cursor, described)
        page = await self._inbox.letters(self._query(place, limit or MOST_LETTERS))
        ends, stopped = await self._deal(self._wanted(page), place.started_ms)
        if stopped is not None and not ends:
            raise stopped
        last = ends[-1].letter.id if stopped is not None else page.cursor
        return LetterStep(
            ends=ends,
            cursor=None if last is None else msgspec.structs.replace(place, place=last).text(described),
            searched_to_ms=None if page.cursor is None or stopped else page.letters[-1].failed_ms,
            stopped=stopped,
        )

    def _query(self, place: StepCursor, limit: int) -> LetterQuery:
        """Those of the filter that had failed when the first step was made."""
        before, latest_ms = self._filters.get("before"), place.started_ms + AHEAD_MS
        if before is not None:
            latest_ms = min(latest_ms, parse_moment(before, now_ms=place.started_ms, zone=self._zone))
        return LetterQuery(
            topic=self._filters.get("topic"),
            group=self._filters.get("group"),
            state=self._state,
            before_ms=latest_ms,
            oldest_first=True,
            limit=limit,
            room=ROOM,
            cursor=place.place,
        )

    def _wanted(self, page: Letters) -> Sequence[DeadLetter]:
        left_alone = {LetterState.REPLAYED} | ({LetterState.DROPPED} - {self._state})
        return [letter for letter in page.letters if letter.state not in left_alone]


def bulk_replay(
    inbox: Inbox,
    replayer: Replayer,
    filters: Mapping[str, Any],
    *,
    at: Any = None,
    delay: Delay | None = None,
    now_ms: int,
    zone: ZoneInfo,
) -> BulkLetters:
    """Replay all that match, at their own time or at another one."""

    def at_ms(started_ms: int) -> int | None:
        if at is None and delay is None:
            return None
        return due_time(at, delay, now_ms=started_ms, zone=zone)[0]

    async def deal(letters: Sequence[DeadLetter], started_ms: int) -> tuple[Sequence[LetterEnd], SchedulerError | None]:
        return await replay_each(replayer, letters, at_ms(started_ms))

    at_ms(now_ms)
    if _state(filters.get("state")) is LetterState.REPLAYED:
        raise InvalidRequest("letters in state replayed are already jobs: use another state")
    return BulkLetters(inbox, deal, ("replay", at, delay), filters, now_ms=now_ms, zone=zone)


def bulk_drop(inbox: Inbox, filters: Mapping[str, Any], *, now_ms: int, zone: ZoneInfo) -> BulkLetters:
    """Drop all that match."""

    async def deal(letters: Sequence[DeadLetter], started_ms: int) -> tuple[Sequence[LetterEnd], SchedulerError | None]:
        del started_ms
        return await drop_each(inbox, letters), None

    state = _state(filters.get("state"))
    if state in (LetterState.REPLAYED, LetterState.DROPPED):
        words = "already jobs" if state is LetterState.REPLAYED else "already dropped"
        raise InvalidRequest(f"letters in state {state} are {words}: use another state")
    return BulkLetters(inbox, deal, ("drop",), filters, now_ms=now_ms, zone=zone)


async def replay_each(
    replayer: Replayer, letters: Sequence[DeadLetter], at_ms: int | None
) -> tuple[Sequence[LetterEnd], SchedulerError | None]:
    """Replay letters one after the other, until one is not decided, as the store does not answer or is broken."""
    ends: list[LetterEnd] = []
    for letter in letters:
        try:
            ends.append(LetterEnd(letter=letter, accepted=await replayer.replay(letter, at_ms)))
        except UNDECIDED as error:
            return ends, error
        except SchedulerError as error:
            ends.append(LetterEnd(letter=letter, error=error))
    return ends, None


async def drop_each(inbox: Inbox, letters: Sequence[DeadLetter]) -> Sequence[LetterEnd]:
    """Drop letters, all in one transaction; those that were replayed meanwhile are jobs and stay so."""
    states = await inbox.drop([letter.id for letter in letters]) if letters else {}
    return [LetterEnd(letter=letter, error=_not_dropped(letter, states.get(letter.id))) for letter in letters]


def _not_dropped(letter: DeadLetter, state: LetterState | None) -> SchedulerError | None:
    if state is None:
        return UnknownLetter(letter.id)
    if state is LetterState.REPLAYED:
        return TooLate(f"dead letter {letter.id} was replayed and is a job: cancel the job instead")
    return None


def _state(given: LetterState | str | None) -> LetterState | None:
    if given is None:
        return None
    try:
        return LetterState(given)
    except ValueError:
        raise InvalidRequest(f"unknown state {given!r}: use {', '.join(LetterState)}") from None
