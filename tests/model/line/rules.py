"""The rules of docs/concepts/line-protocol.md that the model of one shard can switch off."""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    source: str  # number of the rule, or the section, in docs/concepts/line-protocol.md
    without: str  # what happens when it is switched off


RULES = {
    "insert_locked": Rule("1", "an insert lets go of its share lock before it commits"),
    "change_locked": Rule("1", "a caller's own compare-and-set lets go of its share lock before it commits"),
    "settle_locked": Rule("1", "a settle lets go of its lock before it commits"),
    "decision_locked": Rule("1", "a decision lets go of its lock before it commits"),
    "consume_locked": Rule("1", "consuming lets go of its lock before it commits"),
    "low_locked": Rule("1", "moving low lets go of its lock before it commits"),
    "low_exclusive": Rule("1", "what writes low holds the share lock only"),
    "advance_exclusive": Rule("1", "the line moves without the exclusive lock"),
    "owner_exclusive": Rule("1", "takeover and release go without the exclusive lock"),
    "settle_in_lane": Rule("2", "a settle runs beside another transaction of the same shard"),
    "decision_in_lane": Rule("2", "a decision runs beside another transaction of the same shard"),
    "insert_wakes": Rule("3", "an insert before the line leaves no wake"),
    "wake_names_every_row": Rule("3", "a wake names the first of its rows only"),
    "user_always_wakes": Rule("3", "a transaction without a lock trusts the line that it saw"),
    "scan_from_memory": Rule("4", "a scan begins at the persisted line instead of the remembered one"),
    "line_before_scan": Rule("4", "the scan runs before the line has moved"),
    "advance_fenced": Rule("4", "the line is moved without a look at the owner"),
    "retry_entry": Rule("5", "a retry leaves no entry"),
    "change_entry": Rule("5", "a caller's own reschedule leaves no entry"),
    "decision_entry": Rule("5", "a decided reschedule leaves no entry"),
    "change_wakes": Rule("5", "a caller's own reschedule to before the line leaves no wake"),
    "row_key_is_due": Rule("5", "a row is taken by its key though its due moment is another"),
    "entry_is_due": Rule("5", "an entry is taken though the row's due moment is another"),
    "not_held_twice": Rule("5", "what is held is taken again"),
    "no_request_cursor": Rule("6", "requests below the largest number seen are passed over"),
    "consume_fenced": Rule("6", "wakes are consumed without a look at the owner"),
    "consume_lowers_low": Rule("6", "low stays where it is when a wake is consumed"),
    "consume_reads": Rule("6", "a wake is deleted and its rows are not read"),
    "consume_before_line": Rule("6", "a named row due at or after the line goes onto the wheel as well"),
    "off_wheel_first": Rule("7", "the job can still fire while its decision is written"),
    "handed_over_is_too_late": Rule("7", "a job that was handed over is decided by its row"),
    "decision_fenced": Rule("7", "a request is decided without a look at the owner"),
    "decision_claims": Rule("7", "a request is decided though its caller took it back"),
    "decision_puts_back": Rule("7", "the job stays off the wheel though nothing was decided"),
    "give_up_claims": Rule("7", "a caller says Unavailable though its request was consumed"),
    "released_locked": Rule("7", "at a released shard the caller holds no lock to its commit"),
    "released_checked": Rule("7", "the caller does not look, under its lock, whether the shard is still released"),
    "decision_lowers_low": Rule("8", "low stays behind a decided reschedule to an earlier moment"),
    "retry_lowers_low": Rule("8", "low stays behind a retry at an earlier moment"),
    "low_before_now": Rule("8", "low passes now"),
    "low_before_left": Rule("8", "low passes the start of what is left to scan"),
    "low_before_held": Rule("8", "low passes a job that is not settled"),
    "takeover_scans": Rule("9", "a takeover does not scan [low, line)"),
    "doubt_reloads": Rule("10", "a commit without an answer counts as failed"),
    "reload_waits": Rule("10", "a reload does not wait for the exclusive lock"),
    "reload_keeps_handed_over": Rule("10", "a reload forgets what was handed over"),
    "missed_settle_reloads": Rule("10", "a settle that changed no row drops its job and goes on"),
    "lapse_reloads": Rule("10", "after a lapse the owner is checked, what memory holds is kept"),
    "settle_compares_attempt": Rule("11", "a settle meets whatever attempt the row has"),
    "settle_fenced": Rule("11", "a settle does not look at the owner"),
    "entry_or_ignored": Rule("11", "an entry that exists already makes the settle fail, time and again"),
    "line_read_under_lock": Rule("11", "an insert reads the line first and waits for its lock then"),
    "not_taken_is_left": Rule("window", "what does not fit is not taken, and not left to scan either"),
    "smallest_is_left": Rule("window", "of what does not fit only the last position is left to scan"),
    "left_joins": Rule("window", "what does not fit replaces what was left to scan"),
    "left_by_priority": Rule("window", "what does not fit is left to the scan of another priority"),
    "left_by_due": Rule("window", "a moved job that does not fit is left to scan at its key, not at its due moment"),
    "earlier_displaces": Rule("window", "a full wheel takes nothing, however urgent"),
    "displaced_is_left": Rule("window", "a displaced job is not left to scan"),
    "only_waiting_displaced": Rule("window", "a job that was handed over can be displaced"),
    "heartbeat_checked_again": Rule("lease", "a takeover trusts the heartbeat that it saw earlier"),
    "lapse_stops_firing": Rule("lease", "a node goes on firing after its lease"),
    "renew_then_check": Rule("lease", "the owner is checked before the renewal, not after it"),
    "drain_stops_firing": Rule("drain", "a draining node goes on firing"),
    "drain_waits": Rule("drain", "a shard is released with jobs in flight"),
    "call_off_in_lane": Rule("drain", "a drain is called off while its release is under way"),
    "fires_when_due": Rule("clock", "firing does not wait for the due moment"),
}

SURVIVORS = {
    "scan_from_memory": "the fence of the advance is enough alone; without both a job is lost",
    "advance_fenced": "scanning from the remembered line is enough alone; without both a job is lost",
    "low_before_now": "an insert before the line leaves a wake, and consuming that lowers low: this saves work",
    "lapse_reloads": "checking the owner under the exclusive lock is enough: loading again saves a second path",
    "low_exclusive": "the share lock would do here; two upgrades of it deadlock, which shards/ shows",
}
