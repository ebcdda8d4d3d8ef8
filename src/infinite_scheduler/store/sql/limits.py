"""What a SQL store is told by the settings."""

from collections.abc import Mapping
from typing import Any, Self

import msgspec

from infinite_scheduler.errors import ConfigError
from infinite_scheduler.model import DAY_MS


class SqlLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a SQL store is told by the settings; most of it matters on a server only."""

    shards: int = 16
    retention_ms: int = 7 * DAY_MS
    idempotency_ms: int = DAY_MS
    lanes: int = 2  # on a server: how many connections work for owned shards
    connections: int = 2  # on a server: how many connections the doors share
    idle_in_transaction_ms: int = 5_000  # on a server, as the next two: how long a transaction may stay idle,
    lock_wait_ms: int = 10_000  # how long a statement waits for a lock,
    silence_ms: int = 20_000  # and how long the server may be silent within a statement before it is given up
    ddl: bool = True  # on a server: may this process create and drop tables?
    tables: str | None = None  # what span of time a table of a new app is for: daily or hourly; None: not set

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """The limits that these options say; raises ConfigError for one that a SQL store does not know."""
        unknown = [name for name in options if name not in cls.__struct_fields__]
        if unknown:
            known = ", ".join(cls.__struct_fields__)
            raise ConfigError(f"a SQL store has no option {unknown[0]!r}; known ones: {known}")
        return cls(**options)
