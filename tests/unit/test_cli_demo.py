"""How the demo looks and what it judges."""

import io

import pytest
from rich.console import Console

from infinite_scheduler.cli.demo import MESSAGES, Demo, Message, Summary, _quantile
from infinite_scheduler.cli.demo_view import _line, _scene

NOW = 1_893_456_000_000


def demo() -> Demo:
    scene = Demo(lambda _: None)
    for message in scene.messages:
        message.id, message.due_ms = f"job-{message.number}", NOW + 1500
    return scene


def drawn(scene: Demo, summary: Summary | None = None) -> str:
    text = io.StringIO()
    Console(file=text, width=100).print(_scene(scene, NOW, summary))
    return text.getvalue()


def fine(**changes: int) -> Summary:
    numbers = {"delivered": 5, "early": 0, "lost": 0, "handed_over": 14, "p50_ms": 1, "p99_ms": 3} | changes
    return Summary(**numbers, seconds=9.5)


def test_the_table_shows_due_time_attempt_state_and_lateness() -> None:
    scene = demo()
    refused, delivered = scene.messages[:2]
    refused.state, refused.attempt, refused.late_ms = "refused", 2, 4
    delivered.state, delivered.attempt, delivered.late_ms = "delivered", 2, 1
    text = drawn(scene)
    rows = {message.number: next(row for row in text.splitlines() if message.text in row) for message in scene.messages}
    assert [part for part in ("00:00:01.500", "2  ✗✗", "refused, in 1.5 s", "4 ms") if part not in rows[1]] == []
    assert "2  ✗✓" in rows[2]
    assert "delivered" in rows[2]
    assert "waits, in 1.5 s" in rows[3]
    assert "1 of 5 delivered" in text


def test_the_summary_says_what_was_proved() -> None:
    text = drawn(demo(), fine())
    assert "delivered 5   early 0   lost 0   p99 3 ms late" in text
    assert "none before" in text
    assert "none before" not in drawn(demo(), fine(early=1))


@pytest.mark.parametrize("changes", [{"delivered": 4}, {"early": 1}, {"lost": 1}])
def test_a_demo_that_breaks_a_promise_is_not_fine(changes: dict[str, int]) -> None:
    assert fine().fine
    assert not fine(**changes).fine


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("accepted", "accepted, due 00:00:01.500"),
        ("refused", "attempt 2 refused, 3 ms late; again due 00:00:01.500"),
        ("delivered", "attempt 2 delivered, 3 ms late"),
        ("lost", "lost"),
    ],
)
def test_without_a_terminal_each_event_is_a_line(state: str, words: str) -> None:
    message = Message(number=1, to="", text="hello", refusals=0, due_ms=NOW + 1500, attempt=2, late_ms=3, state=state)
    assert _line(message, NOW) == f"00:00:00.000  {'hello':<24}{words}"


def test_what_was_never_delivered_counts_as_lost() -> None:
    summary = demo()._summary(1.0)
    assert (summary.delivered, summary.lost, summary.handed_over) == (0, len(MESSAGES), 0)


def test_the_quantile_is_one_of_the_values() -> None:
    assert [_quantile([1, 2, 3, 9], fraction) for fraction in (0.5, 0.99)] == [2, 9]
