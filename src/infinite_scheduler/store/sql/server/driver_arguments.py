"""An address as arguments for a driver."""

import importlib
import math
import ssl
from typing import Any, Final

from infinite_scheduler.errors import ConfigError
from infinite_scheduler.store.sql.server.address import SYSTEM, Address
from infinite_scheduler.store.sql.server.url_options import Kind

_DRIVERS: Final[dict[Kind, tuple[str, str, str]]] = {
    "mariadb": ("a MariaDB or MySQL server", "pymysql", "mysql"),
    "postgres": ("a PostgreSQL server", "psycopg", "postgres"),
}


def require_driver(kind: Kind) -> None:
    """Refuse a server whose driver is not installed, with the command that installs it."""
    server, module, extra = _DRIVERS[kind]
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"the store is {server}, but its driver cannot be loaded ({error}): "
            f"pip install 'infinite-scheduler[{extra}]'"
        ) from None


def psycopg_arguments(address: Address) -> dict[str, Any]:
    """The arguments for `psycopg.connect`.

    What is not given is left out, so that libpq's own sources apply: PGSSLMODE, a password file. Nothing is set by
    `options`: a pooler such as PgBouncer refuses a connection with settings it does not know.
    """
    said = {
        "host": address.socket or address.host,
        "port": address.port,
        "dbname": address.database,
        "user": address.user,
        "password": address.password,
        "connect_timeout": math.ceil(address.connect_timeout),
        "application_name": address.application_name,
        "sslmode": address.sslmode,
        "sslrootcert": address.sslrootcert,
        "sslcert": address.sslcert,
        "sslkey": address.sslkey,
        "sslpassword": address.sslpassword,
        **dict(address.options),
    }
    return {name: value for name, value in said.items() if value is not None}


def pymysql_arguments(address: Address) -> dict[str, Any]:
    """The arguments for `pymysql.connect`; certificate files are read here, and unreadable ones are refused."""
    arguments: dict[str, Any] = {
        "host": address.host,
        "port": address.port,
        "database": address.database,
        "user": address.user,
        "password": (address.password or "").encode(),  # as text it would be sent in Latin-1
        "connect_timeout": address.connect_timeout,
        "program_name": address.application_name,
        "unix_socket": address.socket,
        **{name: float(value) if name.endswith("timeout") else value for name, value in address.options},
        **_pymysql_tls(address),
    }
    return {name: value for name, value in arguments.items() if value is not None}


def _pymysql_tls(address: Address) -> dict[str, Any]:
    if address.socket or address.sslmode == "disable":  # as libpq: traffic on a local socket cannot be intercepted
        return {"ssl_disabled": True}
    if address.sslmode in {None, "prefer"} and not address.sslcert:
        return {}
    return {"ssl": _context(address)}


def _context(address: Address) -> ssl.SSLContext:
    """TLS or an error, by the rules of libpq.

    PyMySQL's own arguments would not do: without a file of authorities they check no host name.
    """
    root = None if address.sslrootcert == SYSTEM else address.sslrootcert
    verifies = address.sslmode in {"verify-ca", "verify-full"} or (address.sslmode == "require" and root)
    files = f"sslrootcert {root}"
    try:
        context = ssl.create_default_context(cafile=root)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # MySQL's self-made certificates would not pass
        context.check_hostname = address.sslmode == "verify-full"
        context.verify_mode = ssl.CERT_REQUIRED if verifies else ssl.CERT_NONE
        if address.sslcert:
            files = f"sslcert {address.sslcert}" + (f" with sslkey {address.sslkey}" if address.sslkey else "")
            # Without a password OpenSSL would ask for one on the terminal.
            context.load_cert_chain(address.sslcert, address.sslkey, address.sslpassword or "")
    except OSError as error:  # includes every error of the ssl module
        raise ConfigError(f"{files} cannot be used: {error.strerror or error}") from None
    return context
