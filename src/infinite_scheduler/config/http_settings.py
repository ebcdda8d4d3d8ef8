"""The settings of the HTTP server: where it listens, who may come in, and how much of everything it allows."""

from datetime import timedelta
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from infinite_scheduler.config.section import Section
from infinite_scheduler.config.values import (
    FilledText,
    PositiveDuration,
    RootPath,
    TokenName,
    TokenText,
    does_not_fit,
    whole,
)


class TokenSettings(Section):
    """One token that is given by the configuration; others are kept in the store."""

    token: TokenText = Field(repr=False)
    """The token itself: at least 16 characters, best random ones. It is never shown."""
    role: Literal["read", "submit", "operate"] = "read"
    """What its holder may do: look, also accept and change jobs by id, or also hold back apps and nodes."""


class HttpSettings(Section):
    """The HTTP server of a node, or of `infinite-scheduler http`."""

    enabled: bool = True
    """Does a node answer HTTP requests?"""
    host: FilledText = "127.0.0.1"
    """The address to listen on."""
    port: Annotated[int, whole(0, 65_535)] = 7070
    """The port to listen on; 0: any free one."""
    root_path: RootPath = ""
    """A path in front of all others, for a proxy."""
    hosts: tuple[FilledText, ...] = ()
    """Names besides localhost under which a server on loopback answers."""
    certificate: FilledText | None = None
    """The certificate of the server, for TLS: a PEM file."""
    key: FilledText | None = None
    """The key of that certificate: a PEM file."""
    queue: Annotated[int, whole(1)] = 50_000
    """How many jobs may wait for a commit before more are refused."""
    connections: Annotated[int, whole(1)] = 1000
    """How many connections may be open at once."""
    streams: Annotated[int, whole(1)] = 200
    """How many event streams may be open at once."""
    body_timeout: PositiveDuration = timedelta(seconds=30)
    """How long the body of a request may take to arrive."""
    herd: Annotated[int, whole(1)] = 5000
    """A second in which more jobs of an app are due is a herd, which the forecast names."""
    overdue_alarm: PositiveDuration = timedelta(minutes=1)
    """A job that is overdue for longer is an alarm."""
    payloads: Literal["shown", "operators", "hidden"] = "shown"
    """Who sees the data of jobs."""
    session: PositiveDuration = timedelta(hours=12)
    """How long a page stays logged in."""
    metrics: Literal["token", "open"] = "token"
    """Who may read `/metrics`: the holder of a token, or everyone."""
    tokens: dict[TokenName, TokenSettings] = Field(default={})
    """Tokens that are given here, by their names."""

    @model_validator(mode="after")
    def _has_a_certificate_for_its_key(self) -> Self:
        if self.key is not None and self.certificate is None:
            raise does_not_fit("key", self.key, "has no effect without certificate: set both, or neither")
        return self
