"""A stage on a database server: one that is asked who waits for a lock, instead of guessing it from silence."""

import re
from contextlib import closing, suppress
from typing import Any

from infinite_scheduler.store.sql.server.database import ServerDatabase
from infinite_scheduler.store.sql.server.drivers import server_driver
from infinite_scheduler.store.sql.statements import Statements
from tests.services.databases import connect, kind_of
from tests.simulation.interleave import LONGEST_S, Act, ThreadStage
from tests.simulation.scene import APP, LATER, LOW, NOW, new_row

POSTGRES_WAITS = (
    "SELECT COUNT(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock' AND backend_type = 'client backend'"
)
"""How many connections to this database wait for a lock."""

MARIADB_WAITS = re.compile(
    r"^---TRANSACTION .*\n(?:mysql tables .*\n)?LOCK WAIT .*\nMariaDB thread id (\d+)", re.MULTILINE
)
"""Who waits, by SHOW ENGINE INNODB STATUS: a table says so too, but goes stale when two tests look at it in turns."""

LOOK_S = 0.02
"""How often to ask."""


class Undone(Exception):
    """A transaction that is to be rolled back."""


class ServerStage(ThreadStage):
    """Transactions on a server, each on a connection of its own."""

    def __init__(self, url: str) -> None:
        self.kind = kind_of(url)
        self._watcher: Any = connect(url)
        super().__init__(lambda: ServerDatabase(server_driver(f"{url}?sslmode=disable")))

    def rest(self, act: Act[object]) -> None:
        for _ in range(round(LONGEST_S / LOOK_S)):
            if self.until(lambda: act.ended, LOOK_S) or someone_waits(self._watcher, self.kind):
                return
        raise AssertionError("a transaction neither ends nor waits for a lock")

    def make_tables(self) -> None:
        """Tables are made beside a transaction, which then begins anew: a scene must find them."""

        def body(tx: Statements) -> None:
            tx.insert_jobs(APP, [new_row(due_ms) for due_ms in (LOW, NOW, LATER)])
            raise Undone

        with suppress(Undone):
            self.do(body)

    def close(self) -> None:
        super().close()
        self._watcher.close()


def someone_waits(watcher: Any, kind: str) -> bool:
    """Does a connection to this database wait for a lock?"""
    with closing(watcher.cursor()) as cursor:
        if kind == "postgres":
            cursor.execute(POSTGRES_WAITS)
            return bool(cursor.fetchone()[0])
        cursor.execute("SHOW ENGINE INNODB STATUS")
        waiting = {int(thread) for thread in MARIADB_WAITS.findall(cursor.fetchone()[2])}
        cursor.execute("SELECT id FROM information_schema.processlist WHERE db = DATABASE()")
        return not waiting.isdisjoint(thread for (thread,) in cursor.fetchall())


def empty(url: str) -> None:
    """Delete all that a scene has left behind, but its tables."""
    with closing(connect(url)) as connection, closing(connection.cursor()) as cursor:
        schema = "DATABASE()" if kind_of(url) == "mariadb" else "current_schema()"
        cursor.execute(f"SELECT table_name FROM information_schema.tables WHERE table_schema = {schema}")
        for (table,) in cursor.fetchall():
            if table != "scheduler_schema":
                cursor.execute(f"DELETE FROM {table}")
