"""What a store is told by the settings."""

import msgspec

from infinite_scheduler.model import DAY_MS


class StoreLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a store is told by the settings."""

    shards: int = 16
    retention_ms: int = 7 * DAY_MS
    idempotency_ms: int = DAY_MS
    lanes: int = 2  # on a server: how many connections work for owned shards
    connections: int = 2  # on a server: how many connections the doors share
    idle_in_transaction_ms: int = 5_000  # on a server, and so are the next two: how long a transaction may stay idle,
    lock_wait_ms: int = 10_000  # how long one waits for a lock,
    silence_ms: int = 20_000  # and after what silence in the middle of a statement the server is given up
    ddl: bool = True  # on a server: may this process make and drop tables?
    tables: str = "daily"  # what span of time a table of a new app is for: daily or hourly
