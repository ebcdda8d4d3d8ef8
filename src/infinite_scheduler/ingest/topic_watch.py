"""Which topic has this name: one that was deleted and created again has another id."""

import asyncio
from typing import TYPE_CHECKING, Any, Final

from infinite_scheduler.clock import Clock
from infinite_scheduler.kafka.librdkafka_log import LibrdkafkaLog
from infinite_scheduler.kafka.options import KafkaOptions

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_WAIT_MS: Final = 2000
_FRESH_MS: Final = 2000
"""How long an answer that was not fetched stays valid."""


class TopicWatch:
    """Asks the brokers for the id of a topic. Old brokers, and librdkafka's mock broker, do not know it."""

    def __init__(self, options: KafkaOptions, topic: str, clock: Clock) -> None:
        self._options = options
        self._topic = topic
        self._clock = clock
        self._client: AdminClient | None = None
        self._asked: asyncio.Future[Any] | None = None
        self._asked_ms = 0
        self._arrived_ms: int | None = None
        self._answers = True

    def ask(self) -> "asyncio.Future[Any]":
        """Begin to ask, so that the answer is there when it is needed."""
        from confluent_kafka import TopicCollection  # noqa: PLC0415 - 54 ms that only users of Kafka pay
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415

        if self._arrived_ms is not None and self._clock.steady_ms() - self._arrived_ms > _FRESH_MS:
            self._asked = self._arrived_ms = None  # another topic may have the name by now
        if self._asked is None:
            if self._client is None:
                self._client = AdminClient(self._options.client(), logger=LibrdkafkaLog())
            answers = self._client.describe_topics(TopicCollection([self._topic]), request_timeout=5)
            self._asked, self._asked_ms = asyncio.wrap_future(answers[self._topic]), self._clock.steady_ms()
            self._asked.add_done_callback(self._arrive)
        return self._asked

    async def topic_id(self) -> str | None:
        """The id; None: it did not arrive in time, or there is no such topic."""
        asked = self.ask()
        left_ms = self._asked_ms + _WAIT_MS - self._clock.steady_ms() if self._answers else 0
        await asyncio.wait([asked], timeout=max(0, left_ms) / 1000)
        if not asked.done():
            self._answers = False  # after a time-out, do not wait again
            return None
        self._asked = self._arrived_ms = None
        if asked.cancelled() or asked.exception() is not None:
            return None
        self._answers = True
        found = asked.result().topic_id
        return None if found is None else str(found)

    def _arrive(self, asked: "asyncio.Future[Any]") -> None:
        if asked is not self._asked:
            return
        self._arrived_ms = self._clock.steady_ms()
        if not asked.cancelled() and asked.exception() is None:
            self._answers = True  # late, but waiting makes sense again
        else:
            self._client = None  # it may be stuck after a restart of the brokers: a new one connects again

    def close(self) -> None:
        """Stop waiting for an answer."""
        if self._asked is not None:
            self._asked.cancel()
        self._asked = self._client = None
