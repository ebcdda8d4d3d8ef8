"""A store that takes long, fails and loses its answers while messages come: each becomes one job all the same."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from infinite_scheduler.errors import StoreUnavailable
from infinite_scheduler.model import Accepted, JobSpec
from infinite_scheduler.observe import events
from infinite_scheduler.store.inbox import DeadLetter, Move
from tests.kafka.topic_rig import BadDays, TopicRig, messages


class Moody(BadDays):
    """A store that takes long, fails before or after it has written, or all is well."""

    dice = random.Random(3)

    async def take(
        self, specs: Sequence[JobSpec], letters: Sequence[DeadLetter], moves: Sequence[Move]
    ) -> Sequence[Accepted]:
        mood = self.dice.random()
        if mood < 0.1:
            await asyncio.sleep(0.15)  # so that the consumer has to show that it lives
        elif mood < 0.15:
            raise StoreUnavailable("away")
        elif mood < 0.2:
            self.lost_answers += 1
        return await super().take(specs, letters, moves)


async def test_a_moody_store_loses_and_repeats_nothing(real: TopicRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infinite_scheduler.ingest.door.MOST", 40)
    monkeypatch.setattr("infinite_scheduler.kafka.consumer_thread.LIVELY_S", 0.05)
    for partition in range(6):
        await real.send(messages(range(500 * partition, 500 * partition + 500)), partition=partition)
    inbox = Moody(real.store.inbox())
    door = await real.started(inbox=inbox)
    await real.has(range(3000), within_s=60)
    await door.stop()
    assert real.numbers() == Counter(range(3000))
    assert real.heard(events.IngestPaused)
