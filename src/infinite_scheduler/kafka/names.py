"""Which names a topic may have: the brokers' rule, for all names that come from people."""

import re
from typing import Final, TypeGuard

from infinite_scheduler.errors import ConfigError

TOPIC: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")
EXPECTED: Final = "the name of a topic: 1 to 249 letters, digits, dots, dashes or underscores"


def is_topic(name: object) -> TypeGuard[str]:
    """Can a topic have this name?"""
    return isinstance(name, str) and TOPIC.fullmatch(name) is not None


def check_topic(name: object, field: str = "topic", otherwise: str = "") -> str:
    """Return the name, if it is valid for a topic."""
    if not is_topic(name):
        raise ConfigError(f"{field} is {name!r}; expected {EXPECTED}{otherwise}")
    return name
