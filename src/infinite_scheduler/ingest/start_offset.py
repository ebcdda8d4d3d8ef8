"""Where to begin in a partition: the store's position counts before Kafka's committed offset."""

import shlex
from typing import Final

import msgspec

from infinite_scheduler.kafka.group_client import Committed
from infinite_scheduler.observe.events import Event, OffsetGone, PositionDiffers, TopicAnew
from infinite_scheduler.store.inbox import Move, Source, TopicPosition

EARLIEST: Final = "earliest"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a partition when it is assigned to this node."""

    source: Source
    position: TopicPosition | None  # the store's
    committed: Committed | None = None
    topic_id: str | None = None  # None: the broker does not say
    bounds: tuple[int, int] | None = None  # its earliest offset and its end, if they were asked for
    is_known: bool = False  # the group has a position in the topic, or an offset in Kafka, in any partition
    resume: int | None = None  # if the topic ends before the position: the first message that may be unread


class StartOffset(msgspec.Struct, frozen=True, kw_only=True):
    """Where to begin, what the store must record, and what people should know."""

    offset: int
    topic_id: str | None
    move: Move | None
    told: Event | None = None


def is_anew(facts: Facts) -> bool:
    """Was the topic deleted and created again since the group read it?"""
    position = facts.position
    return (
        position is not None
        and position.topic_id is not None
        and facts.topic_id is not None
        and position.topic_id != facts.topic_id
    )


def needs_bounds(facts: Facts, *, out_of_range: bool) -> bool:
    """Must the broker be asked to know where to begin?"""
    return out_of_range or is_anew(facts) or (facts.position is None and facts.committed is None)


def ends_before_position(facts: Facts) -> bool:
    """Has the topic lost messages that the group had read? So it is after an unclean leader election or a restore."""
    position, bounds = facts.position, facts.bounds
    return position is not None and bounds is not None and not is_anew(facts) and position.next > bounds[1]


def start_offset(facts: Facts, reset: str) -> StartOffset:
    """Where to begin: the position in the store, else Kafka's committed offset, else where the configuration says.

    A position that the topic does not have, because its messages are gone or it was created again, leads to its
    earliest offset. So does a partition that was added after the group had begun. A topic that ends before the position
    has lost its newest messages: it is read from a little before the time of the position.
    """
    position, bounds = facts.position, facts.bounds
    topic_id = facts.topic_id or (position.topic_id if position is not None else None)
    told: Event | None = None
    if bounds is not None and position is not None and is_anew(facts):
        offset = bounds[0]
        told = TopicAnew(
            topic=facts.source.topic,
            partition=facts.source.partition,
            position=position.next,
            topic_id=str(facts.topic_id),
        )
    elif (
        bounds is not None
        and (wanted := position.next if position is not None else _offset(facts.committed)) is not None
    ):
        offset = wanted
        if not bounds[0] <= wanted <= bounds[1]:
            lost = wanted > bounds[1] and facts.resume is not None
            offset = min(max(bounds[0], facts.resume or 0), bounds[1]) if lost else bounds[0]
            told = OffsetGone(
                topic=facts.source.topic,
                partition=facts.source.partition,
                position=wanted,
                earliest=bounds[0],
                end=bounds[1],
                next=offset,
            )
    elif position is not None:
        offset = position.next
        if facts.committed is not None and _is_strange(facts.committed, offset):
            told = PositionDiffers(
                topic=facts.source.topic,
                group=facts.source.group,
                partition=facts.source.partition,
                position=offset,
                committed=facts.committed.offset,
                command=_reset_command(facts.source, facts.committed.offset),
            )
    elif facts.committed is not None:
        offset = facts.committed.offset
    elif bounds is not None:
        offset = bounds[0] if reset == EARLIEST or facts.is_known else bounds[1]
    else:
        raise ValueError(f"{facts.source} has no position, and its bounds are not known")
    seen = position.next if position is not None else None
    same = position is not None and seen == offset and position.topic_id == topic_id
    move = None if same else Move(source=facts.source, seen=seen, next=offset, topic_id=topic_id)
    return StartOffset(offset=offset, topic_id=topic_id, move=move, told=told)


def _offset(committed: Committed | None) -> int | None:
    return None if committed is None else committed.offset


def _is_strange(committed: Committed, position: int) -> bool:
    """Should people know that Kafka's offset differs from the store's position?

    What this program committed may lag behind after a crash, since Kafka is told last. It is never ahead, unless the
    store has lost something.
    """
    return committed.offset > position or (committed.offset < position and not committed.ours)


def _reset_command(source: Source, offset: int) -> str:
    """The command for an operator who wants Kafka's offset to count."""
    where = f"{source.topic}:{source.partition}={offset}"
    return f"infinite-scheduler ingest offsets --group {shlex.quote(source.group)} --reset {where}"
