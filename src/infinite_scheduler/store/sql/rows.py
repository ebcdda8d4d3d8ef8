"""What all statements share: a cursor, a dialect, and which tables exist."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from infinite_scheduler.store.sql.dialect import Cursor, Dialect
from infinite_scheduler.store.sql.schema import create_job_table
from infinite_scheduler.store.sql.statements import Statements
from infinite_scheduler.store.sql.tables import DAILY, Catalog, Span, span_of

T = TypeVar("T")

MAX_SHARDS = 256
"""As many as the eight bits of an id can name."""

IN_LIST = 256
"""The longest list of keys in one statement: far below every database's limit, and few distinct texts for its cache."""


CAREFUL = 50
"""After a repeated row, this many bodies expect more: a caller that repeats once often repeats again."""


class RunAgain(Exception):
    """The transaction must be rolled back and its body run again."""


class TablesMissing(Exception):
    """The transaction needs tables that must be created outside it; then its body is run again."""

    def __init__(self, statements: Mapping[str, str]) -> None:
        super().__init__(", ".join(statements))
        self.statements = statements  # name → the statement that creates it


class Rows(Statements):
    """The base of the statements over one connection, one transaction at a time."""

    runs_again: bool = False
    """Is a body run again after a row that already exists? Not in a transaction of the user's own."""

    def __init__(self, cursor: Cursor, dialect: Dialect, process: str) -> None:
        self._cursor = cursor
        self._dialect = dialect
        self._process = process
        self._catalog = Catalog(dialect)
        self._shapes: dict[str, tuple[int, Span]] = {}
        self._row_by_row = False
        self._careful = 0  # how many more bodies expect repeated rows

    def start(self) -> None:
        """A body is about to run for the first time."""
        self._row_by_row = False
        self._careful = max(0, self._careful - 1)

    def begin(self) -> None:
        """A transaction has begun."""
        self._catalog.begin()

    def forget(self) -> None:
        """A table was missing that should exist: look again which tables there are."""
        self._catalog.forget()
        self._shapes.clear()

    def vanished(self) -> frozenset[str]:
        """Look again which tables exist, outside of transactions; returns those dropped by hand since the last look."""
        self._shapes.clear()
        return self._catalog.vanished(self._cursor)

    def trust(self, tables: Iterable[str]) -> None:
        """Note tables that were created outside this transaction, which may not see them yet."""
        self._catalog.trust(tables)

    def go_slowly(self) -> None:
        """A bulk statement failed because of a single row: work row by row until the end of this body."""
        self._row_by_row = True
        self._careful = CAREFUL

    @property
    def _bold(self) -> bool:
        """May a statement fail because of a row that already exists? The body would be run again, slowly."""
        return self.runs_again and not self._careful

    @property
    def cursor(self) -> Cursor:
        """The cursor that the statements run on."""
        return self._cursor

    def close(self) -> None:
        """Close the cursor: a connection whose cursor still has a statement would stay open."""
        self._cursor.close()

    def _select(self, text: str, parameters: Sequence[Any] = ()) -> list[Any]:
        self._cursor.execute(self._dialect.text(text), parameters)
        return self._cursor.fetchall()

    def _run(self, text: str, parameters: Sequence[Any] = ()) -> int:
        self._cursor.execute(self._dialect.text(text), parameters)
        return self._cursor.rowcount

    def _run_many(self, text: str, rows: Iterable[Sequence[Any]]) -> int:
        """Run a statement for each row. Returns how many rows of the table it changed."""
        rows = list(rows)
        return self._dialect.run_many(self._cursor, text, rows) if rows else 0

    def _delete_many(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
        """Delete rows by the values in these columns. Returns how many there were."""
        rows = list(rows)
        return self._dialect.delete_many(self._cursor, table, columns, rows) if rows else 0

    def _has(self, table: str) -> bool:
        return self._catalog.has(table, self._cursor)

    def _shape(self, app: str) -> tuple[int, Span]:
        """How many shards an app has and what span its tables cover: both are fixed when it is created."""
        if app not in self._shapes:
            rows = self._select("SELECT shards, span FROM scheduler_apps WHERE name = ?", (app,))
            if not rows:
                return MAX_SHARDS, DAILY
            self._shapes[app] = rows[0][0], span_of(rows[0][1])
        return self._shapes[app]

    def _span(self, app: str) -> Span:
        return self._shape(app)[1]

    def _periods(self, app: str) -> tuple[int, ...]:
        """The periods for which the app has a table, in order."""
        return self._catalog.periods(app, self._span(app), self._cursor)

    def has_table(self, app: str, due_ms: int) -> bool:
        """Does the app have a table for the period of this moment?"""
        span = self._span(app)
        return self._has(span.table(app, span.period_at(due_ms)))

    def _make_job_tables(self, tables: Iterable[str]) -> None:
        self._require({name: create_job_table(self._dialect, name) for name in tables if not self._has(name)})

    def _require(self, tables: Mapping[str, str]) -> None:
        """Create those of these tables (name → statement) that do not exist."""
        missing = {name: statement for name, statement in tables.items() if not self._has(name)}
        if missing and not self._dialect.tables_in_transactions:
            raise TablesMissing(missing)
        for statement in missing.values():
            self._cursor.execute(statement)
            self._catalog.forget()


def in_chunks(items: Collection[T], size: int = IN_LIST) -> Iterator[list[T]]:
    """The items, `size` at a time."""
    ordered = list(items)
    for start in range(0, len(ordered), size):
        yield ordered[start : start + size]


def where(parts: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """A condition made of the parts that have a value (condition → value), and these values."""
    wanted = {condition: value for condition, value in parts.items() if value is not None}
    return f" WHERE {' AND '.join(wanted)}" if wanted else "", list(wanted.values())


def padded(items: list[T]) -> list[T]:
    """The items, with the last one repeated up to a power of two, so that few distinct statements exist."""
    return items + [items[-1]] * ((1 << (len(items) - 1).bit_length()) - len(items))
