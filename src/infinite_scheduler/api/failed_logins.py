"""Limits how often wrong tokens are tried: per address, and over all addresses."""

from collections import deque
from typing import Final

from infinite_scheduler.clock import Clock

SPAN_MS: Final = 60_000
PER_ADDRESS: Final = 20
IN_ALL: Final = 1000
"""How many failures of the last minute make an address, or every address that has failed, wait."""

ADDRESSES: Final = 10_000
"""How many addresses are remembered."""


class FailedLogins:
    """Remembers the failures of the last minute. Addresses that never failed are never held up."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_address: dict[str, deque[int]] = {}
        self._all: deque[int] = deque(maxlen=IN_ALL)

    def note(self, address: str) -> None:
        """A wrong token came from here."""
        now_ms = self._clock.steady_ms()
        if address not in self._by_address and len(self._by_address) >= ADDRESSES:
            self._by_address.pop(next(iter(self._by_address)))
        self._by_address.setdefault(address, deque(maxlen=PER_ADDRESS)).append(now_ms)
        self._all.append(now_ms)

    def wait_s(self, address: str) -> int:
        """How many seconds this address must wait before its next token is looked at; 0: not at all."""
        own = self._by_address.get(address)
        if own is None:
            return 0
        left_ms = self._left_ms(own, PER_ADDRESS)
        if self._clock.steady_ms() - own[-1] < SPAN_MS:
            left_ms = max(left_ms, self._left_ms(self._all, IN_ALL))
        return -(-left_ms // 1000)

    def _left_ms(self, failures: deque[int], most: int) -> int:
        if len(failures) < most:
            return 0
        return max(0, failures[0] + SPAN_MS - self._clock.steady_ms())
