"""The memory of an owner: what is on the wheel, what is left to scan, and how a scan reads rows and entries."""

from __future__ import annotations

from collections.abc import Iterable

from tests.model.line.state import (
    OPEN,
    PENDING,
    Held,
    Left,
    LineNode,
    Row,
    State,
    job_at,
    moment_of,
    position,
    start_of,
)
from tests.model.line.variant import Variant


def take(variant: Variant, state: State, node: LineNode, found: Iterable[Held]) -> LineNode:
    """Put what was read onto the wheel unless held [5]; the latest ones that do not fit are left to scan [window]."""
    known = {held.job for held in node.held} if variant.on["held_job_is_not_taken_again"] else ()
    new = [held for held in found if held.job not in known]
    together = node.held.union(new)
    excess = len(together) - variant.room
    if excess <= 0:
        return node._replace(held=together)
    leaving = sorted(_may_leave(variant, node, new), key=lambda held: position(held.due, held.job))[-excess:]
    taken = node._replace(held=together.difference(leaving))
    stay = [
        held
        for held in leaving
        if variant.on[
            "job_without_room_is_left_to_scan.displaced"
            if held in node.held
            else "job_without_room_is_left_to_scan.not_taken"
        ]
    ]
    if not variant.on["smallest_position_is_left_to_scan"]:
        stay = stay[-1:]
    for held in stay:
        taken = _leave(variant, taken, *_place(variant, state, held))
    return taken


def _may_leave(variant: Variant, node: LineNode, new: list[Held]) -> list[Held]:
    """Those of which the latest give way: all that wait, never one that was handed over."""
    if not variant.on["earlier_job_displaces_later"]:
        return new
    return new + [held for held in node.held if not held.handed_over or not variant.on["handed_over_is_not_displaced"]]


def _place(variant: Variant, state: State, held: Held) -> tuple[int, int]:
    """The priority and the position at which a scan finds this job again."""
    priority = variant.priority[held.job] if variant.on["left_to_scan_of_own_priority"] else 0
    row = state.rows[held.job]
    assert row
    return priority, position(held.due if variant.on["left_to_scan_at_due_position"] else row.key, held.job)


def _leave(variant: Variant, node: LineNode, priority: int, pos: int) -> LineNode:
    """Join what is left to scan of this priority: the smaller cursor wins, a page under way ends before it."""
    left = node.left[priority]
    if left is None or pos < left.cursor or not variant.on["smaller_cursor_wins"]:
        return with_left(node, priority, Left(pos))
    if left.end != OPEN and pos < left.end:
        return with_left(node, priority, Left(left.cursor, pos))
    return node


def with_left(node: LineNode, priority: int, left: Left | None) -> LineNode:
    return node._replace(left=(*node.left[:priority], left, *node.left[priority + 1 :]))


def load(variant: Variant, state: State, node: LineNode) -> LineNode:
    """After a takeover or in doubt: [low, line) is left to scan [9, 10].

    Requests, scan and firing come in any order from here, which is more than the rules allow.
    """
    left = Left(start_of(state.low)) if variant.on["takeover_scans_from_low"] and state.low < state.line else None
    return node._replace(doubt=0, line=state.line, left=(left,) * len(node.left))


def reads_entries(variant: Variant, left: Left) -> bool:
    """Is the next read of this page the one of entries?"""
    return (left.end != OPEN) != variant.entries_first


def read(variant: Variant, state: State, node: LineNode, priority: int) -> tuple[tuple[Held, ...], int]:
    """One snapshot of a page: what it found, and where the page ends."""
    left = node.left[priority]
    assert left
    entries = reads_entries(variant, left)
    second = left.end != OPEN
    end = left.end if second else start_of(node.line)
    places = _entries(variant, state) if entries else _rows(variant, state)
    found = sorted(pos for pos in places if left.cursor <= pos < end and variant.priority[job_at(pos)] == priority)
    if not second and len(found) > variant.page:
        found = found[: variant.page]
        end = found[-1] + 1
    return tuple(_held(state, pos) for pos in found), end


def _rows(variant: Variant, state: State) -> Iterable[int]:
    for job, row in enumerate(state.rows):
        if row and row.status == PENDING and (row.due == row.key or not variant.on["stale_row_is_skipped"]):
            yield position(row.key, job)


def _entries(variant: Variant, state: State) -> Iterable[int]:
    for pos in state.entries:
        row = state.rows[job_at(pos)]
        if row and row.status == PENDING and (row.due == moment_of(pos) or not variant.on["stale_entry_is_skipped"]):
            yield pos


def _held(state: State, pos: int) -> Held:
    row = state.rows[job_at(pos)]
    assert row
    return Held(job_at(pos), moment_of(pos), row.attempt)


def put_page(
    variant: Variant, state: State, node: LineNode, priority: int, end: int, found: tuple[Held, ...]
) -> LineNode:
    """What one read of a page found goes onto the wheel; then the other read, the next page, or nothing is left."""
    left = node.left[priority]
    assert left
    after: Left | None = Left(left.cursor, end)
    if left.end != OPEN:
        after = Left(end) if end < start_of(node.line) else None
    return take(variant, state, with_left(node, priority, after), found)


def covered(variant: Variant, node: LineNode, job: int, row: Row, entries: frozenset[int]) -> bool:
    """Will the scans that are left find this job?"""
    left = node.left[variant.priority[job]]
    pos = position(row.due, job)
    if left is None or pos < left.cursor:
        return False
    if left.end == OPEN or pos >= left.end:
        return True
    return row.key == row.due if variant.entries_first else pos in entries
