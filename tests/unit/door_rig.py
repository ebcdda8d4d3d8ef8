"""The parts of a topic door for tests: one object stands for all that a worker behind the door asks."""

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from infinite_scheduler.ingest.config import KafkaIngestConfig
from infinite_scheduler.ingest.door_parts import DoorParts
from infinite_scheduler.observe.events import Observer
from infinite_scheduler.testing import ManualClock


async def _unknown() -> None: ...


def parts_of(
    all_of_them: Any,
    config: KafkaIngestConfig,
    *,
    clock: ManualClock | None = None,
    tell: Observer = lambda event: None,
    topic_id: Callable[[], Awaitable[str | None]] = _unknown,
) -> DoorParts:
    watch: Any = SimpleNamespace(topic_id=topic_id)
    return DoorParts(
        config=config,
        inbox=all_of_them,
        client=all_of_them,
        consumer=all_of_them,
        watch=watch,
        consumer_thread=all_of_them,
        clock=clock or ManualClock(),
        tell=tell,
    )
