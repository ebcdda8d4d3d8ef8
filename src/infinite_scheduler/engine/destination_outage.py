"""A destination that takes nothing at the moment: when one app is held back on this node, probed, and let go on."""

from collections.abc import Awaitable, Callable
from math import isnan

from infinite_scheduler.clock import Clock, Timer
from infinite_scheduler.engine.judge import describe, printable
from infinite_scheduler.errors import DestinationAway
from infinite_scheduler.model import Job, Outcome
from infinite_scheduler.observe.events import AppHeldBack, AppResumed, Observer
from infinite_scheduler.store.cluster_state import HeldBack

PROBE_MS = (5000, 60_000)
"""The first and the longest wait before a probe."""

RETRY_AFTER_MS = (100, 3_600_000)
"""The shortest and the longest wait that a destination can ask for."""

TRIED = 100
"""How many jobs are remembered as probes, so that others get their turn."""

REASON_CHARS = 500
"""Longer reasons are cut: each heartbeat carries them."""


class DestinationOutage:
    """Whether the destination of one app takes jobs; if not, since when, and when the next job may probe it.

    It begins when a job comes back with `DestinationAway`, and ends when a probe gets an answer. While there is no job
    to probe with, the handler is asked instead.
    """

    def __init__(self, app: str, clock: Clock, tell: Observer, wake: Callable[[], None]) -> None:
        self._app = app
        self._clock = clock
        self._tell = tell
        self._wake = wake  # is called when a probe is due
        self._timer: Timer | None = None
        self.ongoing = False
        self._reason: str | None = None  # None: there is no outage
        self._since_ms = self._since_steady_ms = 0
        self._wait_ms = 0
        self._due_ms = 0
        self._probe: Job | None = None  # the one in flight
        self._looking = False  # the handler is being asked
        self._tried: set[bytes] = set()
        self.ended = 0  # how many outages have ended

    @property
    def may_probe(self) -> bool:
        """Is it time for a probe, and is none of them under way?"""
        return self.ongoing and self._is_free and self._clock.steady_ms() >= self._due_ms

    @property
    def _is_free(self) -> bool:
        return self._probe is None and not self._looking

    @property
    def held_back(self) -> HeldBack | None:
        """What others are told of it."""
        return None if self._reason is None else HeldBack(since_ms=self._since_ms, reason=self._reason)

    # Probes

    def probe(self, job: Job) -> None:
        """This job is handed over now, to see whether the destination is back."""
        self._probe = job

    def has_tried(self, job: Job) -> bool:
        """Was it a probe of this outage already?"""
        return job.key in self._tried

    def try_all_again(self) -> None:
        """Let jobs be probes again that were before."""
        self._tried.clear()

    def call_off(self, job: Job) -> None:
        """The job was not handed over after all."""
        if job is self._probe:
            self._probe = None
            self._wake_in(0)

    async def look(self, ready: Callable[[], Awaitable[None]]) -> None:
        """Probe without a job: `ready` raises if the destination takes none."""
        self._looking = True
        try:
            await ready()
        except Exception as error:  # noqa: BLE001 - a handler may raise anything
            self._looking = False
            self._wait_longer(error)
        else:
            self._looking = False
            self._end()

    # What comes back

    def away(self, job: Job, error: DestinationAway, ended: int) -> None:
        """A job came back; when it was handed over, `ended` outages had ended. What a later probe found counts more."""
        if job is self._probe:
            self._failed(job, error)
        elif not self.ongoing and ended == self.ended:
            self._begin(error)

    def answered(self, job: Job, outcome: Outcome | BaseException) -> None:
        """A delivery has ended otherwise. If it was the probe: an error does not show that the destination is back."""
        if job is not self._probe:
            return
        if isinstance(outcome, BaseException):
            self._failed(job, outcome)
        else:
            self._end()

    def _begin(self, error: DestinationAway) -> None:
        self._since_ms, self._since_steady_ms = self._clock.wall_ms(), self._clock.steady_ms()
        self._say(error)
        self._wait_ms = PROBE_MS[0]
        self._wake_in(_asked_ms(error) or self._wait_ms)

    def _failed(self, job: Job, error: BaseException) -> None:
        self._probe = None
        if len(self._tried) >= TRIED:
            self._tried.clear()
        self._tried.add(job.key)
        self._wait_longer(error)

    def _wait_longer(self, error: BaseException) -> None:
        self._say(error)
        self._wait_ms = min(2 * self._wait_ms, PROBE_MS[1])
        self._wake_in(_asked_ms(error) or self._wait_ms)

    def _say(self, error: BaseException) -> None:
        """Report the reason when it is a new one."""
        reason = printable(error) if isinstance(error, DestinationAway) else describe(error)
        reason = " ".join(reason[:REASON_CHARS].split()) or type(error).__name__
        if reason != self._reason:
            self.ongoing = True
            self._reason = reason
            self._tell(AppHeldBack(app=self._app, error=reason))

    def _end(self) -> None:
        held_back_ms = self._clock.steady_ms() - self._since_steady_ms
        self._probe = self._reason = None
        self.ongoing = False
        self._tried.clear()
        self.ended += 1
        self._wake_in(0)
        self._tell(AppResumed(app=self._app, held_back_ms=held_back_ms))

    def _wake_in(self, ms: int) -> None:
        self.stop()
        self._due_ms = self._clock.steady_ms() + ms
        self._timer = self._clock.call_later(ms + 1, self._wake)  # the clock counts whole milliseconds

    def stop(self) -> None:
        """Wake no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _asked_ms(error: BaseException) -> int | None:
    """The wait that the destination asked for, within limits."""
    asked_s = error.retry_after_s if isinstance(error, DestinationAway) else None
    if not isinstance(asked_s, int | float) or isnan(asked_s):  # a class of the user's own may have anything there
        return None
    shortest, longest = RETRY_AFTER_MS
    return int(max(shortest, min(asked_s * 1000, longest)))
