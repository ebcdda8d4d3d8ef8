"""Tests about the table of today, or of this hour, need a day that does not end in their middle."""

import time

DAY_S, HOUR_S = 86_400, 3600

LONG_S = 30
"""How long such a test may take."""


def await_a_whole(period_s: int) -> None:
    """Go on at once, or at the beginning of the next period if this one is about to end."""
    left_s = period_s - time.time() % period_s
    if left_s < LONG_S:
        time.sleep(left_s + 0.1)
