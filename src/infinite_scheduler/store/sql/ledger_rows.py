"""Statements on the audit and on tokens."""

# ruff: noqa: S608 - columns and conditions come from this package

from collections.abc import Sequence
from typing import Any, Final

from infinite_scheduler.model import start_of
from infinite_scheduler.store.ledger import AuditQuery, AuditRecord, Role, Token
from infinite_scheduler.store.sql.dialect import Blob
from infinite_scheduler.store.sql.rows import Rows, where
from infinite_scheduler.store.sql.schema import AUDIT_COLUMNS, AUDIT_TABLE, SCHEMA_TABLE, TOKEN_COLUMNS, TOKENS_TABLE

AUDIT: Final = tuple(name for name, _ in AUDIT_COLUMNS)
TOKEN: Final = tuple(name for name, _ in TOKEN_COLUMNS)


class LedgerRows(Rows):
    """Who did what, and who may come in."""

    def insert_audit(self, records: Sequence[AuditRecord]) -> None:
        self._run_many(self._dialect.insert(AUDIT_TABLE, AUDIT, ignore=True), [_audit_row(one) for one in records])

    def find_audit(self, query: AuditQuery, before: bytes | None, limit: int) -> Sequence[AuditRecord]:
        condition, values = where(
            {
                "who = ?": query.who,
                "verb = ?": query.verb,
                "target = ?": query.target,
                "id >= ?": None if query.from_ms is None else start_of(query.from_ms),
                "id < ?": _smaller(before, None if query.to_ms is None else start_of(query.to_ms)),
            }
        )
        rows = self._select(
            f"SELECT {', '.join(AUDIT)} FROM {AUDIT_TABLE}{condition} ORDER BY id DESC LIMIT ?", [*values, limit]
        )
        return [_audit_record(row) for row in rows]

    def lock_tokens(self) -> None:
        """The one row of the schema is locked, as it is there even if no token is."""
        self._run(f"UPDATE {SCHEMA_TABLE} SET version = version")

    def read_tokens(self) -> Sequence[Token]:
        return [_token(row) for row in self._select(f"SELECT {', '.join(TOKEN)} FROM {TOKENS_TABLE} ORDER BY name")]

    def insert_token(self, token: Token) -> bool:
        row = (token.name, str(token.role.value), Blob(token.digest), token.created_ms, token.revoked_ms)
        return self._run(self._dialect.insert(TOKENS_TABLE, TOKEN, ignore=True), row) == 1

    def revoke_token(self, name: str, now_ms: int) -> None:
        self._run(f"UPDATE {TOKENS_TABLE} SET revoked_ms = ? WHERE name = ? AND revoked_ms IS NULL", (now_ms, name))


def _smaller(one: bytes | None, other: bytes | None) -> bytes | None:
    return min((key for key in (one, other) if key is not None), default=None)


def _audit_row(record: AuditRecord) -> tuple[Any, ...]:
    return (
        record.at_ms,
        record.who,
        record.address,
        record.verb,
        record.target,
        record.count,
        record.result,
        bytes.fromhex(record.id),
    )


def _audit_record(row: Sequence[Any]) -> AuditRecord:
    at_ms, who, address, verb, target, count, result, key = row
    return AuditRecord(
        id=key.hex(), at_ms=at_ms, who=who, address=address, verb=verb, target=target, count=count, result=result
    )


def _token(row: Sequence[Any]) -> Token:
    name, role, digest, created_ms, revoked_ms = row
    return Token(name=name, role=Role(role), digest=bytes(digest), created_ms=created_ms, revoked_ms=revoked_ms)
