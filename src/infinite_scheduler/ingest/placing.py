"""Where to begin in a partition: the store's position counts before Kafka's committed offset."""

import shlex
from typing import Final

import msgspec

from infinite_scheduler.kafka.group_client import Committed
from infinite_scheduler.observe.events import Event, OffsetGone, PlaceDiffers, TopicAnew
from infinite_scheduler.store.inbox import Move, Place, Source

EARLIEST: Final = "earliest"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a partition when it is assigned to this node."""

    source: Source
    place: Place | None  # the store's
    committed: Committed | None = None
    topic_id: str | None = None  # None: the broker does not say
    bounds: tuple[int, int] | None = None  # its earliest offset and its end, if they were asked for
    is_known: bool = False  # the group has a position in the topic, or an offset in Kafka, in any partition
    resume: int | None = None  # if the topic ends before the position: the first message that may be unread


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """Where to begin, what the store must record, and what people should know."""

    offset: int
    topic_id: str | None
    move: Move | None
    told: Event | None = None


def is_anew(facts: Facts) -> bool:
    """Was the topic deleted and created again since the group read it?"""
    place = facts.place
    return (
        place is not None
        and place.topic_id is not None
        and facts.topic_id is not None
        and place.topic_id != facts.topic_id
    )


def needs_bounds(facts: Facts, *, astray: bool) -> bool:
    """Must the broker be asked to know where to begin?"""
    return astray or is_anew(facts) or (facts.place is None and facts.committed is None)


def ends_before_place(facts: Facts) -> bool:
    """Has the topic lost messages that the group had read? So it is after an unclean leader election or a restore."""
    place, bounds = facts.place, facts.bounds
    return place is not None and bounds is not None and not is_anew(facts) and place.next > bounds[1]


def start(facts: Facts, reset: str) -> Start:
    """Where to begin: the position in the store, else Kafka's committed offset, else where the configuration says.

    A position that the topic does not have, because its messages are gone or it was created again, leads to its
    earliest offset. So does a partition that was added after the group had begun. A topic that ends before the position
    has lost its newest messages: it is read from a little before the time of the position.
    """
    place, bounds = facts.place, facts.bounds
    topic_id = facts.topic_id or (place.topic_id if place is not None else None)
    told: Event | None = None
    if bounds is not None and place is not None and is_anew(facts):
        offset = bounds[0]
        told = TopicAnew(
            topic=facts.source.topic, partition=facts.source.partition, place=place.next, topic_id=str(facts.topic_id)
        )
    elif bounds is not None and (wanted := place.next if place is not None else _offset(facts.committed)) is not None:
        offset = wanted
        if not bounds[0] <= wanted <= bounds[1]:
            lost = wanted > bounds[1] and facts.resume is not None
            offset = min(max(bounds[0], facts.resume or 0), bounds[1]) if lost else bounds[0]
            told = OffsetGone(
                topic=facts.source.topic,
                partition=facts.source.partition,
                place=wanted,
                earliest=bounds[0],
                end=bounds[1],
                next=offset,
            )
    elif place is not None:
        offset = place.next
        if facts.committed is not None and _is_strange(facts.committed, offset):
            told = PlaceDiffers(
                topic=facts.source.topic,
                group=facts.source.group,
                partition=facts.source.partition,
                place=offset,
                committed=facts.committed.offset,
                command=_reset_command(facts.source, facts.committed.offset),
            )
    elif facts.committed is not None:
        offset = facts.committed.offset
    elif bounds is not None:
        offset = bounds[0] if reset == EARLIEST or facts.is_known else bounds[1]
    else:
        raise ValueError(f"{facts.source} has no position, and its bounds are not known")
    seen = place.next if place is not None else None
    same = place is not None and seen == offset and place.topic_id == topic_id
    move = None if same else Move(source=facts.source, seen=seen, next=offset, topic_id=topic_id)
    return Start(offset=offset, topic_id=topic_id, move=move, told=told)


def _offset(committed: Committed | None) -> int | None:
    return None if committed is None else committed.offset


def _is_strange(committed: Committed, place: int) -> bool:
    """Should people know that Kafka's offset differs from the store's position?

    What this program committed may lag behind after a crash, since Kafka is told last. It is never ahead, unless the
    store has lost something.
    """
    return committed.offset > place or (committed.offset < place and not committed.ours)


def _reset_command(source: Source, offset: int) -> str:
    """The command for an operator who wants Kafka's offset to count."""
    where = f"{source.topic}:{source.partition}={offset}"
    return f"infinite-scheduler ingest offsets --group {shlex.quote(source.group)} --reset {where}"
