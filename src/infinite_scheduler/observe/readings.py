"""What can be read off a running node at one moment: values, for metrics and vitals."""

from collections.abc import Mapping, Sequence

import msgspec


class AppReading(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One app of a node, now."""

    held: int = 0  # jobs that were read ahead and are not handed over
    held_bytes: int = 0  # with those that are handed over and not settled
    in_flight: int = 0  # jobs whose handlers run
    overdue_ms: int = 0  # the age of the oldest job that is due and not handed over


class TopicReading(msgspec.Struct, frozen=True, kw_only=True):
    """One topic that brings jobs to a node, now."""

    topic: str
    group: str
    ready: bool  # its messages become jobs
    lag: Mapping[int, int | None]  # messages that wait, by partition that this node reads; None: not known yet
    keys: int = 0  # idempotency keys that the store remembers


class NodeReading(msgspec.Struct, frozen=True, kw_only=True):
    """One node, now; apps with nothing to say are left out."""

    apps: Mapping[str, AppReading] = {}
    topics: Sequence[TopicReading] = ()
    saturation: float = 0.0  # how far it is behind with reading and settling: below 1 it is not
    clock_offset_ms: int | None = None  # the store's clock minus this machine's; None: the store has none
    apps_without_node: int = 0
    apps_held_back: int = 0
