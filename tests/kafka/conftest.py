"""What tests of topic doors ask for."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kafka.topic_rig import TopicRig, rig
from tests.services.topics import MakeTopic


@pytest.fixture
async def real(tmp_path: Path, kafka_servers: str, fresh_topic: MakeTopic) -> AsyncIterator[TopicRig]:
    """A topic of six partitions with three for its dead letters, on the real broker."""
    topic, dlq = fresh_topic("jobs", partitions=6), fresh_topic("dlq", partitions=3)
    async with rig(tmp_path, kafka_servers, topic, dlq) as made:
        yield made
