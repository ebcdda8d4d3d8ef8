"""The settings of a store in a SQL database; most of them are for one on a server."""

from datetime import timedelta
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from infinite_scheduler.config.section import Section
from infinite_scheduler.config.values import FilledText, PositiveDuration, does_not_fit, show, whole

LONGEST_WAIT: Final = timedelta(hours=1)


class DatabaseSettings(Section):
    """Which database, how it is reached, and which time-outs apply."""

    kind: Literal["mariadb", "mysql", "postgresql"] | None = None
    """The kind of database server, if `url` does not name it."""
    host: FilledText | None = None
    """The server's name or IP address, or the path of its Unix socket."""
    port: Annotated[int, whole(1, 65535)] | None = None
    """The server's port."""
    database: FilledText | None = None
    """The database on the server."""
    user: FilledText | None = None
    """The user of the database."""
    password: str | None = Field(default=None, repr=False)
    """The password of the user."""
    sslmode: Literal["disable", "prefer", "require", "verify-ca", "verify-full"] | None = None
    """How TLS is used."""
    sslrootcert: FilledText | None = None
    """The certificate authorities that are trusted to sign the server's certificate: a PEM file, or "system"."""
    sslcert: FilledText | None = None
    """The certificate of the user: a PEM file."""
    sslkey: FilledText | None = None
    """The key of that certificate: a PEM file."""
    connect_timeout: PositiveDuration = timedelta(seconds=5)
    """How long connecting to the server may take."""
    idle_in_transaction: PositiveDuration = timedelta(seconds=5)
    """How long a transaction may stay idle before the server ends it: its process may be frozen, holding locks."""
    lock_wait: PositiveDuration = timedelta(seconds=10)
    """How long a call waits on the server for locks of others; shorter than `silence`."""
    silence: PositiveDuration = timedelta(seconds=20)
    """How long the server may be silent within a statement before it is given up as frozen or disconnected."""
    connections: Annotated[int, whole(1, 100)] = 2
    """How many connections to the server are used for incoming calls."""
    lanes: Annotated[int, whole(1, 4)] = 2
    """How many connections to the server are used for the node's own work."""
    ddl: bool = True
    """May this process create and drop tables on the server?"""
    tables: Literal["daily", "hourly"] = "daily"
    """The span of time of one table of jobs on the server."""

    @model_validator(mode="after")
    def _a_server_speaks_before_it_is_given_up(self) -> Self:
        for name in ("connect_timeout", "idle_in_transaction", "lock_wait", "silence"):
            if getattr(self, name) > LONGEST_WAIT:
                raise does_not_fit(name, getattr(self, name), f"expected at most {show(LONGEST_WAIT)}")
        if self.silence <= self.lock_wait:
            expected = f"expected longer than lock_wait, which is {show(self.lock_wait)}"
            raise does_not_fit("silence", self.silence, expected)
        return self
