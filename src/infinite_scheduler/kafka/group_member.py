"""The consumer of a topic: the partitions that the group gives to this node, and their messages; all on one thread."""

import threading
from collections.abc import Collection, Iterable, Mapping
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from infinite_scheduler.clock import Clock
from infinite_scheduler.errors import SchedulerError
from infinite_scheduler.kafka.gathered import Gathered, GatherLimits, bytes_of
from infinite_scheduler.kafka.group_client import GroupClient
from infinite_scheduler.kafka.partition import AssignedPartition

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

_UNSEEN: Final = 64
"""A message is taken for this part of the bytes of a gathering while none was seen; after each poll of smaller ones,
for half as much."""

_SLICE_MS: Final = 100
"""How long a stop waits for a poll that finds nothing."""

AGAIN_MS: Final = (1000, 60_000)
"""How soon a client that has failed for good is made anew, at first and at most."""

_AT_END: Final = "_PARTITION_EOF"
_ASTRAY: Final = frozenset({"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"})


class GroupMember:
    """Reads the partitions that the group gives it, each from the offset that it is told."""

    def __init__(self, client: GroupClient, clock: Clock, limits: GatherLimits) -> None:
        self._client = client
        self._limits = limits
        self._clock = clock
        self._stopping = threading.Event()
        self._again_ms = clock.steady_ms() - AGAIN_MS[1]  # when a new client may be made
        self._again_wait_ms = AGAIN_MS[0]
        self._largest = max(1, limits.size // _UNSEEN)  # bytes of the largest message lately
        self._left = False  # the last gathering ended before everything was there
        self._uncommitted: SimpleQueue[Mapping[int, int]] = SimpleQueue()  # places that Kafka has yet to be told
        self.held: dict[int, AssignedPartition] = {}
        self.joined = False  # the group has given this node its partitions, or none

    # Life

    def open(self) -> None:
        """Begin to connect and to join the group; returns at once."""
        self._client.open(self._assigned, self._revoked, self._lost)

    def stop(self) -> None:
        """Let a gathering that waits return; from any thread."""
        self._stopping.set()

    def close(self) -> None:
        """Tell Kafka how far the group is, and leave it."""
        self._commit_now()
        self._client.close()
        self.held.clear()
        self.joined = False

    def reopen(self) -> None:
        """Begin again with a new client."""
        self.close()
        if not self._stopping.is_set():
            self.open()

    def probe(self) -> None:
        """Find out whether the topic can be read, and why not; begin again if that is what it takes."""
        if self._client.is_spent:
            self._begin_again()
        else:
            self._client.probe(self.stay)

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
            self._client.problem = str(error)

    # Messages

    def gather(self) -> Gathered:
        """What is there: waits for the first message only, and takes the others that have come."""
        self.fetch(self.held.values())
        self._commit_now()
        first = self._first()
        return [] if first is None else self._with_more([first])

    def gather_more(self) -> Gathered:
        """More of what was left behind by the last gathering: waits for nothing, and begins to read no partition.

        Nothing if there was no more, or if a partition is not read: first it gets its place.
        """
        if not self._left or self._stopping.is_set() or self._waits_for_start():
            return []
        self._commit_now()
        return self._with_more([])

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
            more = self._client.consumer.consume(wanted, 0)
            if not more:
                self._left = False
                break
            size += self._keep(more, gathered)
        return gathered

    def stay(self) -> None:
        """Stay a member of the group while nothing can be taken: stop fetching, and serve what the group asks."""
        if not self._client.is_open:
            return
        self.note_ends()  # nothing that is not fetched can be
        self.drop(self.held.values())
        self._commit_now()
        message = self._client.consumer.poll(0)
        if message is not None:
            self._keep([message], [])

    def _first(self) -> "Message | None":
        """The first message, or None after the time of one poll."""
        until_ms = self._clock.steady_ms() + self._limits.poll_ms
        while not self._stopping.is_set():
            left_ms = until_ms - self._clock.steady_ms()
            if left_ms <= 0:
                break
            message = self._client.consumer.poll(min(left_ms, _SLICE_MS) / 1000)
            if message is not None and not self._is_end(message):
                return message
            if self._waits_for_start():
                break
        return None

    def _waits_for_start(self) -> bool:
        return any(not share.fetching for share in self.held.values())

    def _keep(self, messages: "Iterable[Message]", gathered: Gathered) -> int:
        """Append the messages that are expected; returns their bytes."""
        size = largest = 0
        held = self.held
        for message in messages:
            error = message.error()
            if error is not None:
                if not self._is_end(message):
                    self._fail(error, message.partition())
                continue
            share = held.get(message.partition() or 0)
            offset = message.offset() or 0
            if share is None or not share.fetching or offset < share.expected:
                continue
            share.expected, share.reached = offset + 1, None
            gathered.append((share, message))
            its = bytes_of(message)
            size += its
            largest = max(largest, its)
        if largest:
            self._client.allowed()
            self._largest = max(largest, self._largest // 2)
        return size

    def _is_end(self, message: "Message") -> bool:
        """Is it no message, but the news that a partition has no more?"""
        error = message.error()
        if error is None or error.name() != _AT_END:
            return False
        share = self.held.get(message.partition() or 0)
        if share is not None and share.fetching:
            share.reached = message.offset()
        return True

    def _fail(self, error: "KafkaError", partition: int | None) -> None:
        """An error that librdkafka delivers in the place of a message."""
        if error.name() in _ASTRAY:
            share = self.held.get(partition if partition is not None else -1)
            if share is not None:
                share.out_of_range = True
                self.forget([share])
        else:
            self._client.fail(error)

    # Partitions

    def fetch(self, shares: Iterable[AssignedPartition]) -> None:
        """Begin to read these, each from its place."""
        ready = [share for share in shares if self.holds(share) and share.committed is not None and not share.fetching]
        if ready:
            self._client.fetch({share.partition: share.committed or 0 for share in ready})
        for share in ready:
            share.expected, share.reached = share.committed or 0, None
            share.fetching = True

    def drop(self, shares: Iterable[AssignedPartition]) -> None:
        """Read no more of these; what was fetched ahead is dropped."""
        flowing = [share for share in shares if self.holds(share) and share.fetching]
        if flowing:
            self._client.drop([share.partition for share in flowing])
        for share in flowing:
            share.fetching = False

    def forget(self, shares: Iterable[AssignedPartition]) -> None:
        """Be in doubt about the places of these."""
        doubtful = list(shares)
        self.drop(doubtful)
        for share in doubtful:
            share.committed = None

    def forget_all(self) -> None:
        """Be in doubt about all places."""
        self.forget(self.held.values())

    def holds(self, share: AssignedPartition) -> bool:
        """Does it still belong to this node?"""
        return self.held.get(share.partition) is share

    def note_ends(self) -> None:
        """Note where the partitions end, as far as librdkafka knows without asking."""
        for share in self.held.values():
            if share.fetching:
                end = self._client.known_end(share.partition)
                share.end = share.end if end is None else end

    def commit(self, places: Mapping[int, int]) -> None:
        """Remember to tell Kafka how far the group is: for those who watch its lag. From any thread."""
        self._uncommitted.put(places)

    def _commit_now(self) -> None:
        if self._client.problem is not None or not self._client.is_open:
            return
        places: dict[int, int] = {}
        while not self._uncommitted.empty():
            places.update(self._uncommitted.get())
        places = {partition: place for partition, place in places.items() if partition in self.held}
        if places:
            self._client.commit(places)

    def _assigned(self, client: "Consumer", partitions: "Collection[TopicPartition]") -> None:
        """Called within a poll. Nothing is fetched yet: where to begin is for the store to say."""
        client.incremental_assign([])
        self.joined = True
        self._client.allowed()
        for each in partitions:
            self.held[each.partition] = AssignedPartition(each.partition)

    def _revoked(self, client: "Consumer", partitions: "Collection[TopicPartition]") -> None:
        """Called within a poll. What was gathered of these and not taken yet is for another node."""
        self._commit_now()
        gone = [share for each in partitions if (share := self.held.pop(each.partition, None)) is not None]
        client.incremental_unassign([self._client.at(share.partition) for share in gone if share.fetching])

    def _lost(self, client: "Consumer", partitions: "Collection[TopicPartition]") -> None:
        """Called within a poll: the group goes on without this node, which has to join it again."""
        self._revoked(client, partitions)
        self.joined = False
