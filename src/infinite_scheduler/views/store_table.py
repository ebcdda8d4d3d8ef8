"""A table of the store as people see it."""

import msgspec

from infinite_scheduler.store.ledger import TableInfo, TableKind
from infinite_scheduler.views.times import IsoTime, iso_or_none


class StoreTableView(msgspec.Struct, frozen=True, kw_only=True):
    """One table; null: the database's catalogue does not say."""

    name: str
    kind: TableKind
    app: str | None
    starts_at: IsoTime | None  # of the period whose jobs it holds
    ends_at: IsoTime | None
    created_at: IsoTime | None
    rows: int | None  # an estimate
    data_bytes: int | None
    index_bytes: int | None


def store_table_view(table: TableInfo) -> StoreTableView:
    """One table of the catalogue."""
    return StoreTableView(
        name=table.name,
        kind=table.kind,
        app=table.app,
        starts_at=iso_or_none(table.starts_ms),
        ends_at=iso_or_none(table.ends_ms),
        created_at=iso_or_none(table.created_ms),
        rows=table.rows,
        data_bytes=table.data_bytes,
        index_bytes=table.index_bytes,
    )
