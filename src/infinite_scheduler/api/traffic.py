"""What a server has answered: plain counters, for those who measure."""

from collections.abc import Mapping
from typing import NamedTuple


class Answered(NamedTuple):
    """Requests of one operation that ended with one status."""

    requests: int
    micros: int  # that they took together


class Traffic:
    """How many requests were answered, by operation and status, and how long that took."""

    def __init__(self) -> None:
        self._answered: dict[tuple[str, int], Answered] = {}
        self.in_progress = 0
        self.abandoned = 0
        """Requests that were ended by a stop before they had an answer."""

    def note(self, operation: str, status: int, micros: int) -> None:
        """One more answer."""
        count, total = self._answered.get((operation, status), (0, 0))
        self._answered[operation, status] = Answered(count + 1, total + micros)

    @property
    def answered(self) -> Mapping[tuple[str, int], Answered]:
        """By operation and status."""
        return self._answered
