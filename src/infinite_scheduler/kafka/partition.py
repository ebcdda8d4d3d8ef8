"""A partition that the group gave to this node."""


class AssignedPartition:
    """One object from the assignment of a partition to its revocation.

    Nothing of it is read before its place is known.
    """

    __slots__ = (
        "committed",
        "end",
        "expected",
        "fetching",
        "is_new",
        "out_of_range",
        "partition",
        "reached",
        "topic_id",
    )

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.committed: int | None = None  # how far the store says that the group is; None: to be asked
        self.topic_id: str | None = None
        self.is_new = True  # it has not had a place yet
        self.expected = 0  # the least offset that comes next
        self.fetching = False  # librdkafka fetches it
        self.out_of_range = False  # the topic does not have the offset that was asked for
        self.end: int | None = None
        self.reached: int | None = None  # the end, where librdkafka has nothing more and no message came since

    @property
    def rest(self) -> int | None:
        """The end, if all there is up to there are no messages: marks of transactions, and what was aborted."""
        is_rest = self.committed is not None and self.committed == self.expected < (self.reached or 0)
        return self.reached if is_rest and self.fetching else None

    @property
    def lag(self) -> int | None:
        """How many messages are yet to be dealt with, as far as is known."""
        return None if self.committed is None or self.end is None else max(0, self.end - self.committed)
