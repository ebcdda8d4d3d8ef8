"""Which servers there are."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.services.folder import home, passing_home
from tests.services.kafka import Kafka
from tests.services.mariadb import MariaDB
from tests.services.postgres import Postgres
from tests.services.server import Kind, Server

KINDS: dict[Kind, type[Server]] = {"mariadb": MariaDB, "postgres": Postgres, "kafka": Kafka}

DATABASES: Sequence[Kind] = ("mariadb", "postgres")

VARIABLES: dict[Kind, str] = {
    "mariadb": "TEST_MARIADB_URL",
    "postgres": "TEST_POSTGRES_URL",
    "kafka": "TEST_KAFKA_SERVERS",
}
"""Where a run leaves the addresses. Names that begin like settings would be read as wrong settings."""


class NoServer(RuntimeError):
    """A test needs a server and there is none."""

    def __init__(self, kind: Kind) -> None:
        super().__init__(f"no {kind} server runs: run make test, or python -m tests.services start")


def shared_server(kind: Kind, *, durable: bool = False) -> Server:
    """The server that all tests use, or the one that keeps commits through a loss of power."""
    return KINDS[kind](home() / f"{kind}-durable" if durable else passing_home() / kind, durable=durable)


def shared_servers(*, durable: bool = False) -> Sequence[Server]:
    return [shared_server(kind, durable=durable) for kind in KINDS]


def admin_url(kind: Kind) -> str:
    """The address at which everything may be done: of the run's server, or of one that was started by hand."""
    if url := os.environ.get(VARIABLES[kind]):
        return url
    server = shared_server(kind)
    if server.pid is None:
        raise NoServer(kind)
    return server.url


def each(servers: Sequence[Server], action: Callable[[Server], object]) -> None:
    """Do something to all of them at once: most of the time they wait for disks, or for themselves."""
    with ThreadPoolExecutor(max(1, len(servers))) as threads:
        list(threads.map(action, servers))
