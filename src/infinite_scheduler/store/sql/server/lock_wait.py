"""How long one call may wait for locks of others: over all of its statements, and all of its tries."""

import time
from typing import Final

WORK_S: Final = 1.0
"""A statement that took longer has waited for a lock: none of ours has so much to do.

And every statement gets at least this much, however long those before it have waited.
"""


class LockWait:
    """The waiting time of one call. Servers limit the wait for a single lock; a call may need hundreds, one by one."""

    def __init__(self, lock_s: float) -> None:
        self._lock_s = lock_s
        self._began_s: float | None = None
        self._waited_s = 0.0
        self.looked = False
        """Has the call checked whether a stuck process holds what it waits for?"""

    def begin(self) -> None:
        """Begin a try; the time of earlier tries counts in full, since they failed."""
        now_s = time.monotonic()
        if self._began_s is None:
            self._began_s = now_s
        self._waited_s = now_s - self._began_s

    def took(self, seconds: float) -> None:
        """Count a statement that took this long."""
        if seconds >= WORK_S:
            self._waited_s += seconds

    @property
    def spent_s(self) -> float:
        """The time since the first try began."""
        return 0.0 if self._began_s is None else time.monotonic() - self._began_s

    @property
    def over(self) -> bool:
        """Is it too late for another try?"""
        return self.spent_s >= self._lock_s

    @property
    def left_s(self) -> float:
        """How long the next statement may wait."""
        return max(WORK_S, self._lock_s - self._waited_s)
