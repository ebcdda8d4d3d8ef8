"""The address of the store: one URL, made of `store.url` and the settings beside it."""

from collections.abc import Mapping
from typing import Any, Final

from infinite_scheduler.store.sql.server.address import BadPart, Parts, make_address, names_server, read_url, write_url
from infinite_scheduler.store.sql.server.options import SECRET, checked

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

_KINDS: Final = {"mysql": "mariadb", "postgresql": "postgres"}

_HARMLESS: Final = frozenset({"password", "connect_timeout"})
"""These do not say where the store is: one from the environment may be combined with a SQLite file."""


def parts_in(values: Mapping[str, Any]) -> dict[str, str]:
    """What separate settings say about an address, as parts of a URL. Raises BadPart."""
    said = {name: _checked(name, str(value)) for name, value in values.items() if value not in {None, ""}}
    return said | ({"kind": _KINDS.get(said["kind"], said["kind"])} if "kind" in said else {})


def _checked(name: str, value: str) -> str:
    try:
        return checked(name, value)
    except ValueError as error:
        raise BadPart(name, str(error)) from None


def effective_url(url: str | None, said: Parts) -> str:
    """The URL completed from the settings, or one made of the settings alone. Raises BadPart."""
    places = [name for name in said if name not in _HARMLESS]
    if url is None and not places:
        return DEFAULT_URL
    if url is None:
        return _made(said, places[0])
    if not names_server(url):
        if places:
            raise BadPart(
                places[0], "contradicts store.url, which does not name a database server: leave out one of the two"
            )
        return url
    return _filled(url, said)


def _made(said: Parts, named: str) -> str:
    if "kind" not in said:
        raise BadPart(
            "kind", f'expected "mariadb", "mysql" or "postgresql", since store.{named} means a database server'
        )
    if "database" not in said:
        raise BadPart("database", f"expected the name of a database, since store.{named} means a database server")
    make_address(said)
    return write_url(said)


def _filled(url: str, said: Parts) -> str:
    in_url = read_url(url)
    for name, value in said.items():
        if in_url.get(name, value) != value:
            other = "another one" if name in SECRET else f'"{in_url[name]}"'
            raise BadPart(name, f"contradicts store.url, which says {other}: leave out one of the two")
    filled = in_url | dict(said)
    make_address(filled)
    return url if filled == in_url else write_url(filled)


def outweighed(below: Mapping[str, Any], url: object) -> dict[str, Any]:
    """What is left of a table `store` below a stronger one with this URL: nothing that names a store.

    A password stays if the URL needs one, so that it may come from another source.
    """
    gone = {"url", *PARTS} - ({"password"} if _needs_password(url) else set())
    return {name: value for name, value in below.items() if name not in gone}


def _needs_password(url: object) -> bool:
    try:
        return isinstance(url, str) and names_server(url) and "password" not in read_url(url)
    except ValueError:
        return False
