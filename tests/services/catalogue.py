"""Which servers there are."""

from collections.abc import Sequence

from tests.services.folder import home
from tests.services.mariadb import MariaDB
from tests.services.postgres import Postgres
from tests.services.server import Kind, Server

KINDS: dict[Kind, type[Server]] = {"mariadb": MariaDB, "postgres": Postgres}

VARIABLES: dict[Kind, str] = {
    "mariadb": "TEST_MARIADB_URL",
    "postgres": "TEST_POSTGRES_URL",
}
"""Where a run leaves the addresses. Names that begin like settings would be read as wrong settings."""


def shared_server(kind: Kind, *, durable: bool = False) -> Server:
    """The server that all tests use, or the one that keeps commits through a loss of power."""
    return KINDS[kind](home() / (f"{kind}-durable" if durable else kind), durable=durable)


def shared_servers(*, durable: bool = False) -> Sequence[Server]:
    return [shared_server(kind, durable=durable) for kind in KINDS]
