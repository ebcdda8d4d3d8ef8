"""What all tests share."""

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.services.fixtures"]

# A busy machine is not a failure.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")
