"""The address of the store: one URL, made of `store.url` and the settings beside it."""

from collections.abc import Mapping
from typing import Any, Final

from infinite_scheduler.store import find_scheme, scheme_of
from infinite_scheduler.store.scheme import NOT_AN_ADDRESS, BadPart

DEFAULT_URL: Final = "sqlite:///scheduler.db"

PARTS: Final = (
    "kind",
    "host",
    "port",
    "database",
    "user",
    "password",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
)
"""The settings that name a server without a URL."""


def effective_url(url: str | None, parts: Mapping[str, Any]) -> str:
    """The URL completed from the settings, or one made of the settings alone. Raises BadPart."""
    said = {name: value for name, value in parts.items() if value not in {None, ""}}
    if url is not None:
        scheme = find_scheme(url)
        return url if scheme is None else scheme.complete(url, said)
    address_parts = [name for name in said if name not in NOT_AN_ADDRESS]
    if not address_parts:
        return DEFAULT_URL
    if "kind" not in said:
        kinds = 'expected "mariadb", "mysql" or "postgresql"'
        raise BadPart("kind", f"{kinds}, since store.{address_parts[0]} means a database server")
    return scheme_of(said["kind"]).complete(None, said)


def outweighed(below: Mapping[str, Any], url: object) -> dict[str, Any]:
    """What is left of a table `store` below a stronger one with this URL: nothing that names a store.

    A password stays if the URL needs one, so that it may come from another source.
    """
    gone = {"url", *PARTS} - ({"password"} if _needs_password(url) else set())
    return {name: value for name, value in below.items() if name not in gone}


def _needs_password(url: object) -> bool:
    scheme = find_scheme(url) if isinstance(url, str) else None
    return scheme is not None and isinstance(url, str) and scheme.needs_password(url)
