"""A plugin of pytest: refuses to judge anything but the copy of the package that it was told of."""

import os
from pathlib import Path

import pytest

import infinite_scheduler


def pytest_configure() -> None:
    wanted, found = os.environ["MUTANT_COPY"], str(infinite_scheduler.__file__)
    if not Path(found).is_relative_to(wanted):
        raise pytest.UsageError(f"the tests would run {found}, not the copy in {wanted}")
