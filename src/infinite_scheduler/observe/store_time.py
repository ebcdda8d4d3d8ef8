"""Measures how long the store takes: once per transaction."""

from collections.abc import Iterator
from contextlib import contextmanager

from infinite_scheduler.clock import Clock
from infinite_scheduler.observe.events import Observer, StoreCalled


@contextmanager
def store_time(operation: str, clock: Clock, tell: Observer) -> Iterator[None]:
    """Tell how long the block took, whether it succeeded or not: it is one call of a store's port."""
    began_us = clock.steady_us()
    try:
        yield
    finally:
        tell(StoreCalled(operation=operation, took_us=clock.steady_us() - began_us))
