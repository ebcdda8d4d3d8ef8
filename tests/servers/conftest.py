"""What the tests on servers start from: each runs once on MariaDB and once on PostgreSQL."""

from collections.abc import AsyncIterator

import pytest

from tests.servers.rig import Rig


@pytest.fixture(params=["mariadb_url", "postgres_url"])
def url(request: pytest.FixtureRequest) -> str:
    """The address of an empty database."""
    found: str = request.getfixturevalue(request.param)
    return found


@pytest.fixture
async def rig(url: str) -> AsyncIterator[Rig]:
    """A node on it."""
    rig = Rig(url)
    async with rig.scheduler:
        yield rig
