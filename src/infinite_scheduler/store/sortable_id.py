"""Ids of rows that are listed by time: dead letters and records of the audit."""

import itertools
import os

_turns = itertools.count()


def sortable_id(at_ms: int) -> str:
    """32 hexadecimal digits that sort by time, and within one moment by order of creation in this process."""
    turn = next(_turns) & 0xFFFFFF
    return (at_ms.to_bytes(6, "big") + turn.to_bytes(3, "big") + os.urandom(7)).hex()
