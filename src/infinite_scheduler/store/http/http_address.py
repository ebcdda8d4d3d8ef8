"""Where a server answers over HTTP, and how a user writes it."""

import difflib
import math
import re
import ssl
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from infinite_scheduler.errors import ConfigError
from infinite_scheduler.secrets import cut, masked
from infinite_scheduler.store.scheme import NOT_AN_ADDRESS, BadPart, Parts

OPTIONS: Final = ("sslrootcert", "connect_timeout")
SYSTEM: Final = "system"
"""As `sslrootcert`: the certificate authorities that the machine trusts."""

CONNECT_TIMEOUT_S: Final = 5.0
EXAMPLE: Final = "http://HOST:7070 or https://HOST/PATH"


class HttpAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A server, with all that is needed to ask it but the token."""

    base: str  # the URL in front of all paths, without a slash at its end
    sslrootcert: str | None = None
    connect_timeout_s: float = CONNECT_TIMEOUT_S

    @property
    def tls(self) -> ssl.SSLContext | bool:
        """How the server's certificate is checked. Raises ConfigError if the file of authorities cannot be read."""
        if self.sslrootcert in {None, SYSTEM}:
            return True
        try:
            return ssl.create_default_context(cafile=self.sslrootcert)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"sslrootcert: {self.sslrootcert} cannot be used: {error}; expected a PEM file with authorities"
            ) from None


def http_address(url: str) -> HttpAddress:
    """The address in a URL; raises ConfigError, which shows no password."""
    try:
        return read_http_url(url)
    except ValueError as error:
        raise ConfigError(f"store URL {masked(url, shows_option)}: {error}") from None


def read_http_url(url: str) -> HttpAddress:
    """What a URL says. Raises ValueError, whose text does not contain the URL."""
    pieces = cut(url.strip())
    if pieces is None or "#" in url:
        raise ValueError(f"expected {EXAMPLE}")
    if pieces.login is not None:
        raise ValueError(
            "expected no user and no password: leave them out, and set store.token "
            "(INFINITE_SCHEDULER_STORE__TOKEN) to a token of the server"
        )
    if not re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]\s]+)(:[0-9]{1,5})?", pieces.server):
        raise ValueError(f"expected a host: {EXAMPLE}")
    port = re.search(r":([0-9]+)$", pieces.server)
    if port is not None and not 1 <= int(port[1]) <= 65_535:
        raise ValueError(f"expected a port from 1 to 65535: {EXAMPLE}")
    options = _options(pieces.query)
    scheme = pieces.lead.strip().lower()
    if "sslrootcert" in options and scheme != "https://":
        raise ValueError("sslrootcert is for TLS: use https://, or leave it out")
    path = f"/{pieces.path}".rstrip("/")
    return HttpAddress(
        base=f"{scheme}{pieces.server}{path}",
        sslrootcert=options.get("sslrootcert"),
        connect_timeout_s=_seconds(options.get("connect_timeout", f"{CONNECT_TIMEOUT_S:g}")),
    )


def complete_http_url(url: str | None, parts: Parts) -> str:
    """The URL with the options that separate settings add. Raises BadPart."""
    for part in parts:
        if url is None or (part not in OPTIONS and part not in NOT_AN_ADDRESS):
            raise BadPart(part, "contradicts store.url, which names an HTTP server: leave out one of the two")
    if url is None:
        raise BadPart("url", f"expected {EXAMPLE}")
    said = url.partition("?")[2]
    added = [f"{name}={quote(str(parts[name]), safe='/')}" for name in OPTIONS if name in parts and name not in said]
    if not added:
        return url
    return f"{url}{'&' if said else '?'}{'&'.join(added)}".replace("?&", "?")


def shows_option(name: str) -> bool:
    """May people see what this option of a URL says?"""
    return name in OPTIONS


def _options(query: str) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for pair in filter(None, query.split("&")):
        name, equals, value = pair.partition("=")
        if name not in OPTIONS or not equals:
            near = difflib.get_close_matches(name, OPTIONS, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"unknown option {name}; use one of {', '.join(OPTIONS)}{hint}")
        if name in found:
            raise ValueError(f"the option {name} is given twice: leave one of them out")
        found[name] = unquote(value)
    return found


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number <= 3600:
        raise ValueError("expected connect_timeout to be a number of seconds, more than 0 and at most 3600")
    return number
