"""What a node keeps in memory about one shard that it owns.

The rules that are named here are those of docs/concepts/line-protocol.md.
"""

from infinite_scheduler.model import Job, Priority, priority_of, start_of
from infinite_scheduler.store.ownership import Grant


class OwnedShard:
    """One owned shard: the line and low as memory knows them, what is held, and what is left to scan.

    What is left to scan is [cursor, line) per priority, so ranges are joined by taking the smaller cursor.
    """

    __slots__ = (
        "came_back",
        "cursors",
        "doubt",
        "drain_until_ms",
        "draining",
        "handed_over",
        "held",
        "line_ms",
        "low_ms",
        "marker_ended",
        "owner",
        "parked",
        "quarantined",
        "requests_read",
        "shard",
        "suspect_until_ms",
        "suspects",
        "unswept_ms",
    )

    def __init__(self, grant: Grant, suspect_until_ms: int) -> None:
        self.shard = grant.shard
        self.owner = grant.owner
        self.held: dict[bytes, Job] = {}  # on the wheel, ready, parked or in quarantine: not handed over
        self.handed_over: dict[bytes, Job] = {}  # handed over, not settled in the store
        self.parked: list[Job] = []  # held and due, but the shard may not hand over now
        self.quarantined: dict[bytes, Job] = {}  # held in quarantine
        self.came_back: dict[bytes, Job] = {}  # not handed over any more, but people see them as running
        self.draining = False
        self.drain_until_ms: int | None = None  # when a drain is called off; None: never
        self.suspect_until_ms = suspect_until_ms  # jobs due up to here may have ended the former owner's process
        self.load(grant)

    def load(self, grant: Grant) -> None:
        """Begin again from what the store says; jobs that are handed over stay tracked.

        Rules: takeover_scans_from_low, reload_keeps_handed_over, reload_keeps_suspects.
        """
        self.line_ms = grant.line_ms
        self.low_ms = grant.low_ms
        self.unswept_ms = grant.low_ms  # where the safety net continues
        self.cursors = [start_of(min(grant.low_ms, grant.line_ms))] * len(Priority)
        self.suspects = dict(grant.suspects)
        self.marker_ended = grant.unclean  # the process that marked them has ended
        self.doubt: str | None = None
        self.requests_read = False  # whether its requests were looked at once since it was loaded

    @property
    def may_fire(self) -> bool:
        """May its jobs be handed over?

        Rules: drain_stops_firing, doubt_reloads.
        """
        return not self.draining and self.doubt is None

    @property
    def has_suspects(self) -> bool:
        """Are there jobs that may have ended the former owner's process, or may there be some left to scan?"""
        return bool(self.quarantined) or (self.suspect_until_ms >= 0 and self.unread_ms <= self.suspect_until_ms)

    @property
    def quiet(self) -> bool:
        """Is there nothing to do but to move its line and to answer requests?"""
        return self.doubt is None and not self.draining and self.requests_read and self.scanned

    @property
    def end(self) -> bytes:
        """The position of the line."""
        return start_of(self.line_ms)

    @property
    def unread_ms(self) -> int:
        """The moment from which jobs may be left to scan."""
        return int.from_bytes(min(self.cursors)[:6], "big")

    @property
    def scanned(self) -> bool:
        """Has everything before the line been read?"""
        return min(self.cursors) >= self.end

    def leave_to_scan(self, position: bytes) -> None:
        """Add the job at this position to what is left to scan: it is not held after all.

        Rules: job_without_room_is_left_to_scan, smaller_cursor_wins, smallest_position_is_left_to_scan,
        left_to_scan_of_own_priority.
        """
        priority = priority_of(position)
        self.cursors[priority] = min(self.cursors[priority], position)

    def safe_low(self, now_ms: int, oldest_ready_ms: int | None) -> int:
        """The moment before which everything is settled: never past now, an unread range, or an unsettled job.

        Jobs held for a later moment cannot be before now; of the overdue ones, the oldest of the whole app counts.

        Rules: low_stays_before_now, low_stays_before_unscanned, low_stays_before_unsettled.
        """
        bounds = [now_ms, self.line_ms, self.unread_ms]
        if oldest_ready_ms is not None:
            bounds.append(oldest_ready_ms)
        bounds.extend(job.due_ms for job in self.handed_over.values())
        bounds.extend(job.due_ms for job in self.parked)
        bounds.extend(job.due_ms for job in self.quarantined.values())
        return min(bounds)
