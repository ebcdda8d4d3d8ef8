"""Commands that look at dead letters: list them, show one."""

from collections.abc import Sequence
from zoneinfo import ZoneInfo

import msgspec

from infinite_scheduler.cli.store_session import StoreSession
from infinite_scheduler.errors import InvalidRequest, UnknownLetter
from infinite_scheduler.policy.calendar import parse_moment
from infinite_scheduler.store.inbox import DeadLetter, LetterQuery, LetterState
from infinite_scheduler.views.dead_letter import (
    LetterView,
    letter_details,
    letter_view,
)
from infinite_scheduler.views.times import ms_of, relative, when

PAGE = 200
ROOM = 8 << 20
"""Bytes of messages that a page may have; the next page has the others."""
LONGEST_ERROR = 200
SHORTEST_ERROR = 24
BESIDE_ERROR = 70
"""The columns that a list needs beside its errors, which it shows shortened; `dlq show` shows all."""


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
        print_letters(session, rows, cursor)


def print_letters(session: StoreSession, letters: Sequence[LetterView], cursor: str | None = None) -> None:
    """Dead letters as a table."""
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
    letter = await known_letter(session, letter_id)
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


async def known_letter(session: StoreSession, letter_id: str) -> DeadLetter:
    """A letter that exists; UnknownLetter otherwise."""
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
