"""What tests ask for when they need a server; a pytest plugin."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import pytest

from tests.services import private
from tests.services.catalogue import NoServer, admin_url
from tests.services.databases import fresh_database
from tests.services.kafka import GuardedKafka, Kafka
from tests.services.server import Kind
from tests.services.topics import MakeTopic, forget_everything, fresh_topics

Broker = TypeVar("Broker", bound=Kafka)

FIXTURES = {"mariadb_url", "postgres_url", "kafka_servers", "private_kafka", "guarded_kafka"}


@pytest.fixture
def mariadb_url() -> Iterator[str]:
    """The address of an empty MariaDB database, for one test alone."""
    yield from _database("mariadb")


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """The address of an empty PostgreSQL database, for one test alone."""
    yield from _database("postgres")


@pytest.fixture(scope="session")
def kafka_servers() -> str:
    """The address of the Kafka broker that all tests use: topics and groups need names of their own."""
    return _address("kafka")


@pytest.fixture
def fresh_topic(kafka_servers: str) -> Iterator[MakeTopic]:
    """Makes topics on that broker with names of their own, and deletes them at the end."""
    with fresh_topics(kafka_servers) as make:
        yield make


@pytest.fixture
def private_kafka() -> Iterator[Kafka]:
    """A Kafka broker to stop, restart or kill, with nothing on it: no other test uses it meanwhile."""
    with private.lent_kafka() as server:
        yield from _emptied_after(server)


@pytest.fixture
def guarded_kafka() -> Iterator[GuardedKafka]:
    """A Kafka broker that wants a password and lets a guest do nothing; no other test uses it meanwhile."""
    with private.lent_guarded_kafka() as server:
        yield from _emptied_after(server)


@pytest.fixture
def mock_kafka() -> Iterator[str]:
    """The address of a broker inside this process: quick, short of memory, and topics are made by using them."""
    from infinite_scheduler.kafka.embedded import embedded_broker

    with embedded_broker() as servers:
        yield servers


def _emptied_after(broker: Broker) -> Iterator[Broker]:
    """The broker as it is when it was just made, whatever the last test did to it."""
    yield broker
    broker.start()
    forget_everything(broker.options)


def _database(kind: Kind) -> Iterator[str]:
    _address(kind)
    with fresh_database(kind) as url:
        yield url


def _address(kind: Kind) -> str:
    try:
        return admin_url(kind)
    except NoServer as error:
        pytest.fail(str(error), pytrace=False)


# Tests that need servers carry the marker "servers": those that use a fixture get it here, others say so themselves.


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and FIXTURES.intersection(item.fixturenames):
            item.add_marker("servers")


# A run without servers says how many tests it left out; a worker of a parallel run tells the run that prints.


class LeftOut:
    """Counts the tests that were left out because they need servers."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._count = 0

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self._count += sum(item.get_closest_marker("servers") is not None for item in items)

    def pytest_sessionfinish(self) -> None:
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["left_out"] = self._count

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._count = max(self._count, getattr(node, "workeroutput", {}).get("left_out", 0))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if "not servers" not in self._config.getoption("markexpr"):
            return
        if self._count == 1:
            terminalreporter.write_line("Left out: 1 test that needs real servers. `make test` runs it.")
        elif self._count:
            many = f"Left out: {self._count} tests that need real servers. `make test` runs them."
            terminalreporter.write_line(many)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(LeftOut(config), "left-out")
