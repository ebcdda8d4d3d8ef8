"""Shows URLs, settings and messages without their secrets: the one place that knows what a secret looks like."""

import re
from collections.abc import Callable
from typing import Final, NamedTuple

HIDDEN: Final = "***"
"""What stands where a secret was."""

_SECRET_NAMES: Final = (
    "password",
    "passphrase",
    "secret",
    "pem",
    "jaas",
    "token",
    "oauthbearer.config",
    "oauthbearer.extensions",
    "kinit.cmd",
    "private.key",
)
"""A setting or property with one of these in its name is never shown."""

_ONLY_SOUNDS_SECRET: Final = ("sasl.oauthbearer.token.endpoint.url",)

_LEAD: Final = re.compile(r"\s*(?:jdbc:)?[A-Za-z][A-Za-z0-9+.-]*://")
_SERVER: Final = re.compile(r"(?:\[[^\]]*\]|[^:\[\]]*)(?::[0-9]*)?")
_ODD_NAME: Final = re.compile(r"(?:^|&)[\w.-]*[^\w.&=-]")
_IN_TEXT: Final = re.compile(
    r"""
    (?P<url>(?:jdbc:)?[A-Za-z][A-Za-z0-9+.-]*://[^\s"'<>]+)
    | (?P<name>(?:(?<!using[ ])|(?!password:[ ](?:YES|NO)\b))
        (?:passw\w*|passphrase|pwd|secret|\bpass|(?<![a-z])token)["']?\s*[=:]\s*)
      (?:"(?:\\.|[^"\\])*(?:"|$) | '(?:\\.|''|[^'\\])*(?:'|$) | \S)\S*
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
"""A URL, or a secret after its name. If its length cannot be known, it ends with the word.

"using password: YES" is MariaDB's message for a refused login: there it is not a password.
"""


def is_secret(name: str) -> bool:
    """Must the value of a setting or property with this name never be shown?"""
    name = name.lower()
    return name not in _ONLY_SOUNDS_SECRET and any(word in name for word in _SECRET_NAMES)


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


Shown = Callable[[str], bool]
"""May people see what the URL's option of this name says?"""


def _none(name: str) -> bool:
    """What is not known to be public may be a secret."""
    del name
    return False


def masked(url: str, shown: Shown = _none) -> str:
    """The URL without its secrets, for people to see; other text is unchanged, unless it looks like a secret.

    Of its options only those are seen that may be `shown`.
    """
    if url.startswith("sqlite:"):  # a file name may contain any character
        place, mark, query = url.partition("?")
        return place + mark + _options(query, shown)
    pieces = cut(url)
    if pieces is None:
        return _torn(url)
    login = "" if pieces.login is None else f"{_login(pieces.login)}@"
    path = url[len(pieces.lead) :].partition("?")[0].partition("/")[1] + pieces.path
    query = f"?{_options(pieces.query, shown)}" if "?" in url else ""
    return f"{pieces.lead}{login}{pieces.server}{path}{query}"


def without_secrets(text: str, mask_url: Callable[[str], str] = masked) -> str:
    """A text, such as a driver's message, without the secrets in its URLs and after the word password."""
    return _IN_TEXT.sub(lambda found: mask_url(found[0]) if found["url"] else found["name"] + HIDDEN, text)


def _login(login: str) -> str:
    user, colon, _ = login.partition(":")
    return f"{user}:{HIDDEN}" if colon else user


def _options(query: str, shown: Shown) -> str:
    return "&".join(_option(pair, shown) for pair in query.split("&"))


def _option(pair: str, shown: Shown) -> str:
    name, equals, _ = pair.partition("=")
    return pair if not equals or shown(name) else f"{name}={HIDDEN}"


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
