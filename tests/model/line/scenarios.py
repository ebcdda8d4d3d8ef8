"""The scenarios of one shard, each a small case searched exhaustively, and which of them catches which missing rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.model.line.state import Faults
from tests.model.line.variant import Change, Insert, Scenario

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
    "insert_holds_lock": ("displaced-urgent", "never lost"),
    "change_holds_lock": ("cancel-retry", "respected"),
    "settle_holds_lock": ("displaced-lapse", "fenced"),
    "answer_holds_lock.decision": ("cancel-lapse", "fenced"),
    "answer_holds_lock.wake": ("full-doubt", "never lost"),
    "advance_locks_exclusively.low": ("full-doubt", "findable"),
    "advance_locks_exclusively.line": ("displaced-urgent", "never lost"),
    "takeover_locks_exclusively": ("displaced-lapse", "fenced"),
    "release_locks_exclusively": ("released-doubt", "fenced"),
    "settle_in_lane": ("priorities-three", "once"),
    "answer_in_lane.decision": ("cancel-user", "respected"),
    "insert_wakes_owner": ("displaced-urgent", "never lost"),
    "wake_names_every_row": ("full-pages", "never lost"),
    "user_transaction_always_wakes": ("two-users", "never lost"),
    "line_moves_before_scan": ("displaced-urgent", "never lost"),
    "retry_writes_entry": ("displaced-entries", "findable"),
    "reschedule_writes_entry.caller": ("retry-later", "findable"),
    "reschedule_writes_entry.owner": ("full-later", "findable"),
    "reschedule_wakes_owner": ("released-past", "never lost"),
    "stale_row_is_skipped": ("retry-later", "never early"),
    "stale_entry_is_skipped": ("later-earlier", "never early"),
    "held_job_is_not_taken_again": ("priorities-three", "once"),
    "requests_are_read_without_cursor": ("priorities-three", "never lost"),
    "answer_is_fenced.wake": ("displaced-lapse", "never lost"),
    "only_read_requests_are_deleted": ("priorities-three", "never lost"),
    "answer_lowers_low.wake": ("retry-same", "findable"),
    "wake_reads_its_rows": ("priorities-three", "never lost"),
    "wake_takes_only_before_line": ("cancel-user", "respected"),
    "off_wheel_before_decision": ("full-later", "respected"),
    "handed_over_is_too_late": ("full-later", "respected"),
    "answer_is_fenced.decision": ("cancel-lapse", "fenced"),
    "withdrawn_request_is_not_decided": ("full-later", "respected"),
    "undecided_job_returns_to_wheel": ("full-later", "never lost"),
    "decided_request_is_not_withdrawn": ("full-later", "respected"),
    "released_change_locks_exclusively": ("cancel-drain", "respected"),
    "released_shard_is_checked_again": ("cancel-drain", "respected"),
    "answer_lowers_low.decision": ("released-past", "findable"),
    "retry_lowers_low": ("retry-past", "findable"),
    "low_stays_before_unscanned": ("retry-pages", "findable"),
    "low_stays_before_unsettled": ("retry-same", "findable"),
    "takeover_scans_from_low": ("displaced-lapse", "never lost"),
    "doubt_reloads": ("full-doubt", "never lost"),
    "reload_waits_for_lock": ("full-doubt", "never lost"),
    "reload_keeps_handed_over": ("full-doubt", "once"),
    "missed_settle_reloads": ("retry-doubt", "never lost"),
    "settle_compares_attempt": ("retry-doubt", "once"),
    "settle_is_fenced": ("displaced-lapse", "fenced"),
    "existing_entry_is_ignored": ("retry-same", "never lost"),
    "line_is_read_under_lock": ("displaced-urgent", "never lost"),
    "job_without_room_is_left_to_scan.not_taken": ("displaced-lapse", "never lost"),
    "smallest_position_is_left_to_scan": ("full-three", "never lost"),
    "smaller_cursor_wins": ("full-three", "never lost"),
    "left_to_scan_of_own_priority": ("priorities-three", "never lost"),
    "left_to_scan_at_due_position": ("full-move", "never lost"),
    "earlier_job_displaces_later": ("displaced-urgent", "never lost"),
    "job_without_room_is_left_to_scan.displaced": ("priorities-three", "never lost"),
    "handed_over_is_not_displaced": ("priorities-three", "once"),
    "takeover_checks_heartbeat_again": ("displaced-lapse", "once"),
    "lapse_stops_firing": ("displaced-lapse", "once"),
    "lapsed_node_renews_then_checks": ("displaced-lapse", "once"),
    "drain_stops_firing": ("cancel-drain", "once"),
    "drain_waits_for_settles": ("cancel-drain", "once"),
    "drain_is_called_off_in_lane": ("cancel-drain", "once"),
    "fires_when_due": ("displaced-urgent", "never early"),
}
