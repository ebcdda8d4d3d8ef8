"""The servers of the tests: found again, restarted, killed, stopped; and what tests get from them."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pymysql
import pytest

from tests.services import folder, packages
from tests.services.catalogue import KINDS, VARIABLES
from tests.services.databases import connect, execute, fresh_database, kill_connections, limited_user, server_time_ms
from tests.services.private import clocked_server, private_server
from tests.services.server import Kind, Server

pytestmark = pytest.mark.servers

every_kind = pytest.mark.parametrize("kind", KINDS)
Lost = (psycopg.OperationalError, pymysql.OperationalError)
Refused = (psycopg.errors.InsufficientPrivilege, pymysql.OperationalError)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


# A server's life


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server that these tests may do anything to."""
    with private_server(request.param) as server:
        yield server


def test_a_server_that_runs_is_found_again(server: Server) -> None:
    again = type(server)(server.folder)
    assert not again.start()
    assert (again.pid, again.url) == (server.pid, server.url)


def test_a_process_that_has_the_number_of_a_dead_server_is_not_taken_for_it(server: Server) -> None:
    server.kill()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, **folder.account()) as other:
        (server.folder / "pid").write_text(str(other.pid))
        if (file := server.data / "postmaster.pid").exists():
            file.write_text("\n".join([str(other.pid), *file.read_text().splitlines()[1:]]))
        assert server.pid is None
        assert server.start()
        assert server.pid not in {None, other.pid}


def test_what_was_committed_survives_the_death_of_a_server(server: Server) -> None:
    with fresh_database(server.kind, server) as url:
        execute(url, "CREATE TABLE t (n integer)")
        execute(url, "INSERT INTO t VALUES (7)")
        with closing(connect(url)) as connection:
            server.kill()
            with pytest.raises(Lost):
                connection.cursor().execute("SELECT 1")
        with pytest.raises(Lost):
            connect(url)
        server.start()
        assert execute(url, "SELECT n FROM t") == [(7,)]


def test_a_restarted_server_is_at_the_same_address_with_the_same_data(server: Server) -> None:
    with fresh_database(server.kind, server) as url:
        execute(url, "CREATE TABLE t (n integer)")
        before = server.pid
        server.restart()
        assert server.pid not in {None, before}
        assert execute(url, "SELECT count(*) FROM t") == [(0,)]


def test_a_server_whose_port_was_taken_chooses_another(server: Server) -> None:
    server.stop()
    before = server.port
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", before))
        taken.listen()
        server.start()
    assert server.port != before
    assert execute(server.url, "SELECT 1") == [(1,)]


@every_kind
def test_a_clock_can_be_set_while_the_server_runs(kind: Kind) -> None:
    with clocked_server(kind) as (server, clock):
        for offset_s in (0, 3600, -3600, 0.5):
            clock.set(offset_s)
            earliest_ms = now_ms()
            time_ms = server_time_ms(server.url) - round(offset_s * 1000)
            assert earliest_ms - 1 <= time_ms <= now_ms() + 1


# What tests get


@every_kind
def test_every_database_is_empty_and_gone_at_the_end(kind: Kind) -> None:
    with fresh_database(kind) as one, fresh_database(kind) as other:
        execute(one, "CREATE TABLE t (n integer)")
        execute(other, "CREATE TABLE t (n integer)")
        forgotten = connect(one)
        forgotten.cursor().execute("BEGIN")
        forgotten.cursor().execute("SELECT n FROM t")
    with pytest.raises(Lost):
        connect(one)
    forgotten.close()


@every_kind
def test_a_user_with_few_rights_makes_no_tables_but_fills_them(kind: Kind) -> None:
    with fresh_database(kind) as url:
        execute(url, "CREATE TABLE early (n integer)")
        with limited_user(url) as limited:
            execute(url, "CREATE TABLE late (n integer)")
            for table in ("early", "late"):
                execute(limited, f"INSERT INTO {table} VALUES (1)")
                execute(limited, f"UPDATE {table} SET n = n + 1")
                assert execute(limited, f"SELECT n FROM {table}") == [(2,)]
                execute(limited, f"DELETE FROM {table}")
                with pytest.raises(Refused):
                    execute(limited, f"DROP TABLE {table}")
            with pytest.raises(Refused):
                execute(limited, "CREATE TABLE mine (n integer)")


@every_kind
def test_only_the_connections_of_one_user_are_lost(kind: Kind) -> None:
    with (
        fresh_database(kind) as url,
        limited_user(url) as limited,
        closing(connect(url)) as stays,
        closing(connect(limited)) as lost,
    ):
        kill_connections(url, urlsplit(limited).username)
        with pytest.raises(Lost):
            lost.cursor().execute("SELECT 1")
        stays.cursor().execute("SELECT 1")
        kill_connections(url)
        with pytest.raises(Lost):
            stays.cursor().execute("SELECT 1")


# The command


class Project:
    """A copy of the project's servers in a folder of its own, with nothing made yet."""

    def __init__(self, root: Path) -> None:
        self.root = root
        shutil.copytree(folder.PROJECT / "tests" / "services", root / "tests" / "services")
        for name in ("pyproject.toml", "tests/conftest.py"):
            shutil.copy(folder.PROJECT / name, root / name)

    def popen(self, *arguments: str) -> subprocess.Popen[str]:
        without = {name: value for name, value in os.environ.items() if name not in VARIABLES.values()}
        return subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=self.root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=without,
        )

    def run(self, *arguments: str) -> tuple[int, str]:
        with self.popen(*arguments) as process:
            output, _ = process.communicate()
            return process.returncode, output


@pytest.fixture(scope="module")
def shared_project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    project = Project(tmp_path_factory.mktemp("project"))
    yield project
    assert project.run("tests.services", "remove") == (0, "")


@pytest.fixture
def project(shared_project: Project) -> Iterator[Project]:
    yield shared_project
    assert shared_project.run("tests.services", "stop") == (0, "")


def test_a_command_finds_servers_that_are_stopped_after_it(project: Project) -> None:
    code = "import os, sys; print(os.environ['TEST_MARIADB_URL'], os.environ['TEST_POSTGRES_URL']); sys.exit(7)"
    exit_code, output = project.run("tests.services", "run", "--", sys.executable, "-c", code)
    mariadb, postgres = output.split()
    assert exit_code == 7
    for url in (mariadb, postgres):
        with pytest.raises(Lost):
            connect(url)
    assert project.run("tests.services", "status")[0] == 1

    assert project.run("tests.services", "start")[0] == 0
    assert project.run("tests.services", "run", "--", sys.executable, "-c", code) == (7, output)
    assert execute(mariadb, "SELECT 1") == execute(postgres, "SELECT 1") == [(1,)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_command_and_the_servers_are_stopped(project: Project, number: signal.Signals) -> None:
    code = "import os, time; print(os.environ['TEST_MARIADB_URL'], flush=True); time.sleep(60)"
    with project.popen("tests.services", "run", "--", sys.executable, "-c", code) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert execute(url, "SELECT 1") == [(1,)]
        process.send_signal(number)
        process.communicate()
        assert process.returncode in {128 + number, 1}  # Python turns SIGINT into an exception
    with pytest.raises(Lost):
        connect(url)


def test_of_two_commands_at_once_the_last_one_stops_the_servers(project: Project) -> None:
    code = "import os; print(os.environ['TEST_POSTGRES_URL'], flush=True); input()"
    command = ("tests.services", "run", "--", sys.executable, "-c", code)
    with project.popen(*command) as first, project.popen(*command) as second:
        assert first.stdout is not None
        assert second.stdout is not None
        url = first.stdout.readline().strip()
        assert second.stdout.readline().strip() == url
        assert first.communicate("\n")[0] == ""
        assert execute(url, "SELECT 1") == [(1,)]
        assert second.communicate("\n")[0] == ""
    with pytest.raises(Lost):
        connect(url)


def test_without_servers_tests_fail_and_say_how_to_start_them(project: Project) -> None:
    (project.root / "tests" / "test_it.py").write_text("def test_it(mariadb_url, postgres_url): pass\n")
    code, output = project.run("pytest")
    assert code == 1
    assert "no mariadb server runs: run make test, or python -m tests.services start" in output


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_without_servers_says_what_it_left_out(project: Project, workers: str) -> None:
    test = "def test_one(): pass\ndef test_two(postgres_url): pass\n"
    (project.root / "tests" / "test_it.py").write_text(test)
    code, output = project.run("pytest", "-m", "not servers", "-n", workers)
    assert code == 0
    assert "Left out: 1 test that needs real database servers. `make test` runs it." in output


def test_what_cannot_be_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "missing", lambda: ["postgresql", "libfaketime"])
    monkeypatch.setattr(packages, "is_root", lambda: False)
    with pytest.raises(packages.MissingPackages, match=r"apt-get install .*postgresql libfaketime"):
        packages.install()
