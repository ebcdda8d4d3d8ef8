"""Which tables exist, for a process that may not create any."""

from collections.abc import Mapping, Sequence
from typing import Final

from infinite_scheduler.clock import Clock
from infinite_scheduler.model import JobSpec
from infinite_scheduler.store.sql.new_rows import HasTable, can_be_made
from infinite_scheduler.store.sql.statements import Database
from infinite_scheduler.store.sql.tables import SqlApp, span_of

AGAIN_MS: Final = 60_000
"""How often to look for tables that were missing."""


class ExistingTables:
    """The periods for which others have created tables; a table for a future period is never dropped."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._known: dict[str, frozenset[int]] = {}
        self._looked_ms: dict[str, int] = {}  # by the steady clock

    async def tables(self, apps: Mapping[str, SqlApp], specs: Sequence[JobSpec], now_ms: int) -> HasTable:
        """Which tables the ids of these jobs may name."""

        def has_table(app: str, due_ms: int) -> bool:
            return span_of(apps[app].span).period_at(due_ms) in self._known[app]

        wanted: dict[str, set[int]] = {}
        for spec in specs:
            period = span_of(apps[spec.app].span).period_at(max(spec.scheduled_ms, now_ms))
            wanted.setdefault(spec.app, set()).add(period)
        for app, periods in wanted.items():
            if not await self._look(app, periods):
                return can_be_made
        return has_table

    async def _look(self, app: str, periods: set[int]) -> bool:
        """Look again for missing ones, now and then. False: the process may create them."""
        looked_ms = self._looked_ms.get(app)
        now_ms = self._clock.steady_ms()
        if not periods <= self._known.get(app, frozenset()) and (looked_ms is None or now_ms - looked_ms >= AGAIN_MS):
            found = await self._database.existing_periods(app)
            if found is None:
                return False
            self._known[app] = found
            self._looked_ms[app] = now_ms
        return True
