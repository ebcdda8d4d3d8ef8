"""What an address comes to as arguments of a driver."""

import importlib
import math
import ssl
from typing import Any, Final

from infinite_scheduler.errors import ConfigError
from infinite_scheduler.store.sql.server.address import SYSTEM, Address
from infinite_scheduler.store.sql.server.options import Kind

_DRIVERS: Final[dict[Kind, tuple[str, str, str]]] = {
    "mariadb": ("a MariaDB or MySQL server", "pymysql", "mysql"),
    "postgres": ("a PostgreSQL server", "psycopg", "postgres"),
}


def require_driver(kind: Kind) -> None:
    """Refuse a server whose driver is not installed, with the line that installs it."""
    server, module, extra = _DRIVERS[kind]
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"the store is {server}, and its driver cannot be loaded ({error}): "
            f"pip install 'infinite-scheduler[{extra}]'"
        ) from None


def psycopg_arguments(address: Address) -> dict[str, Any]:
    """How to call `psycopg.connect`.

    What is not said is left out, so that libpq's own ways to know it work: PGSSLMODE, a password file. Nothing is set
    by `options`: a pooler such as PgBouncer refuses a connection that asks for settings it does not know.
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
    """How to call `pymysql.connect`; the files of certificates are read for it, and one that cannot be is refused."""
    arguments: dict[str, Any] = {
        "host": address.host,
        "port": address.port,
        "database": address.database,
        "user": address.user,
        "password": (address.password or "").encode(),  # text would become Latin-1
        "connect_timeout": address.connect_timeout,
        "program_name": address.application_name,
        "unix_socket": address.socket,
        **{name: float(value) if name.endswith("timeout") else value for name, value in address.options},
        **_pymysql_tls(address),
    }
    return {name: value for name, value in arguments.items() if value is not None}


def _pymysql_tls(address: Address) -> dict[str, Any]:
    if address.socket or address.sslmode == "disable":  # as libpq: nobody listens on a socket of this machine
        return {"ssl_disabled": True}
    if address.sslmode in {None, "prefer"} and not address.sslcert:
        return {}
    return {"ssl": _context(address)}


def _context(address: Address) -> ssl.SSLContext:
    """TLS or nothing, by the rules of libpq.

    PyMySQL's own arguments would not do: without a file of authorities they check no host name.
    """
    root = None if address.sslrootcert == SYSTEM else address.sslrootcert
    verifies = address.sslmode in {"verify-ca", "verify-full"} or (address.sslmode == "require" and root)
    files = f"sslrootcert {root}"
    try:
        context = ssl.create_default_context(cafile=root)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # the certificates that MySQL makes for itself would not pass
        context.check_hostname = address.sslmode == "verify-full"
        context.verify_mode = ssl.CERT_REQUIRED if verifies else ssl.CERT_NONE
        if address.sslcert:
            files = f"sslcert {address.sslcert}" + (f" with sslkey {address.sslkey}" if address.sslkey else "")
            # Without a password OpenSSL would ask for one on the terminal.
            context.load_cert_chain(address.sslcert, address.sslkey, address.sslpassword or "")
    except OSError as error:  # and so is every error of the ssl module
        raise ConfigError(f"{files} cannot be used: {error.strerror or error}") from None
    return context
