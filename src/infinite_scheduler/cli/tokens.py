"""Commands about tokens: who may come in by HTTP."""

from infinite_scheduler.api.token_digest import check_token_name, digest_of, new_token
from infinite_scheduler.cli.store_session import StoreSession
from infinite_scheduler.errors import InvalidRequest
from infinite_scheduler.store.ledger import Role, Token
from infinite_scheduler.views.times import ms_of, relative
from infinite_scheduler.views.token import new_token_view, token_view


async def create_token(session: StoreSession, name: str, role: str) -> None:
    """Make a token, keep its digest, and print it: it cannot be shown again."""
    if role not in set(Role):
        raise InvalidRequest(f"unknown --role {role!r}: use {', '.join(Role)}")
    text = new_token()
    token = Token(name=check_token_name(name), role=Role(role), digest=digest_of(text), created_ms=session.now_ms)
    if not await session.client.ledger.add_token(token):
        raise InvalidRequest(
            f"there is, or was, a token named {name!r}, and names are not used twice: choose another name"
        )
    if session.out.as_json:
        session.out.record(new_token_view(token, text))
        return
    session.out.note(f"token {name} with the role {role}; it is not shown again:")
    session.out.say(text)


async def list_tokens(session: StoreSession) -> None:
    """Print the tokens that the store keeps, revoked ones too."""
    tokens = [token_view(token) for token in await session.client.ledger.tokens()]
    if session.out.as_json:
        for token in tokens:
            session.out.record(token)
    elif tokens:
        session.out.table(
            ("token", "role", "state", "created"),
            [(one.name, one.role, one.state, relative(ms_of(one.created_at), session.now_ms)) for one in tokens],
            whole=("token", "role", "state"),
        )
    else:
        session.out.note("no tokens: make one with infinite-scheduler tokens create NAME --role read")


async def revoke_token(session: StoreSession, name: str) -> int:
    """End a token, for all processes."""
    if not await session.client.ledger.revoke_token(name, session.now_ms):
        raise InvalidRequest(f"there is no token named {name!r}: infinite-scheduler tokens list names them")
    (token,) = [one for one in await session.client.ledger.tokens() if one.name == name]
    if session.out.as_json:
        session.out.record(token_view(token))
    else:
        session.out.say(f"revoked {name}; servers refuse it within two seconds")
    return 0
