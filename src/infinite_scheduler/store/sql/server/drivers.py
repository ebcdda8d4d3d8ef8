"""Which driver speaks to the server that a URL names."""

# ruff: noqa: PLC0415 - the driver of a database is loaded when it is used

from infinite_scheduler.store.sql.limits import SqlLimits
from infinite_scheduler.store.sql.server.address import address_of
from infinite_scheduler.store.sql.server.driver import Driver, Waits
from infinite_scheduler.store.sql.server.driver_arguments import psycopg_arguments, pymysql_arguments, require_driver


def server_driver(url: str, limits: SqlLimits | None = None) -> Driver:
    """Create the driver of the server for a URL."""
    address = address_of(url)
    require_driver(address.kind)
    waits = Waits.of(limits or SqlLimits())
    if address.kind == "postgres":
        from infinite_scheduler.store.sql.server.postgres import PostgresDriver

        return PostgresDriver(psycopg_arguments(address), str(address), waits)
    from infinite_scheduler.store.sql.server.mariadb import MariaDriver

    return MariaDriver(pymysql_arguments(address), str(address), waits)
