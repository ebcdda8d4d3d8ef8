"""Commands about dead letters: list them, show one, replay them."""

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from infinite_scheduler.cli.confirm import confirmed
from infinite_scheduler.cli.ingest import configured
from infinite_scheduler.cli.store_session import StoreSession
from infinite_scheduler.clock import SystemClock
from infinite_scheduler.configured import handler_of
from infinite_scheduler.errors import InvalidRequest, UnknownLetter
from infinite_scheduler.handlers.sms_retry import read_zone
from infinite_scheduler.ingest.replay import Replayer
from infinite_scheduler.model import Accepted
from infinite_scheduler.policy.calendar import parse_duration, parse_moment
from infinite_scheduler.store.inbox import DeadLetter, LetterQuery, LetterState
from infinite_scheduler.views.dead_letter import (
    LetterView,
    letter_details,
    letter_view,
    replayed,
    replayed_before,
    still_bad,
)
from infinite_scheduler.views.times import ms_of, relative, when

PAGE = 200
ROOM = 8 << 20
"""Bytes of messages that a page may have; the next page has the others."""
LONGEST_ERROR = 200
SHORTEST_ERROR = 24
BESIDE_ERROR = 70
"""The columns that a list needs beside its errors, which it shows shortened; `dlq show` shows all."""
STILL_BAD = 2
UNCHANGED = 1


def read_filters(
    session: StoreSession,
    *,
    topic: str | None,
    group: str | None,
    state: str | None,
    before: str | None,
    cursor: str | None = None,
    oldest: bool = False,
) -> LetterQuery:
    """Which dead letters are meant."""
    if state is not None and state not in set(LetterState):
        raise InvalidRequest(f"unknown --state {state!r}: use {', '.join(LetterState)}")
    zone = ZoneInfo(session.settings.time.zone)
    return LetterQuery(
        topic=topic,
        group=group,
        state=None if state is None else LetterState(state),
        before_ms=None if before is None else parse_moment(before, now_ms=session.now_ms, zone=zone),
        room=ROOM,
        cursor=cursor,
        oldest_first=oldest,
    )


# Look


async def list_letters(session: StoreSession, query: LetterQuery, limit: int | None) -> None:
    """Print up to `limit` dead letters, or all; a long list as it is read, in JSON."""
    rows: list[LetterView] = []
    cursor, left = query.cursor, limit
    while left is None or left > 0:
        asked = PAGE if left is None else min(left, PAGE)
        found = await session.client.inbox.letters(msgspec.structs.replace(query, limit=asked, cursor=cursor))
        cursor = found.cursor
        if left is not None:
            left -= len(found.letters)
        for letter in found.letters:
            if session.out.as_json:
                session.out.record(letter_view(letter))
            else:
                rows.append(letter_view(letter))
        if cursor is None:
            break
    if not session.out.as_json:
        _print_list(session, rows, cursor)


def _print_list(session: StoreSession, letters: Sequence[LetterView], cursor: str | None) -> None:
    if not letters:
        session.out.note("no dead letters match")
        return
    screen = session.out.console
    most = max(SHORTEST_ERROR, screen.width - BESIDE_ERROR) if screen.is_terminal else LONGEST_ERROR
    session.out.table(
        ("letter", "failed", "topic", "group", "partition", "offset", "state", "error"),
        [
            (
                letter.id,
                relative(ms_of(letter.failed_at), session.now_ms),
                letter.topic,
                letter.group,
                letter.partition,
                letter.offset,
                letter.state,
                letter.error if len(letter.error) <= most else f"{letter.error[: most - 3]}...",
            )
            for letter in letters
        ],
        whole=("letter", "failed", "state"),
        spare=("group", "partition", "offset", "topic", "failed"),
    )
    if cursor is not None:
        session.out.note(f"there are more: --cursor {cursor}, or --all")


async def show_letter(session: StoreSession, letter_id: str) -> None:
    """Print one dead letter with its message."""
    letter = await _letter(session, letter_id)
    if session.out.as_json:
        session.out.record(letter_details(letter))
    else:
        _print_letter(session, letter)


def _print_letter(session: StoreSession, letter: DeadLetter) -> None:
    view = letter_view(letter)
    session.out.facts(
        {
            "letter": view.id,
            "state": view.state,
            "failed": when(letter.failed_ms, session.now_ms),
            "error": view.error,
            "topic": view.topic,
            "partition": view.partition,
            "offset": view.offset,
            "group": view.group,
            "dead letter topic": view.dlq_topic or "none: it is only here",
            "job" if view.state is LetterState.REPLAYED else "note": view.note,
            "cut off": f"{view.cut_bytes:,} bytes, which the store could not take" if view.cut_bytes else None,
            **{f"header {name}": _readable(value) for name, value in letter.headers},
            "key": _readable(letter.key),
            "value": _readable(letter.value),
        }
    )


async def _letter(session: StoreSession, letter_id: str) -> DeadLetter:
    letter = await session.client.inbox.letter(letter_id)
    if letter is None:
        raise UnknownLetter(letter_id)
    return letter


def _readable(content: bytes | None) -> str:
    """Bytes for people: as text if they are UTF-8, else escaped."""
    if content is None:
        return "none"
    return _shortened(content[:10_001].decode(errors="backslashreplace"), 10_000) or "empty"


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters; --json has all)"


# Replay


class When(NamedTuple):
    """For when letters are replayed: at their own time, with the zone of times without one, or at another time."""

    at: str | None = None
    delay: str | None = None
    zone: str | None = None


async def replay_letters(session: StoreSession, letter_ids: Sequence[str], moment: When) -> int:
    """Replay these; returns 2 if one of them is still bad."""
    letters = [await _letter(session, letter_id) for letter_id in letter_ids]

    async def each() -> AsyncIterator[DeadLetter]:
        for letter in letters:
            yield letter

    return await _replay(session, each(), moment)


async def replay_all(session: StoreSession, query: LetterQuery, moment: When, *, yes: bool) -> int:
    """Replay all that match, the oldest first; those that were replayed before are left alone."""
    if query.state is LetterState.REPLAYED:
        raise InvalidRequest("letters in state replayed are already jobs: use another --state")
    if not yes and not await _is_confirmed(session, query):
        session.out.note("nothing was replayed")
        return UNCHANGED
    return await _replay(session, _every(session, query), moment)


async def _is_confirmed(session: StoreSession, query: LetterQuery) -> bool:
    found = [letter async for letter in _every(session, query, most=PAGE)]
    if not found:
        session.out.note("no dead letters match")
        return True
    count = "1 dead letter" if len(found) == 1 else f"{len(found)} dead letters"
    if len(found) >= PAGE:
        count += " or more"
    return confirmed(f"Replay {count}?", f"nothing was replayed: add --yes to replay {count} without being asked")


async def _every(session: StoreSession, query: LetterQuery, most: int | None = None) -> AsyncIterator[DeadLetter]:
    """Dead letters that match, one page at a time, without those that are already jobs."""
    cursor, count = query.cursor, 0
    while True:
        page = await session.client.inbox.letters(msgspec.structs.replace(query, limit=PAGE, cursor=cursor))
        for letter in page.letters:
            if letter.state is not LetterState.REPLAYED:
                count += 1
                yield letter
        cursor = page.cursor
        if cursor is None or (most is not None and count >= most):
            return


async def _replay(session: StoreSession, letters: AsyncIterator[DeadLetter], moment: When) -> int:
    replayer, at_ms = _replayer(session, moment.zone), _moment(session, moment.at, moment.delay)
    good = bad = 0
    async for letter in letters:
        if letter.state is LetterState.REPLAYED:
            _print_former(session, letter)
            continue
        try:
            accepted = await replayer.replay(letter, at_ms)
        except InvalidRequest as error:
            bad += 1
            _print_refusal(session, letter, str(error))
        else:
            good += 1
            _print_replay(session, letter, accepted)
    if good + bad > 1 and not session.out.as_json:
        session.out.say(f"replayed: {good:,}; still bad: {bad:,}")
    return STILL_BAD if bad else 0


def _replayer(session: StoreSession, zone: str | None) -> Replayer:
    """The replayer: with the given zone, else with those of the configured topics."""
    settings, clock = session.settings, SystemClock()
    own = ZoneInfo(settings.time.zone)
    configs = sorted(configured(session), key=lambda config: config.enabled)  # enabled ones override others
    zones = {(config.group_id, config.topic): config.zone_info or own for config in configs}
    return Replayer(
        session.client.inbox,
        {name: handler_of(name, settings, clock) for name in settings.apps},
        zone=None if zone is None else read_zone(zone),
        zones=zones if zone is None else {},
        max_payload=settings.limits.payload,
    )


def _moment(session: StoreSession, at: str | None, delay: str | None) -> int | None:
    if at is not None and delay is not None:
        raise InvalidRequest("give the time once: either --at MOMENT or --in DELAY")
    if delay is not None:
        return session.now_ms + parse_duration(delay)
    if at is None:
        return None
    return parse_moment(at, now_ms=session.now_ms, zone=ZoneInfo(session.settings.time.zone))


def _print_replay(session: StoreSession, letter: DeadLetter, accepted: Accepted) -> None:
    if session.out.as_json:
        session.out.record(replayed(letter, accepted))
    elif accepted.repeated:
        session.out.say(f"{letter.id} is already job {accepted.id}")
    else:
        session.out.say(f"{letter.id} is now job {accepted.id}, due {when(accepted.due_ms, session.now_ms)}")


def _print_former(session: StoreSession, letter: DeadLetter) -> None:
    """It was replayed before, and is a job whatever today's rules say."""
    if session.out.as_json:
        session.out.record(replayed_before(letter))
    else:
        session.out.say(f"{letter.id} is already job {letter.note}")


def _print_refusal(session: StoreSession, letter: DeadLetter, error: str) -> None:
    if session.out.as_json:
        session.out.record(still_bad(letter, error))
    else:
        session.out.note(f"{letter.id} is still bad: {error}", style="red")
