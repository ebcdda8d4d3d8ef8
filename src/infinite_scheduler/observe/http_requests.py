"""Counts HTTP requests: by route and status, and how long they took."""

from collections import Counter
from typing import Final, Self

MOST_ROUTES: Final = 200
OTHER: Final = "other"
"""The route of requests to paths that do not exist, or beyond the first MOST_ROUTES."""


class HttpRequests:
    """What a server tells once per request, in its event loop."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str, int]] = Counter()  # by method, route and status
        self.took: dict[tuple[str, str], tuple[int, int]] = {}  # requests and their µs, by method and route
        self.streams_dropped = 0  # event streams that were not read
        self._routes: set[str] = set()

    def add(self, method: str, route: str | None, status: int, took_us: int) -> None:
        """Count one request; `route` is the pattern of its path, such as /v1/jobs/{id}, or None if there is none."""
        if route is None or (route not in self._routes and len(self._routes) >= MOST_ROUTES):
            method, route = OTHER, OTHER  # anybody can make up methods and paths
        self._routes.add(route)
        self.counts[method, route, status] += 1
        requests, us = self.took.get((method, route), (0, 0))
        self.took[method, route] = requests + 1, us + took_us

    def copy(self) -> Self:
        """What was counted so far, to be read elsewhere."""
        copy = type(self)()
        copy.counts, copy.took = self.counts.copy(), dict(self.took)
        copy.streams_dropped = self.streams_dropped
        return copy
