"""A token as people see it: never the token itself, but for once."""

from typing import Literal

import msgspec

from infinite_scheduler.store.ledger import Role, Token
from infinite_scheduler.views.times import IsoTime, iso, iso_or_none


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a token."""

    name: str
    role: Role
    state: Literal["valid", "revoked"]
    created_at: IsoTime
    revoked_at: IsoTime | None


class NewTokenView(TokenView, frozen=True, kw_only=True):
    """A token that was just made: the only time that it is shown."""

    token: str


def token_view(token: Token) -> TokenView:
    """A token of the store."""
    return TokenView(
        name=token.name,
        role=token.role,
        state="valid" if token.revoked_ms is None else "revoked",
        created_at=iso(token.created_ms),
        revoked_at=iso_or_none(token.revoked_ms),
    )


def new_token_view(token: Token, text: str) -> NewTokenView:
    """A token with its text."""
    return NewTokenView(**msgspec.structs.asdict(token_view(token)), token=text)
