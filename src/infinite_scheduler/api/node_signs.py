"""What only the node in this process knows of itself, as far as it may be an alarm."""

from collections.abc import Callable, Mapping

import msgspec


class NodeSigns(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a node."""

    oldest_overdue_ms: int
    early: int
    swept: int
    topics_ready: Mapping[str, bool]


ReadSigns = Callable[[], NodeSigns]
