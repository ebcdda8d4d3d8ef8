"""The options after the "?" of a server's URL: the names of libpq, PyMySQL and Java drivers, unified."""

import difflib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal
from urllib.parse import unquote

from infinite_scheduler.store.sql.server.java import IGNORED, REFUSED, SWITCHES, ssl_mode_of

Kind = Literal["mariadb", "postgres"]

SSL_MODES: Final = ("disable", "prefer", "require", "verify-ca", "verify-full")

SECRET: Final = frozenset({"password", "sslpassword"})

SHARED: Final = (
    "user",
    "password",
    "host",
    "port",
    "database",
    "connect_timeout",
    "application_name",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "sslpassword",
)
"""Known for every kind of server; times are in seconds."""

OWN: Final[Mapping[Kind, tuple[str, ...]]] = {
    "mariadb": ("read_timeout", "write_timeout", "bind_address"),
    "postgres": (
        "keepalives",
        "keepalives_idle",
        "keepalives_interval",
        "keepalives_count",
        "tcp_user_timeout",
        "target_session_attrs",
        "channel_binding",
        "gssencmode",
        "require_auth",
        "passfile",
        "sslcrl",
        "ssl_min_protocol_version",
    ),
}
"""Passed unchanged to the driver of this kind."""

ALIASES: Final[Mapping[Kind, Mapping[str, str]]] = {
    "mariadb": {
        "unix_socket": "host",
        "localSocket": "host",
        "ssl_ca": "sslrootcert",
        "serverSslCert": "sslrootcert",
        "program_name": "application_name",
        "passwd": "password",
        "db": "database",
    },
    "postgres": {"dbname": "database", "loginTimeout": "connect_timeout"},
}
"""Other names of the options above."""

_MODE_WORDS: Final = {
    "disabled": "disable",
    "preferred": "prefer",
    "required": "require",
    "trust": "require",
    "verifyidentity": "verify-full",
} | {mode.replace("-", ""): mode for mode in SSL_MODES}

_TRUTH: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def plain(name: str) -> str:
    """The name without spelling differences: ssl-mode, ssl_mode and sslMode are one option."""
    return re.sub(r"[-_.]", "", name).lower()


def names_of(kind: Kind) -> Mapping[str, str]:
    """Every spelling of the options of a kind, normalized, with our name for it."""
    names = {plain(name): name for name in (*SHARED, *OWN[kind])}
    return names | {plain(alias): name for alias, name in ALIASES[kind].items()}


_IGNORED: Final = frozenset(map(plain, IGNORED))
_REFUSED: Final = {plain(name): (name, why) for name, why in REFUSED.items()}
_NAMES: Final[Mapping[Kind, Mapping[str, str]]] = {"mariadb": names_of("mariadb"), "postgres": names_of("postgres")}

_VISIBLE: Final = (
    {name for names in _NAMES.values() for name, ours in names.items() if ours not in SECRET}
    | _IGNORED
    | {plain(switch) for switches in SWITCHES.values() for switch in switches}
)


def is_visible(name: str) -> bool:
    """May people see the value of this option? An unknown option may be a secret."""
    return plain(name) in _VISIBLE


def read_options(kind: Kind, query: str) -> dict[str, str]:
    """The options by our names; an empty one counts as not given. Raises ValueError."""
    found: dict[str, str] = {}
    switches: dict[str, bool] = {}
    known_switches = {plain(switch): switch for switch in SWITCHES[kind]}
    for name, value in _pairs(query):
        ours = _NAMES[kind].get(plain(name))
        if ours is None and plain(name) in known_switches:
            switches[known_switches[plain(name)]] = _truth(name, value)
        elif ours is None:
            _check_ignored(kind, name)
        elif value:
            text = checked(ours, _in_seconds(kind, name, value))
            if found.setdefault(ours, text) != text:
                raise ValueError(f"the option {ours} is given twice, with different values: leave one of them out")
    mode = ssl_mode_of(kind, switches)
    return {"sslmode": mode, **found} if mode else found


def _pairs(query: str) -> Iterator[tuple[str, str]]:
    for pair in filter(None, query.split("&")):
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValueError('expected NAME=VALUE, joined by "&", after the "?"; write a "?" in a password as %3F')
        yield name, decoded(value)


def decoded(text: str) -> str:
    """Percent-decode; a "+" is kept, since it is common in passwords."""
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise ValueError("expected UTF-8 after the percent signs") from None


def _check_ignored(kind: Kind, name: str) -> None:
    if plain(name) in _IGNORED:
        return
    if plain(name) in _REFUSED:
        refused, why = _REFUSED[plain(name)]
        raise ValueError(f"the option {refused} is not supported: {why}")
    known = sorted((*SHARED, *OWN[kind]))
    near = difflib.get_close_matches(plain(name), _NAMES[kind], n=1)
    hint = f"; did you mean {_NAMES[kind][near[0]]}?" if near else ""
    raise ValueError(f"unknown option {name}; use one of {', '.join(known)}{hint}")


def _truth(name: str, value: str) -> bool:
    if value.lower() not in _TRUTH:
        raise ValueError(f"expected {name}=true or {name}=false")
    return _TRUTH[value.lower()]


def _in_seconds(kind: Kind, name: str, value: str) -> str:
    """The Java drivers for MySQL and MariaDB count in milliseconds; their name for the option tells them apart."""
    if kind == "mariadb" and name == "connectTimeout" and value.isdecimal():
        return str(int(value) / 1000)
    return value


def checked(name: str, value: str) -> str:
    """The value of one of our options in its one spelling. Raises ValueError."""
    check = _CHECKS.get(name)
    return check(name, value) if check else value


def _mode(name: str, value: str) -> str:
    mode = _MODE_WORDS.get(plain(value))
    if mode is None:
        raise ValueError(f"expected {name} to be one of {', '.join(SSL_MODES)}")
    return mode


def _port(name: str, value: str) -> str:
    if not re.fullmatch(r"[0-9]{1,5}", value) or not 1 <= int(value) <= 65535:
        raise ValueError(f"expected {name} to be a number from 1 to 65535")
    return str(int(value))


def _seconds(name: str, value: str) -> str:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number <= 3600:
        raise ValueError(f"expected {name} to be a number of seconds, more than 0 and at most 3600")
    return f"{number:g}"


_CHECKS: Final[Mapping[str, Callable[[str, str], str]]] = {
    "sslmode": _mode,
    "port": _port,
    "connect_timeout": _seconds,
    "read_timeout": _seconds,
    "write_timeout": _seconds,
}
