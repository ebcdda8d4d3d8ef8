"""The port of a store's inbox: what is read from partitioned topics goes in together with how far it was read.

A position in the source is written in the transaction of the jobs, by compare and set. That alone makes intake exactly
once: whoever else reads the same partition, one of the two finds that the position is not where it was.
"""

import enum
import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence

import msgspec

from infinite_scheduler.model import Accepted, JobSpec

_turns = itertools.count()


def new_letter_id(failed_ms: int) -> str:
    """An id for a dead letter: those of later moments sort behind, and of one moment those that were made later."""
    turn = next(_turns) & 0xFFFFFF
    return (failed_ms.to_bytes(6, "big") + turn.to_bytes(3, "big") + os.urandom(7)).hex()


class Source(msgspec.Struct, frozen=True, order=True):
    """One partition of a topic, as one consumer group reads it."""

    group: str
    topic: str
    partition: int


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """How far a group has come: every message before `next` is accepted, skipped as a repeat, or a dead letter."""

    source: Source
    next: int
    topic_id: str | None  # a topic that was made anew under its name has another; None: the broker did not tell
    moved_ms: int


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A compare-and-set of a place: it happens only if `next` is still what was seen."""

    source: Source
    seen: int | None  # None: there is no place of this source yet
    next: int
    topic_id: str | None = None


class LetterState(enum.StrEnum):
    """What has become of a dead letter."""

    UNSENT = "unsent"  # its record on the dead letter topic has yet to follow
    SENT = "sent"
    KEPT = "kept"  # there is no dead letter topic: it is only here
    REFUSED = "refused"  # the dead letter topic takes it never, so it is only here
    REPLAYED = "replayed"  # it became a job after all


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that cannot become a job, byte for byte, and why."""

    id: str  # 32 hexadecimal digits that grow with time: `new_letter_id`
    source: Source
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    error: str
    failed_ms: int
    dlq_topic: str | None
    state: LetterState
    note: str | None = None  # why the topic refused it, or the id of the job that it became
    cut_bytes: int = 0  # of the message that the store could not take; the source may still have them

    @property
    def size(self) -> int:
        """The bytes of the message, as far as it is here."""
        return len(self.key or b"") + len(self.value or b"") + self.header_size

    @property
    def header_size(self) -> int:
        """The bytes of its headers."""
        return sum(len(name.encode()) + len(value or b"") for name, value in self.headers)


class LetterQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters to list, newest first unless said otherwise."""

    group: str | None = None
    topic: str | None = None
    state: LetterState | None = None
    before_ms: int | None = None  # failed before this moment
    oldest_first: bool = False
    limit: int = 100
    room: int = 8 << 20  # bytes of keys and values after which no more are read; one at least
    cursor: str | None = None


class Letters(msgspec.Struct, frozen=True, kw_only=True):
    """One page of dead letters; `cursor` asks for the next."""

    letters: Sequence[DeadLetter]
    cursor: str | None


class Inbox(ABC):
    """What a door that reads topics asks of a store; any process may."""

    @abstractmethod
    async def take(
        self, specs: Sequence[JobSpec], letters: Sequence[DeadLetter], moves: Sequence[Move]
    ) -> Sequence[Accepted]:
        """Accept jobs in order, keep dead letters, and move places: all or none. Durable on return.

        A job whose idempotency key is known is skipped whatever its content: its answer is `repeated`, and `differs`
        when the content is another. Raises PlacesMoved when a place is not as it was seen, UnknownApp for an app that
        the store does not know; then nothing was written. Raises StoreUnavailable when that is not known: read the
        places, they tell.
        """

    @abstractmethod
    async def places(self, group: str | None = None, topic: str | None = None) -> Sequence[Place]:
        """How far groups have come, in order."""

    @abstractmethod
    async def reset(self, moves: Sequence[Move]) -> None:
        """Set places by hand, all or none; raises PlacesMoved when one is not as it was seen."""

    @abstractmethod
    async def letters(self, query: LetterQuery) -> Letters:
        """List dead letters, a page at a time."""

    @abstractmethod
    async def letter(self, letter_id: str) -> DeadLetter | None:
        """One dead letter, or None."""

    @abstractmethod
    async def mark(self, letter_ids: Collection[str], state: LetterState, note: str | None = None) -> None:
        """Remember what has become of unsent dead letters; those in another state stay as they are."""

    @abstractmethod
    async def replay(self, letter_id: str, spec: JobSpec) -> Accepted:
        """Accept the job that a dead letter has become and mark the letter: both or none, and only once.

        A letter that was replayed before answers with its first job, `repeated`.
        """

    @abstractmethod
    async def letter_counts(self) -> Mapping[tuple[str, str], int]:
        """How many dead letters there are, by topic and state."""

    @abstractmethod
    async def live_keys(self) -> int:
        """How many idempotency keys are remembered; where they are very many, about as many."""
