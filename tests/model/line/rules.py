"""The rules of docs/concepts/line-protocol.md that the model of one shard can switch off."""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    source: str  # the section, by its number or its name, of docs/concepts/line-protocol.md
    without: str  # what happens when it is switched off


RULES = {
    "insert_holds_lock": Rule("1", "an insert lets go of its share lock before it commits"),
    "change_holds_lock": Rule("1", "a caller's own compare-and-set lets go of its share lock before it commits"),
    "settle_holds_lock": Rule("1", "a settle lets go of its lock before it commits"),
    "answer_holds_lock.decision": Rule("1", "a decision lets go of its lock before it commits"),
    "answer_holds_lock.wake": Rule("1", "consuming lets go of its lock before it commits"),
    "advance_locks_exclusively.low": Rule("1", "moving low lets go of its lock before it commits"),
    "low_write_locks_exclusively": Rule("1", "what writes low holds the share lock only"),
    "advance_locks_exclusively.line": Rule("1", "the line moves without the exclusive lock"),
    "takeover_locks_exclusively": Rule("1", "a takeover goes without the exclusive lock"),
    "release_locks_exclusively": Rule("1", "a release goes without the exclusive lock"),
    "settle_in_lane": Rule("2", "a settle runs beside another transaction of the same shard"),
    "answer_in_lane.decision": Rule("2", "a decision runs beside another transaction of the same shard"),
    "insert_wakes_owner": Rule("3", "an insert before the line leaves no wake"),
    "wake_names_every_row": Rule("3", "a wake names the first of its rows only"),
    "user_transaction_always_wakes": Rule("3", "a transaction without a lock trusts the line that it saw"),
    "scan_starts_at_remembered_line": Rule("4", "a scan begins at the persisted line instead of the remembered one"),
    "line_moves_before_scan": Rule("4", "the scan runs before the line has moved"),
    "advance_is_fenced": Rule("4", "the line is moved without a look at the owner"),
    "retry_writes_entry": Rule("5", "a retry leaves no entry"),
    "reschedule_writes_entry.caller": Rule("5", "a caller's own reschedule leaves no entry"),
    "reschedule_writes_entry.owner": Rule("5", "a decided reschedule leaves no entry"),
    "reschedule_wakes_owner": Rule("5", "a caller's own reschedule to before the line leaves no wake"),
    "stale_row_is_skipped": Rule("5", "a row is taken by its key though its due moment is another"),
    "stale_entry_is_skipped": Rule("5", "an entry is taken though the row's due moment is another"),
    "held_job_is_not_taken_again": Rule("5", "what is held is taken again"),
    "requests_are_read_without_cursor": Rule("6", "requests below the largest number seen are passed over"),
    "answer_is_fenced.wake": Rule("6", "wakes are consumed without a look at the owner"),
    "only_read_requests_are_deleted": Rule(
        "6", "all wakes of the shard are deleted, also one that came after the read"
    ),
    "answer_lowers_low.wake": Rule("6", "low stays where it is when a wake is consumed"),
    "wake_reads_its_rows": Rule("6", "a wake is deleted and its rows are not read"),
    "wake_takes_only_before_line": Rule("6", "a named row due at or after the line goes onto the wheel as well"),
    "off_wheel_before_decision": Rule("7", "the job can still fire while its decision is written"),
    "handed_over_is_too_late": Rule("7", "a job that was handed over is decided by its row"),
    "answer_is_fenced.decision": Rule("7", "a request is decided without a look at the owner"),
    "withdrawn_request_is_not_decided": Rule("7", "a request is decided though its caller took it back"),
    "undecided_job_returns_to_wheel": Rule("7", "the job stays off the wheel though nothing was decided"),
    "decided_request_is_not_withdrawn": Rule("7", "a caller says Unavailable though its request was consumed"),
    "released_change_locks_exclusively": Rule("7", "at a released shard the caller holds no lock to its commit"),
    "released_shard_is_checked_again": Rule(
        "7", "the caller does not look, under its lock, whether the shard is still released"
    ),
    "answer_lowers_low.decision": Rule("8", "low stays behind a decided reschedule to an earlier moment"),
    "retry_lowers_low": Rule("8", "low stays behind a retry at an earlier moment"),
    "low_stays_before_now": Rule("8", "low passes now"),
    "low_stays_before_unscanned": Rule("8", "low passes the start of what is left to scan"),
    "low_stays_before_unsettled": Rule("8", "low passes a job that is not settled"),
    "takeover_scans_from_low": Rule("9", "a takeover does not scan [low, line)"),
    "doubt_reloads": Rule("10", "a commit without an answer counts as failed"),
    "reload_waits_for_lock": Rule("10", "a reload does not wait for the exclusive lock"),
    "reload_keeps_handed_over": Rule("10", "a reload forgets what was handed over"),
    "missed_settle_reloads": Rule("10", "a settle that changed no row drops its job and goes on"),
    "lapse_reloads": Rule("10", "after a lapse the owner is checked, what memory holds is kept"),
    "settle_compares_attempt": Rule("11", "a settle meets whatever attempt the row has"),
    "settle_is_fenced": Rule("11", "a settle does not look at the owner"),
    "existing_entry_is_ignored": Rule("11", "an entry that exists already makes the settle fail, time and again"),
    "line_is_read_under_lock": Rule("11", "an insert reads the line first and waits for its lock then"),
    "job_without_room_is_left_to_scan.not_taken": Rule(
        "window", "what does not fit is not taken, and not left to scan either"
    ),
    "smallest_position_is_left_to_scan": Rule("window", "of what does not fit only the last position is left to scan"),
    "smaller_cursor_wins": Rule("window", "what does not fit replaces what was left to scan"),
    "left_to_scan_of_own_priority": Rule("window", "what does not fit is left to the scan of another priority"),
    "left_to_scan_at_due_position": Rule(
        "window", "a moved job that does not fit is left to scan at its key, not at its due moment"
    ),
    "earlier_job_displaces_later": Rule("window", "a full wheel takes nothing, however urgent"),
    "job_without_room_is_left_to_scan.displaced": Rule("window", "a displaced job is not left to scan"),
    "handed_over_is_not_displaced": Rule("window", "a job that was handed over can be displaced"),
    "takeover_checks_heartbeat_again": Rule("lease", "a takeover trusts the heartbeat that it saw earlier"),
    "lapse_stops_firing": Rule("lease", "a node goes on firing after its lease"),
    "lapsed_node_renews_then_checks": Rule("lease", "the owner is checked before the renewal, not after it"),
    "drain_stops_firing": Rule("drain", "a draining node goes on firing"),
    "drain_waits_for_settles": Rule("drain", "a shard is released with jobs in flight"),
    "drain_is_called_off_in_lane": Rule("drain", "a drain is called off while its release is under way"),
    "fires_when_due": Rule("clock", "firing does not wait for the due moment"),
}

SURVIVORS = {
    "scan_starts_at_remembered_line": "the fence of the advance is enough alone; without both a job is lost",
    "advance_is_fenced": "scanning from the remembered line is enough alone; without both a job is lost",
    "low_stays_before_now": "an insert before the line leaves a wake, and consuming that lowers low: this saves work",
    "lapse_reloads": "checking the owner under the exclusive lock is enough: loading again saves a second path",
    "low_write_locks_exclusively": "the share lock would do here; two upgrades of it deadlock, which shards/ shows",
}
