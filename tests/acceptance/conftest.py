"""What the acceptance tests share."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.acceptance.cluster import Cluster
from tests.acceptance.installation import DRIVERS, Installation, install
from tests.acceptance.place import SOAK, Place
from tests.acceptance.streams import Stream, StreamOn
from tests.services.catalogue import admin_url
from tests.services.databases import fresh_database
from tests.services.kafka import Kafka
from tests.services.private import private_server
from tests.services.server import Server
from tests.services.topics import fresh_topics

collect_ignore = [] if SOAK else ["test_cluster_chaos.py"]  # it shows nothing in a few seconds

KINDS = ["mariadb", "postgres"]


@pytest.fixture(scope="session")
def installation() -> Installation:
    return install()


@pytest.fixture(scope="session")
def installation_with_drivers() -> Installation:
    return install(DRIVERS)


@pytest.fixture
def place(installation: Installation, tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path, installation)
    yield place
    place.end()


@pytest.fixture(params=KINDS)
def cluster(
    request: pytest.FixtureRequest, installation_with_drivers: Installation, tmp_path: Path
) -> Iterator[Cluster]:
    """Nodes on a database of their own, on the server that all tests use."""
    with fresh_database(request.param) as url:
        cluster = Cluster(tmp_path, installation_with_drivers, url)
        yield cluster
        cluster.end()


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of this test's own, to stop and to kill."""
    with private_server(request.param) as server:
        yield server


@pytest.fixture
def cluster_alone(server: Server, installation_with_drivers: Installation, tmp_path: Path) -> Iterator[Cluster]:
    """Nodes on that server."""
    with fresh_database(server.kind, server) as url:
        cluster = Cluster(tmp_path, installation_with_drivers, url)
        yield cluster
        cluster.end()


@pytest.fixture
def stream_on(installation_with_drivers: Installation, tmp_path: Path) -> Iterator[StreamOn]:
    """Makes them, on servers that all tests use or on the test's own, and ends them."""
    with ExitStack() as stack:

        def make(kind: str, server: Server | None = None, kafka: Kafka | None = None) -> Stream:
            servers = kafka.url if kafka else admin_url("kafka")
            topic = stack.enter_context(fresh_topics(servers))
            url = f"sqlite:///{tmp_path / 'jobs.db'}"
            if kind != "sqlite":
                url = stack.enter_context(fresh_database(kind, server))  # type: ignore[arg-type]
            stream = Stream(tmp_path, installation_with_drivers, url, servers, topic)
            stack.callback(stream.end)
            return stream

        yield make


@pytest.fixture(params=KINDS)
def stream(request: pytest.FixtureRequest, stream_on: StreamOn) -> Stream:
    """Nodes between two topics, on a database server."""
    return stream_on(request.param)
