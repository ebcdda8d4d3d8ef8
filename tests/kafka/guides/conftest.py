"""Where the guides are replayed: a broker of its own, as the names of the guides are taken as they are."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.kafka.guides.rig import admin, partitions
from tests.services.kafka import Kafka
from tests.services.private import private_kafka


@pytest.fixture(scope="package")
def broker() -> Iterator[Kafka]:
    with private_kafka() as server:
        yield server
        admin.cache_clear()


@pytest.fixture
def servers(broker: Kafka) -> Iterator[str]:
    """The broker, with no topic on it before and after."""
    yield broker.url
    client = admin(broker.url)
    topics = list(partitions(broker.url))
    groups = [group.group_id for group in client.list_consumer_groups().result().valid]
    for deleted in (client.delete_topics(topics, operation_timeout=10) if topics else {}).values():
        deleted.result()
    for deleted in (client.delete_consumer_groups(groups) if groups else {}).values():
        deleted.exception()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack
