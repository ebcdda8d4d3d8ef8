"""The judge itself, shown evidence made by hand: it must find what is there, and nothing else."""

from pathlib import Path

import pytest

from tests.acceptance import handlers
from tests.acceptance.checker import (
    Blow,
    Cancel,
    Evidence,
    HandOver,
    Intake,
    Message,
    Row,
    Stall,
    Taken,
    Verdict,
    judge,
    judge_intake,
    read_log,
)

CLEAN = Verdict(lost=[], early=[], unexplained=[], undead=[], unasked=[], explained=[], woken=[])


def handed(job: str = "a", wall_ms: int = 5000, *, attempt: int = 1, due_ms: int = 5000, pid: int = 1) -> HandOver:
    return HandOver(job, attempt, due_ms, wall_ms, pid)


def test_jobs_that_fire_once_at_their_moment_are_clean() -> None:
    verdict = judge(Evidence({"a": 5000, "b": 6000}, [handed("a"), handed("b", 6003, due_ms=6000)]))
    assert verdict == CLEAN
    assert not verdict.faults


def test_a_job_that_never_fired_is_lost() -> None:
    assert judge(Evidence({"a": 5000, "b": 6000}, [handed("a")])).faults == {"lost": ["b"]}


def test_a_hand_over_one_millisecond_before_the_moment_is_early() -> None:
    early = handed(wall_ms=4999)
    assert judge(Evidence({"a": 5000}, [early])).faults == {"early": [early]}


def test_a_moment_that_the_handler_was_told_does_not_excuse_firing_before_the_promised_one() -> None:
    early = handed(wall_ms=4000, due_ms=4000)
    assert judge(Evidence({"a": 5000}, [early])).faults == {"early": [early]}


def test_a_retry_is_due_when_the_handler_was_told() -> None:
    again, early = handed(attempt=2, due_ms=7000, wall_ms=7000), handed(attempt=3, due_ms=9000, wall_ms=8999)
    assert judge(Evidence({"a": 5000}, [handed(), again, early])).faults == {"early": [early]}


def test_a_second_attempt_is_no_repeat() -> None:
    assert judge(Evidence({"a": 5000}, [handed(), handed(attempt=2, due_ms=6000, wall_ms=6000)])) == CLEAN


def test_a_repeat_without_a_blow_is_unexplained() -> None:
    again = handed(wall_ms=5001)
    assert judge(Evidence({"a": 5000}, [handed(), again])).faults == {"unexplained": [again]}


@pytest.mark.parametrize(("killed_ms", "explained"), [(5000, True), (15_000, True), (15_001, False)])
def test_what_was_handed_over_a_few_seconds_before_a_kill_of_its_process_may_come_again(
    killed_ms: int, explained: bool
) -> None:
    again = handed(wall_ms=18_000, pid=2)
    verdict = judge(Evidence({"a": 5000}, [handed(), again], [Blow(1, killed_ms)]))
    assert verdict == (CLEAN._replace(explained=[again]) if explained else CLEAN._replace(unexplained=[again]))


@pytest.mark.parametrize(
    ("unsettled", "explained"), [([("a", 1)], True), ([("a", 2), ("b", 1)], False), ([], False), (None, True)]
)
def test_what_the_store_has_heard_of_when_its_process_is_struck_must_not_come_again(
    unsettled: list[tuple[str, int]] | None, explained: bool
) -> None:
    again = handed(wall_ms=5100, pid=2)
    for blow in (Blow(1, 5001), Blow(1, 5001, 9000)):
        verdict = judge(Evidence({"a": 5000}, [handed(), again], [blow._replace(unsettled=unsettled)]))
        assert verdict == (CLEAN._replace(explained=[again]) if explained else CLEAN._replace(unexplained=[again]))


@pytest.mark.parametrize(("wall_ms", "explained"), [(5000, True), (5001, False)])
def test_a_frozen_process_hands_nothing_over(wall_ms: int, explained: bool) -> None:
    first, again = handed(wall_ms=wall_ms), handed(wall_ms=8000, pid=2)
    verdict = judge(Evidence({"a": 5000}, [first, again], [Blow(1, 5000, 20_000)]))
    assert verdict == (CLEAN._replace(explained=[again]) if explained else CLEAN._replace(unexplained=[again]))


@pytest.mark.parametrize(("ended_ms", "explained"), [(None, True), (8500, True), (8499, False)])
def test_a_call_that_takes_long_is_in_flight_until_it_returns(ended_ms: int | None, explained: bool) -> None:
    again = handed(wall_ms=22_000, pid=2)
    ended = [handed(wall_ms=22_500, pid=2), *([handed(wall_ms=ended_ms)] if ended_ms else [])]
    verdict = judge(Evidence({"a": 5000}, [handed(), again], [Blow(1, 18_500)], ended=ended))
    assert verdict == (CLEAN._replace(explained=[again]) if explained else CLEAN._replace(unexplained=[again]))


@pytest.mark.parametrize(
    ("stall", "explained"),
    [
        (Stall(15_000, 29_000), True),
        (Stall(15_001, 29_000), False),  # there was time to write the hand-over down before
        (Stall(5000, 20_000), True),
        (Stall(5000, 19_999), False),  # and here after
    ],
)
def test_what_was_handed_over_while_the_store_took_no_writes_is_in_flight(stall: Stall, explained: bool) -> None:
    again = handed(wall_ms=32_000, pid=2)
    verdict = judge(Evidence({"a": 5000}, [handed(), again], [Blow(1, 30_000)], stalls=[stall]))
    assert verdict == (CLEAN._replace(explained=[again]) if explained else CLEAN._replace(unexplained=[again]))


def test_the_kill_of_another_process_explains_nothing() -> None:
    again = handed(wall_ms=5100, pid=2)
    assert judge(Evidence({"a": 5000}, [handed(), again], [Blow(2, 5200)])).faults == {"unexplained": [again]}


def test_every_repeat_needs_an_explanation_of_its_own() -> None:
    second, third = handed(wall_ms=6000, pid=2), handed(wall_ms=9000, pid=3)
    verdict = judge(Evidence({"a": 5000}, [handed(), second, third], [Blow(1, 5001)]))
    assert verdict.explained == [second]
    assert verdict.faults == {"unexplained": [third]}


def test_what_was_in_flight_when_its_process_was_frozen_may_be_handed_over_by_another() -> None:
    again = handed(wall_ms=9000, pid=2)
    assert judge(Evidence({"a": 5000}, [handed(), again], [Blow(1, 5500, 20_000)])) == CLEAN._replace(explained=[again])


@pytest.mark.parametrize(("wall_ms", "begun"), [(20_000, True), (23_000, True), (23_001, False), (6000, False)])
def test_a_process_that_wakes_up_may_only_finish_what_it_had_begun(wall_ms: int, begun: bool) -> None:
    stale = handed(wall_ms=wall_ms, pid=1)
    verdict = judge(Evidence({"a": 5000}, [handed(pid=2), stale], [Blow(1, 4000, 20_000)]))
    assert verdict == (CLEAN._replace(woken=[stale]) if begun else CLEAN._replace(unexplained=[stale]))


def test_a_job_whose_cancel_was_acknowledged_must_not_fire() -> None:
    fired, yes = handed(), Cancel(acknowledged=True, answered_ms=4000)
    assert judge(Evidence({"a": 5000, "b": 1}, [fired], cancels={"a": yes, "b": yes})).faults == {"undead": [fired]}


@pytest.mark.parametrize(
    ("blow", "answered_ms", "excused"),
    [
        (Blow(1, 5500), 18_000, True),
        (Blow(1, 5500), 4900, False),  # it fired after the answer
        (Blow(1, 15_500), 18_000, False),  # there was time to write the hand-over down
        (Blow(1, 5500, unsettled=[]), 18_000, False),  # it was written down
        (Blow(2, 5500), 18_000, False),
        (Blow(1, 5500, 7000), 18_000, False),  # the frozen remember
    ],
)
def test_only_a_hand_over_that_died_with_its_process_may_precede_an_acknowledged_cancel(
    blow: Blow, answered_ms: int, excused: bool
) -> None:
    cancels = {"a": Cancel(acknowledged=True, answered_ms=answered_ms)}
    assert bool(judge(Evidence({"a": 5000}, [handed()], [blow], cancels)).undead) is not excused


def test_a_job_whose_cancel_came_too_late_must_fire() -> None:
    late = {"a": Cancel(acknowledged=False, answered_ms=6000)}
    assert judge(Evidence({"a": 5000}, [], cancels=late)).faults == {"lost": ["a"]}
    assert judge(Evidence({"a": 5000}, [handed()], cancels=late)) == CLEAN


def test_a_job_that_nobody_was_promised_is_reported() -> None:
    stranger = handed("x")
    assert judge(Evidence({}, [stranger])).faults == {"unasked": [stranger]}


def test_it_reads_what_the_handlers_write(tmp_path: Path) -> None:
    class Job:
        id, attempt, due_ms = "0198-ab", 2, 1234

    for _ in range(2):
        handlers.write_down(Job, tmp_path / "log")
    assert (tmp_path / "log").stat().st_size == 2 * handlers.RECORD
    first, second = read_log(tmp_path / "log")
    assert first[:3] == ("0198-ab", 2, 1234)
    assert second.wall_ms >= first.wall_ms > 1_700_000_000_000


def test_a_log_that_does_not_exist_is_empty_and_a_torn_line_is_an_error(tmp_path: Path) -> None:
    assert read_log(tmp_path / "none") == []
    (tmp_path / "torn").write_text("0198-ab 1 12")
    with pytest.raises(ValueError, match="unpack"):
        read_log(tmp_path / "torn")


ALL_TAKEN = Taken(missing=[], doubled=[], altered=[], unasked=[], misplaced=[])
FIRST, SECOND, THIRD = Message(1, 5000, 0, 0), Message(2, 6000, 0, 1), Message(3, 7000, 4, 0)
MESSAGES = [FIRST, SECOND, THIRD]
ROWS = [Row(3, 7000), Row(1, 5000), Row(2, 6000)]
PLACES = {0: 2, 4: 1}


def test_messages_that_became_one_job_each_are_clean() -> None:
    taken = judge_intake(Intake(MESSAGES, ROWS, PLACES))
    assert taken == ALL_TAKEN
    assert not taken.faults


def test_a_message_without_a_job_is_missing() -> None:
    assert judge_intake(Intake(MESSAGES, ROWS[1:], PLACES)).faults == {"missing": [THIRD]}


def test_a_second_job_of_one_message_is_reported() -> None:
    again = Row(1, 5000)
    assert judge_intake(Intake(MESSAGES, [*ROWS, again], PLACES)).faults == {"doubled": [again]}


def test_a_message_that_is_there_twice_makes_two_jobs_and_no_more() -> None:
    twin = Message(1, 5000, 4, 1)
    messages, positions, again = [*MESSAGES, twin], {0: 2, 4: 2}, Row(1, 5000)
    assert judge_intake(Intake(messages, [*ROWS, again], positions)) == ALL_TAKEN
    assert judge_intake(Intake(messages, ROWS, positions)).faults == {"missing": [twin]}
    assert judge_intake(Intake(messages, [*ROWS, again, again], positions)).faults == {"doubled": [again]}


def test_a_job_at_another_moment_than_asked_for_is_altered() -> None:
    other = Row(2, 6001)
    assert judge_intake(Intake(MESSAGES, [*ROWS[:2], other], PLACES)).faults == {"altered": [other]}


def test_a_job_that_no_message_asks_for_is_reported() -> None:
    stranger = Row(4, 5000)
    assert judge_intake(Intake(MESSAGES, [*ROWS, stranger], PLACES)).faults == {"unasked": [stranger]}


@pytest.mark.parametrize("positions", [{0: 1, 4: 1}, {0: 3, 4: 1}, {4: 1}])
def test_a_position_that_is_not_right_after_the_last_message_is_misplaced(positions: dict[int, int]) -> None:
    assert judge_intake(Intake(MESSAGES, ROWS, positions)).faults == {"misplaced": [0]}
