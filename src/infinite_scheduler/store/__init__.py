"""Where jobs wait: the port and its adapters."""

from typing import TYPE_CHECKING

from infinite_scheduler.errors import ConfigError

if TYPE_CHECKING:
    from infinite_scheduler.clock import Clock
    from infinite_scheduler.store.base import Store, StoreLimits


def open_store(url: str, clock: "Clock", limits: "StoreLimits | None" = None) -> "Store":
    """The store that a URL names; it is not connected yet."""
    scheme = url.partition(":")[0]
    if scheme != "sqlite":
        raise ConfigError(f"store.url: no store for {scheme!r} in this version; expected sqlite:///FILE")
    from infinite_scheduler.store.sql.sqlite import SqliteDatabase, path_of  # noqa: PLC0415 - a store is loaded when it is used
    from infinite_scheduler.store.sql.store import SqlStore  # noqa: PLC0415

    return SqlStore(SqliteDatabase(path_of(url)), clock, limits)
