"""The scenarios of one shard, each a small case searched exhaustively, and which of them catches which missing rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.model.line.state import Faults
from tests.model.line.world import Change, Insert, Scenario

Job = tuple[int, int]


def insert(*rows: Job) -> Insert:
    return Insert(rows)


def user(*rows: Job) -> Insert:
    return Insert(rows, user=True)


def cancel(job: int) -> Change:
    return Change(job)


def move(job: int, due: int) -> Change:
    return Change(job, due)


def _(*callers: Insert | Change, **bounds: Any) -> Scenario:
    faults = Faults(**{name: bounds.pop(name) for name in Faults._fields if name in bounds})
    return Scenario(callers, faults, **bounds)


INSERTS = {
    "insert-crash": _(insert((0, 2)), crash=1),
    "insert-past": _(insert((0, 0)), crash=1),
    "insert-drain": _(insert((0, 1)), drain=1),
    "insert-doubt": _(insert((0, 1)), doubt=1, crash=1, horizon=2),
    "insert-lapse": _(insert((0, 1)), lapse=1, horizon=2),
    "user-crash": _(user((0, 2)), crash=1),
    "user-doubt": _(user((0, 1)), doubt=1, crash=1, horizon=2),
    "two-in-one": _(insert((0, 0), (1, 1)), crash=1, horizon=1),
    "two-users": _(user((0, 1)), user((1, 1)), horizon=1),
    "two-callers": _(insert((0, 1)), user((1, 0)), crash=1, horizon=1),
    "pages": _(insert((0, 1), (1, 1)), insert((2, 2)), page=1, horizon=2),
    "drain-doubt": _(insert((0, 0)), drain=1, doubt=1, horizon=1),
    "lapse-doubt": _(insert((0, 0)), lapse=1, doubt=1, horizon=1),
}
CANCELS = {
    "cancel": _(insert((0, 1)), cancel(0), crash=1, horizon=2),
    "cancel-user": _(user((0, 2)), cancel(0), horizon=2),
    "cancel-doubt": _(insert((0, 1)), cancel(0), doubt=1, horizon=2),
    "cancel-lapse": _(insert((0, 0)), cancel(0), lapse=1, horizon=1),
    "cancel-retry": _(insert((0, 1)), cancel(0), retry=1, horizon=2),
    "cancel-drain": _(insert((0, 0)), cancel(0), drain=1, horizon=1),
    "released-past": _(insert((0, 1)), move(0, 0), drain=1, horizon=1),
    "released-later": _(insert((0, 0)), move(0, 1), drain=1, crash=1, horizon=1),
    "released-doubt": _(insert((0, 0)), cancel(0), drain=1, doubt=1, horizon=1),
}
MOVES = {
    "later": _(insert((0, 1)), move(0, 2), crash=1, horizon=2),
    "earlier": _(insert((0, 3)), move(0, 1), crash=1),
    "past": _(insert((0, 2)), move(0, 0), crash=1, horizon=2),
    "later-cancel": _(insert((0, 1)), move(0, 2), cancel(0), horizon=2),
    "later-earlier": _(insert((0, 1)), move(0, 2), move(0, 1), horizon=2),
    "later-doubt": _(insert((0, 1)), move(0, 2), doubt=1, horizon=2),
    "later-lapse": _(insert((0, 0)), move(0, 1), lapse=1, horizon=1),
    "later-entries": _(insert((0, 1)), move(0, 2), crash=1, horizon=2, entries_first=True),
}
RETRIES = {
    "retry": _(insert((0, 1)), crash=1, retry=2),
    "retry-past": _(insert((0, 1)), crash=1, retry=1, past_retry=True, horizon=2),
    "retry-same": _(insert((0, 0)), retry=2, past_retry=True, horizon=1),
    "retry-doubt": _(insert((0, 1)), doubt=1, retry=1, horizon=2),
    "retry-drain": _(insert((0, 1)), drain=1, retry=1, horizon=2),
    "retry-lapse": _(insert((0, 0)), lapse=1, retry=1, horizon=2),
    "retry-later": _(insert((0, 1)), move(0, 2), retry=1),
    "retry-pages": _(insert((0, 1), (1, 1)), retry=1, page=1, horizon=2),
    "retry-entries": _(insert((0, 1)), crash=1, retry=1, entries_first=True),
}
FULL = {
    "full-wake": _(insert((0, 1), (1, 0)), room=1, crash=1, horizon=2),
    "full-scan": _(insert((0, 2), (1, 1)), room=1, crash=1),
    "full-three": _(insert((0, 0), (1, 0), (2, 1)), room=1, crash=1, horizon=2),
    "full-users": _(user((0, 0)), user((1, 0)), user((2, 1)), room=1, horizon=1),
    "full-cancel": _(insert((0, 0), (1, 1)), cancel(1), room=1, crash=1, horizon=1),
    "full-move": _(insert((0, 0), (1, 1)), move(1, 0), room=1, crash=1, horizon=1),
    "full-later": _(insert((0, 1), (1, 0)), move(1, 2), room=1, horizon=2),
    "full-retry": _(insert((0, 0), (1, 1)), room=1, retry=1, crash=1, horizon=2),
    "full-doubt": _(insert((0, 0), (1, 1)), room=1, doubt=1, horizon=2),
    "full-drain": _(insert((0, 0), (1, 1)), room=1, drain=1, horizon=2),
    "full-pages": _(insert((0, 0), (1, 0), (2, 1)), room=2, page=1, crash=1, horizon=1),
}
DISPLACED = {
    "displaced": _(insert((0, 1)), insert((1, 0)), room=1, crash=1, horizon=1),
    "displaced-urgent": _(insert((0, 1)), insert((1, 0)), room=1, horizon=0, beyond=2),
    "displaced-user": _(user((0, 0)), user((1, 0)), user((2, 0)), room=2, horizon=1),
    "displaced-moved": _(insert((0, 2)), move(0, 1), insert((1, 0)), room=1, horizon=2),
    "displaced-by-move": _(insert((0, 2)), insert((1, 1)), move(0, 0), room=1, horizon=2),
    "displaced-by-retry": _(insert((1, 0)), insert((0, 0)), room=1, retry=1, past_retry=True, horizon=1),
    "displaced-cancel": _(insert((0, 1)), insert((1, 0)), cancel(0), room=1, horizon=1),
    "displaced-doubt": _(insert((0, 1)), insert((1, 0)), room=1, doubt=1, horizon=1),
    "displaced-drain": _(insert((0, 1)), insert((1, 0)), room=1, drain=1, horizon=1),
    "displaced-lapse": _(user((0, 0)), user((1, 0)), room=1, lapse=1, horizon=0),
    "displaced-entries": _(insert((0, 1)), insert((1, 0)), room=1, retry=1, entries_first=True, horizon=1),
    "priorities": _(insert((0, 1)), insert((1, 0)), room=1, crash=1, less_urgent=(0,), horizon=1),
    "priorities-moved": _(insert((0, 1)), move(0, 0), insert((1, 0)), room=1, less_urgent=(0,), horizon=1),
    "priorities-three": _(user((0, 0)), user((1, 0)), user((2, 0)), room=2, less_urgent=(2,), horizon=0),
}
SCENARIOS: Mapping[str, Scenario] = {**INSERTS, **CANCELS, **MOVES, **RETRIES, **FULL, **DISPLACED}
LARGE: Mapping[str, Scenario] = {
    "large-released-two": _(insert((0, 0)), cancel(0), move(0, 1), drain=1, horizon=1),
    "large-released-later": _(insert((0, 0)), move(0, 2), drain=1, crash=1, horizon=2),
    "large-cancel": _(insert((0, 2)), cancel(0), crash=1),
    "large-full-users": _(user((0, 0)), user((1, 0)), user((2, 1)), room=1, crash=1, horizon=1),
    "large-later": _(insert((0, 1)), move(0, 3), crash=1),
    "large-later-cancel": _(insert((0, 1)), move(0, 3), cancel(0)),
    "large-later-earlier": _(insert((0, 2)), move(0, 3), move(0, 1)),
    "large-priorities": _(insert((0, 2)), move(0, 1), insert((1, 0)), room=1, less_urgent=(0,), horizon=2),
    "all-cancel": _(insert((0, 1)), cancel(0), crash=1, doubt=1, retry=1, horizon=2),
    "all-later": _(insert((0, 1)), move(0, 2), crash=1, doubt=1, retry=1, horizon=2),
    "all-earlier": _(user((0, 2)), move(0, 1), crash=1, doubt=1, retry=1, horizon=2),
    "all-lapse": _(insert((0, 1)), cancel(0), lapse=1, retry=1, horizon=2),
    "all-drain": _(insert((0, 1)), cancel(0), drain=1, doubt=1, retry=1, horizon=2),
    "all-late": _(insert((0, 0)), cancel(0), lapse=1, doubt=1, horizon=1),
    "all-doubt": _(insert((0, 1)), doubt=2, retry=2),
    "all-three": _(insert((0, 1)), move(0, 2), cancel(0), crash=1, horizon=2),
    "all-two": _(insert((0, 0), (1, 2)), cancel(1), crash=1, doubt=1, horizon=2),
    "all-pages": _(insert((0, 1), (1, 1)), move(0, 2), crash=1, drain=1, page=1, horizon=2),
    "all-displaced": _(insert((0, 1)), insert((1, 0)), room=1, crash=1, doubt=1, retry=1, horizon=1),
    "all-priorities": _(insert((0, 1)), insert((1, 0)), move(0, 0), room=1, crash=1, less_urgent=(0,), horizon=1),
}

# The promise that breaks first without a rule, and the scenario that shows it after the fewest states.
CAUGHT_BY: Mapping[str, tuple[str, str]] = {
    "insert_locked": ("displaced-urgent", "never lost"),
    "change_locked": ("cancel-retry", "respected"),
    "settle_locked": ("displaced-lapse", "fenced"),
    "decision_locked": ("cancel-lapse", "fenced"),
    "consume_locked": ("full-doubt", "never lost"),
    "low_locked": ("full-doubt", "findable"),
    "advance_exclusive": ("displaced-urgent", "never lost"),
    "owner_exclusive": ("displaced-lapse", "fenced"),
    "settle_in_lane": ("priorities-three", "once"),
    "decision_in_lane": ("cancel-user", "respected"),
    "insert_wakes": ("displaced-urgent", "never lost"),
    "wake_names_every_row": ("full-pages", "never lost"),
    "user_always_wakes": ("two-users", "never lost"),
    "line_before_scan": ("displaced-urgent", "never lost"),
    "retry_entry": ("displaced-entries", "findable"),
    "change_entry": ("retry-later", "findable"),
    "decision_entry": ("full-later", "findable"),
    "change_wakes": ("released-past", "never lost"),
    "row_key_is_due": ("retry-later", "never early"),
    "entry_is_due": ("later-earlier", "never early"),
    "not_held_twice": ("priorities-three", "once"),
    "no_request_cursor": ("priorities-three", "never lost"),
    "consume_fenced": ("displaced-lapse", "never lost"),
    "consume_deletes_read": ("priorities-three", "never lost"),
    "consume_lowers_low": ("retry-same", "findable"),
    "consume_reads": ("priorities-three", "never lost"),
    "consume_before_line": ("cancel-user", "respected"),
    "off_wheel_first": ("full-later", "respected"),
    "handed_over_is_too_late": ("full-later", "respected"),
    "decision_fenced": ("cancel-lapse", "fenced"),
    "decision_claims": ("full-later", "respected"),
    "decision_puts_back": ("full-later", "never lost"),
    "give_up_claims": ("full-later", "respected"),
    "released_locked": ("cancel-drain", "respected"),
    "released_checked": ("cancel-drain", "respected"),
    "decision_lowers_low": ("released-past", "findable"),
    "retry_lowers_low": ("retry-past", "findable"),
    "low_before_left": ("retry-pages", "findable"),
    "low_before_held": ("retry-same", "findable"),
    "takeover_scans": ("displaced-lapse", "never lost"),
    "doubt_reloads": ("full-doubt", "never lost"),
    "reload_waits": ("full-doubt", "never lost"),
    "reload_keeps_handed_over": ("full-doubt", "once"),
    "missed_settle_reloads": ("retry-doubt", "never lost"),
    "settle_compares_attempt": ("retry-doubt", "once"),
    "settle_fenced": ("displaced-lapse", "fenced"),
    "entry_or_ignored": ("retry-same", "never lost"),
    "line_read_under_lock": ("displaced-urgent", "never lost"),
    "not_taken_is_left": ("displaced-lapse", "never lost"),
    "smallest_is_left": ("full-three", "never lost"),
    "left_joins": ("full-three", "never lost"),
    "left_by_priority": ("priorities-three", "never lost"),
    "left_by_due": ("full-move", "never lost"),
    "earlier_displaces": ("displaced-urgent", "never lost"),
    "displaced_is_left": ("priorities-three", "never lost"),
    "only_waiting_displaced": ("priorities-three", "once"),
    "heartbeat_checked_again": ("displaced-lapse", "once"),
    "lapse_stops_firing": ("displaced-lapse", "once"),
    "renew_then_check": ("displaced-lapse", "once"),
    "drain_stops_firing": ("cancel-drain", "once"),
    "drain_waits": ("cancel-drain", "once"),
    "call_off_in_lane": ("cancel-drain", "once"),
    "fires_when_due": ("displaced-urgent", "never early"),
}
