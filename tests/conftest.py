"""What all tests share."""

import gc
import os

from hypothesis import HealthCheck, settings

from tests.command import NO_HTTP

os.environ.update(NO_HTTP)

pytest_plugins = ["tests.services.fixtures", "tests.order"]

EXAMPLES = 2_000 if os.environ.get("INFINITE_SCHEDULER_SOAK") else 40
"""Of each property; a test whose inputs need more takes a multiple of it."""

# A busy machine is not a failure.
settings.register_profile("steady", max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")


def pytest_collection_finish() -> None:
    """Leave the tests themselves out of every later collection of garbage: there are thousands, and they stay."""
    gc.collect()
    gc.freeze()
