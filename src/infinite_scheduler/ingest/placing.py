"""Where to begin in a partition: what the store says counts, before what Kafka says."""

from typing import Final

import msgspec

from infinite_scheduler.observe.events import Event, OffsetGone, PlaceDiffers, TopicAnew
from infinite_scheduler.store.inbox import Move, Place, Source

EARLIEST: Final = "earliest"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a partition when it is given to this node."""

    source: Source
    place: Place | None  # the store's
    committed: int | None = None  # Kafka's
    topic_id: str | None = None  # None: the broker does not tell
    bounds: tuple[int, int] | None = None  # its earliest offset and its end, where it was asked


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """Where to begin, what the store must remember of it, and what people should know."""

    offset: int
    topic_id: str | None
    move: Move | None
    told: Event | None = None


def is_anew(facts: Facts) -> bool:
    """Was the topic deleted and made anew since the group read it?"""
    place = facts.place
    return (
        place is not None
        and place.topic_id is not None
        and facts.topic_id is not None
        and place.topic_id != facts.topic_id
    )


def needs_bounds(facts: Facts, *, astray: bool) -> bool:
    """Does it take a question to the broker to know where to begin?"""
    return astray or is_anew(facts) or (facts.place is None and facts.committed is None)


def start(facts: Facts, reset: str) -> Start:
    """Where to begin: the place in the store, else Kafka's committed offset, else where the group wants to.

    A place that the topic does not have, because its messages are gone or it was made anew, leads to its earliest.
    """
    place, bounds = facts.place, facts.bounds
    topic_id = facts.topic_id or (place.topic_id if place is not None else None)
    told: Event | None = None
    if bounds is not None and place is not None and is_anew(facts):
        offset = bounds[0]
        told = TopicAnew(
            topic=facts.source.topic, partition=facts.source.partition, place=place.next, topic_id=str(facts.topic_id)
        )
    elif bounds is not None and (wanted := place.next if place is not None else facts.committed) is not None:
        offset = wanted
        if not bounds[0] <= wanted <= bounds[1]:
            offset = bounds[0]
            told = OffsetGone(
                topic=facts.source.topic,
                partition=facts.source.partition,
                place=wanted,
                earliest=bounds[0],
                end=bounds[1],
            )
    elif place is not None:
        offset = place.next
        if facts.committed is not None and facts.committed != offset:
            told = PlaceDiffers(
                topic=facts.source.topic,
                group=facts.source.group,
                partition=facts.source.partition,
                place=offset,
                committed=facts.committed,
                command=_reset_command(facts.source, facts.committed),
            )
    elif facts.committed is not None:
        offset = facts.committed
    elif bounds is not None:
        offset = bounds[0] if reset == EARLIEST else bounds[1]
    else:
        raise ValueError(f"{facts.source} has no place, and its bounds are not known")
    seen = place.next if place is not None else None
    same = place is not None and seen == offset and place.topic_id == topic_id
    move = None if same else Move(source=facts.source, seen=seen, next=offset, topic_id=topic_id)
    return Start(offset=offset, topic_id=topic_id, move=move, told=told)


def _reset_command(source: Source, offset: int) -> str:
    """What an operator runs who wants Kafka's offset to count."""
    return f"infinite-scheduler ingest offsets --reset {source.topic}:{source.partition}={offset}"
