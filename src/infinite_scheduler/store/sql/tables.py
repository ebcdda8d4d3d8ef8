"""The tables of an app: which one a key names, and which there are."""

from datetime import UTC, datetime
from functools import lru_cache

from infinite_scheduler.model import DAY_MS, check_app_name, moment
from infinite_scheduler.store.sql.dialect import Cursor, Dialect

LATER_FLAG = 2
"""The bit in byte 7 of a key that sends it to the table for jobs far ahead."""


@lru_cache(maxsize=4096)
def day_table(app: str, day: int) -> str:
    """The table of an app for a day, counted from the epoch."""
    return f"{check_app_name(app)}_scheduled_jobs_{moment(day * DAY_MS):%Y%m%d}"


@lru_cache(maxsize=1024)
def later_table(app: str) -> str:
    """The table of an app for jobs far ahead."""
    return f"{check_app_name(app)}_scheduled_jobs_later"


@lru_cache(maxsize=1024)
def moved_table(app: str) -> str:
    """The table of an app that says where jobs were moved to."""
    return f"{check_app_name(app)}_moved_jobs"


def day_of(key: bytes) -> int:
    """The day of the moment in a key or position."""
    return int.from_bytes(key[:6], "big") // DAY_MS


def table_of(app: str, key: bytes) -> str:
    """The table that holds the row of this key."""
    return later_table(app) if key[7] & LATER_FLAG else day_table(app, day_of(key))


class Catalog:
    """The tables that exist, as of the transaction under way.

    Other processes make and drop tables at any time; a scan that missed a table would lose jobs. So every transaction
    asks anew, cheaply where the database can tell that nothing changed.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._version: object = None
        self._names: frozenset[str] = frozenset()
        self._days: dict[str, tuple[int, ...]] = {}
        self._checked = False

    def begin(self) -> None:
        """A new transaction: what was known may have changed."""
        self._checked = False

    def forget(self) -> None:
        """What was known is wrong."""
        self._checked, self._version = False, None

    def has(self, table: str, cursor: Cursor) -> bool:
        """Is there such a table?"""
        self._check(cursor)
        return table in self._names

    def days(self, app: str, cursor: Cursor) -> tuple[int, ...]:
        """The days for which the app has a table, in order."""
        self._check(cursor)
        if app not in self._days:
            prefix = f"{app}_scheduled_jobs_"
            days = (_day(name.removeprefix(prefix)) for name in self._names if name.startswith(prefix))
            self._days[app] = tuple(sorted(day for day in days if day is not None))
        return self._days[app]

    def _check(self, cursor: Cursor) -> None:
        if self._checked:
            return
        version = self._dialect.tables_version(cursor)
        if version is None or version != self._version:
            self._names, self._days, self._version = self._dialect.tables(cursor), {}, version
        self._checked = True


def _day(date: str) -> int | None:
    """The day that ends a table's name; None for a table that is not ours."""
    try:
        parsed = datetime.strptime(date, "%Y%m%d").replace(tzinfo=UTC)
    except ValueError:
        return None
    return int(parsed.timestamp()) * 1000 // DAY_MS if len(date) == len("YYYYMMDD") else None
