"""The servers of the tests: found again, restarted, killed, stopped; and what tests get from them."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pymysql
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.services import folder, jars, packages
from tests.services.catalogue import DATABASES, KINDS, VARIABLES
from tests.services.databases import connect, execute, fresh_database, kill_connections, limited_user, server_time_ms
from tests.services.kafka import GuardedKafka, Kafka
from tests.services.private import clocked_server, private_server
from tests.services.process import PATIENCE_S
from tests.services.server import Kind, Server
from tests.services.topics import MakeTopic, fresh_topics, make_topic, read, told, write
from tests.waiting import now_ms, until

pytestmark = pytest.mark.servers

every_database = pytest.mark.parametrize("kind", DATABASES)
Lost = (psycopg.OperationalError, pymysql.OperationalError, KafkaException)
Refused = (psycopg.errors.InsufficientPrivilege, pymysql.OperationalError)


def call(url: str, within_s: float = PATIENCE_S) -> None:
    """Raise one of `Lost` unless a server answers at this address."""
    if "://" in url:
        connect(url).close()
    else:
        AdminClient(told(url)).list_topics(timeout=within_s)


def is_gone(url: str) -> bool:
    """Whether nobody answers there: a client of Kafka waits for somebody to come."""
    try:
        call(url, within_s=1)
    except Lost:
        return True
    return False


@contextmanager
def something_kept(server: Server) -> Iterator[Callable[[], bool]]:
    """Give a server something to keep; tells whether it still has it."""
    if server.kind == "kafka":
        with fresh_topics(server.url) as make:
            topic = make(partitions=3)
            write(server.url, topic, [b"7"])
            yield lambda: [record.value for record in read(server.url, topic)] == [b"7"]
    else:
        with fresh_database(server.kind, server) as url:
            execute(url, "CREATE TABLE t (n integer)")
            execute(url, "INSERT INTO t VALUES (7)")
            yield lambda: execute(url, "SELECT n FROM t") == [(7,)]


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
    with something_kept(server) as still_there:
        server.kill()
        assert is_gone(server.url)
        server.start()
        assert still_there()


def test_a_restarted_server_is_at_the_same_address_with_the_same_data(server: Server) -> None:
    with something_kept(server) as still_there:
        before = server.pid, server.url
        server.restart()
        assert server.pid not in {None, before[0]}
        assert server.url == before[1]
        assert still_there()


def test_a_server_whose_port_was_taken_chooses_another(server: Server) -> None:
    server.stop()
    before = server.port
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", before))
        taken.listen()
        server.start()
    assert server.port != before
    call(server.url)


@every_database
def test_a_clock_can_be_set_while_the_server_runs(kind: Kind) -> None:
    with clocked_server(kind) as (server, clock):
        for offset_s in (0, 3600, -3600, 0.5):
            clock.set(offset_s)
            earliest_ms = now_ms()
            time_ms = server_time_ms(server.url) - round(offset_s * 1000)
            assert earliest_ms - 1 <= time_ms <= now_ms() + 1


# What tests get


@every_database
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


@every_database
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


@every_database
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


def test_every_topic_has_a_name_of_its_own_and_is_gone_at_the_end(kafka_servers: str) -> None:
    with fresh_topics(kafka_servers) as make:
        names = {make("one", partitions=3), make("one")}
        topics = AdminClient(told(kafka_servers)).list_topics(timeout=10).topics
        assert {len(topics[name].partitions) for name in names} == {1, 3}
    admin = AdminClient(told(kafka_servers))
    until(lambda: not names & set(admin.list_topics(timeout=10).topics))  # a broker hears of it after the controller


def test_records_are_read_as_they_were_written(kafka_servers: str, fresh_topic: MakeTopic) -> None:
    topic = fresh_topic(partitions=4)
    assert read(kafka_servers, topic) == []
    write(kafka_servers, topic, ["text", b"\xff", None], key=b"\x00", partition=2, headers=[("h", b"1"), ("h", None)])
    records = read(kafka_servers, topic, 3)
    assert [record.value for record in records] == [b"text", b"\xff", None]
    assert {(record.partition, record.key, record.headers) for record in records} == {
        (2, b"\x00", (("h", b"1"), ("h", None)))
    }


def test_a_topic_is_not_made_by_using_it(kafka_servers: str) -> None:
    with pytest.raises(AssertionError, match="UNKNOWN_TOPIC"):
        write(kafka_servers, "made-by-nobody", [b"1"])


def test_a_guest_may_do_nothing_and_a_wrong_password_opens_nothing(guarded_kafka: GuardedKafka) -> None:
    guest = guarded_kafka.options_of("guest")
    make_topic(guarded_kafka.options, "secrets")
    write(guarded_kafka.options, "secrets", [b"1"])
    with pytest.raises(AssertionError, match="TOPIC_AUTHORIZATION_FAILED"):
        write(guest, "secrets", [b"1"])
    with pytest.raises(KafkaException, match="AUTHORIZATION_FAILED"):
        read(guest, "secrets", 1)
    with pytest.raises(KafkaException):
        AdminClient(told({**guest, "sasl.password": "wrong"})).list_topics(timeout=1)


def test_two_private_brokers_do_not_know_each_other(private_kafka: Kafka, kafka_servers: str) -> None:
    make_topic(private_kafka.url, "only-here")
    assert "only-here" not in AdminClient(told(kafka_servers)).list_topics(timeout=10).topics


def test_an_embedded_broker_needs_no_server(mock_kafka: str) -> None:
    write(mock_kafka, "made-by-using-it", [b"1"])
    assert [record.value for record in read(mock_kafka, "made-by-using-it")] == [b"1"]


# The command


class Project:
    """A copy of the project's servers in a folder of its own, with nothing made yet."""

    def __init__(self, root: Path) -> None:
        self.root = root
        shutil.copytree(folder.PROJECT / "tests" / "services", root / "tests" / "services")
        for name in ("pyproject.toml", "tests/conftest.py", "tests/command.py", "tests/order.py"):
            shutil.copy(folder.PROJECT / name, root / name)
        (root / ".cache").symlink_to(folder.kept())  # what was fetched once

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
    code = f"import os, sys; print(*(os.environ[name] for name in {list(VARIABLES.values())})); sys.exit(7)"
    exit_code, output = project.run("tests.services", "run", "--", sys.executable, "-c", code)
    urls = output.split()
    assert (exit_code, len(urls)) == (7, len(KINDS))
    assert all(is_gone(url) for url in urls)
    assert project.run("tests.services", "status")[0] == 1

    assert project.run("tests.services", "start")[0] == 0
    assert project.run("tests.services", "run", "--", sys.executable, "-c", code) == (7, output)
    for url in urls:
        call(url)


@pytest.fixture
def databases(project: Project) -> Iterator[Project]:
    """The same without Kafka, which takes longer to start than the others together."""
    file = project.root / "tests" / "services" / "catalogue.py"
    whole = file.read_text()
    file.write_text(f'{whole}\ndel KINDS["kafka"]\n')
    yield project
    file.write_text(whole)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_command_and_the_servers_are_stopped(databases: Project, number: signal.Signals) -> None:
    code = "import os, time; print(os.environ['TEST_MARIADB_URL'], flush=True); time.sleep(60)"
    with databases.popen("tests.services", "run", "--", sys.executable, "-c", code) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert execute(url, "SELECT 1") == [(1,)]
        process.send_signal(number)
        process.communicate()
        assert process.returncode in {128 + number, 1}  # Python turns SIGINT into an exception
    with pytest.raises(Lost):
        connect(url)


def test_of_two_commands_at_once_the_last_one_stops_the_servers(databases: Project) -> None:
    code = "import os; print(os.environ['TEST_POSTGRES_URL'], flush=True); input()"
    command = ("tests.services", "run", "--", sys.executable, "-c", code)
    with databases.popen(*command) as first, databases.popen(*command) as second:
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
    (project.root / "tests" / "test_it.py").write_text(
        "def test_it(mariadb_url): pass\ndef test_topics(fresh_topic): pass\n"
    )
    code, output = project.run("pytest")
    assert code == 1
    for kind in ("mariadb", "kafka"):
        assert f"no {kind} server runs: run make test, or python -m tests.services start" in output


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_without_servers_says_what_it_left_out(project: Project, workers: str) -> None:
    test = "def test_one(): pass\ndef test_two(postgres_url): pass\n"
    (project.root / "tests" / "test_it.py").write_text(test)
    code, output = project.run("pytest", "-m", "not servers", "-n", workers)
    assert code == 0
    assert "Left out: 1 test that needs real servers. `make test` runs it." in output


def test_what_cannot_be_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "missing", lambda: ["postgresql", "libfaketime"])
    monkeypatch.setattr(packages, "is_root", lambda: False)
    with pytest.raises(packages.MissingPackages, match=r"apt-get install .*postgresql libfaketime"):
        packages.install()


def test_what_was_fetched_is_not_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    packages.install()
    monkeypatch.setenv("PATH", "/nowhere")
    jars.fetch()
    assert "maven" not in packages.missing()


def test_what_cannot_be_fetched_is_told_in_the_words_of_maven(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    maven = tmp_path / "mvn"
    maven.write_text("#!/bin/sh\necho the mirror is away\nexit 1\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(jars, "folder", lambda: tmp_path / "kafka")
    with pytest.raises(jars.NotFetched, match="ended with 1\nthe mirror is away"):
        jars.fetch()
    assert not jars.are_here()
