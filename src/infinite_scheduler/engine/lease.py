"""May this node hand over jobs? Only while it renews its lease in time and the gate is not held shut.

The rules that are named here are those of docs/concepts/line-protocol.md.
"""

from infinite_scheduler.clock import Clock
from infinite_scheduler.engine.agreed_clock import AgreedClock
from infinite_scheduler.engine.judge import describe
from infinite_scheduler.observe.events import HeartbeatBack, HeartbeatFailing, LeaseLapsed, LeaseRenewed, Observer


class Lease:
    """The time for which the other nodes leave this node's shards alone, by the steady clock."""

    def __init__(self, clock: Clock, lease_ms: int, tell: Observer) -> None:
        self._clock = clock
        self._lease_ms = lease_ms
        self._tell = tell
        self._renewed_ms: int | None = None
        self._failing_since_ms: int | None = None
        self._error: str | None = None  # of the last heartbeat, if it failed
        self._asked_ms: int | None = None  # when the heartbeat was sent that is not answered yet
        self.lapsed = False

    def asked(self) -> None:
        """A heartbeat was sent: if the lease lapses before the answer, the missing answer is the cause."""
        self._asked_ms = self._clock.steady_ms()

    def answered(self) -> None:
        """The store has answered."""
        self._asked_ms = None

    def renewed(self, asked_ms: int) -> bool:
        """A renewal sent at `asked_ms` is durable. True: the lease had lapsed, so everything owned must be checked.

        Rules: lapsed_node_renews_then_checks, lapse_reloads.
        """
        had_lapsed = self.lapsed or not self.valid()
        if had_lapsed and self._renewed_ms is not None:
            self._tell(LeaseRenewed())
        self._renewed_ms = asked_ms
        self.lapsed = False
        self._heartbeat_back()
        return had_lapsed

    def missed(self, error: Exception) -> None:
        """A heartbeat failed: reported when that begins, and as the cause if the lease lapses."""
        self._asked_ms, self._error = None, describe(error)
        if self._failing_since_ms is None:
            self._failing_since_ms = self._clock.steady_ms()
            self._tell(HeartbeatFailing(error=self._error))
        self.valid()  # a node that hands nothing over does not ask otherwise

    def _heartbeat_back(self) -> None:
        if self._failing_since_ms is not None:
            self._tell(HeartbeatBack(failing_ms=self._clock.steady_ms() - self._failing_since_ms))
            self._failing_since_ms = self._error = None

    def valid(self) -> bool:
        """Is the last renewal recent enough? Once it is not, only a new renewal makes it valid again."""
        if self._renewed_ms is None:
            return False
        silent_ms = self._clock.steady_ms() - self._renewed_ms
        if silent_ms >= self._lease_ms and not self.lapsed:
            self.lapsed = True
            self._tell(LeaseLapsed(silent_ms=silent_ms, error=self._error or self._silence()))
        return not self.lapsed

    def _silence(self) -> str | None:
        """The error for a call that neither fails nor returns, as when the server is frozen."""
        if self._asked_ms is None:
            return None
        return f"the store has not answered for {(self._clock.steady_ms() - self._asked_ms) / 1000:.1f} s"


class Gate:
    """Asked before every hand-over of this process: may it hand over now, and what time is it?

    Rules: lapse_stops_firing, fires_when_due.
    """

    def __init__(self, lease: Lease, agreed_clock: AgreedClock) -> None:
        self.lease = lease
        self.now_ms = agreed_clock.now_ms  # jobs due up to here may be handed over
        self.held_shut = False  # a suspect is handed over alone, or the node stops

    @property
    def open(self) -> bool:
        return not self.held_shut and self.lease.valid()
