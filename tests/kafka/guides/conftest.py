"""Where the guides are replayed: on a broker that nobody else uses, as the names are taken as the guides have them."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.kafka.guides.guide_rig import admin
from tests.services.kafka import Kafka


@pytest.fixture
def servers(private_kafka: Kafka) -> Iterator[str]:
    """The broker, with no topic on it before and after."""
    yield private_kafka.url
    admin.cache_clear()


@pytest.fixture
def stack(servers: str) -> Iterator[ExitStack]:
    """What a test has started ends before its topics go."""
    with ExitStack() as stack:
        yield stack
