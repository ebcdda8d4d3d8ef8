"""How the demo looks, and what it judges."""

import io
from typing import Any

import pytest
from rich.console import Console

from infinite_scheduler.cli.demo import MAX_ATTEMPTS, MESSAGES, Demo, Sms, Summary, _quantile
from infinite_scheduler.cli.demo_view import _line, _scene
from infinite_scheduler.sms import SmsRetryProducer

DUE = 1_577_836_801_000
NOW = DUE - 1500


class Retries(SmsRetryProducer):
    """Remembers what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def schedule_retry(self, *asked: Any, **_: Any) -> Any:
        self.asked.append(asked)


def demo() -> Demo:
    scene = Demo(lambda _: None)
    for sms in scene.messages:
        sms.state, sms.due_ms = "scheduled", DUE
    scene.scheduled = len(scene.messages)
    return scene


def drawn(scene: Demo, summary: Summary | None = None, width: int = 100) -> str:
    text = io.StringIO()
    Console(file=text, width=width).print(_scene(scene, NOW, summary))
    return text.getvalue()


def fine(**changes: int) -> Summary:
    numbers = {"delivered": 5, "early": 0, "lost": 0, "handed_over": 14, "p50_ms": 1, "p99_ms": 3} | changes
    return Summary(**numbers, seconds=9.5)


def arrival(sms: Sms, attempt: int = 1) -> dict[str, Any]:
    return {"campaignTaskId": sms.task_id, "scheduledRetryTime": "2020-01-01 00:00:01", "retryAttempt": attempt}


@pytest.mark.parametrize("width", [80, 100])
def test_the_table_shows_due_time_attempt_state_and_lateness(width: int) -> None:
    scene = demo()
    refused, delivered = scene.messages[:2]
    refused.state, refused.attempt, refused.late_ms = "refused", 2, 4
    delivered.state, delivered.attempt, delivered.late_ms = "delivered", 2, 1
    text = drawn(scene, width=width)
    rows = [next(row for row in text.splitlines() if sms.text in row) for sms in scene.messages]
    assert [part for part in ("00:00:01", "2  ✗✗", "refused, in 1.5 s", "4 ms") if part not in rows[0]] == []
    assert [part for part in ("2  ✗✓", "delivered", "1 ms") if part not in rows[1]] == []
    assert "waits, in 1.5 s" in rows[2]
    assert "1 of 5 delivered" in text


def test_the_way_through_the_topics_is_counted() -> None:
    scene = demo()
    scene._send(arrival(scene.messages[3]), DUE, Retries())
    assert "SMS_Retry 5  →  store 4 waiting  →  SMS_Send 1" in drawn(scene)
    assert "consumer groups form" in drawn(Demo(lambda _: None))


def test_the_summary_says_what_was_proved_and_what_is_left() -> None:
    scene = demo()
    assert "left behind" not in drawn(scene, fine())
    scene.left.append("topic SMS_Retry_demo_1a2b3c (no answer)")
    text = drawn(scene, fine())
    assert "delivered 5   early 0   lost 0   p99 3 ms late" in text
    assert "left behind: topic SMS_Retry_demo_1a2b3c" in text
    assert "none before" in text
    assert "none before" not in drawn(scene, fine(early=1))


@pytest.mark.parametrize("changes", [{"delivered": 4}, {"early": 1}, {"lost": 1}])
def test_a_demo_that_breaks_a_promise_is_not_fine(changes: dict[str, int]) -> None:
    assert fine().fine
    assert not fine(**changes).fine


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("scheduled", "to SMS_Retry, due 00:00:01"),
        ("refused", "attempt 2 refused, 3 ms late; to SMS_Retry, due 00:00:01"),
        ("delivered", "attempt 2 delivered, 3 ms late"),
        ("lost", "lost"),
    ],
)
def test_without_a_terminal_each_event_is_a_line(state: str, words: str) -> None:
    sms = Sms(task_id=1, to="", text="hello", refusals=0, due_ms=DUE, attempt=2, late_ms=3, state=state)
    assert _line(sms, NOW) == f"23:59:59.500  {'hello':<24}{words}"


def test_what_the_provider_refuses_is_scheduled_again_up_to_a_maximum() -> None:
    scene, retries = demo(), Retries()
    sms = scene.messages[0]
    sms.refusals = 99
    for attempt in range(1, MAX_ATTEMPTS + 1):
        scene._send(arrival(sms, attempt), DUE, retries)
    assert [asked[3] for asked in retries.asked] == list(range(2, MAX_ATTEMPTS + 1))
    assert [(asked[2].timestamp() * 1000 - DUE) / 1000 for asked in retries.asked] == [1, 2, 3, 3]


def test_a_repeated_message_is_passed_over() -> None:
    scene, retries = demo(), Retries()
    sms = scene.messages[3]
    scene._send(arrival(sms), DUE, retries)
    scene._send(arrival(sms), DUE, retries)
    assert (sms.state, scene.arrived, retries.asked) == ("delivered", 1, [])


def test_what_was_published_too_soon_counts_as_early() -> None:
    scene = demo()
    scene._send(arrival(scene.messages[3]), DUE, Retries())
    scene._send(arrival(scene.messages[0]), DUE - 1, Retries())
    assert scene._summary(1.0).early == 1


def test_what_was_never_delivered_counts_as_lost() -> None:
    summary = demo()._summary(1.0)
    assert (summary.delivered, summary.lost, summary.handed_over) == (0, len(MESSAGES), 0)


def test_the_quantile_is_one_of_the_values() -> None:
    assert [_quantile([1, 2, 3, 9], fraction) for fraction in (0.5, 0.99)] == [2, 9]
