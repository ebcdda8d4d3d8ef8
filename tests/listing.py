"""Lists jobs within a transaction of a test."""

from collections.abc import Sequence
from typing import Any

from infinite_scheduler.model import JobRecord
from infinite_scheduler.store.looking import Query
from infinite_scheduler.store.sql.search import search
from infinite_scheduler.store.sql.statements import Statements


def jobs_in(tx: Statements, app: str, **wanted: Any) -> Sequence[JobRecord]:
    """All jobs of an app that a query lists."""
    return search(tx, Query(app=app, limit=1_000_000, **wanted), now_ms=0).records
