"""A server in a thread of its own, over a SQLite file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.remote.remote_rig import RemoteRig, remote_rig


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[RemoteRig]:
    with remote_rig(tmp_path) as rig:
        yield rig
