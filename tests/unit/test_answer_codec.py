"""Answers on their way from a worker process to the node: what the node must still know of them."""

import pytest

from infinite_scheduler.errors import DestinationAway
from infinite_scheduler.handlers.answer_codec import pack, unpack


def passed_on(error: Exception) -> DestinationAway:
    (answer,) = unpack(pack([error]))
    assert isinstance(answer, DestinationAway)
    return answer


def test_a_destination_that_is_away_keeps_its_reason_and_its_wait() -> None:
    away = passed_on(DestinationAway("closed", retry_after=90))
    assert (str(away), away.retry_after_s) == ("closed", 90.0)


@pytest.mark.parametrize(("text", "reason"), [("closed", "closed"), ("", "Down"), (" ", "Down")])
def test_one_of_a_class_that_the_node_does_not_know_is_away_too(text: str, reason: str) -> None:
    class Down(DestinationAway):
        def __init__(self) -> None:
            self.args = (text,)
            self.retry_after_s = -1.0

    away = passed_on(Down())
    assert (str(away).rsplit(".", 1)[-1], away.retry_after_s) == (reason, -1.0)
