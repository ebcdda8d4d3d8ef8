"""What somebody did, as people see it."""

import msgspec

from infinite_scheduler.store.ledger import AuditRecord
from infinite_scheduler.views.times import IsoTime, iso


class AuditRecordView(msgspec.Struct, frozen=True, kw_only=True):
    """One action, and how it ended."""

    id: str
    at: IsoTime
    who: str
    address: str
    verb: str
    target: str
    count: int  # how many were concerned
    result: str


def audit_record_view(record: AuditRecord) -> AuditRecordView:
    """One record of the store."""
    return AuditRecordView(
        id=record.id,
        at=iso(record.at_ms),
        who=record.who,
        address=record.address,
        verb=record.verb,
        target=record.target,
        count=record.count,
        result=record.result,
    )
