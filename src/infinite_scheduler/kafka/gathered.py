"""What was gathered of a topic: messages in the order in which they came, each with its share."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from infinite_scheduler.kafka.partition import AssignedPartition

if TYPE_CHECKING:
    from confluent_kafka import Message

OVERHEAD: Final = 200
"""Bytes that a message takes beside its key and its value."""

Gathered = list[tuple[AssignedPartition, "Message"]]


class GatherLimits(msgspec.Struct, frozen=True, kw_only=True):
    """When a gathering ends: after so many messages, so many bytes or so long, whichever comes first."""

    messages: int
    size: int  # bytes; a poll may bring more than was to be expected
    gather_ms: int = 50  # from the first message on
    poll_messages: int = 500  # at most so many are asked for at once
    poll_ms: int = 1000  # so long it waits for the first message


def parts(gathered: Gathered, most_bytes: int) -> Iterator[Gathered]:
    """What was gathered, in pieces of about so many bytes: polls may bring more than was to be expected."""
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
