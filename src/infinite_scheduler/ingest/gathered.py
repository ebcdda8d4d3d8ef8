"""What was gathered of a topic: messages in the order in which they came, each with its share."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from infinite_scheduler.ingest.share import Share

if TYPE_CHECKING:
    from confluent_kafka import Message

ROOM: Final = 4 << 20
"""Bytes after which a gathering ends."""

OVERHEAD: Final = 200
"""Bytes that a message takes beside its key and its value."""

Gathered = list[tuple[Share, "Message"]]


def parts(gathered: Gathered) -> Iterator[Gathered]:
    """What was gathered, in pieces that one transaction takes: polls may bring more than was to be expected."""
    start = size = 0
    for number, (_, message) in enumerate(gathered):
        size += bytes_of(message)
        if size >= ROOM:
            yield gathered[start : number + 1]
            start, size = number + 1, 0
    if start < len(gathered):
        yield gathered[start:]


def bytes_of(message: "Message") -> int:
    """About what a message takes of the memory, without its headers."""
    key = message.key()
    return len(message) + OVERHEAD if key is None else len(message) + len(key) + OVERHEAD
