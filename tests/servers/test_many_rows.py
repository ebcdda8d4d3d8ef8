"""Many rows go to a server in few statements: row by row, a server that is behind would fall behind ever more."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest

from infinite_scheduler import Client
from infinite_scheduler.errors import StoreBroken
from infinite_scheduler.model import Attempt, Job, JobId, Owner, Shard
from infinite_scheduler.store.cluster_state import ShardInfo
from infinite_scheduler.store.ownership import Running
from infinite_scheduler.store.sql.protocol import owner
from infinite_scheduler.store.sql.request_rows import SqlStatements
from infinite_scheduler.store.sql.server.drivers import server_driver
from infinite_scheduler.store.sql.server.literals import row_texts
from infinite_scheduler.store.sql.server.mariadb_dialect import BLOCK

pytestmark = pytest.mark.servers

ME = Owner("me", 1)
SHARD = Shard("sms", 0)


class Counting:
    """A cursor that counts statements."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor
        self.statements = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        self.statements += 1
        return self._cursor.execute(*args, **kwargs)

    def executemany(self, text: str, rows: Sequence[Any]) -> Any:
        self.statements += len(rows)
        return self._cursor.executemany(text, rows)


class Mine(SqlStatements):
    """The shard belongs to the one who asks."""

    def lock_shards(self, shards: Any, *, exclusive: bool) -> Any:
        return {SHARD: ShardInfo(shard=SHARD, owner=ME, line_ms=0, low_ms=0)}


def job(number: int) -> Job:
    key = JobId.make(5, SHARD.number, 1, entropy=number.to_bytes(8, "big"))
    return Job(key=bytes(key), app=SHARD.app, due_ms=5, scheduled_ms=5, payload=b"{}", created_ms=5)


async def test_deliveries_that_run_for_long_are_shown_by_few_statements(url: str) -> None:
    async with Client(url):
        pass  # makes the tables
    driver = server_driver(url)
    connection = driver.connect()
    cursor: Any = Counting(connection.cursor())
    tx = Mine(cursor, driver.dialect, "test")
    running = [Running(job=job(number), started_ms=7) for number in range(200)]
    owner.settle(tx, {SHARD: ME}, "n1", [], running, exclusive=False)
    assert cursor.statements <= 3
    assert tx.read_attempts("sms", running[9].job.key) == [Attempt(attempt=1, started_ms=7, node="n1")]
    connection.close()


@pytest.fixture
def cursor(mariadb_url: str) -> Iterator[Any]:
    """A cursor of MariaDB, with a table of numbers."""
    with closing(server_driver(mariadb_url).connect()) as connection:
        cursor: Any = connection.cursor()
        cursor.execute("CREATE TABLE numbers (number BIGINT NOT NULL PRIMARY KEY)")
        yield cursor


def insert(number: int) -> str:
    return f"INSERT INTO numbers VALUES ({number})"


def test_the_next_statement_is_put_together_while_the_server_works(cursor: Any) -> None:
    steps: list[str] = []

    def note(step: str, method: str) -> None:
        original = getattr(cursor.connection, method)

        def noted(*args: Any) -> Any:
            steps.append(step)
            return original(*args)

        setattr(cursor.connection, method, noted)

    note("send", "_execute_command")
    note("read", "_read_query_result")

    def statements() -> Iterator[str]:
        for number in range(3):
            steps.append("make")
            yield insert(number)

    assert list(cursor.execute_each(statements())) == [1, 1, 1]
    assert steps == ["make", "send", "make", "read", "send", "make", "read", "send", "read"]


def test_no_answer_is_taken_for_that_of_another_statement(cursor: Any) -> None:
    """Neither when the next statement cannot be made, nor when the server refuses one."""

    def statements() -> Iterator[str]:
        yield insert(1)
        raise ValueError("cannot be made")

    with pytest.raises(ValueError, match="cannot be made"):
        list(cursor.execute_each(statements()))
    with pytest.raises(Exception, match="Duplicate entry '1'"):
        list(cursor.execute_each(map(insert, (2, 1, 3))))
    cursor.execute("SELECT number FROM numbers ORDER BY number")
    assert cursor.fetchall() == ((1,), (2,))


def test_a_statement_between_two_others_puts_nothing_together(cursor: Any) -> None:
    made = []

    def statements() -> Iterator[str]:
        for number in range(4):
            made.append(number)
            yield insert(number)

    running = cursor.execute_each(statements())
    assert next(running) == 1
    cursor.execute("SELECT 1")
    assert made == [0, 1]
    assert list(running) == [1, 1, 1]


@pytest.mark.parametrize("many", [True, False])
def test_only_the_next_block_is_written_while_the_server_works(
    cursor: Any, mariadb_url: str, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    dialect, written, at_sends = server_driver(mariadb_url).dialect, [0], list[int]()
    send = cursor.connection._execute_command

    def writing(cursor: Any, rows: Sequence[Any]) -> list[str]:
        written[0] += len(rows)
        return row_texts(cursor, rows)

    def sending(*args: Any) -> Any:
        at_sends.append(written[0])
        return send(*args)

    monkeypatch.setattr("infinite_scheduler.store.sql.server.mariadb_dialect.row_texts", writing)
    monkeypatch.setattr(cursor.connection, "_execute_command", sending)
    insert = dialect.insert_many if many else dialect.insert_new
    insert(cursor, "numbers", ["number"], [(number,) for number in range(3 * BLOCK)])
    assert at_sends == [BLOCK, 2 * BLOCK, 3 * BLOCK]


@pytest.mark.parametrize("last", [BLOCK, BLOCK + 1, 2 * BLOCK])
def test_blocks_of_rows_are_counted_and_ignored_as_one(cursor: Any, mariadb_url: str, last: int) -> None:
    dialect, rows = server_driver(mariadb_url).dialect, [(number,) for number in range(last)]
    assert dialect.insert_many(cursor, "numbers", ["number"], rows[1::2]) == last // 2
    assert dialect.insert_many(cursor, "numbers", ["number"], rows) == last - last // 2
    cursor.execute("SELECT COUNT(*), SUM(number) FROM numbers")
    assert cursor.fetchone() == (last, last * (last - 1) // 2)


def test_what_ignore_ignores_beside_repeats_is_an_error_in_every_block(cursor: Any, mariadb_url: str) -> None:
    dialect, rows = server_driver(mariadb_url).dialect, [(number,) for number in range(2 * BLOCK + 2)]
    for wrong in (0, BLOCK, 2 * BLOCK):  # the last block is a short one
        spoilt = [*rows[:wrong], (2**70,), (2**70,), *rows[wrong + 2 :]]
        with pytest.raises(StoreBroken, match="would have changed"):
            dialect.insert_many(cursor, "numbers", ["number"], spoilt)
        cursor.execute("DELETE FROM numbers")
