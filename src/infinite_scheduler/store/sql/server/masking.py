"""Shows URLs and messages without their secrets."""

import re
from typing import Final, NamedTuple

from infinite_scheduler.store.sql.server.options import is_visible

HIDDEN: Final = "***"

_LEAD: Final = re.compile(r"\s*(?:jdbc:)?[A-Za-z][A-Za-z0-9+.-]*://")
_SERVER: Final = re.compile(r"(?:\[[^\]]*\]|[^:\[\]]*)(?::[0-9]*)?")
_ODD_NAME: Final = re.compile(r"(?:^|&)[\w.-]*[^\w.&=-]")
_IN_TEXT: Final = re.compile(
    r"""
    (?P<url>(?:jdbc:)?[A-Za-z][A-Za-z0-9+.-]*://[^\s"'<>]+)
    | (?P<name>(?:(?<!using[ ])|(?!password:[ ](?:YES|NO)\b))(?:passw\w*|passphrase|pwd|\bpass)["']?\s*[=:]\s*)
      (?:"(?:\\.|[^"\\])*(?:"|$) | '(?:\\.|''|[^'\\])*(?:'|$) | \S)\S*
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
"""A URL, or a password after its name. If its length cannot be known, it ends with the word.

"using password: YES" is MariaDB's message for a refused login: there it is not a password.
"""


class Pieces(NamedTuple):
    """A URL, split at its delimiters."""

    lead: str
    """Up to the two slashes."""
    login: str | None
    server: str
    path: str
    query: str


def cut(url: str) -> Pieces | None:
    """Split a URL; None if a delimiter is where it cannot be, so that the end of a password is unknown."""
    lead = _LEAD.match(url)
    if lead is None:
        return None
    place, _, query = url[lead.end() :].partition("?")
    authority, _, path = place.partition("/")
    login, at, server = authority.rpartition("@")
    fits = _SERVER.fullmatch(server) and not _ODD_NAME.search(query)
    if not fits or "@" in path or ("@" in query and not at and not path):
        return None
    return Pieces(lead[0], login if at else None, server, path, query)


def masked(url: str) -> str:
    """The URL without its secrets, for people to see; other text is unchanged, unless it looks like a secret."""
    if url.startswith("sqlite:"):  # a file name may contain any character
        place, mark, query = url.partition("?")
        return place + mark + _options(query)
    pieces = cut(url)
    if pieces is None:
        return _torn(url)
    login = "" if pieces.login is None else f"{_login(pieces.login)}@"
    path = url[len(pieces.lead) :].partition("?")[0].partition("/")[1] + pieces.path
    query = f"?{_options(pieces.query)}" if "?" in url else ""
    return f"{pieces.lead}{login}{pieces.server}{path}{query}"


def without_secrets(text: str) -> str:
    """A text, such as a driver's message, without the secrets in its URLs and after the word password."""
    return _IN_TEXT.sub(lambda found: masked(found[0]) if found["url"] else found["name"] + HIDDEN, text)


def _login(login: str) -> str:
    user, colon, _ = login.partition(":")
    return f"{user}:{HIDDEN}" if colon else user


def _options(query: str) -> str:
    return "&".join(_option(pair) for pair in query.split("&"))


def _option(pair: str) -> str:
    name, equals, _ = pair.partition("=")
    return pair if not equals or is_visible(name) else f"{name}={HIDDEN}"


def _torn(text: str) -> str:
    """Hide all that may belong to a password: from the first colon after the slashes to the last "@"."""
    lead = _LEAD.match(text)
    start = lead.end() if lead else text.find("//") + 2 if "//" in text else 0
    head, colon, tail = text[start:].partition(":")
    if colon and "@" in tail:
        text = f"{text[:start]}{head}:{HIDDEN}@{tail.rpartition('@')[2]}"
    elif colon and lead:
        text = f"{text[:start]}{head}:{HIDDEN}"
    return re.sub(r"(?i)(passw\w*=)[^&\s\"]*", rf"\1{HIDDEN}", text)
