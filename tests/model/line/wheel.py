"""The memory of an owner: what is on the wheel, what is left to scan, and how a scan reads rows and entries."""

from __future__ import annotations

from collections.abc import Iterable

from tests.model.line.state import OPEN, PENDING, Held, Left, Node, Row, State, job_at, moment_of, position, start_of
from tests.model.line.world import World


def take(world: World, state: State, node: Node, found: Iterable[Held]) -> Node:
    """Put what was read onto the wheel unless held [5]; the latest ones that do not fit are left to scan [window]."""
    known = {held.job for held in node.held} if world.on["held_job_is_not_taken_again"] else ()
    new = [held for held in found if held.job not in known]
    together = node.held.union(new)
    excess = len(together) - world.room
    if excess <= 0:
        return node._replace(held=together)
    leaving = sorted(_may_leave(world, node, new), key=lambda held: position(held.due, held.job))[-excess:]
    taken = node._replace(held=together.difference(leaving))
    stay = [
        held
        for held in leaving
        if world.on[
            "job_without_room_is_left_to_scan.displaced"
            if held in node.held
            else "job_without_room_is_left_to_scan.not_taken"
        ]
    ]
    if not world.on["smallest_position_is_left_to_scan"]:
        stay = stay[-1:]
    for held in stay:
        taken = _leave(world, taken, *_place(world, state, held))
    return taken


def _may_leave(world: World, node: Node, new: list[Held]) -> list[Held]:
    """Those of which the latest give way: all that wait, never one that was handed over."""
    if not world.on["earlier_job_displaces_later"]:
        return new
    return new + [held for held in node.held if not held.handed_over or not world.on["handed_over_is_not_displaced"]]


def _place(world: World, state: State, held: Held) -> tuple[int, int]:
    """The priority and the position at which a scan finds this job again."""
    priority = world.priority[held.job] if world.on["left_to_scan_of_own_priority"] else 0
    row = state.rows[held.job]
    assert row
    return priority, position(held.due if world.on["left_to_scan_at_due_position"] else row.key, held.job)


def _leave(world: World, node: Node, priority: int, pos: int) -> Node:
    """Join what is left to scan of this priority: the smaller cursor wins, a page under way ends before it."""
    left = node.left[priority]
    if left is None or pos < left.cursor or not world.on["smaller_cursor_wins"]:
        return with_left(node, priority, Left(pos))
    if left.end != OPEN and pos < left.end:
        return with_left(node, priority, Left(left.cursor, pos))
    return node


def with_left(node: Node, priority: int, left: Left | None) -> Node:
    return node._replace(left=(*node.left[:priority], left, *node.left[priority + 1 :]))


def load(world: World, state: State, node: Node) -> Node:
    """After a takeover or in doubt: [low, line) is left to scan [9, 10].

    Requests, scan and firing come in any order from here, which is more than the rules allow.
    """
    left = Left(start_of(state.low)) if world.on["takeover_scans_from_low"] and state.low < state.line else None
    return node._replace(doubt=0, line=state.line, left=(left,) * len(node.left))


def reads_entries(world: World, left: Left) -> bool:
    """Is the next read of this page the one of entries?"""
    return (left.end != OPEN) != world.entries_first


def read(world: World, state: State, node: Node, priority: int) -> tuple[tuple[Held, ...], int]:
    """One snapshot of a page: what it found, and where the page ends."""
    left = node.left[priority]
    assert left
    entries = reads_entries(world, left)
    second = left.end != OPEN
    end = left.end if second else start_of(node.line)
    places = _entries(world, state) if entries else _rows(world, state)
    found = sorted(pos for pos in places if left.cursor <= pos < end and world.priority[job_at(pos)] == priority)
    if not second and len(found) > world.page:
        found = found[: world.page]
        end = found[-1] + 1
    return tuple(_held(state, pos) for pos in found), end


def _rows(world: World, state: State) -> Iterable[int]:
    for job, row in enumerate(state.rows):
        if row and row.status == PENDING and (row.due == row.key or not world.on["stale_row_is_skipped"]):
            yield position(row.key, job)


def _entries(world: World, state: State) -> Iterable[int]:
    for pos in state.entries:
        row = state.rows[job_at(pos)]
        if row and row.status == PENDING and (row.due == moment_of(pos) or not world.on["stale_entry_is_skipped"]):
            yield pos


def _held(state: State, pos: int) -> Held:
    row = state.rows[job_at(pos)]
    assert row
    return Held(job_at(pos), moment_of(pos), row.attempt)


def put_page(world: World, state: State, node: Node, priority: int, end: int, found: tuple[Held, ...]) -> Node:
    """What one read of a page found goes onto the wheel; then the other read, the next page, or nothing is left."""
    left = node.left[priority]
    assert left
    after: Left | None = Left(left.cursor, end)
    if left.end != OPEN:
        after = Left(end) if end < start_of(node.line) else None
    return take(world, state, with_left(node, priority, after), found)


def covered(world: World, node: Node, job: int, row: Row, entries: frozenset[int]) -> bool:
    """Will the scans that are left find this job?"""
    left = node.left[world.priority[job]]
    pos = position(row.due, job)
    if left is None or pos < left.cursor:
        return False
    if left.end == OPEN or pos >= left.end:
        return True
    return row.key == row.due if world.entries_first else pos in entries
