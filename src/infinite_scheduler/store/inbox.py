"""The port of a store's inbox: messages read from partitioned topics are stored together with the group's position.

The position is written in the transaction of the jobs, by compare-and-set. That alone makes intake exactly once: if two
consumers read the same partition, one of them finds that the position has moved.
"""

import enum
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence

import msgspec

from infinite_scheduler.model import Accepted, JobSpec
from infinite_scheduler.store.sortable_id import sortable_id


def new_letter_id(failed_ms: int) -> str:
    """An id for a dead letter."""
    return sortable_id(failed_ms)


class Source(msgspec.Struct, frozen=True, order=True):
    """One partition of a topic, as one consumer group reads it."""

    group: str
    topic: str
    partition: int


class TopicPosition(msgspec.Struct, frozen=True, kw_only=True):
    """How far a group has read: every message before `next` was accepted, skipped as a repeat, or is a dead letter."""

    source: Source
    next: int
    topic_id: str | None  # a topic that was deleted and created again has another; None: the broker did not say
    moved_ms: int


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A compare-and-set of a position: it happens only if `next` is still what was seen."""

    source: Source
    seen: int | None  # None: this source has no position yet
    next: int
    topic_id: str | None = None


class LetterState(enum.StrEnum):
    """What has happened to a dead letter."""

    UNSENT = "unsent"  # it still has to be sent to the dead letter topic
    SENT = "sent"
    KEPT = "kept"  # there is no dead letter topic: it is only here
    REFUSED = "refused"  # the dead letter topic can never take it, so it is only here
    REPLAYED = "replayed"  # it was replayed as a job
    DROPPED = "dropped"  # a person does not want it: it is not sent any more, and can be replayed until it is deleted


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
    note: str | None = None  # why the topic refused it, or the id of its job after a replay
    cut_bytes: int = 0  # of the message that the store could not take; the source may still have them

    @property
    def size(self) -> int:
        """The bytes of the message, as far as it is stored."""
        return len(self.key or b"") + len(self.value or b"") + self.header_size

    @property
    def header_size(self) -> int:
        """The bytes of its headers."""
        return sum(len(name.encode()) + len(value or b"") for name, value in self.headers)


class LetterQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters to list, newest first by default."""

    group: str | None = None
    topic: str | None = None
    state: LetterState | None = None
    before_ms: int | None = None  # failed before this moment
    oldest_first: bool = False
    limit: int = 100
    room: int  # bytes of keys and values after which no more are read; at least one is
    cursor: str | None = None


class Letters(msgspec.Struct, frozen=True, kw_only=True):
    """One page of dead letters; `cursor` asks for the next."""

    letters: Sequence[DeadLetter]
    cursor: str | None


class Inbox(ABC):
    """What a door that reads topics needs from a store, in any process."""

    @abstractmethod
    async def take(
        self, specs: Sequence[JobSpec], letters: Sequence[DeadLetter], moves: Sequence[Move]
    ) -> Sequence[Accepted]:
        """Accept jobs in order, keep dead letters, and move positions: all or none. Durable on return.

        A job whose idempotency key is known is skipped whatever its content: its answer is `repeated`, and `differs` if
        the content is another. Raises PositionsMoved if a position is not as it was seen, UnknownApp for an app that is
        not registered; then nothing was written. Raises StoreUnavailable if the result is unknown: then the positions
        tell.
        """

    @abstractmethod
    async def positions(self, group: str | None = None, topic: str | None = None) -> Sequence[TopicPosition]:
        """How far groups have read, in order."""

    @abstractmethod
    async def reset(self, moves: Sequence[Move]) -> None:
        """Set positions by hand, all or none; raises PositionsMoved if one is not as it was seen."""

    @abstractmethod
    async def letters(self, query: LetterQuery) -> Letters:
        """List dead letters, a page at a time."""

    @abstractmethod
    async def letter(self, letter_id: str) -> DeadLetter | None:
        """One dead letter, or None."""

    @abstractmethod
    async def mark(self, letter_ids: Collection[str], state: LetterState, note: str | None = None) -> None:
        """Record what happened to unsent dead letters; those in another state stay unchanged."""

    @abstractmethod
    async def drop(self, letter_ids: Collection[str]) -> Mapping[str, LetterState]:
        """Drop dead letters, all or none; one that was replayed stays a job. Durable on return.

        Returns the state of each of them that exists, which is `dropped` or `replayed`. A dropped letter can be
        replayed. One that a node is sending at this moment may still arrive on the dead letter topic.
        """

    @abstractmethod
    async def letter_states(self, letter_ids: Collection[str]) -> Mapping[str, LetterState]:
        """The states of those of these dead letters that exist."""

    @abstractmethod
    async def replay(self, letter_id: str, spec: JobSpec) -> Accepted:
        """Accept the job made from a dead letter and mark the letter: both or none, and only once.

        If the letter was replayed before, the answer is its first job, `repeated`.
        """

    @abstractmethod
    async def letter_counts(self) -> Mapping[tuple[str, str], int]:
        """How many dead letters there are, by topic and state."""

    @abstractmethod
    async def live_keys(self) -> int:
        """How many idempotency keys are remembered; an estimate if they are very many."""
