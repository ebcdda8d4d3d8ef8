"""The tables of an app: which one a key names, and which exist."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

import msgspec

from infinite_scheduler.errors import StoreMismatch
from infinite_scheduler.model import DAY_MS, check_app_name, datetime_of, start_of
from infinite_scheduler.store.cluster_state import AppInfo
from infinite_scheduler.store.sql.dialect import Cursor, Dialect

JOBS_INFIX: Final = "_scheduled_jobs_"
"""Between the name of an app and a date."""

LATER_FLAG = 2
"""The bit in byte 7 of a key that means the table for jobs far ahead."""


class SqlApp(AppInfo, frozen=True, kw_only=True):
    """An app as a SQL store knows it."""

    span: str = "daily"  # of time that one of its tables covers; daily or hourly


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """The span of time that one table of jobs covers; its periods are counted from the epoch."""

    name: str
    period_ms: int
    date: str
    """The format of the first moment of a period, at the end of a table's name."""

    def period(self, key: bytes) -> int:
        """The period of the moment in a key or position."""
        return int.from_bytes(key[:6], "big") // self.period_ms

    def period_at(self, ms: int) -> int:
        """The period of a moment."""
        return ms // self.period_ms

    def starts_ms(self, period: int) -> int:
        """The first moment of a period."""
        return period * self.period_ms

    def ends_ms(self, period: int) -> int:
        """The first moment after a period."""
        return (period + 1) * self.period_ms

    def keys(self, period: int) -> tuple[bytes, bytes]:
        """The keys of a period: from the first to before the second."""
        return start_of(self.starts_ms(period)), start_of(self.ends_ms(period))

    def ahead(self, now_ms: int, days: int) -> range:
        """The periods from now on, up to the same time of day in `days` days."""
        return range(self.period_at(now_ms), self.period_at(now_ms + days * DAY_MS) + 1)

    def table(self, app: str, period: int) -> str:
        """The table of an app for a period."""
        return _period_table(app, self, period)

    def table_of(self, app: str, key: bytes) -> str:
        """The table that holds the row of this key."""
        return later_table(app) if key[7] & LATER_FLAG else _period_table(app, self, self.period(key))

    def parse(self, date: str) -> int | None:
        """The period at the end of a table's name; None if the name has another form."""
        try:
            parsed = datetime.strptime(date, self.date).replace(tzinfo=UTC)
        except ValueError:
            return None
        return int(parsed.timestamp()) * 1000 // self.period_ms if f"{parsed:{self.date}}" == date else None


DAILY: Final = Span(name="daily", period_ms=DAY_MS, date="%Y%m%d")
HOURLY: Final = Span(name="hourly", period_ms=DAY_MS // 24, date="%Y%m%d%H")
SPANS: Final[Mapping[str, Span]] = {span.name: span for span in (DAILY, HOURLY)}


def span_of(name: str) -> Span:
    """The span of this name."""
    if name not in SPANS:
        raise StoreMismatch(
            f"an app of this store has {name} tables, which this version does not know: upgrade infinite-scheduler here"
        )
    return SPANS[name]


@lru_cache(maxsize=16384)
def _period_table(app: str, span: Span, period: int) -> str:
    return f"{check_app_name(app)}{JOBS_INFIX}{datetime_of(span.starts_ms(period)):{span.date}}"


@lru_cache(maxsize=1024)
def later_table(app: str) -> str:
    """The table of an app for jobs far ahead."""
    return f"{check_app_name(app)}{JOBS_INFIX}later"


@lru_cache(maxsize=1024)
def moved_table(app: str) -> str:
    """The table of an app with the new positions of moved jobs."""
    return f"{check_app_name(app)}_moved_jobs"


class Catalog:
    """The tables that exist, as of the current transaction.

    Other processes create and drop tables at any time; a scan that missed a table would lose jobs. So every transaction
    asks again, cheaply if the database can tell that nothing changed.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._version: object = None
        self._names: frozenset[str] = frozenset()
        self._periods: dict[str, tuple[int, ...]] = {}
        self._dates: dict[str, list[str]] | None = None  # by app
        self._checked = False

    def begin(self) -> None:
        """Begin a transaction: what was known may have changed."""
        self._checked = False

    def learn(self, version: object) -> None:
        """Take the version that this transaction has read anyway: if it is the known one, there is no need to ask."""
        self._checked = self._checked or (version is not None and version == self._version)

    def forget(self) -> None:
        """Forget what was known: it is wrong."""
        self._checked, self._version = False, None

    def vanished(self, cursor: Cursor) -> frozenset[str]:
        """Look again; returns the tables that are gone although no process recorded a drop."""
        before, version = self._names, self._version
        self.forget()
        self._check(cursor)
        return before - self._names if version is not None and version == self._version else frozenset()

    def trust(self, tables: Iterable[str]) -> None:
        """Note that these exist, whatever an older snapshot of the database says."""
        self._names |= frozenset(tables)
        self._periods, self._dates = {}, None

    def has(self, table: str, cursor: Cursor) -> bool:
        """Does this table exist?"""
        self._check(cursor)
        return table in self._names

    def periods(self, app: str, span: Span, cursor: Cursor) -> tuple[int, ...]:
        """The periods for which the app, whose tables have this span, has one, in order."""
        self._check(cursor)
        if app not in self._periods:
            found = (span.parse(date) for date in self._dates_of(app))
            self._periods[app] = tuple(sorted(period for period in found if period is not None))
        return self._periods[app]

    def _dates_of(self, app: str) -> Sequence[str]:
        """How the names of the app's tables of jobs end. All names are looked at once, as there may be many apps."""
        if self._dates is None:
            self._dates = {}
            for name in self._names:
                owner, infix, date = name.rpartition(JOBS_INFIX)
                if infix:
                    self._dates.setdefault(owner, []).append(date)
        return self._dates.get(app, ())

    def _check(self, cursor: Cursor) -> None:
        if self._checked:
            return
        version = self._dialect.tables_version(cursor)
        if version is None or version != self._version:
            self._names, self._version = self._dialect.tables(cursor), version
            self._periods, self._dates = {}, None
        self._checked = True
