"""A server for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.api.api_rig import ApiRig, api_rig


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[ApiRig]:
    async with api_rig(tmp_path) as rig:
        yield rig
