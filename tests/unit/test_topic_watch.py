"""Which topic goes by a name: an answer counts for a moment only."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from infinite_scheduler.ingest.topic_watch import TopicWatch
from infinite_scheduler.kafka.options import KafkaOptions
from infinite_scheduler.testing import ManualClock


class Admin:
    def __init__(self) -> None:
        self.topic_id: str | None = "one"  # None: no answer yet
        self.asked: list[Future[Any]] = []

    def describe_topics(self, topics: object, request_timeout: float) -> dict[str, Future[Any]]:
        self.asked.append(Future())
        if self.topic_id is not None:
            self.answer(self.topic_id)
        return {"jobs": self.asked[-1]}

    def answer(self, topic_id: str) -> None:
        self.asked[-1].set_result(SimpleNamespace(topic_id=topic_id))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def admin() -> Admin:
    return Admin()


@pytest.fixture
def watch(clock: ManualClock, admin: Admin) -> TopicWatch:
    made = TopicWatch(KafkaOptions("localhost:9092"), "jobs", clock)
    made._client = admin  # type: ignore[assignment]
    return made


async def settle(watch: TopicWatch) -> None:
    """Let an answer that has come arrive."""
    assert watch._asked is not None
    await watch._asked


async def test_an_answer_that_came_long_ago_is_asked_for_again(
    watch: TopicWatch, admin: Admin, clock: ManualClock
) -> None:
    watch.ask()
    await settle(watch)
    admin.topic_id = "two"
    clock.advance(2001)
    assert await watch.topic_id() == "two"
    assert len(admin.asked) == 2


async def test_an_answer_that_was_asked_for_in_time_is_used(
    watch: TopicWatch, admin: Admin, clock: ManualClock
) -> None:
    watch.ask()
    await settle(watch)
    clock.advance(1000)
    assert await watch.topic_id() == "one"
    assert len(admin.asked) == 1


async def test_whoever_has_answered_late_is_waited_for_again(
    watch: TopicWatch, admin: Admin, clock: ManualClock
) -> None:
    admin.topic_id = None
    watch.ask()
    clock.advance(3000)
    assert await watch.topic_id() is None
    assert not watch._answers
    admin.answer("one")
    await settle(watch)
    assert watch._answers


async def test_a_client_without_an_answer_is_replaced(
    watch: TopicWatch, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka may be stuck for good after a restart of the brokers."""
    another = Admin()
    monkeypatch.setattr("confluent_kafka.admin.AdminClient", lambda *_, **__: another)
    admin.topic_id = None
    watch.ask()
    admin.asked[-1].set_exception(RuntimeError("timed out"))
    assert await watch.topic_id() is None
    assert await watch.topic_id() == "one"
    assert (len(admin.asked), len(another.asked)) == (1, 1)
