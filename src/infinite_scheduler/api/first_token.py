"""The first token: a server that other machines can reach lets no one in without one, so it makes one."""

import sys

from infinite_scheduler.api.access import KnownTokens
from infinite_scheduler.api.token_digest import digest_of, new_token
from infinite_scheduler.clock import Clock
from infinite_scheduler.errors import ConfigError
from infinite_scheduler.store.ledger import Ledger, Role, Token

FIRST_NAME = "first"


async def make_first_token(tokens: KnownTokens, ledger: Ledger | None, clock: Clock) -> None:
    """Make a token if there is none anywhere, and print it once on standard error: it is kept as a digest only.

    This is the one exception to the rule that secrets are never written. Of several processes that start at once, one
    makes the token, and the others print nothing.
    """
    if await tokens.valid():
        return
    if ledger is None:
        raise ConfigError(
            "http.host can be reached by other machines, there is no token, and this kind of store keeps none: add "
            "[http.tokens.NAME] with token and role"
        )
    text, now_ms = new_token(), clock.wall_ms()
    name = await _free_name(ledger)
    token = Token(name=name, role=Role.OPERATE, digest=digest_of(text), created_ms=now_ms)
    is_first = await ledger.add_token(token, only_first=True)
    tokens.forget()
    if is_first:
        print(  # noqa: T201 - once, for the operator alone: a log would keep it
            f"There was no token, and other machines can reach this server, so one was made. It is shown once:\n"
            f"  {text}\n"
            f"Send it in the header Authorization: Bearer TOKEN. `infinite-scheduler tokens revoke {name}` ends it.",
            file=sys.stderr,
            flush=True,
        )


async def _free_name(ledger: Ledger) -> str:
    """A name that no token has had: names of revoked ones are not used again."""
    used = {token.name for token in await ledger.tokens()}
    return next(name for number in range(len(used) + 1) if (name := f"{FIRST_NAME}-{number + 1}") not in used)
