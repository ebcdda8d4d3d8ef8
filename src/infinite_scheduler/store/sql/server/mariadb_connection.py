"""A PyMySQL connection that opens and reads faster, works while the server does, and limits its waits."""

import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import islice
from typing import Any, Final

from pymysql.connections import Connection, MySQLResult
from pymysql.constants import COMMAND
from pymysql.cursors import Cursor

from infinite_scheduler.store.sql.server.lock_wait import WORK_S, LockWait

LIMITED: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")
"""Statements that may wait for row locks. A commit waits for none, and must never be cut short."""

NULL: Final = 0xFB
"""In place of the length of a value: NULL."""

WIDTHS: Final = {0xFC: 2, 0xFD: 3, 0xFE: 8}
"""How many bytes of length follow, for values that are too long for one."""


@cache
def unchecked() -> ssl.SSLContext:
    """TLS as preferred by default: encrypted, without a check of the server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class FastResult(MySQLResult):
    """The rows of a result, read in one loop: PyMySQL makes four calls per value, a fifth of the cost of a scan."""

    def _get_descriptions(self) -> None:
        super()._get_descriptions()  # type: ignore[misc]
        # A number need not become text before it becomes a number.
        self.converters: list[Any] = [(None, int) if kind[1] is int else kind for kind in self.converters]

    def _read_row_from_packet(self, packet: Any) -> tuple[Any, ...]:
        data: bytes = packet._data  # noqa: SLF001 - as in the method that this one replaces
        at: int = packet._position  # noqa: SLF001
        row: list[Any] = []
        for encoding, convert in self.converters:
            size = data[at]
            at += 1
            if size == NULL:
                row.append(None)
                continue
            if size > NULL:
                width = WIDTHS[size]
                size = int.from_bytes(data[at : at + width], "little")
                at += width
            value: Any = data[at : at + size]
            at += size
            if encoding is not None:
                value = value.decode(encoding)
            row.append(value if convert is None else convert(value))
        return tuple(row)


class Bounded(Cursor):
    """A cursor whose statements the server ends when the time of their call is up.

    InnoDB counts its own limit again for every row: an insert of 500 rows into gaps that others lock in turn waits for
    minutes, with its shard locked. If this process disconnected instead, the server would not notice before the end.
    """

    connection: "Prompt"
    lock_wait: LockWait | None = None
    longest_s: float = 0.0

    def execute(self, query: str, args: Any = None) -> int:
        lock_wait = self.lock_wait
        if lock_wait is None or not query.startswith(LIMITED):
            return super().execute(query, args)
        limit_s = min(lock_wait.left_s + WORK_S, self.longest_s)
        began_s = time.monotonic()
        try:
            return super().execute(f"SET STATEMENT max_statement_time = {limit_s:.3f} FOR {query}", args)
        finally:
            lock_wait.took(time.monotonic() - began_s)

    def execute_each(self, statements: Iterable[str]) -> Iterator[int]:
        """Run these one after another, and yield how many rows each matched.

        While the server runs one, the next is put together here: with many rows, both take about as long. In the
        lock wait of a call this counts as the server's time.
        """
        source = iter(statements)
        coming = list(islice(source, 1))
        while coming:
            statement = coming.pop()
            self.connection.meanwhile = lambda: coming.extend(islice(source, 1))
            self.execute(statement)
            yield self.rowcount


class Prompt(Connection):
    """A connection that prefers TLS without loading the machine's authorities: that takes 20 ms, for no use."""

    meanwhile: Callable[[], object] | None = None
    """What to do between sending the next statement and reading its result."""

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:
        return sslp or unchecked()

    def query(self, sql: Any, unbuffered: bool = False) -> Any:
        meanwhile, self.meanwhile = self.meanwhile, None
        self._execute_command(COMMAND.COM_QUERY, sql)  # type: ignore[attr-defined]
        try:
            if meanwhile is not None:
                meanwhile()
        finally:  # a result left unread would be taken for that of the next statement
            self._affected_rows: Any = self._read_query_result(unbuffered)
        return self._affected_rows

    def _read_query_result(self, unbuffered: bool = False) -> Any:
        del unbuffered  # rows are never read one by one
        self._result: Any = None
        result: Any = FastResult(self)
        result.read()
        self._result = result
        if result.server_status is not None:
            self.server_status = result.server_status
        return result.affected_rows
