"""When an app is held back, probed, and let go on: by a clock that is moved by hand."""

import re
from copy import copy
from datetime import timedelta
from typing import Any

import pytest

from infinite_scheduler.engine.destination_outage import REASON_CHARS, TRIED, DestinationOutage
from infinite_scheduler.errors import DestinationAway
from infinite_scheduler.model import Done, Failed, Job, JobId, Outcome, Retry
from infinite_scheduler.observe.events import AppHeldBack, AppResumed, Event
from infinite_scheduler.policy.retry import RetryPolicy
from infinite_scheduler.testing import ManualClock
from infinite_scheduler.testing.manual_clock import START_MS


class Case:
    """One outage, what it told, and how often it asked to be looked at."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.told: list[Event] = []
        self.woken = 0
        self.outage = DestinationOutage("sms", self.clock, self.told.append, self._wake)

    def _wake(self) -> None:
        self.woken += 1

    def away(self, reason: str = "closed", retry_after: timedelta | float | None = None, number: int = 0) -> None:
        """A job comes back that was handed over just before."""
        self.outage.away(job(number), DestinationAway(reason, retry_after), self.outage.ended)

    def probe(self, ending: Outcome | BaseException, number: int = 1) -> None:
        """A probe is handed over, and ends so."""
        one = job(number)
        assert self.outage.may_probe
        self.outage.probe(one)
        assert not self.outage.may_probe, "there is one already"
        if isinstance(ending, DestinationAway):
            self.outage.away(one, ending, self.outage.ended)
        else:
            self.outage.answered(one, ending)

    def waits_s(self) -> float:
        """How long it takes until a probe may be made, which it must ask for by itself."""
        began_ms, woken = self.clock.steady_ms(), self.woken
        while not self.outage.may_probe:
            assert self.clock.step(began_ms + 10_000_000), "nothing would ever look"
        while self.woken == woken:
            assert self.clock.step(began_ms + 10_000_000)
        return round((self.clock.steady_ms() - began_ms) / 1000, 1)


def job(number: int) -> Job:
    key = bytes(JobId.make(START_MS, 0, 1, entropy=number.to_bytes(8, "big")))
    return Job(key=key, app="sms", due_ms=START_MS, scheduled_ms=START_MS, payload=b"{}", created_ms=START_MS)


@pytest.fixture
async def case() -> Case:
    return Case()


async def test_there_is_none_before_a_job_comes_back(case: Case) -> None:
    case.outage.answered(job(1), OSError("of the job"))
    assert not case.outage.ongoing
    assert not case.outage.may_probe
    assert case.outage.held_back is None
    assert not case.told


async def test_waits_double_up_to_a_minute(case: Case) -> None:
    case.away()
    waits = []
    for number in range(7):
        waits.append(case.waits_s())
        case.probe(DestinationAway("closed"), number)
    assert waits == [5, 10, 20, 40, 60, 60, 60]


async def test_the_next_outage_begins_with_the_shortest_wait_again(case: Case) -> None:
    case.away()
    for _ in range(3):
        case.waits_s()
        case.probe(DestinationAway("closed"))
    case.waits_s()
    case.probe(Done())
    case.away()
    assert case.waits_s() == 5


@pytest.mark.parametrize(
    ("asked", "waits_s"),
    [
        (20, 20),
        (timedelta(minutes=3), 180),
        (0.5, 0.5),
        (0, 0.1),
        (timedelta(days=400), 3600),
        (None, 5),
    ],
)
async def test_what_the_destination_asks_for_counts_within_limits(
    case: Case, asked: timedelta | float | None, waits_s: float
) -> None:
    case.away(retry_after=asked)
    assert case.waits_s() == waits_s


@pytest.mark.parametrize("outcome", [Done(), Failed("too large"), Retry()])
async def test_a_probe_with_an_outcome_ends_it(case: Case, outcome: Outcome) -> None:
    case.away()
    case.waits_s()
    case.probe(outcome)
    assert not case.outage.ongoing
    assert [type(event) for event in case.told] == [AppHeldBack, AppResumed]


async def test_a_probe_with_another_error_does_not_end_it_and_says_the_error(case: Case) -> None:
    case.away()
    case.waits_s()
    case.probe(TimeoutError("no answer"))
    assert case.outage.held_back is not None
    assert case.outage.held_back.reason == "TimeoutError: no answer"
    assert case.waits_s() == 10


async def test_other_jobs_that_end_meanwhile_neither_end_it_nor_make_it_longer(case: Case) -> None:
    case.away()
    case.away("also closed", number=2)
    case.outage.answered(job(3), Done())
    assert case.outage.ongoing
    assert case.waits_s() == 5
    assert len(case.told) == 1


async def test_a_job_from_before_the_end_does_not_begin_the_next(case: Case) -> None:
    ended = case.outage.ended
    case.away()
    case.waits_s()
    case.probe(Done())
    case.outage.away(job(9), DestinationAway("it timed out"), ended)
    assert not case.outage.ongoing


async def test_a_probe_that_was_not_handed_over_leaves_its_place_to_another(case: Case) -> None:
    case.away()
    case.waits_s()
    one = job(1)
    case.outage.probe(one)
    case.outage.call_off(job(2))
    assert not case.outage.may_probe
    case.outage.call_off(one)
    assert case.outage.may_probe


async def test_jobs_take_turns_as_probes(case: Case) -> None:
    case.away()
    for number in range(TRIED + 1):
        case.waits_s()
        assert not case.outage.has_tried(job(number))
        case.probe(DestinationAway("closed"), number)
        assert case.outage.has_tried(job(number))
    assert not case.outage.has_tried(job(0)), "not all are remembered"
    case.outage.try_all_again()
    assert not case.outage.has_tried(job(TRIED))


async def test_what_others_are_told(case: Case) -> None:
    began_ms = case.clock.wall_ms()
    case.away("x\n  y" + "z" * 2000)
    held_back = case.outage.held_back
    assert held_back is not None
    assert held_back.since_ms == began_ms
    assert held_back.reason.startswith("x yz")
    assert len(held_back.reason) <= REASON_CHARS


async def test_an_exception_of_the_users_own_without_a_text_is_named(case: Case) -> None:
    class Down(DestinationAway):
        def __init__(self) -> None:
            pass

    case.outage.away(job(1), Down(), 0)
    assert case.outage.held_back is not None
    assert case.outage.held_back.reason == "Down"
    assert case.waits_s() == 5


@pytest.mark.parametrize(
    ("asked", "waits_s"), [(30, 30), (-5, 0.1), (float("inf"), 3600), (float("nan"), 5), ("soon", 5), (b"", 5)]
)
async def test_an_exception_of_the_users_own_may_ask_for_anything(case: Case, asked: Any, waits_s: float) -> None:
    class Down(DestinationAway):
        retry_after_s = asked

    case.outage.away(job(1), Down("closed"), 0)
    assert case.waits_s() == waits_s


async def test_a_stop_asks_for_nothing_more(case: Case) -> None:
    case.away()
    case.outage.stop()
    case.clock.advance(100_000)
    assert case.woken == 0


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("closed", "closed"),
        (OSError("no route"), "OSError: no route"),
        (TimeoutError(), "TimeoutError"),
        (KeyError("x"), "KeyError: 'x'"),
    ],
)
def test_a_reason_is_text_or_the_exception_that_was_caught(reason: str | Exception, text: str) -> None:
    assert str(DestinationAway(reason)) == text
    assert str(copy(DestinationAway(reason, 3))) == text


@pytest.mark.parametrize(
    ("retry_after", "seconds"), [(30, 30.0), (0.5, 0.5), (0, 0.0), (timedelta(minutes=1), 60.0), (None, None)]
)
def test_a_wait_is_a_timedelta_or_a_number_of_seconds(
    retry_after: timedelta | float | None, seconds: float | None
) -> None:
    assert DestinationAway("closed", retry_after).retry_after_s == seconds


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        ((None,), TypeError, "the reason of DestinationAway is None, which is not text: write"),
        ((b"closed",), TypeError, "the reason of DestinationAway is b'closed', which is not text: write"),
        (("closed", "soon"), TypeError, "retry_after of DestinationAway is 'soon', which is not a length of time"),
        (("closed", "30"), TypeError, "retry_after of DestinationAway is '30', which is not a length of time"),
        (("closed", True), TypeError, "retry_after of DestinationAway is True, which is not a length of time"),
        (("closed", -1), ValueError, "retry_after of DestinationAway is -1, which is negative"),
        (("closed", timedelta(-1)), ValueError, "which is negative: use a timedelta"),
        (("closed", float("-inf")), ValueError, "retry_after of DestinationAway is -inf, which is negative"),
        (("closed", float("inf")), ValueError, "retry_after of DestinationAway is inf, which is not a length of time"),
        (("closed", float("nan")), ValueError, "retry_after of DestinationAway is nan, which is not a length of time"),
        (("closed", 10**400), ValueError, "which is not a length of time: use a timedelta or a number of seconds"),
    ],
)
def test_wrong_arguments_are_refused_in_words(arguments: Any, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=re.escape(said)) as refused:
        DestinationAway(*arguments)
    ends = ("such as retry_after=30", "or DestinationAway(error)")
    assert str(refused.value).endswith(ends), "what to type comes last"
    assert RetryPolicy().next_attempt_ms(attempt=1, created_ms=0, finished_ms=0, error=refused.value, rand=lambda: 0.0)


@pytest.mark.parametrize("reason", ["", " \n", str(TimeoutError())])
def test_an_outage_without_a_reason_is_one_and_says_how_to_give_it(reason: str) -> None:
    assert "pass the exception that was caught" in str(DestinationAway(reason))
