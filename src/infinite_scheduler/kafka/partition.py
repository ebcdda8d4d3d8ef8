"""Partitions of topics, and how far a member of a consumer group has read those that the group gave to it."""

from typing import NamedTuple


class Partition(NamedTuple):
    """A partition, by the name of its topic and its number there."""

    topic: str
    number: int


class AssignedPartition:
    """One object from the assignment of a partition to its revocation.

    Nothing of it is fetched before it is known where to begin.
    """

    __slots__ = (
        "committed",
        "end",
        "expected",
        "fetching",
        "is_new",
        "out_of_range",
        "partition",
        "position",
        "topic_id",
    )

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.committed: int | None = None  # before it all is safe, wherever it is kept; None: ask there first
        self.topic_id: str | None = None
        self.is_new = True  # it was not yet known where to begin
        self.expected = 0  # the least offset of the next message
        self.fetching = False  # librdkafka fetches it
        self.out_of_range = False  # the topic does not have the offset that was asked for
        self.end: int | None = None
        self.position = 0  # while it is fetched: nothing is left before it, not even control or aborted records

    @property
    def skippable(self) -> int | None:
        """The position, if between the committed offset and it there are control and aborted records only."""
        if self.committed is None or not self.fetching:
            return None
        return self.position if self.expected <= self.committed < self.position else None

    @property
    def lag(self) -> int | None:
        """How many messages are yet to be dealt with, as far as is known."""
        return None if self.committed is None or self.end is None else max(0, self.end - self.committed)
