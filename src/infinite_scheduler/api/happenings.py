"""What happens, second by second: changes of the cluster, and what failed in this process, as server-sent events."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from infinite_scheduler.observe.recent_failures import NewFailures, RecentFailures
from infinite_scheduler.views.cluster_change import AppChange, ClusterLook, NodeChange, ShardsMoved, changes
from infinite_scheduler.views.failure import DeadLettersView, FailedAttemptView, failure_view

MOST: Final = 200
"""How many events one second may have."""

NAMES: Final[Mapping[type, str]] = {
    NodeChange: "node",
    ShardsMoved: "shards",
    AppChange: "app",
    FailedAttemptView: "attempt_failed",
    DeadLettersView: "dead_letters",
}

_encode: Final = msgspec.json.Encoder().encode


class Happenings:
    """Compares each look at the cluster with the one before, and asks what failed in this process meanwhile."""

    def __init__(self, failures: RecentFailures | None, node: str) -> None:
        self._failures = failures
        self._node = node
        self._before: ClusterLook | None = None
        self._number = 0 if failures is None else failures.number

    def since(self, look: ClusterLook, lease_ms: int) -> bytes:
        """The events since the last look; before the first look there are none."""
        before, self._before = self._before, look
        happened: list[Any] = [] if before is None else list(changes(before, look, lease_ms))
        failed = self._failed()
        happened += [failure_view(one, self._node) for one in failed.failures]
        left_out = failed.left_out + max(0, len(happened) - MOST)
        return _written(happened[:MOST], left_out)

    def _failed(self) -> NewFailures:
        if self._failures is None:
            return NewFailures((), 0, 0)
        found = self._failures.since(self._number)
        self._number = found.number
        return found


def _written(happened: Sequence[Any], left_out: int) -> bytes:
    events = [event(NAMES[type(one)], one) for one in happened]
    if left_out:
        events.append(event("left_out", {"count": left_out}))
    return b"".join(events)


def event(name: str, value: object) -> bytes:
    """One server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode(value))
