"""Messages that were gathered together: what each of them is, and what the store shall take of them."""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from infinite_scheduler.errors import InvalidRequest, UnknownApp
from infinite_scheduler.handlers.answers import as_error
from infinite_scheduler.ingest.config import KafkaIngestConfig
from infinite_scheduler.ingest.message import MessageReader, Trace
from infinite_scheduler.kafka.group_member import Gathered, GroupMember
from infinite_scheduler.kafka.partition import AssignedPartition
from infinite_scheduler.kafka.trace import trace_id
from infinite_scheduler.model import JobSpec
from infinite_scheduler.observe.events import DeadLettersKept
from infinite_scheduler.store.inbox import DeadLetter, LetterState, Move, Source, new_letter_id

if TYPE_CHECKING:
    from confluent_kafka import Message

_SHOWN: Final = 20  # messages per event

MessageHeaders = Sequence[tuple[str, bytes | None]] | None
"""None: they cannot be read."""

_UNREADABLE: Final = "its headers cannot be read"


class Refused(msgspec.Struct, frozen=True, gc=False):
    """The message can never become a job."""

    error: str


class Passing(msgspec.Struct, frozen=True, gc=False):
    """The message could not be checked; the error may be temporary."""

    error: str


MessageContent = JobSpec | Refused | Passing


class InboxWrite(msgspec.Struct, frozen=True):
    """What one transaction takes."""

    specs: Sequence[JobSpec]
    letters: Sequence[DeadLetter]
    moves: Sequence[Move]
    positions: dict[AssignedPartition, int]


class MessageBatch:
    """Messages in order of arrival, each with what it contains."""

    def __init__(
        self,
        config: KafkaIngestConfig,
        messages: Gathered,
        contents: list[MessageContent],
        unreadable: set[tuple[AssignedPartition, int]] | None = None,
    ) -> None:
        self._config = config
        self._messages = messages
        self._contents = contents
        self._unreadable: set[tuple[AssignedPartition, int]] = set() if unreadable is None else unreadable
        self.assigned_partitions: Collection[AssignedPartition] = {assigned for assigned, _ in messages}
        self.tries = 0

    @classmethod
    def read(cls, config: KafkaIngestConfig, messages: Gathered, reader: MessageReader) -> "MessageBatch":
        """Check every message once."""
        batch = cls(config, messages, [])
        batch._contents = [batch._judge(reader, *each) for each in messages]
        return batch

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def passing(self) -> Sequence[str]:
        """Why messages could not be checked."""
        return [content.error for content in self._contents if isinstance(content, Passing)]

    @property
    def refused(self) -> bool:
        """Does it contain only dead letters?"""
        return all(isinstance(content, Refused) for content in self._contents)

    def judge_again(self, reader: MessageReader) -> None:
        """Check again those that could not be checked."""
        for number, content in enumerate(self._contents):
            if isinstance(content, Passing):
                self._contents[number] = self._judge(reader, *self._messages[number])

    def refuse_passing(self) -> None:
        """Give up on those that could not be checked."""
        self._contents = [
            Refused(content.error) if isinstance(content, Passing) else content for content in self._contents
        ]

    def refuse_apps_but(self, known: Collection[str]) -> bool:
        """Refuse the jobs of every other app. False: there are none."""
        found = False
        for number, content in enumerate(self._contents):
            if isinstance(content, JobSpec) and content.app not in known:
                self._contents[number] = Refused(str(UnknownApp(content.app, known)))
                found = True
        return found

    def refuse(self, error: str) -> None:
        """Refuse all messages."""
        self._contents = [Refused(error)] * len(self._contents)

    def halves(self) -> Iterable["MessageBatch"]:
        """Split it into two batches, to be stored one after the other."""
        half = len(self) // 2
        yield MessageBatch(self._config, self._messages[:half], self._contents[:half], self._unreadable)
        yield MessageBatch(self._config, self._messages[half:], self._contents[half:], self._unreadable)

    def load(self, consumer: GroupMember, now_ms: int) -> InboxWrite:
        """What the store shall take: nothing of partitions that now belong to another node, or are in doubt.

        A message that is not checked yet ends its partition here: later messages must not overtake it.
        """
        specs: list[JobSpec] = []
        letters: list[DeadLetter] = []
        positions: dict[AssignedPartition, int] = {}
        closed = {
            assigned
            for assigned in self.assigned_partitions
            if not consumer.holds(assigned) or assigned.committed is None
        }
        for (assigned, message), content in zip(self._messages, self._contents, strict=True):
            if assigned in closed:
                continue
            if isinstance(content, JobSpec):
                specs.append(content)
            elif isinstance(content, Refused):
                letters.append(self._letter(assigned, message, content.error, now_ms))
            else:
                closed.add(assigned)
                continue
            positions[assigned] = (message.offset() or 0) + 1
        moves = [
            Move(source=self._source(assigned), seen=assigned.committed, next=position, topic_id=assigned.topic_id)
            for assigned, position in positions.items()
        ]
        return InboxWrite(specs, letters, moves, positions)

    def _letter(self, assigned: AssignedPartition, message: "Message", error: str, now_ms: int) -> DeadLetter:
        dlq_topic = self._config.dlq_topic
        headers = self._headers(assigned, message)
        return DeadLetter(
            id=new_letter_id(now_ms),
            source=self._source(assigned),
            offset=message.offset() or 0,
            key=message.key(),
            value=message.value(),
            headers=headers or (),
            error=error,
            failed_ms=now_ms,
            dlq_topic=dlq_topic,
            state=LetterState.KEPT if dlq_topic is None else LetterState.UNSENT,
            note=_UNREADABLE if headers is None else None,
        )

    def _judge(self, reader: MessageReader, assigned: AssignedPartition, message: "Message") -> MessageContent:
        def trace() -> str | None:
            headers = self._headers(assigned, message)
            return trace_id(headers) if headers else None

        return judge(reader, message.value(), trace)

    def _headers(self, assigned: AssignedPartition, message: "Message") -> MessageHeaders:
        """The headers; asked only once if they cannot be read.

        After a name that is not UTF-8, the next answer of the driver is not a valid Python object.
        """
        if self._unreadable and (assigned, message.offset() or 0) in self._unreadable:
            return None
        try:
            found: Any = message.headers()
        except (SystemError, ValueError):
            self._unreadable.add((assigned, message.offset() or 0))
            return None
        return tuple(found) if found else ()

    def _source(self, assigned: AssignedPartition) -> Source:
        return Source(self._config.group_id, *assigned.partition)


def judge(reader: MessageReader, value: bytes | None, trace: Trace) -> MessageContent:
    """Decide what a message is."""
    try:
        return reader.spec(value, trace)
    except InvalidRequest as error:
        return Refused(str(error))
    except BaseException as raised:  # noqa: BLE001 - a handler's check may raise anything, including exits
        passing = as_error(raised)
        return Passing(f"{type(passing).__name__}: {passing}")


def told(topic: str, letters: Sequence[DeadLetter]) -> DeadLettersKept:
    """What observers are told about dead letters."""
    return DeadLettersKept(
        topic=topic,
        count=len(letters),
        messages=[f"{letter.source.partition}@{letter.offset}" for letter in letters[:_SHOWN]],
        errors=list(dict.fromkeys(letter.error[:500] for letter in letters[:_SHOWN])),
    )
