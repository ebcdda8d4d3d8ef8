"""A topic that brings jobs as people see it: is it read, by whom, and how far has its group come?"""

from collections.abc import Mapping, Sequence

import msgspec

from infinite_scheduler.ingest.status import PartitionStatus, PositionChange, TopicStatus
from infinite_scheduler.views.app import HeldBackAppView
from infinite_scheduler.views.times import IsoTime, iso_or_none


class PartitionView(msgspec.Struct, frozen=True, kw_only=True):
    """How far one partition is read; None: not known, or nothing yet."""

    partition: int
    position: int | None  # the store's, which counts
    committed: int | None  # what Kafka knows of the group
    earliest: int | None
    end: int | None
    lag: int | None
    moved_at: IsoTime | None


class TopicView(msgspec.Struct, frozen=True, kw_only=True):
    """A topic, the group that reads it, and what prevents reading."""

    topic: str
    group: str
    ready: bool  # messages of this topic become jobs
    lag: int | None
    servers: str
    dlq_topic: str | None
    brokers: Sequence[str]
    state: str | None  # of the group
    members: Sequence[str] | None  # the nodes with partitions of it; None: the brokers do not say
    partitions: Sequence[PartitionView]
    problems: Sequence[str]
    notes: Sequence[str]
    dead_letters: Mapping[str, int]  # by state
    held_back: Sequence[HeldBackAppView]  # a message may be for any app, so these are of the whole store


class OffsetView(msgspec.Struct, frozen=True, kw_only=True):
    """How far one group has read one partition."""

    group: str
    topic: str
    partition: int
    position: int | None
    committed: int | None
    earliest: int | None
    end: int | None
    lag: int | None
    moved_at: IsoTime | None


class ResetView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an operator who lets a group read a partition from elsewhere."""

    group: str
    topic: str
    partition: int
    start: int | None = msgspec.field(name="from")  # where it would have gone on; None: it had not begun
    to: int
    earliest: int
    end: int


def topic_view(status: TopicStatus, held_back: Sequence[HeldBackAppView] = ()) -> TopicView:
    """One look at a topic, and at what becomes of its jobs."""
    return TopicView(
        topic=status.topic,
        group=status.group,
        ready=status.ready,
        lag=status.lag,
        servers=status.servers,
        dlq_topic=status.dlq_topic,
        brokers=status.brokers,
        state=status.state,
        members=status.members,
        partitions=[_partition_view(partition) for partition in status.partitions],
        problems=status.problems,
        notes=status.notes,
        dead_letters=status.letters,
        held_back=held_back,
    )


def offset_views(topic: TopicView) -> Sequence[OffsetView]:
    """The partitions of a topic, each with its group and topic: for lists over many topics."""
    return [
        OffsetView(group=topic.group, topic=topic.topic, **msgspec.structs.asdict(partition))
        for partition in topic.partitions
    ]


def reset_view(change: PositionChange) -> ResetView:
    """What a reset has done to one partition."""
    move = change.move
    return ResetView(
        group=move.source.group,
        topic=move.source.topic,
        partition=move.source.partition,
        start=move.seen,
        to=move.next,
        earliest=change.earliest,
        end=change.end,
    )


def _partition_view(partition: PartitionStatus) -> PartitionView:
    return PartitionView(
        partition=partition.partition,
        position=partition.position,
        committed=partition.committed,
        earliest=partition.earliest,
        end=partition.end,
        lag=partition.lag,
        moved_at=iso_or_none(partition.moved_ms),
    )
