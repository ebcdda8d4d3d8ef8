"""An address said in parts: settings that stand beside a URL, or instead of one."""

from collections.abc import Mapping
from typing import Any, Final

from infinite_scheduler.store.scheme import NOT_AN_ADDRESS, BadPart
from infinite_scheduler.store.sql.server.address import ServerParts, make_address, read_url, write_url
from infinite_scheduler.store.sql.server.url_options import SECRET, checked

_KINDS: Final = {"mysql": "mariadb", "postgresql": "postgres"}


def complete_url(url: str | None, given: Mapping[str, Any]) -> str:
    """The URL completed from the parts, or one made of the parts alone. Raises BadPart."""
    said = parts_in(given)
    return _made(said) if url is None else _filled(url, said)


def parts_in(values: Mapping[str, Any]) -> dict[str, str]:
    """What separate settings say about an address, as parts of a URL. Raises BadPart."""
    said = {name: _checked(name, str(value)) for name, value in values.items()}
    return said | ({"kind": _KINDS.get(said["kind"], said["kind"])} if "kind" in said else {})


def _checked(name: str, value: str) -> str:
    try:
        return checked(name, value)
    except ValueError as error:
        raise BadPart(name, str(error)) from None


def _made(said: ServerParts) -> str:
    if "database" not in said:
        named = next(name for name in said if name not in NOT_AN_ADDRESS)
        raise BadPart("database", f"expected the name of a database, since store.{named} means a database server")
    make_address(said)
    return write_url(said)


def _filled(url: str, said: ServerParts) -> str:
    in_url = read_url(url)
    for name, value in said.items():
        if in_url.get(name, value) != value:
            other = "another one" if name in SECRET else f'"{in_url[name]}"'
            raise BadPart(name, f"contradicts store.url, which says {other}: leave out one of the two")
    filled = in_url | dict(said)
    make_address(filled)
    return url if filled == in_url else write_url(filled)
