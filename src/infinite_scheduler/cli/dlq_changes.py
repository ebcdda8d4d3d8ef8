"""Commands that deal with dead letters: replay them or drop them, by ids or all that match."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

from infinite_scheduler.bulk_change.letter_changes import (
    BulkLetters,
    LetterEnd,
    LetterPreview,
    bulk_drop,
    bulk_replay,
    drop_each,
    replay_each,
)
from infinite_scheduler.cli.confirm import confirmed
from infinite_scheduler.cli.dlq import known_letter, print_letters
from infinite_scheduler.cli.ingest import configured
from infinite_scheduler.cli.run import EXIT_CODES
from infinite_scheduler.cli.store_session import StoreSession
from infinite_scheduler.clock import SystemClock
from infinite_scheduler.configured import handler_of
from infinite_scheduler.errors import InvalidRequest, SchedulerError
from infinite_scheduler.handlers.sms_retry import read_zone
from infinite_scheduler.ingest.replay import Replayer
from infinite_scheduler.policy.calendar import parse_duration, parse_moment
from infinite_scheduler.store.inbox import DeadLetter, LetterState
from infinite_scheduler.views.dead_letter import drop_view, letter_view, replayed, replayed_before, still_bad
from infinite_scheduler.views.times import when

UNCHANGED: Final = 1


ShowEnd = Callable[[StoreSession, LetterEnd], None]


class When(NamedTuple):
    """For when letters are replayed: at their own time, with the zone of times without one, or at another time."""

    at: str | None = None
    delay: str | None = None
    zone: str | None = None


def check_choice(letters: Sequence[str], filters: Mapping[str, Any], *, every: bool, preview: bool) -> None:
    """Refuse what cannot be meant, before the store is opened."""
    if bool(letters) == every:
        raise InvalidRequest("say which letters: either their ids, or --all")
    given = [f"--{name}" for name, value in filters.items() if value is not None] + (["--preview"] if preview else [])
    if letters and given:
        raise InvalidRequest(f"{', '.join(given)} only works with --all: leave it out, since ids were given")


# Replay


async def replay_letters(session: StoreSession, letter_ids: Sequence[str], moment: When) -> int:
    """Replay these; ends with the code of the first that is still bad."""
    letters = [await known_letter(session, letter_id) for letter_id in letter_ids]
    replayer, at_ms = _replayer(session, moment.zone), _moment(session, moment.at, moment.delay)
    tally = _LetterTally("replayed", "still bad")
    for letter in letters:
        if letter.state is LetterState.REPLAYED:
            _print_former(session, letter)
            continue
        ends, stopped = await replay_each(replayer, [letter], at_ms)
        if stopped is not None:
            raise stopped
        tally.add(session, ends, _print_replay)
    return tally.end(session)


async def replay_all(
    session: StoreSession, filters: Mapping[str, Any], moment: When, *, preview: bool = False, yes: bool = False
) -> int:
    """Replay all that match, the oldest first; those that were replayed before or dropped are left alone."""
    _moment(session, moment.at, moment.delay)
    bulk = bulk_replay(
        session.client.inbox,
        _replayer(session, moment.zone),
        _checked(filters),
        at=moment.at,
        delay=moment.delay,
        now_ms=session.now_ms,
        zone=ZoneInfo(session.settings.time.zone),
    )
    if not await _is_wanted(session, bulk, "replay", "replayed", preview=preview, yes=yes):
        return 0 if preview else UNCHANGED
    return await _run(session, bulk, _LetterTally("replayed", "still bad"), _print_replay)


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


def _print_replay(session: StoreSession, end: LetterEnd) -> None:
    letter, accepted = end.letter, end.accepted
    if session.out.as_json:
        session.out.record(still_bad(letter, str(end.error)) if accepted is None else replayed(letter, accepted))
    elif accepted is None:
        session.out.note(f"{letter.id} is still bad: {end.error}", style="red")
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


# Drop


async def drop_letters(session: StoreSession, letter_ids: Sequence[str]) -> int:
    """Drop these; one that was replayed is a job, and the command ends with 4."""
    letters = [await known_letter(session, letter_id) for letter_id in letter_ids]
    tally = _LetterTally("dropped", "refused")
    tally.add(session, await drop_each(session.client.inbox, letters), _print_drop)
    return tally.end(session)


async def drop_all(
    session: StoreSession, filters: Mapping[str, Any], *, preview: bool = False, yes: bool = False
) -> int:
    """Drop all that match, the oldest first; those that are jobs are left alone."""
    zone = ZoneInfo(session.settings.time.zone)
    bulk = bulk_drop(session.client.inbox, _checked(filters), now_ms=session.now_ms, zone=zone)
    if not await _is_wanted(session, bulk, "drop", "dropped", preview=preview, yes=yes):
        return 0 if preview else UNCHANGED
    return await _run(session, bulk, _LetterTally("dropped", "refused"), _print_drop)


def _print_drop(session: StoreSession, end: LetterEnd) -> None:
    if session.out.as_json:
        session.out.record(drop_view(end.letter, end.error))
    elif end.error is None:
        session.out.say(f"{end.letter.id} is dropped")
    else:
        session.out.note(str(end.error), style="red")


# Both


class _LetterTally:
    """How many letters were dealt with, and how the command ends."""

    def __init__(self, done: str, refused: str) -> None:
        self._words = done, refused
        self._good = self._bad = self._code = 0

    def add(self, session: StoreSession, ends: Sequence[LetterEnd], show: ShowEnd) -> None:
        for end in ends:
            show(session, end)
            self._good += end.error is None
            self._bad += end.error is not None
            if end.error is not None:
                self._code = self._code or EXIT_CODES[end.error.kind]

    def sentence(self) -> str:
        done, refused = self._words
        return f"{done}: {self._good:,}; {refused}: {self._bad:,}"

    def stop(self, session: StoreSession) -> None:
        """Say what was done before an error."""
        if not session.out.as_json and self._good + self._bad:
            session.out.note(f"stopped: {self.sentence()}; run the command again to go on")

    def end(self, session: StoreSession) -> int:
        """Say what was done; the exit code is that of the first refusal."""
        if self._good + self._bad > 1 and not session.out.as_json:
            session.out.say(self.sentence())
        return self._code


def _checked(filters: Mapping[str, Any]) -> Mapping[str, Any]:
    state = filters.get("state")
    if state is not None and state not in set(LetterState):
        raise InvalidRequest(f"unknown --state {state!r}: use {', '.join(LetterState)}")
    return filters


async def _is_wanted(
    session: StoreSession, bulk: BulkLetters, order: str, done: str, *, preview: bool, yes: bool
) -> bool:
    """Is it to be done? A preview only shows what would be; else it is done with a yes, given before or now."""
    if yes and not preview:
        return True
    found = await bulk.preview()
    if preview:
        _print_preview(session, found)
        return False
    if not found.count and not found.at_least:
        session.out.note("no dead letters match")
        return True
    if not session.out.as_json:
        _print_preview(session, found)
    count = _count(found)
    refusal = f"nothing was {done}: add --yes to {order} {count} without being asked"
    if confirmed(f"{order.capitalize()} {count}?", refusal):
        return True
    session.out.note(f"nothing was {done}")
    return False


def _print_preview(session: StoreSession, found: LetterPreview) -> None:
    views = [letter_view(letter) for letter in found.letters]
    if session.out.as_json:
        session.out.record({"count": found.count, "at_least": found.at_least, "letters": views})
        return
    print_letters(session, views)
    if views and (len(views) < found.count or found.at_least):
        session.out.note(f"{_count(found)} match; {len(views)} of them are shown")


def _count(found: LetterPreview) -> str:
    words = "1 dead letter" if found.count == 1 else f"{found.count:,} dead letters"
    return f"at least {words}" if found.at_least else words


async def _run(session: StoreSession, bulk: BulkLetters, tally: _LetterTally, show: ShowEnd) -> int:
    cursor: str | None = None
    try:
        while True:
            step = await bulk.step(cursor)
            tally.add(session, step.ends, show)
            if step.stopped is not None:
                raise step.stopped
            cursor = step.cursor
            if cursor is None:
                return tally.end(session)
    except SchedulerError:
        tally.stop(session)
        raise
