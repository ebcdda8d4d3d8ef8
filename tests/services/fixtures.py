"""What tests ask for when they need a database server; a pytest plugin."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.services.databases import NoServer, admin_url, fresh_database
from tests.services.server import Kind

FIXTURES = {"mariadb_url", "postgres_url"}


@pytest.fixture
def mariadb_url() -> Iterator[str]:
    """The address of an empty MariaDB database, for one test alone."""
    yield from _database("mariadb")


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """The address of an empty PostgreSQL database, for one test alone."""
    yield from _database("postgres")


def _database(kind: Kind) -> Iterator[str]:
    try:
        admin_url(kind)
    except NoServer as error:
        pytest.fail(str(error), pytrace=False)
    with fresh_database(kind) as url:
        yield url


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
            terminalreporter.write_line("Left out: 1 test that needs real database servers. `make test` runs it.")
        elif self._count:
            many = f"Left out: {self._count} tests that need real database servers. `make test` runs them."
            terminalreporter.write_line(many)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(LeftOut(config), "left-out")
