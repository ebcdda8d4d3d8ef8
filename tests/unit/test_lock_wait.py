"""What a call on a server may still wait for locks, by the time that its statements and tries took."""

from typing import Any
from unittest.mock import Mock

import pytest

from infinite_scheduler.store.sql.server.driver import Waits
from infinite_scheduler.store.sql.server.lock_wait import LockWait
from infinite_scheduler.store.sql.server.mariadb import MariaDriver
from infinite_scheduler.store.sql.server.mariadb_connection import Bounded

Now = list[float]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    """The time, in a list of one."""
    now = [100.0]
    monkeypatch.setattr("infinite_scheduler.store.sql.server.lock_wait.time.monotonic", lambda: now[0])
    return now


def test_statements_that_took_long_leave_less_to_the_next_ones(now: Now) -> None:
    call = LockWait(10)
    call.begin()
    assert call.left_s == 10
    call.took(0.9)  # that was work
    assert call.left_s == 10
    call.took(4)
    call.took(3)
    assert call.left_s == 3
    call.took(20)
    assert call.left_s == 1


def test_a_long_transaction_of_short_statements_loses_nothing(now: Now) -> None:
    call = LockWait(10)
    call.begin()
    for _ in range(1000):
        now[0] += 0.1
        call.took(0.1)
    assert call.left_s == 10


def test_what_tries_took_in_vain_is_lost_to_the_next_one(now: Now) -> None:
    call = LockWait(10)
    now[0] += 60  # until there was a connection
    assert not call.over
    call.begin()
    now[0] += 4
    assert not call.over
    call.begin()
    assert call.left_s == 6
    now[0] += 6
    assert call.over


class Wire:
    """Takes the place of a connection: what was sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def query(self, text: str) -> int:
        self.sent.append(text)
        return 0

    def __getattr__(self, name: str) -> Any:
        return Mock()


@pytest.mark.parametrize(
    ("is_mariadb", "lock_s", "limit"),
    [(True, 10, "11.000"), (True, 15, "16.000"), (True, 19, "18.000"), (False, 10, "")],
)
def test_mariadb_ends_statements_in_time_and_commits_never(is_mariadb: bool, lock_s: int, limit: str) -> None:
    """And MySQL would not understand it."""
    driver = MariaDriver({}, "there", Waits(lock_s=lock_s))
    driver._is_mariadb = is_mariadb
    wire = Wire()
    cursor: Any = Bounded(wire)  # type: ignore[arg-type]
    driver.begin(cursor, LockWait(lock_s))
    cursor.execute("UPDATE jobs SET error = NULL")
    driver.commit(cursor)
    cursor.execute("SELECT 1")
    words = f"SET STATEMENT max_statement_time = {limit} FOR " if limit else ""
    assert wire.sent == ["BEGIN", f"{words}UPDATE jobs SET error = NULL", "COMMIT", "SELECT 1"]
