"""Where a database server is, and how a user writes it."""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, cast
from urllib.parse import quote

from infinite_scheduler.errors import ConfigError
from infinite_scheduler.secrets import cut, masked
from infinite_scheduler.store.scheme import BadPart
from infinite_scheduler.store.sql.server.url_options import OWN, Kind, decoded, is_visible, read_options

CONNECT_TIMEOUT_S: Final = 5.0
"""How long connecting may take by default."""

PORTS: Final[Mapping[Kind, int]] = {"mariadb": 3306, "postgres": 5432}

SYSTEM: Final = "system"
"""As `sslrootcert`: the certificate authorities that the machine trusts."""

_SCHEMES: Final[Mapping[str, Kind]] = {
    "mysql": "mariadb",
    "mariadb": "mariadb",
    "mysql+pymysql": "mariadb",
    "mariadb+pymysql": "mariadb",
    "postgresql": "postgres",
    "postgres": "postgres",
    "postgresql+psycopg": "postgres",
    "jdbc:mysql": "mariadb",
    "jdbc:mariadb": "mariadb",
    "jdbc:postgresql": "postgres",
}
_WRITTEN: Final[Mapping[Kind, str]] = {"mariadb": "mariadb", "postgres": "postgresql"}

ServerParts = Mapping[str, str]
"""The given parts of an address, as text: kind, host, port, database, user, password and options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A database on a server, with all that is needed to connect; printed without its secrets."""

    kind: Kind
    database: str
    host: str = "localhost"
    port: int
    user: str | None = None
    """None: the name of the account that runs the process."""
    password: str | None = field(default=None, repr=False)
    socket: str | None = None
    """Instead of host and port: a Unix socket; MariaDB's own file, or the folder of PostgreSQL's."""
    sslmode: str | None = None
    """None: the driver's default, which is to prefer TLS."""
    sslrootcert: str | None = None
    sslcert: str | None = None
    sslkey: str | None = None
    sslpassword: str | None = field(default=None, repr=False)
    """The password of the key."""
    connect_timeout: float = CONNECT_TIMEOUT_S
    """In seconds."""
    application_name: str = "infinite-scheduler"
    """The name that the server shows for this connection."""
    options: tuple[tuple[str, str], ...] = ()
    """Passed to the driver unchanged."""

    def __str__(self) -> str:
        user = "" if self.user is None else f"{quote(self.user, safe='')}@"
        location = quote(self.socket, safe="") if self.socket else f"{_bracketed(self.host)}:{self.port}"
        return f"{_WRITTEN[self.kind]}://{user}{location}/{quote(self.database, safe='')}"


def names_server(url: str) -> bool:
    """Does the URL mean a database server, whether it is valid or not?"""
    scheme = url.strip().partition("://")[0].lower()
    return scheme.startswith("jdbc:") or scheme.partition("+")[0] in _SCHEMES


def address_of(url: str) -> Address:
    """The address in a URL, percent-decoded; raises ConfigError, which shows no password."""
    try:
        return make_address(read_url(url))
    except ValueError as error:
        raise ConfigError(f"store URL {shown_url(url)}: {error}") from None


def shown_url(url: str) -> str:
    """The URL without its secrets, for people to see."""
    return masked(url, is_visible)


def read_url(url: str) -> dict[str, str]:
    """What a URL says, without defaults. Raises ValueError, whose text does not contain the URL."""
    scheme = url.partition("://")[0].lower()
    if scheme not in _SCHEMES or "://" not in url:
        raise ValueError(f"expected a URL that begins with {', '.join(f'{known}://' for known in _SCHEMES)}")
    kind = _SCHEMES[scheme]
    pieces = cut(url)
    if pieces is None or "/" in pieces.path:
        raise ValueError(
            f"expected {_example(kind)}; write an IPv6 host in brackets, and in a name or password "
            'write "@" as %40, ":" as %3A, "/" as %2F, "?" as %3F and "%" as %25'
        )
    said = {"kind": kind} | _login(pieces.login or "") | _server(pieces.server)
    if pieces.path:
        said["database"] = decoded(pieces.path)
    for name, value in read_options(kind, pieces.query).items():
        socket_instead = name == "host" and value.startswith("/") and said.get("host") == "localhost"
        if not socket_instead and said.get(name, value) != value:
            raise ValueError(f"{name} is given twice, with different values: leave one of them out")
        said[name] = value
    return said


def make_address(said: ServerParts) -> Address:
    """The address with these parts, and defaults for the rest. Raises BadPart."""
    kind = cast("Kind", said["kind"])
    if not said.get("database"):
        raise BadPart("database", f"expected a database: {_example(kind)}")
    _check_tls(said)
    host = said.get("host", "localhost")
    _check_host(host)
    socket = host if host.startswith("/") else None
    texts = ("user", "password", "sslrootcert", "sslcert", "sslkey", "sslpassword")
    return Address(
        kind=kind,
        database=said["database"],
        host="localhost" if socket else host,
        port=int(said.get("port", PORTS[kind])),
        socket=socket,
        sslmode=said.get("sslmode", "verify-full" if "sslrootcert" in said else None),
        connect_timeout=float(said.get("connect_timeout", CONNECT_TIMEOUT_S)),
        application_name=said.get("application_name", "infinite-scheduler"),
        options=tuple((name, said[name]) for name in OWN[kind] if name in said),
        **{name: said[name] for name in texts if name in said},
    )


def write_url(said: ServerParts) -> str:
    """The URL with these parts: `read_url` reads them back."""
    kind = cast("Kind", said["kind"])
    rest = {name: value for name, value in said.items() if name not in {"kind", "host", "user", "password", "database"}}
    login = quote(said.get("user", ""), safe="")
    if "password" in said:
        login += f":{quote(said['password'], safe='')}"
    host = said.get("host", "")
    if host.startswith("/"):
        rest["unix_socket" if kind == "mariadb" else "host"] = host
        host = ""
    port = f":{rest.pop('port')}" if "port" in rest else ""
    server = f"{login}@" * bool(login) + _bracketed(host) + port
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in rest.items())
    return f"{_WRITTEN[kind]}://{server}/{quote(said.get('database', ''), safe='')}{'?' * bool(query)}{query}"


def _bracketed(host: str) -> str:
    text = quote(host, safe=":")
    return f"[{text}]" if ":" in text else text


def _example(kind: Kind) -> str:
    return f"{_WRITTEN[kind]}://USER:PASSWORD@HOST:{PORTS[kind]}/DATABASE"


def _login(login: str) -> dict[str, str]:
    user, _, password = login.partition(":")
    return {name: decoded(text) for name, text in (("user", user), ("password", password)) if text}


def _server(server: str) -> dict[str, str]:
    found = re.fullmatch(r"\[?(?P<host>[^\[\]]*?)\]?(?::(?P<port>[0-9]*))?", server)
    host, port = (found["host"], found["port"]) if found else (server, None)
    said = {"host": decoded(host)} if host else {}
    return said | (read_options("mariadb", f"port={port}") if port else {})


def _check_host(host: str) -> None:
    if host.startswith("/"):
        return
    if "," in host:
        raise BadPart("host", "expected one host: the store is one server, or several behind one name")
    if ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise BadPart("host", "expected a host alone, without a port") from None
    if re.search(r"[\s/@?#\[\]]", host):
        raise BadPart("host", "expected the name or the address of a host, or the path of a socket")


def _check_tls(said: ServerParts) -> None:
    if "sslkey" in said and "sslcert" not in said:
        raise BadPart("sslkey", "expected sslcert too: a key is useful only with its certificate")
    if said.get("sslrootcert") == SYSTEM and said.get("sslmode", "verify-full") != "verify-full":
        raise BadPart(
            "sslmode",
            "expected verify-full, since sslrootcert is system: without a check of the host name any certificate of a "
            "public authority would be accepted",
        )
