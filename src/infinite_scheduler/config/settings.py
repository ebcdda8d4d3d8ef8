"""Every setting, its default and its meaning: one class per table."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, PrivateAttr, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from infinite_scheduler.config.address import DEFAULT_URL, PARTS, effective_url, parts_in
from infinite_scheduler.config.apps import AnyApp
from infinite_scheduler.config.kafka import IngestSettings, KafkaSettings
from infinite_scheduler.config.section import Section
from infinite_scheduler.config.values import (
    AppName,
    Duration,
    FilledText,
    LogLevel,
    NodeId,
    PositiveDuration,
    Size,
    StoreUrl,
    Zone,
    does_not_fit,
    show,
    whole,
)
from infinite_scheduler.store.sql.server.address import CONNECT_TIMEOUT_S, BadPart

LONGEST_WAIT: Final = timedelta(hours=1)

ENV_PREFIX: Final = "INFINITE_SCHEDULER_"


class StoreSettings(Section):
    """Where jobs are stored."""

    url: StoreUrl = Field(default=DEFAULT_URL, repr=False)  # may contain a password
    """Where jobs are stored; a relative SQLite path is relative to the working directory."""
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
    connect_timeout: PositiveDuration = timedelta(seconds=CONNECT_TIMEOUT_S)
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
    shards: Annotated[int, whole(1, 256)] = 16
    """How many shards a new app gets; fixed when the app is created."""
    retention: PositiveDuration = timedelta(days=7)
    """How long settled jobs are kept."""
    idempotency: PositiveDuration = timedelta(hours=24)
    """How long an idempotency key is remembered."""

    @property
    def address_url(self) -> str:
        """The URL of the store: `url`, completed by the settings beside it."""
        given = {name: getattr(self, name) for name in PARTS}
        if "connect_timeout" in self.model_fields_set:
            given["connect_timeout"] = f"{self.connect_timeout.total_seconds():g}"
        return effective_url(self.url if "url" in self.model_fields_set else None, parts_in(given))

    @model_validator(mode="after")
    def _a_server_speaks_before_it_is_given_up(self) -> Self:
        for name in ("idle_in_transaction", "lock_wait", "silence"):
            if getattr(self, name) > LONGEST_WAIT:
                raise does_not_fit(name, getattr(self, name), f"expected at most {show(LONGEST_WAIT)}")
        if self.silence <= self.lock_wait:
            expected = f"expected longer than lock_wait, which is {show(self.lock_wait)}"
            raise does_not_fit("silence", self.silence, expected)
        return self

    @model_validator(mode="after")
    def _names_one_place(self) -> Self:
        try:
            self.address_url  # noqa: B018
        except BadPart as error:
            beside = getattr(self, error.part, None)
            part = error.part if beside is not None or "url" not in self.model_fields_set else "url"
            raise does_not_fit(part, getattr(self, part, None), str(error)) from None
        return self


class NodeSettings(Section):
    """This process and its place in the cluster."""

    id: NodeId | None = None
    """The name of the node in lists and logs."""
    lease: PositiveDuration = timedelta(seconds=10)
    """How long a silent node keeps its shards; at least three heartbeats."""
    heartbeat: PositiveDuration = timedelta(seconds=2)
    """How often the node sends a heartbeat."""
    stop_timeout: Duration = timedelta(seconds=30)
    """How long a stop waits for jobs in flight."""
    clock_limit: PositiveDuration = timedelta(seconds=5)
    """How far the machine's clock may differ from the store's before the node owns nothing."""
    request_poll: PositiveDuration = timedelta(milliseconds=50)
    """How often an owner looks for wakes, cancels and reschedules of other processes."""

    @model_validator(mode="after")
    def _lease_outlives_lost_heartbeats(self) -> Self:
        if self.lease < 3 * self.heartbeat:
            expected = f"expected at least three times heartbeat, which is {show(self.heartbeat)}"
            raise does_not_fit("lease", self.lease, expected)
        return self


class WindowSettings(Section):
    """How far ahead jobs are loaded, and how much memory they may take."""

    lookahead: PositiveDuration = timedelta(seconds=30)
    """How far ahead of now jobs are loaded; longer than `fetch_interval`."""
    fetch_interval: PositiveDuration = timedelta(seconds=25)
    """The longest time between two loads."""
    budget: Size = 64 * 1024 * 1024
    """How many bytes loaded jobs may take, over all apps."""
    page: Annotated[int, whole(1, 1000)] = 1000
    """How many jobs one read of the store returns at most."""

    @model_validator(mode="after")
    def _loads_before_it_runs_dry(self) -> Self:
        if self.lookahead <= self.fetch_interval:
            expected = f"expected longer than fetch_interval, which is {show(self.fetch_interval)}"
            raise does_not_fit("lookahead", self.lookahead, expected)
        return self


class TimeSettings(Section):
    """How times are read."""

    zone: Zone = "UTC"
    """The IANA time zone of times without a zone."""


class LimitSettings(Section):
    """The limits for incoming requests."""

    payload: Size = 1024 * 1024
    """The largest data of one job."""
    batch: Annotated[int, whole(1)] = 10_000
    """How many jobs one request may contain."""


class LogSettings(Section):
    """What the node logs."""

    level: LogLevel = "info"
    """The lowest level that is written."""
    format: Literal["console", "json"] = "console"
    """Lines for people, or one JSON object per line."""
    modules: dict[str, LogLevel] = Field(default={})
    """Other levels for single modules and all below them."""


class Settings(BaseSettings):
    """Everything that can be set; read it with `load_settings`."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,  # it may be a password
    )

    store: StoreSettings = StoreSettings()
    node: NodeSettings = NodeSettings()
    window: WindowSettings = WindowSettings()
    time: TimeSettings = TimeSettings()
    limits: LimitSettings = LimitSettings()
    log: LogSettings = LogSettings()
    kafka: KafkaSettings = KafkaSettings()
    ingest: tuple[IngestSettings, ...] = ()
    apps: dict[AppName, AnyApp] = {}

    _source: Path | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _reads_no_topic_twice(self) -> Self:
        first: dict[tuple[str, str], int] = {}
        for place, table in enumerate(self.ingest):
            if table.enabled and first.setdefault((table.group_id, table.topic), place) != place:
                other = first[table.group_id, table.topic]
                expected = (
                    f"ingest[{other}] reads it in the same group, {show(table.group_id)}: leave out one of the two"
                )
                raise does_not_fit(("ingest", place, "topic"), table.topic, expected)
        return self

    @property
    def source(self) -> Path | None:
        """The file that was read; handler modules are looked up in its folder first."""
        return self._source

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Use no other sources: `load_settings` merges them, and knows where each value came from."""
        return (init_settings,)
