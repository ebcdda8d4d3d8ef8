"""What tests do with database servers: fresh databases, users with few rights, lost connections, the server's clock."""

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

import psycopg
import pymysql

from tests.services.catalogue import admin_url
from tests.services.process import PATIENCE_S
from tests.services.server import Kind, Server


class Words(NamedTuple):
    """How one kind of server says what all can do."""

    create: str
    drop: str
    connections: str
    kill: str
    time_ms: str
    make_user: Sequence[str]
    drop_user: Sequence[str]


MARIADB = Words(
    create="CREATE DATABASE {name}",
    drop="DROP DATABASE {name}",
    connections="SELECT id, user FROM information_schema.processlist WHERE db = %s AND id <> connection_id()",
    kill="KILL {id}",
    time_ms="SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000 AS SIGNED)",
    make_user=(
        "CREATE USER {user}@'127.0.0.1' IDENTIFIED BY '{password}'",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON {name}.* TO {user}@'127.0.0.1'",
    ),
    drop_user=("DROP USER {user}@'127.0.0.1'",),
)
POSTGRES = Words(
    create="CREATE DATABASE {name} STRATEGY FILE_COPY TEMPLATE template0",  # 12 ms; WAL_LOG, the default, takes 26
    drop="DROP DATABASE {name} WITH (FORCE)",
    connections="SELECT pid, usename FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
    kill="SELECT pg_terminate_backend({id})",
    time_ms="SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)",
    make_user=(
        "CREATE ROLE {user} LOGIN PASSWORD '{password}'",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {user}",
        "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {user}",
        "ALTER DEFAULT PRIVILEGES GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {user}",
        "ALTER DEFAULT PRIVILEGES GRANT USAGE ON SEQUENCES TO {user}",
    ),
    drop_user=("DROP OWNED BY {user}", "DROP ROLE {user}"),
)
WORDS: dict[Kind, Words] = {"mariadb": MARIADB, "postgres": POSTGRES}


def kind_of(url: str) -> Kind:
    """The kind of server that an address leads to."""
    return "mariadb" if url.startswith("mysql:") else "postgres"


@contextmanager
def fresh_database(kind: Kind, server: Server | None = None) -> Iterator[str]:
    """The address of an empty database with a name of its own, dropped at the end whoever is connected to it."""
    admin = server.url if server else admin_url(kind)
    name = f"test_{secrets.token_hex(6)}"
    url = urlsplit(admin)._replace(path=f"/{name}").geturl()
    execute(admin, WORDS[kind].create.format(name=name))
    try:
        yield url
    finally:
        if kind == "mariadb":
            kill_connections(url)  # a transaction that somebody left open would keep its tables
        execute(admin, WORDS[kind].drop.format(name=name))


@contextmanager
def limited_user(url: str) -> Iterator[str]:
    """The same database for a user who may read and write every table, and may make, change and drop none."""
    parts, words = urlsplit(url), WORDS[kind_of(url)]
    user, password = f"user_{secrets.token_hex(6)}", secrets.token_hex(8)
    for statement in words.make_user:
        execute(url, statement.format(user=user, password=password, name=parts.path[1:]))
    try:
        yield parts._replace(netloc=f"{user}:{password}@{parts.hostname}:{parts.port}").geturl()
    finally:
        kill_connections(url, user)
        for statement in words.drop_user:
            execute(url, statement.format(user=user))


def kill_connections(url: str, user: str | None = None) -> None:
    """End every other connection to this database, or those of one user only, and wait until these are gone."""
    with closing(connect(url)) as connection, closing(connection.cursor()) as cursor:
        kill_others(cursor, url, user)


def kill_others(cursor: Any, url: str, user: str | None = None) -> None:
    """The same, on a connection that is there."""
    words, database = WORDS[kind_of(url)], urlsplit(url).path[1:]

    def living() -> set[int]:
        cursor.execute(words.connections, [database])
        return {number for number, name in cursor.fetchall() if user in {None, name}}

    doomed = living()
    for number in doomed:
        with suppress(pymysql.OperationalError):  # it ended by itself
            cursor.execute(words.kill.format(id=number))
    deadline = time.monotonic() + PATIENCE_S
    while left := doomed & living():
        if time.monotonic() > deadline:
            raise TimeoutError(f"connections that do not end: {left}")
        time.sleep(0.005)


def server_time_ms(url: str) -> int:
    """The server's wall clock."""
    return int(execute(url, WORDS[kind_of(url)].time_ms)[0][0])


def execute(url: str, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Run one statement on a connection of its own, committed; its rows, if it has any."""
    with closing(connect(url)) as connection, closing(connection.cursor()) as cursor:
        cursor.execute(statement, values or None)
        return list(cursor.fetchall()) if cursor.description else []


def connect(url: str) -> Any:
    """A plain connection of the driver, with a commit after every statement."""
    if kind_of(url) == "postgres":
        return psycopg.connect(url, autocommit=True, connect_timeout=10)
    return _connect_mariadb(urlsplit(url))


def _connect_mariadb(parts: SplitResult) -> Any:
    return pymysql.connect(
        host=parts.hostname or "",
        port=parts.port or 3306,
        user=parts.username,
        password=parts.password or "",
        database=parts.path[1:],
        autocommit=True,
        connect_timeout=10,
        ssl_disabled=True,  # with it, each connection reads the certificates of the system first: 20 ms
    )
