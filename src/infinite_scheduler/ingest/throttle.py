"""Throttles reading while due jobs wait: messages can wait in Kafka, due jobs cannot."""

from collections.abc import Callable
from typing import Final

from infinite_scheduler.clock import Clock
from infinite_scheduler.kafka.consumer_thread import ConsumerThread
from infinite_scheduler.observe.events import IngestThrottled, Observer

Saturation = Callable[[], float]
"""How far this node is behind with handing over and settling: from 1 on it is behind."""

MOST_SATURATION: Final = 4
"""A door pauses at most this many times as long as it worked: some time is always left for reading."""

LONGEST_MS: Final = 1000
"""And no longer than this: a batch may have taken long for other reasons, and there is no poll meanwhile."""

GLANCE_MS: Final = 20
"""How often a paused door checks whether it still must wait."""

TELL_MS: Final = 60_000
PART: Final = 12
"""A door that paused for one of this many parts of this time is reported: the node has too much to do."""


class Throttle:
    """Pauses a door while its node is behind."""

    def __init__(
        self, topic: str, saturation: Saturation, consumer_thread: ConsumerThread, clock: Clock, tell: Observer
    ) -> None:
        self._topic = topic
        self._saturation = saturation
        self._thread = consumer_thread
        self._clock = clock
        self._tell = tell
        self._since_ms = 0  # when the first of these pauses began
        self._rested_ms = 0

    async def rest(self, worked_ms: int) -> None:
        """Pause as long as the door has worked, or longer if the node is far behind; but not after it has caught up."""
        began_ms = now_ms = self._clock.steady_ms()
        while (saturation := self._saturation()) >= 1 and not self._thread.stopping:
            left_ms = began_ms + min(int(worked_ms * min(saturation, MOST_SATURATION)), LONGEST_MS) - now_ms
            if left_ms <= 0:
                break
            await self._thread.pause(min(left_ms, GLANCE_MS))
            now_ms = self._clock.steady_ms()
        if not self._rested_ms:
            self._since_ms = began_ms
        self._rested_ms += now_ms - began_ms
        self._tell_if_worth_it(now_ms - self._since_ms)

    def _tell_if_worth_it(self, of_ms: int) -> None:
        if of_ms < TELL_MS or not self._rested_ms:
            return
        if self._rested_ms * PART >= of_ms:
            self._tell(IngestThrottled(topic=self._topic, rested_ms=self._rested_ms, of_ms=of_ms))
        self._rested_ms = 0
