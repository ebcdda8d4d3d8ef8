"""A server that cannot be used: what is wrong is said once and clearly, of the right kind, and without the password."""

import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pymysql
import pytest

from infinite_scheduler.clock import SystemClock
from infinite_scheduler.errors import SchedulerError, StoreBroken, StoreMismatch, StoreUnavailable
from infinite_scheduler.store import open_store
from infinite_scheduler.store.sql.server import session
from infinite_scheduler.store.sql.server.drivers import server_driver
from infinite_scheduler.store.sql.server.session import Link
from infinite_scheduler.store.sql.server.table_maker import TableMaker
from tests.servers.node_rig import NodeRig
from tests.services.databases import connect, execute, kill_connections, kind_of, limited_user

NO_STORE = 5
BAD_INPUT = 2


async def refused(url: str, kind: type[SchedulerError], words: str, *, ddl: bool = True) -> str:
    """Opening the store fails with this kind of error and these words."""
    store = open_store(url, SystemClock(), {"ddl": ddl})
    with pytest.raises(SchedulerError, match=words) as caught:
        await store.open()
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)
    password = urlsplit(url).password
    assert password
    assert password not in str(caught.value)
    return str(caught.value)


def changed(url: str, *, password: str | None = None, host: str | None = None, port: int = 0, path: str = "") -> str:
    parts = urlsplit(url)
    login = f"{parts.username}:{password or parts.password}"
    return parts._replace(
        netloc=f"{login}@{host or parts.hostname}:{port or parts.port}", path=path or parts.path
    ).geturl()


async def test_a_wrong_password(url: str) -> None:
    said = await refused(changed(url, password="not-the-password"), StoreMismatch, "refuses the user or the password")
    assert "check store.url" in said


async def test_an_unknown_user(url: str) -> None:
    nobody = url.replace("://admin:", "://nobody_of_this_name:")
    assert "nobody_of_this_name" in await refused(nobody, StoreMismatch, "refuses the user or the password")


async def test_an_unknown_host(url: str) -> None:
    await refused(changed(url, host="nohost.invalid"), StoreUnavailable, r"the host name is unknown .*check store\.url")


@contextmanager
def closed_port() -> Iterator[int]:
    """A port on which nobody listens, and that nobody else gets meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


async def test_nothing_listens(url: str) -> None:
    with closed_port() as port:
        assert f":{port}/" in await refused(changed(url, port=port), StoreUnavailable, "nothing listens there")


async def test_a_missing_database(url: str) -> None:
    address = changed(url, path="/there_is_none")
    assert "there_is_none" in await refused(address, StoreMismatch, "`infinite-scheduler migrate --create`")
    with pytest.raises((psycopg.Error, pymysql.err.Error)):
        connect(address)  # nor was it made


async def test_a_user_who_may_make_no_tables(url: str) -> None:
    with limited_user(url) as limited:
        await refused(limited, StoreBroken, r"rights are missing .*store\.ddl = false")
        await refused(limited, StoreMismatch, "`infinite-scheduler migrate`", ddl=False)
    schema = "DATABASE()" if kind_of(url) == "mariadb" else "current_schema()"
    assert execute(url, f"SELECT table_name FROM information_schema.tables WHERE table_schema = {schema}") == []


@contextmanager
def reader(url: str) -> Iterator[str]:
    """A user who may read every table, and write none."""
    with limited_user(url) as limited:
        user = urlsplit(limited).username
        if kind_of(url) == "mariadb":
            execute(url, f"REVOKE INSERT, UPDATE, DELETE ON {urlsplit(url).path[1:]}.* FROM {user}@'127.0.0.1'")
        else:
            execute(url, f"REVOKE INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public FROM {user}")
        yield limited


async def test_a_user_who_may_only_read_can_look_and_is_told_what_is_missing(url: str) -> None:
    async with NodeRig(url).scheduler:
        pass
    with reader(url) as limited:
        rig = NodeRig(limited)
        await rig.scheduler.open()
        try:
            assert await rig.statuses() == {}
            with pytest.raises(StoreBroken, match="rights are missing"):
                await rig.add(1, "1h")
        finally:
            await rig.scheduler.close()


def test_the_command_line_says_it_in_one_line_and_ends_with_its_code(url: str) -> None:
    with closed_port() as port:
        for address, code, words in (
            (changed(url, port=port), NO_STORE, "nothing listens there"),
            (changed(url, password="not-the-password"), BAD_INPUT, "refuses the user or the password"),
        ):
            done = subprocess.run(
                [sys.executable, "-m", "infinite_scheduler", "jobs", "list", "--store", address],
                check=False, capture_output=True, text=True, timeout=60,
            )  # fmt: skip
            assert done.returncode == code, done.stderr
            assert done.stderr.startswith("error: ")
            assert done.stderr.count("\n") == 1
            assert words in done.stderr
            assert str(urlsplit(address).password) not in done.stderr


@contextmanager
def foreign_server(code: str, words: str) -> Iterator[str]:
    """The address of a PostgreSQL server that refuses every login, in a language of its own."""
    fields = {"S": "\u0412\u0410\u0416\u041d\u041e", "V": "FATAL", "C": code, "M": words}
    body = b"".join(name.encode() + value.encode() + b"\0" for name, value in fields.items()) + b"\0"
    refusal = b"E" + (len(body) + 4).to_bytes(4, "big") + body

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    while (asked := connection.recv(1000)) and len(asked) == len(b"SSLRequ?"):
                        connection.sendall(b"N")
                    connection.sendall(refusal)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        yield f"postgresql://me:sesame@127.0.0.1:{listener.getsockname()[1]}/jobs"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        ("28P01", StoreMismatch, "refuses the user or the password"),
        ("28000", StoreMismatch, "refuses the user or the password"),
        ("3D000", StoreMismatch, "`infinite-scheduler migrate --create`"),
        ("53300", StoreUnavailable, "takes no connection at the moment"),
        ("57P03", StoreUnavailable, "takes no connection at the moment"),
        ("XX000", StoreUnavailable, "does not answer"),
    ],
)
async def test_a_server_that_speaks_another_language_is_understood(
    code: str, kind: type[SchedulerError], words: str
) -> None:
    said = "\u043d\u0435\u043b\u044c\u0437\u044f"
    with foreign_server(code, said) as url:
        assert said in await refused(url, kind, words)


def test_a_password_that_a_driver_repeats_is_not_shown(url: str) -> None:
    for password in ("sesame", "1234'56", "two words"):
        driver = server_driver(changed(url, password=password.replace("'", "%27").replace(" ", "%20")))
        echo = driver.Error(f"bad address: host=here password={password} mysql://me:{password}@here/db")
        for shown in (driver.said(echo), str(driver.translated(echo)), str(driver.busy(echo))):
            assert password not in shown
            assert "host=here" in shown


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("postgresql://u:p@h/d", psycopg.errors.IdleInTransactionSessionTimeout("ended")),
        ("postgresql://u:p@h/d", psycopg.errors.AdminShutdown("ended")),
        ("postgresql://u:p@h/d", psycopg.errors.ReadOnlySqlTransaction("a standby")),
        ("postgresql://u:p@h/d", psycopg.errors.LockNotAvailable("held")),
        ("postgresql://u:p@h/d", psycopg.errors.QueryCanceled("cancelled")),
        ("postgresql://u:p@h/d", psycopg.errors.CannotConnectNow("starts")),
        ("mariadb://u:p@h/d", pymysql.err.OperationalError(1927, "killed")),
        ("mariadb://u:p@h/d", pymysql.err.InterfaceError(0, "")),
        ("mariadb://u:p@h/d", pymysql.err.OperationalError(1290, "read-only")),
        ("mariadb://u:p@h/d", pymysql.err.OperationalError(1205, "held")),
        ("mariadb://u:p@h/d", pymysql.err.OperationalError(1040, "Too many connections")),
        ("mariadb://u:p@h/d", pymysql.err.OperationalError(1317, "interrupted")),
    ],
)
def test_what_can_recover_by_itself_is_worth_trying_again(address: str, error: Exception) -> None:
    assert server_driver(address).translated(error).retryable


# Too many connections


@contextmanager
def two_connections(url: str) -> Iterator[tuple[str, list[Any]]]:
    """An address by which no more than two connections can be made, and both of them."""
    with limited_user(url) as limited:
        user = urlsplit(limited).username
        if kind_of(url) == "mariadb":
            execute(url, f"ALTER USER {user}@'127.0.0.1' WITH MAX_USER_CONNECTIONS 2")
        else:
            execute(url, f"ALTER ROLE {user} CONNECTION LIMIT 2")
        held = [connect(limited) for _ in range(2)]
        try:
            yield limited, held
        finally:
            for connection in held:
                connection.close()


async def test_a_server_without_a_free_connection_says_so(url: str) -> None:
    async with NodeRig(url).scheduler:
        pass
    with two_connections(url) as (limited, _):
        text = await refused(limited, StoreUnavailable, "takes no connection at the moment", ddl=False)
        assert re.search(r"too many connections|max_user_connections", text)


async def test_a_connection_that_is_not_to_be_had_for_a_moment_is_tried_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with NodeRig(url).scheduler:
        pass
    with two_connections(url) as (limited, held):
        link = Link(server_driver(limited), TableMaker(server_driver(limited), allowed=False), "p")
        with pytest.raises(StoreUnavailable, match="takes no connection at the moment"):
            link.read(lambda tx: tx.read_apps())

        def somebody_leaves(_: int) -> None:
            if len(held) == 2:
                kill_connections(url, urlsplit(limited).username)
                held.pop().close()

        monkeypatch.setattr(session, "_pause", somebody_leaves)
        assert len(link.read(lambda tx: tx.read_apps())) == 1
        link.close()
