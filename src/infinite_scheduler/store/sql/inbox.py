"""The inbox of a SQL store: messages read from topics are stored together with the group's position."""

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec

from infinite_scheduler.clock import Clock
from infinite_scheduler.errors import InvalidRequest, PositionsMoved, UnknownLetter
from infinite_scheduler.model import Accepted, JobId, JobSpec, key_text
from infinite_scheduler.store.inbox import DeadLetter, Inbox, LetterQuery, Letters, LetterState, Move, TopicPosition
from infinite_scheduler.store.ownership import Poke
from infinite_scheduler.store.sql.new_rows import NewRows
from infinite_scheduler.store.sql.protocol import anybody
from infinite_scheduler.store.sql.statements import Session, Statements

LONGEST_TEXT: Final = 4000
"""Characters of an error or a note that are kept: an error may quote the message it is about."""

ESCAPED: Final = 8
"""How many bytes a byte of a header may become in the store, at worst."""

REPLAYABLE: Final = frozenset(LetterState) - {LetterState.REPLAYED}
DROPPABLE: Final = frozenset(LetterState) - {LetterState.REPLAYED, LetterState.DROPPED}

MakeRows = Callable[[Sequence[JobSpec], int], Coroutine[Any, Any, NewRows]]
"""Gives new jobs their ids; those that repeat an idempotency key are repeats whatever their content."""


class SqlInbox(Inbox):
    """Positions and dead letters in tables beside those of the jobs."""

    def __init__(self, session: Session, reader: Session, clock: Clock, make_rows: MakeRows, poke: Poke) -> None:
        self._session = session
        self._reader = reader
        self._clock = clock
        self._make_rows = make_rows
        self._poke = poke

    async def take(
        self, specs: Sequence[JobSpec], letters: Sequence[DeadLetter], moves: Sequence[Move]
    ) -> Sequence[Accepted]:
        now_ms = self._clock.wall_ms()
        batch = await self._make_rows(specs, now_ms)
        chunks = batch.chunks
        inserted = await self._session.write(lambda tx: take(tx, chunks, letters, moves, now_ms))
        self._poke(inserted.woken)
        return batch.answers(inserted.repeats)

    async def positions(self, group: str | None = None, topic: str | None = None) -> Sequence[TopicPosition]:
        return await self._reader.read(lambda tx: tx.read_positions(group, topic))

    async def reset(self, moves: Sequence[Move]) -> None:
        now_ms = self._clock.wall_ms()
        await self._session.write(lambda tx: move_positions(tx, moves, now_ms))

    async def letters(self, query: LetterQuery) -> Letters:
        after = None if query.cursor is None else letter_key(query.cursor)
        if query.cursor is not None and after is None:
            raise InvalidRequest(
                f"cursor {query.cursor!r} is not from a page of dead letters; use the cursor of the last page"
            )
        return await self._reader.read(lambda tx: page(tx, query, after))

    async def letter(self, letter_id: str) -> DeadLetter | None:
        key = letter_key(letter_id)
        found = await self._reader.read(lambda tx: tx.read_letters([key])) if key else ()
        return found[0] if found else None

    async def mark(self, letter_ids: Collection[str], state: LetterState, note: str | None = None) -> None:
        keys = [key for key in map(letter_key, letter_ids) if key]
        unsent = frozenset({LetterState.UNSENT})
        await self._session.write(lambda tx: tx.mark_letters(keys, state, readable(note), among=unsent))

    async def drop(self, letter_ids: Collection[str]) -> Mapping[str, LetterState]:
        keys = _keys(letter_ids)
        states = await self._session.write(lambda tx: drop(tx, keys.values()))
        return {letter_id: states[key] for letter_id, key in keys.items() if key in states}

    async def letter_states(self, letter_ids: Collection[str]) -> Mapping[str, LetterState]:
        keys = _keys(letter_ids)
        states = await self._reader.read(lambda tx: tx.read_letter_states(keys.values()))
        return {letter_id: states[key] for letter_id, key in keys.items() if key in states}

    async def replay(self, letter_id: str, spec: JobSpec) -> Accepted:
        key = letter_key(letter_id)
        if key is None:
            raise UnknownLetter(letter_id)
        now_ms = self._clock.wall_ms()
        batch = await self._make_rows([spec], now_ms)
        accepted, inserted = await self._session.write(lambda tx: replay(tx, key, batch, now_ms))
        self._poke(inserted.woken)
        return accepted

    async def letter_counts(self) -> Mapping[tuple[str, str], int]:
        return await self._reader.read(lambda tx: tx.count_letters())

    async def live_keys(self) -> int:
        return await self._reader.read(lambda tx: tx.count_keys())


def take(
    tx: Statements, chunks: anybody.Chunks, letters: Sequence[DeadLetter], moves: Sequence[Move], now_ms: int
) -> anybody.Inserted:
    """Move positions, accept jobs, keep letters. Positions come first: another consumer waits for them, then sees it.

    All transactions lock positions, shards and keys in this order, so that they never deadlock. A letter that already
    exists may be locked by a replay or a mark; nothing in here waits for it.
    """
    move_positions(tx, moves, now_ms)
    inserted = anybody.insert(tx, chunks, now_ms, strict=False) if chunks else NOTHING
    keep_letters(tx, letters)
    return inserted


NOTHING: Final = anybody.Inserted(repeats={}, woken=frozenset())


def move_positions(tx: Statements, moves: Sequence[Move], now_ms: int) -> None:
    """Compare and set positions, all or none."""
    for move in sorted(moves, key=attrgetter("source")):
        if not tx.move_position(move, now_ms):
            group, topic, partition = move.source.group, move.source.topic, move.source.partition
            found = "already has a position" if move.seen is None else f"is no longer at offset {move.seen}"
            raise PositionsMoved(
                f"partition {partition} of topic {topic!r} {found} for group {group!r}: another consumer of the group "
                "has read on, or the position was reset"
            )


def keep_letters(tx: Statements, letters: Sequence[DeadLetter]) -> None:
    """Keep dead letters, as much of each as the database takes: none may block those after it."""
    if letters:
        room = tx.letter_room()
        tx.insert_letters([fitting(letter, room) for letter in letters])


def fitting(letter: DeadLetter, room: int | None) -> DeadLetter:
    """The letter with texts that every database can store, and a message of at most `room` bytes."""
    letter = msgspec.structs.replace(letter, error=readable(letter.error), note=readable(letter.note))
    if room is None or letter.size + (ESCAPED - 1) * letter.header_size <= room:
        return letter
    headers = letter.headers if ESCAPED * letter.header_size <= room // 2 else ()
    key = letter.key and letter.key[: room // 4]
    left = room - len(key or b"") - (ESCAPED * letter.header_size if headers else 0)
    kept = msgspec.structs.replace(letter, key=key, headers=headers, value=letter.value and letter.value[:left])
    cut = letter.size - kept.size
    note = f"the database takes at most {room} bytes, so {cut} bytes of the message are cut off"
    return msgspec.structs.replace(kept, cut_bytes=cut, note=note)


def readable(text: str | None) -> str | None:
    """A text that can be stored: not every database takes every character, and no error needs to be longer."""
    if text is None:
        return None
    return text[:LONGEST_TEXT].replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def page(tx: Statements, query: LetterQuery, after: bytes | None) -> Letters:
    """One page of letters, chosen by their sizes before any is read."""
    heads = tx.find_letters(query, after, query.limit + 1)
    chosen: list[bytes] = []
    room = query.room
    for key, size in heads[: query.limit]:
        if chosen and size > room:
            break
        chosen.append(key)
        room -= size
    letters = sorted(tx.read_letters(chosen), key=attrgetter("id"), reverse=not query.oldest_first)
    return Letters(letters=letters, cursor=chosen[-1].hex() if chosen and len(chosen) < len(heads) else None)


def replay(tx: Statements, key: bytes, batch: NewRows, now_ms: int) -> tuple[Accepted, anybody.Inserted]:
    """Mark the letter, which another replay waits for, then accept the job; or answer with the first one."""
    (row,) = batch.rows
    if not tx.mark_letters([key], LetterState.REPLAYED, key_text(row.key), among=REPLAYABLE):
        return _replayed(tx, key), NOTHING
    inserted = anybody.insert(tx, batch.chunks, now_ms, strict=False)
    (accepted,) = batch.answers(inserted.repeats)
    if accepted.repeated:  # its idempotency key belongs to another job
        tx.mark_letters([key], LetterState.REPLAYED, accepted.id, among={LetterState.REPLAYED})
    return accepted, inserted


def drop(tx: Statements, keys: Collection[bytes]) -> Mapping[bytes, LetterState]:
    """Drop letters that were not replayed, and say what each of them is now."""
    tx.mark_letters(keys, LetterState.DROPPED, None, among=DROPPABLE)
    return tx.read_letter_states(keys)


def _replayed(tx: Statements, key: bytes) -> Accepted:
    found = tx.read_letters([key])
    if not found or found[0].note is None:
        raise UnknownLetter(key.hex())
    job = JobId.parse(found[0].note)
    return Accepted(bytes(job), job.due_ms, repeated=True)


def _keys(letter_ids: Collection[str]) -> Mapping[str, bytes]:
    """The ids as stored; what is not an id of a letter is left out."""
    return {letter_id: key for letter_id in letter_ids if (key := letter_key(letter_id))}


def letter_key(letter_id: str) -> bytes | None:
    """The id of a letter as stored, also from the form in which databases show it; None if it is not such an id."""
    try:
        key = bytes.fromhex(letter_id.replace("-", ""))
    except ValueError:
        return None
    return key if len(key) == 16 else None
