"""What all tests share."""

import gc

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.services.fixtures"]

# A busy machine is not a failure.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")


def pytest_collection_finish() -> None:
    """Leave the tests themselves out of every later collection of garbage: there are thousands, and they stay."""
    gc.collect()
    gc.freeze()
