"""Orders of transactions that need a rule of the line protocol: each is named after the promise that it puts to test.

An interleaving runs the bodies of the store (door.py, owner.py) on a stage, so on any database. What a node keeps in
memory is what its last scan and its last answers brought. With all rules in place the promise holds on every stage;
without one of the rules it names, it is broken on the simulated database (test_interleavings.py).
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from infinite_scheduler.errors import StoreUnavailable
from infinite_scheduler.model import Change, Status, position
from infinite_scheduler.store.sql.protocol.anybody import RequestState
from tests.simulation.interleave import Stage
from tests.simulation.scene import (
    APP,
    LATER,
    LINE,
    LOW,
    NEW,
    NOBODY,
    NOW,
    OLD,
    OTHER,
    Broken,
    advances,
    again,
    answers,
    as_soon_as,
    asks,
    cancelled,
    change_request,
    done,
    enqueues,
    fenced,
    found,
    gives_up,
    granted,
    inserts,
    loaded,
    named,
    new_row,
    promise,
    record,
    releases,
    reloads,
    renews,
    requests_of,
    respected,
    scanned,
    settles,
    shard_row,
    takes,
    told_the_truth,
    waiting,
)


class Interleaving(NamedTuple):
    """One order of transactions, and the rules that it needs."""

    play: Callable[[Stage], None]
    rules: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.play.__name__


INTERLEAVINGS: list[Interleaving] = []


def needs(*rules: str) -> Callable[[Callable[[Stage], None]], Callable[[Stage], None]]:
    """Note down which rules an interleaving needs."""

    def note(play: Callable[[Stage], None]) -> Callable[[Stage], None]:
        INTERLEAVINGS.append(Interleaving(play, rules))
        return play

    return note


# Rule 1: locks


@needs("insert_holds_lock", "advance_locks_exclusively")
def a_job_whose_insert_commits_after_the_line_has_passed_it_is_not_lost(stage: Stage) -> None:
    row = new_row(LINE)
    inserting = stage.begin(inserts(row), stops_before="insert_jobs")
    advancing = stage.begin(advances(LATER))
    held = as_soon_as(advancing, lambda: scanned(stage, LINE, LATER), beside=inserting)
    found(row.key, held, named(stage))


@needs("change_holds_lock", "advance_locks_exclusively")
def a_cancel_that_commits_after_the_line_has_passed_the_job_holds(stage: Stage) -> None:
    key = waiting(stage, LINE + 1000)
    asking = stage.begin(asks(change_request(key)), stops_before="update_jobs")
    advancing = stage.begin(advances(LATER))
    held = as_soon_as(advancing, lambda: scanned(stage, LINE, LATER), beside=asking)
    respected(asking.result() is RequestState.GRANTED, key, held)


@needs("settle_holds_lock", "takeover_locks_exclusively")
def a_job_whose_settle_commits_after_a_takeover_is_not_handed_over_again(stage: Stage) -> None:
    key = waiting(stage, NOW)
    settling = stage.begin(settles(done(record(stage, key).job)), stops_before="delete_entries")
    taking = stage.begin(takes())
    held = as_soon_as(taking, lambda: loaded(stage), beside=settling)
    fenced(stage, key, held)


@needs("settle_holds_lock", "takeover_locks_exclusively")
def a_settle_that_lowers_low_takes_no_shard_back_from_its_next_owner(stage: Stage) -> None:
    key = waiting(stage, NOW)
    stage.do(advances(LATER, low_ms=NOW))
    retry = again(record(stage, key).job, NOW - 500)
    settling = stage.begin(settles(retry, exclusive=True), stops_before="write_shards")
    taking = stage.begin(takes())
    settling.result()
    promise(bool(taking.result()) and shard_row(stage).owner == NEW, "a node that lost a shard writes nothing there")


@needs("advance_locks_exclusively")
def a_line_that_moves_during_a_takeover_takes_no_shard_back_from_its_next_owner(stage: Stage) -> None:
    advancing = stage.begin(advances(LATER), stops_before="write_shards")
    taking = stage.begin(takes())
    advancing.result()
    promise(bool(taking.result()) and shard_row(stage).owner == NEW, "a node that lost a shard writes nothing there")


@needs("answer_holds_lock", "takeover_locks_exclusively")
def a_cancel_that_is_decided_during_a_takeover_holds(stage: Stage) -> None:
    key = waiting(stage, NOW + 5000)
    asked = change_request(key)
    stage.do(asks(asked))
    deciding = stage.begin(answers(requests_of(stage)), stops_before="write_decisions")
    taking = stage.begin(takes())
    held = as_soon_as(taking, lambda: loaded(stage), beside=deciding)
    respected(granted(stage, asked), key, held)


@needs("answer_holds_lock", "takeover_locks_exclusively")
def a_wake_that_is_consumed_during_a_takeover_is_not_lost(stage: Stage) -> None:
    row = new_row(LOW - 500)
    stage.do(inserts(row))
    consuming = stage.begin(answers(requests_of(stage)), stops_before="write_shards")
    taking = stage.begin(takes())
    held = as_soon_as(taking, lambda: loaded(stage), beside=consuming)
    promise(shard_row(stage).owner == NEW, "a node that lost a shard writes nothing there")
    found(row.key, held, named(stage))


@needs("takeover_locks_exclusively")
def a_shard_that_two_nodes_take_at_once_has_one_owner(stage: Stage) -> None:
    first = stage.begin(takes("first"), stops_before="write_shards")
    second = stage.begin(takes("second"))
    promise(len([*first.result(), *second.result()]) == 1, "a shard has one owner")


@needs("release_locks_exclusively")
def a_cancel_holds_at_a_shard_that_was_taken_during_its_release(stage: Stage) -> None:
    key = waiting(stage, NOW + 5000)
    releasing = stage.begin(releases(), stops_before="write_shards")
    taking = stage.begin(takes())
    releasing.result()
    promise(bool(taking.result() or stage.do(takes(seen=NOBODY))), "a released shard can be taken")
    held = loaded(stage)
    respected(cancelled(stage, key), key, held)


@needs("advance_is_fenced")
def a_former_owner_moves_neither_line_nor_low(stage: Stage) -> None:
    row = new_row(LOW - 500)
    stage.do(inserts(row))
    stage.do(takes())
    stage.do(answers(requests_of(stage), NEW))
    stage.do(advances(LATER, low_ms=NOW))
    stage.do(takes("third", seen=NEW))
    found(row.key, loaded(stage))


# Rules 3 and 11: an insert knows the line that holds when it commits


@needs("insert_wakes_owner")
def a_job_that_is_inserted_before_the_line_is_not_lost(stage: Stage) -> None:
    row = new_row(NOW + 1000)
    stage.do(inserts(row))
    found(row.key, named(stage))


@needs("insert_wakes_owner", "wake_names_every_row")
def every_job_of_an_insert_before_the_line_is_woken(stage: Stage) -> None:
    rows = [new_row(NOW + 1000), new_row(NOW + 2000), new_row(LINE)]
    stage.do(inserts(*rows))
    promise(named(stage) == {row.key for row in rows[:2]}, "never lost")


@needs("user_transaction_always_wakes")
def a_job_of_a_users_own_transaction_that_commits_after_the_line_has_passed_it_is_not_lost(stage: Stage) -> None:
    row = new_row(LINE)
    enqueuing = stage.begin(enqueues(row), stops_before="add_counts")
    advancing = stage.begin(advances(LATER))
    held = as_soon_as(advancing, lambda: scanned(stage, LINE, LATER), beside=enqueuing)
    found(row.key, held, named(stage))


@needs("line_is_read_under_lock")
def a_job_whose_insert_waited_while_the_line_moved_is_not_lost(stage: Stage) -> None:
    row = new_row(LINE)
    advancing = stage.begin(advances(LATER), stops_before="write_shards")
    inserting = stage.begin(inserts(row))
    advancing.result()
    inserting.result()
    found(row.key, named(stage))  # the scan may have come first


# Rule 5: rows never move


@needs("retry_writes_entry")
def a_job_that_is_tried_again_after_the_line_is_found_there(stage: Stage) -> None:
    key = waiting(stage, NOW)
    stage.do(settles(again(record(stage, key).job, LINE + 1000)))
    stage.do(advances(LATER))
    found(key, scanned(stage, LINE, LATER))


@needs("reschedule_writes_entry")
def a_job_that_its_owner_rescheduled_to_after_the_line_is_found_there(stage: Stage) -> None:
    key = waiting(stage, NOW + 5000)
    stage.do(asks(change_request(key, Change.RESCHEDULE, LINE + 1000)))
    stage.do(answers(requests_of(stage)))
    stage.do(advances(LATER))
    found(key, scanned(stage, LINE, LATER))


@needs("reschedule_writes_entry")
def a_job_that_its_caller_rescheduled_after_the_line_is_found_there(stage: Stage) -> None:
    key = waiting(stage, LINE + 1000)
    stage.do(asks(change_request(key, Change.RESCHEDULE, LINE + 5000)))
    stage.do(advances(LATER))
    found(key, scanned(stage, LINE, LATER))


@needs("reschedule_wakes_owner")
def a_job_that_its_caller_rescheduled_to_before_the_line_is_not_lost(stage: Stage) -> None:
    key = waiting(stage, LINE + 1000)
    stage.do(asks(change_request(key, Change.RESCHEDULE, NOW + 5000)))
    found(key, named(stage))


@needs("stale_row_is_skipped", "stale_entry_is_skipped")
def a_job_that_was_moved_twice_is_found_at_its_last_moment_only(stage: Stage) -> None:
    key = waiting(stage, LINE + 1000)
    stage.do(asks(change_request(key, Change.RESCHEDULE, LINE + 5000)))
    stage.do(lambda tx: tx.insert_entries(APP, [(position(key, LINE + 3000), key)]))  # entries may outlive a move
    stage.do(advances(LATER))
    promise(not scanned(stage, LINE, LINE + 5000), "never early")
    found(key, scanned(stage, LINE + 5000, LATER))


# Rule 6: requests


@needs("requests_are_read_without_cursor")
def a_wake_that_was_written_earlier_and_commits_later_is_read(stage: Stage) -> None:
    first, second = new_row(NOW + 1000), new_row(NOW + 2000)
    enqueuing = stage.begin(enqueues(first), stops_before="add_counts")
    inserting = stage.begin(inserts(second))
    answered = as_soon_as(inserting, lambda: stage.do(answers(requests_of(stage))), beside=enqueuing)
    found(first.key, {job.key for job in answered.woken}, named(stage))


@needs("answer_is_fenced")
def a_former_owner_consumes_no_wake_of_the_next_one(stage: Stage) -> None:
    row = new_row(LOW - 500)
    stage.do(inserts(row))
    read = requests_of(stage)
    stage.do(takes())
    held = loaded(stage)
    stage.do(answers(read))
    found(row.key, held, named(stage))


@needs("only_read_requests_are_deleted")
def a_wake_that_commits_between_read_and_answer_survives(stage: Stage) -> None:
    first, second = new_row(NOW + 1000), new_row(NOW + 2000)
    stage.do(inserts(first))
    read = requests_of(stage)
    stage.do(enqueues(second))
    stage.do(answers(read))
    found(second.key, named(stage))


@needs("wake_reads_its_rows")
def a_job_whose_wake_is_consumed_goes_onto_the_wheel(stage: Stage) -> None:
    row = new_row(NOW + 1000)
    stage.do(inserts(row))
    woken = stage.do(answers(requests_of(stage))).woken
    promise([job.key for job in woken] == [row.key], "never lost")


@needs("wake_takes_only_before_line")
def a_woken_job_after_the_line_is_left_to_the_store(stage: Stage) -> None:
    row = new_row(LINE + 1000)
    stage.do(enqueues(row))
    held = {job.key for job in stage.do(answers(requests_of(stage))).woken}
    respected(cancelled(stage, row.key), row.key, held)


@needs("answer_lowers_low")
def a_woken_job_before_low_is_found_by_the_next_owner(stage: Stage) -> None:
    key = waiting(stage, LOW - 500)
    stage.do(takes())
    found(key, loaded(stage))


# Rule 7: cancel and reschedule


@needs("answer_is_fenced")
def a_former_owner_decides_nothing(stage: Stage) -> None:
    key = waiting(stage, NOW + 5000)
    asked = change_request(key)
    stage.do(asks(asked))
    read = requests_of(stage)
    stage.do(takes())
    held = loaded(stage)
    stage.do(answers(read))
    respected(granted(stage, asked), key, held)


@needs("withdrawn_request_is_not_decided")
def a_cancel_that_was_taken_back_is_not_decided(stage: Stage) -> None:
    key = waiting(stage, NOW + 5000)
    asked = change_request(key)
    stage.do(asks(asked))
    read = requests_of(stage)
    decision = stage.do(gives_up(asked))
    stage.do(answers(read))
    told_the_truth(stage, key, decision)


@needs("decided_request_is_not_withdrawn")
def a_caller_who_gives_up_while_its_cancel_is_decided_hears_the_decision(stage: Stage) -> None:
    key = waiting(stage, NOW + 5000)
    asked = change_request(key)
    stage.do(asks(asked))
    deciding = stage.begin(answers(requests_of(stage)), stops_before="write_decisions")
    giving_up = stage.begin(gives_up(asked))
    deciding.result()
    told_the_truth(stage, key, giving_up.result())


@needs("released_shard_is_checked_again")
def a_cancel_holds_at_a_shard_that_was_released_when_its_caller_looked(stage: Stage) -> None:
    key = waiting(stage, NOW + 5000)
    stage.do(releases())
    asked = change_request(key)
    assert stage.do(asks(asked)) is RequestState.RELEASED
    stage.do(takes(seen=NOBODY))
    held = loaded(stage)
    respected(stage.do(asks(asked, exclusive=True)) is RequestState.GRANTED, key, held)


@needs("released_change_locks_exclusively", "takeover_locks_exclusively")
def a_cancel_holds_at_a_released_shard_that_is_taken_meanwhile(stage: Stage) -> None:
    key = waiting(stage, NOW + 5000)
    stage.do(releases())
    asking = stage.begin(asks(change_request(key), exclusive=True), stops_before="update_jobs")
    taking = stage.begin(takes(seen=NOBODY))
    held = as_soon_as(taking, lambda: loaded(stage), beside=asking)
    respected(asking.result() is RequestState.GRANTED, key, held)


# Rule 8: low


@needs("answer_lowers_low")
def a_job_that_its_owner_rescheduled_to_before_low_is_found_by_the_next_one(stage: Stage) -> None:
    key = waiting(stage, NOW + 5000)
    stage.do(asks(change_request(key, Change.RESCHEDULE, LOW - 500)))
    stage.do(answers(requests_of(stage)))
    stage.do(takes())
    found(key, loaded(stage))


@needs("retry_lowers_low")
def a_job_that_is_tried_again_before_low_is_found_by_the_next_owner(stage: Stage) -> None:
    key = waiting(stage, NOW)
    retry = again(record(stage, key).job, LOW - 500)
    assert stage.do(settles(retry)) is None, "it needs the exclusive lock"
    stage.do(settles(retry, exclusive=True))
    stage.do(takes())
    found(key, loaded(stage))


# Rule 10: in doubt, load again


@needs("reload_waits_for_lock", "answer_holds_lock")
def a_cancel_whose_answer_was_lost_and_that_commits_after_the_reload_holds(stage: Stage) -> None:
    key = waiting(stage, NOW + 5000)
    asked = change_request(key)
    stage.do(asks(asked))
    in_doubt = stage.begin(answers(requests_of(stage)), stops_before="write_decisions")
    reloading = stage.begin(reloads())
    held = as_soon_as(reloading, lambda: loaded(stage), beside=in_doubt)
    respected(granted(stage, asked), key, held)


@needs("reload_waits_for_lock", "answer_holds_lock")
def a_wake_whose_answer_was_lost_and_that_commits_after_the_reload_is_not_lost(stage: Stage) -> None:
    row = new_row(LOW - 500)
    stage.do(inserts(row))
    in_doubt = stage.begin(answers(requests_of(stage)), stops_before="write_shards")
    reloading = stage.begin(reloads())
    held = as_soon_as(reloading, lambda: loaded(stage), beside=in_doubt)
    found(row.key, held, named(stage))


@needs("reload_waits_for_lock", "settle_holds_lock")
def a_job_whose_settle_had_no_answer_and_commits_after_the_reload_is_not_handed_over_again(stage: Stage) -> None:
    key = waiting(stage, NOW)
    in_doubt = stage.begin(settles(done(record(stage, key).job)), stops_before="delete_entries")
    reloading = stage.begin(reloads())
    held = as_soon_as(reloading, lambda: loaded(stage), beside=in_doubt)
    fenced(stage, key, held)


# Rule 11: settle


@needs("settle_is_fenced")
def a_former_owner_settles_nothing(stage: Stage) -> None:
    key = waiting(stage, NOW)
    outcome = done(record(stage, key).job)
    stage.do(takes())
    held = loaded(stage)
    stage.do(settles(outcome))
    fenced(stage, key, held)


@needs("settle_compares_attempt")
def a_settle_that_is_sent_again_does_not_meet_the_next_attempt(stage: Stage) -> None:
    key = waiting(stage, NOW)
    outcome = again(record(stage, key).job, NOW)
    for _ in range(2):  # the first answer was lost
        stage.do(settles(outcome))
    promise(record(stage, key).job.attempt == 2, "a settle meets its own attempt")
    late = msgspec.structs.replace(outcome, status=Status.DONE)
    stage.do(settles(late))
    promise(record(stage, key).status is Status.PENDING, "a settle meets its own attempt")


@needs("existing_entry_is_ignored")
def a_job_that_is_tried_again_and_again_at_the_same_moment_is_settled_each_time(stage: Stage) -> None:
    key = waiting(stage, NOW)
    try:
        for _ in range(3):
            stage.do(settles(again(record(stage, key).job, NOW)))
    except StoreUnavailable as error:
        raise Broken("every delivery is settled") from error
    promise(record(stage, key).job.attempt == 4, "every delivery is settled")


# Lease: the heartbeat is looked at under the locks


@needs("takeover_checks_heartbeat_again", "heartbeat_is_read_under_locks")
def a_node_that_renewed_and_checked_itself_while_a_taker_waited_keeps_its_shard(stage: Stage) -> None:
    stage.do(renews(beat=1))
    taking = stage.begin(takes(beat=1), stops_before="lock_shards")
    renewing = stage.begin(renews(beat=2))
    checked = as_soon_as(renewing, lambda: stage.do(reloads()), beside=taking)
    promise(not checked or shard_row(stage).owner == OLD, "a node that renewed, then checked, keeps its shard")


# Several shards


@needs("every_shard_is_locked")
def a_settle_of_two_shards_keeps_both_from_being_taken(stage: Stage) -> None:
    mine, lost = waiting(stage, NOW), waiting(stage, NOW, OTHER)
    outcomes = [done(record(stage, key).job) for key in (mine, lost)]
    settling = stage.begin(settles(*outcomes), stops_before="delete_entries")
    taking = stage.begin(takes(shard=OTHER))
    held = as_soon_as(taking, lambda: loaded(stage, OTHER), beside=settling)
    fenced(stage, lost, held)


@needs("every_shard_is_fenced", "lost_shard_costs_no_other")
def a_settle_of_two_shards_records_what_is_of_the_one_that_is_still_owned(stage: Stage) -> None:
    mine, lost = waiting(stage, NOW), waiting(stage, NOW, OTHER)
    outcomes = [done(record(stage, key).job) for key in (mine, lost)]
    stage.do(takes(shard=OTHER))
    held = loaded(stage, OTHER)
    stage.do(settles(*outcomes))
    fenced(stage, lost, held)
    promise(record(stage, mine).status is Status.DONE, "every delivery is settled")


@needs("every_shard_is_woken")
def an_insert_into_two_shards_wakes_both_owners(stage: Stage) -> None:
    rows = [new_row(NOW + 1000), new_row(NOW + 1000, OTHER)]
    stage.do(inserts(*rows))
    promise(named(stage) == {row.key for row in rows}, "never lost")
