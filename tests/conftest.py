"""What all tests share."""

from hypothesis import settings

pytest_plugins = ["tests.services.fixtures"]

settings.register_profile("steady", deadline=None)  # a busy machine is not a failure
settings.load_profile("steady")
