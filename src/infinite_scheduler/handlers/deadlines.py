"""One time-out for all the calls of a function, with one timer."""

from typing import Protocol

from infinite_scheduler.clock import Clock, Timer


class Expiring(Protocol):
    """A call that may run out of time."""

    def expire(self) -> None:
        """Called once, when the time is over."""
        ...


class Deadlines:
    """Ends calls that exceed the time-out.

    All have the same time-out, so the call that began first always expires first: a dict in order of beginning and a
    single timer are enough. One `asyncio.timeout` per call would double its cost.
    """

    def __init__(self, clock: Clock, timeout_ms: int) -> None:
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._open: dict[Expiring, int] = {}
        self._timer: Timer | None = None

    def begin(self, call: Expiring) -> None:
        """Start the time-out of a call."""
        self._open[call] = self._clock.steady_ms() + self._timeout_ms
        if self._timer is None:
            self._timer = self._clock.call_later(self._timeout_ms, self._tick)

    def end(self, call: Expiring) -> None:
        """The call has ended, in time or not, or never began."""
        self._open.pop(call, None)

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        now_ms = self._clock.steady_ms()
        over = []
        for call, due_ms in self._open.items():
            if due_ms > now_ms:
                self._timer = self._clock.call_later(due_ms - now_ms, self._tick)
                break
            over.append(call)
        for call in over:
            del self._open[call]
            call.expire()
