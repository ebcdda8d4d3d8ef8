"""Finds out why a PostgreSQL server refuses a login, whatever the language of its messages."""

import os
import re
import select
import time
from typing import Any, Final

from psycopg.conninfo import make_conninfo
from psycopg.pq import ConnStatus, PGconn, PollingStatus, abc

SAID: Final = re.compile(r"failed: [^:\n]+:  ")
"""A message of the server begins with its severity, in the server's language, and two spaces; libpq's does not."""

CODE: Final = re.compile(rb'ErrorResponse\t.* C "(\w{5})"')

MOST: Final = 1 << 16
"""A login is a few hundred bytes."""


def server_spoke(words: str) -> bool:
    """Does the error of a failed connection end with a message of the server?"""
    return SAID.search(words) is not None


def code_of_refusal(arguments: dict[str, Any]) -> str | None:
    """The SQLSTATE with which the server refuses this login; None: there is none, or the login now succeeds.

    libpq shows it only in its trace of the protocol.
    """
    reading, writing = os.pipe()  # nothing of it reaches a disk: it may contain a password
    try:
        connection = PGconn.connect_start(make_conninfo(**arguments).encode())
        try:
            connection.trace(writing)
            _log_in(connection, time.monotonic() + float(arguments.get("connect_timeout", 5)))
            connection.untrace()
        finally:
            connection.finish()
        os.set_blocking(reading, False)
        found = CODE.search(os.read(reading, MOST))
    finally:
        os.close(reading)
        os.close(writing)
    return found[1].decode() if found else None


def _log_in(connection: abc.PGconn, until_s: float) -> None:
    while connection.status != ConnStatus.BAD and time.monotonic() < until_s:
        match connection.connect_poll():
            case PollingStatus.READING:
                select.select([connection.socket], [], [], max(0, until_s - time.monotonic()))
            case PollingStatus.WRITING:
                select.select([], [connection.socket], [], max(0, until_s - time.monotonic()))
            case _:
                return
