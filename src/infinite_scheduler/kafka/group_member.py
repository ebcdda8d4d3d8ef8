"""A member of a consumer group: the partitions that the group gives to it, and their messages; all on one thread."""

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import msgspec

from infinite_scheduler.clock import Clock
from infinite_scheduler.errors import SchedulerError
from infinite_scheduler.kafka.group_client import GroupClient
from infinite_scheduler.kafka.options import KafkaOptions
from infinite_scheduler.kafka.partition import AssignedPartition, Partition

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

OVERHEAD: Final = 200
"""Bytes that a message takes beside its key and its value."""

_UNSEEN: Final = 64
"""A message is taken for this part of the bytes of a gathering while none was seen; after each poll of smaller ones,
for half as much."""

_SLICE_MS: Final = 100
"""How long a stop waits for a poll that finds nothing."""

AGAIN_MS: Final = (1000, 60_000)
"""How soon a client that has failed for good is made anew, at first and at most."""

_AT_END: Final = "_PARTITION_EOF"
_OUT_OF_RANGE: Final = frozenset({"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"})

Gathered = list[tuple[AssignedPartition, "Message"]]
"""Messages in the order in which they came, each with its partition."""


class GatherLimits(msgspec.Struct, frozen=True, kw_only=True):
    """When a gathering ends: at this number of messages, of bytes or of milliseconds, whichever comes first."""

    messages: int
    size: int  # bytes; a poll may bring more than was to be expected
    gather_ms: int = 50  # from the first message on
    poll_messages: int = 500  # at most this many are asked for at once
    poll_ms: int = 1000  # the longest wait for the first message


def parts(gathered: Gathered, most_bytes: int) -> Iterator[Gathered]:
    """What was gathered, in pieces of about `most_bytes`: polls may bring more than was to be expected."""
    start = size = 0
    for number, (_, message) in enumerate(gathered):
        size += bytes_of(message)
        if size >= most_bytes:
            yield gathered[start : number + 1]
            start, size = number + 1, 0
    if start < len(gathered):
        yield gathered[start:]


def bytes_of(message: "Message") -> int:
    """About what a message takes of the memory, without its headers."""
    key = message.key()
    return len(message) + OVERHEAD if key is None else len(message) + len(key) + OVERHEAD


class GroupMember:
    """Reads the partitions of one or several topics that the group gives it, each from the offset that it is told.

    All of its methods are called on one thread, but for `stop` and `commit`.
    """

    def __init__(
        self, options: KafkaOptions, group: str, topics: Sequence[str], limits: GatherLimits, clock: Clock
    ) -> None:
        self.client = GroupClient(options, group, topics)
        self._limits = limits
        self._clock = clock
        self._stopping = threading.Event()
        self._again_ms = clock.steady_ms() - AGAIN_MS[1]  # when a new client may be made
        self._again_wait_ms = AGAIN_MS[0]
        self._largest = max(1, limits.size // _UNSEEN)  # bytes of the largest message lately
        self._left = False  # the last gathering ended before everything was there
        self._uncommitted: SimpleQueue[Mapping[Partition, int]] = SimpleQueue()  # what Kafka has yet to be told
        self.held: dict[Partition, AssignedPartition] = {}
        self.joined = False  # the group has given it its partitions, or none

    # Life

    def open(self) -> None:
        """Begin to connect and to join the group; returns at once."""
        self.client.open(self._assigned, self._revoked, self._lost)

    def stop(self) -> None:
        """Let a gathering that waits return; from any thread."""
        self._stopping.set()

    def close(self) -> None:
        """Tell Kafka how far the group is, and leave it."""
        self._commit_now()
        self.client.close()
        self.held.clear()
        self.joined = False

    def reopen(self) -> None:
        """Begin again with a new client."""
        self.close()
        if not self._stopping.is_set():
            self.open()

    def probe(self) -> None:
        """Find out whether the topics can be read, and why not; begin again if that is what it takes."""
        if self.client.is_spent:
            self._begin_again()
        else:
            self.client.probe(self.stay)

    def _begin_again(self) -> None:
        """Make a new client in the place of one that is of no use any more, less and less often."""
        now_ms = self._clock.steady_ms()
        if now_ms < self._again_ms or self._stopping.is_set():
            return
        lately = now_ms - self._again_ms < AGAIN_MS[1]
        self._again_wait_ms = min(self._again_wait_ms * 2, AGAIN_MS[1]) if lately else AGAIN_MS[0]
        self._again_ms = now_ms + self._again_wait_ms
        try:
            self.reopen()
        except SchedulerError as error:
            self.client.problem = str(error)

    # Messages

    def gather(self) -> Gathered:
        """What is there: waits for the first message only, and takes the others that have come."""
        self.fetch(self.held.values())
        self._commit_now()
        first = self._first()
        gathered = [] if first is None else self._with_more([first])
        self._note_positions()
        return gathered

    def gather_more(self) -> Gathered:
        """More of what was left behind by the last gathering: waits for nothing, and begins to read no partition.

        Nothing if there was no more, or if a partition is not read: it gets its position first.
        """
        if not self._left or self._stopping.is_set() or self._waits_for_start():
            return []
        self._commit_now()
        gathered = self._with_more([])
        self._note_positions()
        return gathered

    def _with_more(self, messages: "Iterable[Message]") -> Gathered:
        """These, and the others that have come."""
        gathered: Gathered = []
        size = self._keep(messages, gathered)
        limits = self._limits
        until_ms = self._clock.steady_ms() + limits.gather_ms
        self._left = True
        while len(gathered) < limits.messages and size < limits.size and self._clock.steady_ms() < until_ms:
            fitting = max(1, (limits.size - size) // self._largest)
            wanted = min(limits.poll_messages, limits.messages - len(gathered), fitting)
            more = self.client.consumer.consume(wanted, 0)
            if not more:
                self._left = False
                break
            size += self._keep(more, gathered)
        return gathered

    def stay(self) -> None:
        """Stay a member of the group while nothing can be taken: stop fetching, and serve what the group asks."""
        if not self.client.is_open:
            return
        self.note_ends()  # nothing that is not fetched can be
        self.drop(self.held.values())
        self._commit_now()
        message = self.client.consumer.poll(0)
        if message is not None:
            self._keep([message], [])

    def _first(self) -> "Message | None":
        """The first message, or None after the time of one poll."""
        until_ms = self._clock.steady_ms() + self._limits.poll_ms
        while not self._stopping.is_set():
            left_ms = until_ms - self._clock.steady_ms()
            if left_ms <= 0:
                break
            message = self.client.consumer.poll(min(left_ms, _SLICE_MS) / 1000)
            if message is not None and not self._is_end(message):
                return message
            if self._waits_for_start():
                break
        return None

    def _waits_for_start(self) -> bool:
        """Is there a partition that is not fetched, because its start offset is not known yet?"""
        return any(not each.fetching for each in self.held.values())

    def _keep(self, messages: "Iterable[Message]", gathered: Gathered) -> int:
        """Append the messages that are expected; returns their bytes."""
        size = largest = 0
        before = len(gathered)
        for message in messages:
            error = message.error()
            if error is not None:
                if not self._is_end(message):
                    self._fail(error, message)
                continue
            assigned = self._assigned_to(message)
            offset = message.offset() or 0
            if assigned is None or not assigned.fetching or offset < assigned.expected:
                continue
            assigned.expected = assigned.position = offset + 1
            gathered.append((assigned, message))
            its = bytes_of(message)
            size += its
            largest = max(largest, its)
        if largest:
            self.client.allowed(assigned.partition.topic for assigned, _ in gathered[before:])
            self._largest = max(largest, self._largest // 2)
        return size

    def _assigned_to(self, message: "Message") -> AssignedPartition | None:
        """The partition that a message belongs to; None if it is not, or no longer, read here."""
        key: Any = (message.topic(), message.partition())  # equal to a Partition, and made in a third of the time
        return self.held.get(key)

    def _is_end(self, message: "Message") -> bool:
        """Is it the end of a partition instead of a message?

        It comes late, after the time that a fetch waits, but it alone knows of aborted records whose control record is
        behind the end: what is read ends where the oldest transaction that is still open begins.
        """
        error = message.error()
        if error is None or error.name() != _AT_END:
            return False
        assigned = self._assigned_to(message)
        if assigned is not None and assigned.fetching:
            assigned.position = max(assigned.position, message.offset() or 0)
        return True

    def _fail(self, error: "KafkaError", message: "Message") -> None:
        """An error that librdkafka delivers in the place of a message."""
        if error.name() not in _OUT_OF_RANGE:
            self.client.fail(error, message.topic())
        elif (assigned := self._assigned_to(message)) is not None:
            assigned.out_of_range = True
            self.forget([assigned])

    # Partitions

    def fetch(self, partitions: Iterable[AssignedPartition]) -> None:
        """Begin to read these, each from its committed offset."""
        ready = [each for each in partitions if self.holds(each) and each.committed is not None and not each.fetching]
        if ready:
            self.client.fetch({each.partition: each.committed or 0 for each in ready})
        for each in ready:
            each.expected = each.position = each.committed or 0
            each.fetching = True

    def drop(self, partitions: Iterable[AssignedPartition]) -> None:
        """Read no more of these; what was fetched ahead is dropped."""
        fetching = [each for each in partitions if self.holds(each) and each.fetching]
        if fetching:
            self.client.drop([each.partition for each in fetching])
        for each in fetching:
            each.fetching = False

    def forget(self, partitions: Iterable[AssignedPartition]) -> None:
        """Be in doubt about the committed offsets of these: they are not read until somebody says where to go on."""
        doubtful = list(partitions)
        self.drop(doubtful)
        for each in doubtful:
            each.committed = None

    def forget_all(self) -> None:
        """Be in doubt about all committed offsets."""
        self.forget(self.held.values())

    def holds(self, partition: AssignedPartition) -> bool:
        """Does it still belong to this member?"""
        return self.held.get(partition.partition) is partition

    def _note_positions(self) -> None:
        """Note how far the partitions were read: control records are not handed out, but are passed."""
        fetched = [partition for partition, each in self.held.items() if each.fetching]
        for partition, position in self.client.positions(fetched).items() if fetched else ():
            self.held[partition].position = max(self.held[partition].position, position)

    def note_ends(self) -> None:
        """Note where the partitions end, as far as librdkafka knows without asking."""
        for each in self.held.values():
            if each.fetching:
                end = self.client.known_end(each.partition)
                each.end = each.end if end is None else end

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Tell Kafka soon how far the group is: for those who watch its lag. From any thread."""
        self._uncommitted.put(offsets)

    def _commit_now(self) -> None:
        if self.client.problem is not None or not self.client.is_open:
            return
        offsets: dict[Partition, int] = {}
        while not self._uncommitted.empty():
            offsets.update(self._uncommitted.get())
        offsets = {partition: offset for partition, offset in offsets.items() if partition in self.held}
        if offsets:
            self.client.commit(offsets)

    def _assigned(self, client: "Consumer", partitions: "Collection[TopicPartition]") -> None:
        """Called within a poll. Nothing is fetched yet: where to begin is not known, and is not Kafka's to say."""
        client.incremental_assign([])
        self.joined = True
        given = [Partition(each.topic, each.partition) for each in partitions]
        self.client.allowed(partition.topic for partition in given)
        self.held.update((partition, AssignedPartition(partition)) for partition in given)

    def _revoked(self, client: "Consumer", partitions: "Collection[TopicPartition]") -> None:
        """Called within a poll. What was gathered of these and not taken yet is for another member."""
        self._commit_now()
        gone = [self.held.pop(Partition(each.topic, each.partition), None) for each in partitions]
        fetched = [each.partition for each in gone if each is not None and each.fetching]
        client.incremental_unassign([self.client.at(partition) for partition in fetched])

    def _lost(self, client: "Consumer", partitions: "Collection[TopicPartition]") -> None:
        """Called within a poll: the group goes on without this member, which has to join it again."""
        self._revoked(client, partitions)
        self.joined = False
