"""What the acceptance tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.installation import Installation, install
from tests.acceptance.place import Place


@pytest.fixture(scope="session")
def installation() -> Installation:
    return install()


@pytest.fixture
def place(installation: Installation, tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path, installation)
    yield place
    place.end()
