"""What the tests on servers start from: each runs once on MariaDB and once on PostgreSQL."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.contract.test_servers import emptied
from tests.servers.node_rig import NodeRig
from tests.services.databases import fresh_database
from tests.services.server import Kind


@pytest.fixture(params=["mariadb_url", "postgres_url"])
def url(request: pytest.FixtureRequest) -> str:
    """The address of an empty database."""
    found: str = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def kept_database() -> Iterator[Callable[[Kind], str]]:
    """Gives all tests of a module one database of a kind, emptied: making it and its tables takes longer than most."""
    made: dict[Kind, str] = {}
    with ExitStack() as stack:

        def kept(kind: Kind) -> str:
            if kind not in made:
                made[kind] = stack.enter_context(fresh_database(kind))
            return emptied(made[kind])

        yield kept


@pytest.fixture(params=["mariadb", "postgres"])
def emptied_url(request: pytest.FixtureRequest, kept_database: Callable[[Kind], str]) -> str:
    """The address of such a database."""
    return kept_database(request.param)


@pytest.fixture
async def rig(url: str) -> AsyncIterator[NodeRig]:
    """A node on it."""
    rig = NodeRig(url)
    async with rig.scheduler:
        yield rig
