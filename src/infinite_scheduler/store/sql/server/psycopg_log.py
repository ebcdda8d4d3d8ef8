"""Psycopg's own log lines about connections of the store: what they mean is told by the store's errors and events."""

import logging
from typing import Final

from psycopg import BaseConnection

NAMES: Final = ("psycopg", "psycopg.transaction")
"""The loggers of psycopg that write about a connection."""


class PsycopgLog(logging.Filter):
    """Takes the lines about connections of one class, and writes them at debug level; a user's own are left alone."""

    def __init__(self, connections: type[BaseConnection[object]]) -> None:
        super().__init__()
        self._connections = connections
        self._logger = logging.getLogger("infinite_scheduler.store")

    def listen(self) -> None:
        """Begin; a second call does nothing."""
        for name in NAMES:
            logging.getLogger(name).addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        if not any(map(self._is_ours, record.args or ())):
            return True
        self._logger.debug("%s", record.getMessage())
        return False

    def _is_ours(self, thing: object) -> bool:
        """Is this a connection of ours, or a pipeline or a transaction on one?"""
        return isinstance(getattr(thing, "_conn", thing), self._connections)
