"""What all statements share: a cursor, a dialect, and which tables there are."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from infinite_scheduler.store.sql.dialect import Cursor, Dialect
from infinite_scheduler.store.sql.schema import create_job_table
from infinite_scheduler.store.sql.statements import Statements
from infinite_scheduler.store.sql.tables import Catalog

T = TypeVar("T")

IN_LIST = 256
"""The longest list of keys in one statement: far below every database's limit, and few distinct texts for its cache."""


class RunAgain(Exception):
    """The transaction must be rolled back and its body run again."""


class Rows(Statements):
    """The ground of the statements over one connection, one transaction at a time."""

    def __init__(self, cursor: Cursor, dialect: Dialect, process: str) -> None:
        self._cursor = cursor
        self._dialect = dialect
        self._process = process
        self._catalog = Catalog(dialect)
        self._shards_of: dict[str, int] = {}
        self._row_by_row = False

    def start(self) -> None:
        """A body is about to run for the first time."""
        self._row_by_row = False

    def begin(self) -> None:
        """A transaction has begun."""
        self._catalog.begin()

    def forget(self) -> None:
        """A table was not there that should have been: look again at what there is."""
        self._catalog.forget()

    def close(self) -> None:
        """Let go of the connection: one whose cursor still has a statement would stay open."""
        self._cursor.close()

    def _select(self, text: str, parameters: Sequence[Any] = ()) -> list[Any]:
        self._cursor.execute(self._dialect.text(text), parameters)
        return self._cursor.fetchall()

    def _select_some(self, text: str, parameters: Sequence[Any], column: int, room: int) -> tuple[list[Any], bool]:
        """Rows until the bytes in a column exceed `room`, and whether there may be more; one row at least."""
        self._cursor.execute(self._dialect.text(text), parameters)
        rows = []
        while room > 0 and (row := self._cursor.fetchone()) is not None:
            rows.append(row)
            room -= len(row[column])
        return rows, room <= 0

    def _run(self, text: str, parameters: Sequence[Any] = ()) -> int:
        self._cursor.execute(self._dialect.text(text), parameters)
        return self._cursor.rowcount

    def _run_many(self, text: str, rows: Iterable[Sequence[Any]]) -> int:
        """Run a statement for each row. Returns how many rows of the table it changed."""
        rows = list(rows)
        if not rows:
            return 0
        self._cursor.executemany(self._dialect.text(text), rows)
        return self._cursor.rowcount

    def _has(self, table: str) -> bool:
        return self._catalog.has(table, self._cursor)

    def _make_job_table(self, table: str) -> None:
        if not self._has(table):
            self._cursor.execute(create_job_table(self._dialect, table))
            self._catalog.forget()


def in_chunks(items: Collection[T], size: int = IN_LIST) -> Iterator[list[T]]:
    """The items, so many at a time."""
    ordered = list(items)
    for start in range(0, len(ordered), size):
        yield ordered[start : start + size]


def padded(items: list[T]) -> list[T]:
    """The items, with the last one repeated up to a power of two: so that few distinct statements exist."""
    return items + [items[-1]] * ((1 << (len(items) - 1).bit_length()) - len(items))
