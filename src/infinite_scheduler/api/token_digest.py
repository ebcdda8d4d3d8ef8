"""Tokens: long random texts of which only digests are kept."""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from typing import Final

from infinite_scheduler.errors import InvalidRequest
from infinite_scheduler.store.ledger import Token

TOKEN_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
LEAST: Final = 16
"""The fewest characters of a token that somebody has thought of: it must not be found by trying."""


def new_token() -> str:
    """A token that cannot be guessed; the letters in front tell people and scanners of secrets what it is."""
    return f"isk_{secrets.token_urlsafe(32)}"


def digest_of(token: str) -> bytes:
    """What is kept of a token. It has 256 random bits, so a plain hash cannot be searched for."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


def check_token_name(name: str) -> str:
    """Return the name if it is allowed for a token."""
    if not TOKEN_NAME.fullmatch(name):
        raise InvalidRequest(
            f"{name!a:.80} is not allowed as the name of a token: use 1 to 64 letters, digits, dots, dashes or _"
        )
    return name


def matching(token: str, known: Iterable[Token]) -> Token | None:
    """The valid token that was given. All are compared, each in constant time, so that time tells nothing."""
    digest, found = digest_of(token), None
    for one in known:
        if hmac.compare_digest(one.digest, digest) and one.revoked_ms is None:
            found = one
    return found
