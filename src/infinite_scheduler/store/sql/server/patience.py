"""How long one call may wait for what others have locked: over all of its statements, and all of its tries."""

import time
from typing import Final

WORK_S: Final = 1.0
"""A statement that took longer has waited for somebody: none of ours has so much to do.

And so much is left to every statement, however long those before it have waited.
"""


class Patience:
    """The waiting of one call. Servers limit the wait for a single lock; a call may need hundreds, one by one."""

    def __init__(self, lock_s: float) -> None:
        self._lock_s = lock_s
        self._began_s: float | None = None
        self._waited_s = 0.0
        self.looked = False
        """Has the call looked whether somebody is stuck with what it waits for?"""

    def begin(self) -> None:
        """A try begins; those before it were in vain, so all of their time was."""
        now_s = time.monotonic()
        if self._began_s is None:
            self._began_s = now_s
        self._waited_s = now_s - self._began_s

    def took(self, seconds: float) -> None:
        """A statement has ended after this time."""
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
