"""Statements on positions in partitions and on dead letters."""

# ruff: noqa: S608 - columns and conditions come from this package

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from infinite_scheduler.store.inbox import DeadLetter, LetterQuery, LetterState, Move, Source, TopicPosition
from infinite_scheduler.store.sql.dialect import Blob, placeholders
from infinite_scheduler.store.sql.rows import Rows, in_chunks, padded, where
from infinite_scheduler.store.sql.schema import LETTER_COLUMNS, LETTERS_TABLE, OFFSET_COLUMNS, OFFSETS_TABLE

OFFSET: Final = tuple(name for name, _ in OFFSET_COLUMNS)
LETTER: Final = tuple(name for name, _ in LETTER_COLUMNS)

_encode_headers = msgspec.json.Encoder().encode
_decode_headers = msgspec.json.Decoder(tuple[tuple[str, bytes | None], ...]).decode


class InboxRows(Rows):
    """How far topics were read, and what could not become a job."""

    def move_position(self, move: Move, now_ms: int) -> bool:
        source = (move.source.group, move.source.topic, move.source.partition)
        if move.seen is None:
            row = (*source, move.next, move.topic_id, now_ms)
            return self._dialect.insert_many(self._cursor, OFFSETS_TABLE, OFFSET, [row]) == 1
        changed = self._run(
            f"UPDATE {OFFSETS_TABLE}{self._dialect.by_key} SET next_offset = ?, topic_id = COALESCE(?, topic_id),"
            " moved_ms = ? WHERE group_id = ? AND topic = ? AND partition_number = ? AND next_offset = ?",
            (move.next, move.topic_id, now_ms, *source, move.seen),
        )
        return changed == 1

    def read_positions(self, group: str | None, topic: str | None) -> Sequence[TopicPosition]:
        condition, values = where({"group_id = ?": group, "topic = ?": topic})
        rows = self._select(
            f"SELECT {', '.join(OFFSET)} FROM {OFFSETS_TABLE}{condition} ORDER BY group_id, topic, partition_number",
            values,
        )
        return [
            TopicPosition(source=Source(of, name, partition), next=following, topic_id=topic_id, moved_ms=moved_ms)
            for of, name, partition, following, topic_id, moved_ms in rows
        ]

    def letter_room(self) -> int | None:
        return self._dialect.value_room(self._cursor)

    def insert_letters(self, letters: Sequence[DeadLetter]) -> None:
        self._run_many(self._dialect.insert(LETTERS_TABLE, LETTER, ignore=True), [_row(letter) for letter in letters])

    def find_letters(self, query: LetterQuery, after: bytes | None, limit: int) -> Sequence[tuple[bytes, int]]:
        condition, values = where(
            {
                "group_id = ?": query.group,
                "topic = ?": query.topic,
                "state = ?": query.state and str(query.state.value),
                "failed_ms < ?": query.before_ms,
                f"id {'>' if query.oldest_first else '<'} ?": after,
            }
        )
        order = "" if query.oldest_first else " DESC"
        return self._select(
            f"SELECT id, message_bytes FROM {LETTERS_TABLE}{condition} ORDER BY id{order} LIMIT ?", [*values, limit]
        )

    def read_letters(self, keys: Collection[bytes]) -> Sequence[DeadLetter]:
        found: list[DeadLetter] = []
        for chunk in in_chunks(keys):
            some = padded(chunk)
            text = f"SELECT {', '.join(LETTER)} FROM {LETTERS_TABLE} WHERE id IN ({placeholders(len(some))})"
            found += map(_letter, self._select(text, some))
        return found

    def read_letter_states(self, keys: Collection[bytes]) -> Mapping[bytes, LetterState]:
        found: dict[bytes, LetterState] = {}
        for chunk in in_chunks(keys):
            some = padded(chunk)
            text = f"SELECT id, state FROM {LETTERS_TABLE} WHERE id IN ({placeholders(len(some))})"
            found |= {bytes(key): LetterState(state) for key, state in self._select(text, some)}
        return found

    def mark_letters(
        self, keys: Collection[bytes], state: LetterState, note: str | None, *, among: Collection[LetterState]
    ) -> int:
        count = 0
        states = sorted(str(one.value) for one in among)
        for chunk in in_chunks(sorted(keys)):
            some = padded(chunk)
            count += self._run(
                f"UPDATE {LETTERS_TABLE}{self._dialect.by_key} SET state = ?, note = COALESCE(?, note)"
                f" WHERE id IN ({placeholders(len(some))}) AND state IN ({placeholders(len(states))})",
                [str(state.value), note, *some, *states],
            )
        return count

    def count_letters(self) -> Mapping[tuple[str, str], int]:
        rows = self._select(f"SELECT topic, state, COUNT(*) FROM {LETTERS_TABLE} GROUP BY topic, state")
        return {(topic, state): count for topic, state, count in rows}

    def count_keys(self) -> int:
        return self._dialect.count_keys(self._cursor)


def _row(letter: DeadLetter) -> tuple[Any, ...]:
    return (
        letter.source.group,
        letter.source.topic,
        letter.source.partition,
        letter.offset,
        str(letter.state.value),
        letter.error,
        letter.note,
        letter.dlq_topic,
        letter.size,
        letter.cut_bytes,
        letter.failed_ms,
        bytes.fromhex(letter.id),
        None if letter.key is None else Blob(letter.key),
        _encode_headers(letter.headers).decode(),
        None if letter.value is None else Blob(letter.value),
    )


def _letter(row: Sequence[Any]) -> DeadLetter:
    group, topic, partition, offset, state, error, note, dlq_topic, _, cut, failed_ms, id_, key, headers, value = row
    return DeadLetter(
        id=id_.hex(),
        source=Source(group, topic, partition),
        offset=offset,
        key=key,
        value=value,
        headers=_decode_headers(headers),
        error=error,
        failed_ms=failed_ms,
        dlq_topic=dlq_topic,
        state=LetterState(state),
        note=note,
        cut_bytes=cut,
    )
