"""Every setting, its default and its meaning: one class a table."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, PrivateAttr, Tag, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from infinite_scheduler.config.address import DEFAULT_URL, PARTS, effective_url, parts_in
from infinite_scheduler.config.values import (
    AppName,
    Delays,
    Duration,
    ExceptionName,
    FilledText,
    Function,
    Handler,
    LogLevel,
    MisfireWord,
    NodeId,
    PositiveDuration,
    Size,
    StoreUrl,
    Zone,
    does_not_fit,
    real,
    show,
    whole,
)
from infinite_scheduler.store.sql.server.address import CONNECT_TIMEOUT_S, BadPart

ENV_PREFIX: Final = "INFINITE_SCHEDULER_"


class Section(BaseModel):
    """One table of the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True)


class StoreSettings(Section):
    """Where jobs wait."""

    url: StoreUrl = Field(default=DEFAULT_URL, repr=False)  # may carry a password
    """The durable home of jobs; a relative SQLite path is relative to the working directory."""
    kind: Literal["mariadb", "mysql", "postgresql"] | None = None
    """Which database server is meant, where `url` does not say it."""
    host: FilledText | None = None
    """The server's name or number, or the path of its Unix socket."""
    port: Annotated[int, whole(1, 65535)] | None = None
    """The server's port."""
    database: FilledText | None = None
    """The database on the server."""
    user: FilledText | None = None
    """Who logs in."""
    password: str | None = Field(default=None, repr=False)
    """The password of the user."""
    sslmode: Literal["disable", "prefer", "require", "verify-ca", "verify-full"] | None = None
    """How much TLS is asked of the server."""
    sslrootcert: FilledText | None = None
    """The certificate authorities that may vouch for the server: a PEM file, or "system"."""
    sslcert: FilledText | None = None
    """The certificate by which the user is known: a PEM file."""
    sslkey: FilledText | None = None
    """The key of that certificate: a PEM file."""
    connect_timeout: PositiveDuration = timedelta(seconds=CONNECT_TIMEOUT_S)
    """How long a connection to the server may take to come about."""
    connections: Annotated[int, whole(1, 100)] = 2
    """How many connections to the server all that comes in may use at once."""
    lanes: Annotated[int, whole(1, 4)] = 2
    """How many connections to the server the node's own work is spread over."""
    ddl: bool = True
    """May this process make and drop tables on the server?"""
    tables: Literal["daily", "hourly"] = "daily"
    """What span of time one table of jobs on the server is for."""
    shards: Annotated[int, whole(1, 256)] = 16
    """How many shards a new app gets; fixed when the app is made."""
    retention: PositiveDuration = timedelta(days=7)
    """How long settled jobs are kept."""
    idempotency: PositiveDuration = timedelta(hours=24)
    """How long an idempotency key is remembered."""

    @property
    def address_url(self) -> str:
        """Where the store is: `url`, with what it leaves open filled in by the settings beside it."""
        given = {name: getattr(self, name) for name in PARTS}
        if "connect_timeout" in self.model_fields_set:
            given["connect_timeout"] = f"{self.connect_timeout.total_seconds():g}"
        return effective_url(self.url if "url" in self.model_fields_set else None, parts_in(given))

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
    """This process among the others."""

    id: NodeId | None = None
    """The name of the node in lists and logs."""
    lease: PositiveDuration = timedelta(seconds=10)
    """How long a silent node keeps its shards; at least three heartbeats."""
    heartbeat: PositiveDuration = timedelta(seconds=2)
    """How often the node says that it is alive."""
    stop_timeout: Duration = timedelta(seconds=30)
    """How long a stop waits for jobs in flight."""
    clock_limit: PositiveDuration = timedelta(seconds=5)
    """How far the machine's clock may be from the store's before the node owns nothing."""
    request_poll: PositiveDuration = timedelta(milliseconds=50)
    """How often an owner looks for wakes, cancels and reschedules of others."""

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
    """How many jobs one read of the store brings at most."""

    @model_validator(mode="after")
    def _loads_before_it_runs_dry(self) -> Self:
        if self.lookahead <= self.fetch_interval:
            expected = f"expected longer than fetch_interval, which is {show(self.fetch_interval)}"
            raise does_not_fit("lookahead", self.lookahead, expected)
        return self


class TimeSettings(Section):
    """How moments are read."""

    zone: Zone = "UTC"
    """The IANA time zone of a moment that names none."""


class LimitSettings(Section):
    """What a door accepts at most."""

    payload: Size = 1024 * 1024
    """The size of one job's data."""
    batch: Annotated[int, whole(1)] = 10_000
    """How many jobs one request may bring."""


class LogSettings(Section):
    """What the node tells people."""

    level: LogLevel = "info"
    """The least weighty line that is written."""
    format: Literal["console", "json"] = "console"
    """Lines for people, or one JSON object a line."""
    modules: dict[str, LogLevel] = {}
    """Other levels for single modules and all below them."""


class RetrySettings(Section):
    """When a failed delivery is tried again: after listed delays, or after ones that grow."""

    delays: Delays | None = None
    """The waits before the second, third, … attempt, instead of growing ones; the last one repeats."""
    initial: PositiveDuration = timedelta(seconds=1)
    """The wait before the second attempt."""
    factor: Annotated[float, real(1)] = 2.0
    """How many times longer each further wait is."""
    maximum: PositiveDuration = timedelta(hours=1)
    """The longest wait."""
    jitter: Annotated[float, real(0, 1)] = 0.1
    """Each wait is longer by up to this part of it, so that jobs that failed together come back apart."""
    max_attempts: Annotated[int, whole(1)] = 6
    """How many deliveries are tried before the job fails."""
    count_from: Literal["attempt", "creation"] = "attempt"
    """Waits count from the last attempt, or from the creation of the job."""
    floor: Duration = timedelta(milliseconds=100)
    """The least time between the end of an attempt and the next one, after a downtime too."""
    retry_on: tuple[ExceptionName, ...] = ()
    """The only exceptions that are tried again; empty means all."""
    give_up_on: tuple[ExceptionName, ...] = ()
    """Exceptions that are never tried again."""

    @model_validator(mode="after")
    def _waits_make_sense(self) -> Self:
        growing = [name for name in ("initial", "factor", "maximum") if name in self.model_fields_set]
        if self.delays is not None and growing:
            raise does_not_fit("delays", self.delays, f"expected either delays or {', '.join(growing)}, not both")
        if self.delays is not None and self.count_from == "creation" and list(self.delays) != sorted(self.delays):
            raise does_not_fit("delays", self.delays, 'expected ascending delays, as count_from is "creation"')
        if self.maximum < self.initial:
            raise does_not_fit("maximum", self.maximum, f"expected at least initial, which is {show(self.initial)}")
        return self


class ExpireAfter(Section):
    """Too late is too late: a job later than this is not handed over."""

    expire_after: PositiveDuration
    """How late a job may be and still be handed over."""


def _misfire_shape(value: object) -> str:
    return "<table>" if isinstance(value, Mapping | ExpireAfter) else "<word>"


class AppSettings(Section):
    """One app: what happens at the moment, and what happens when that goes wrong."""

    handler: Handler = "python"
    """The kind of hand-over."""
    function: Function
    """The function that takes the job, as "module:name"."""
    batch: Annotated[int, whole(1)] | None = None
    """Hand over a list of at most this many jobs."""
    pool: Literal["thread", "process"] | None = None
    """Where a function that is not async runs: in threads, or in processes for heavy computing."""
    retry: RetrySettings = RetrySettings()
    """When a failed delivery is tried again."""
    misfire: Annotated[
        Annotated[MisfireWord, Tag("<word>")] | Annotated[ExpireAfter, Tag("<table>")], Discriminator(_misfire_shape)
    ] = "fire_now"
    """What happens to a job that comes too late."""
    misfire_threshold: Duration = timedelta(seconds=60)
    """How late a job may be before it is skipped, where `misfire` is "skip"."""
    concurrency: Annotated[int, whole(1)] = 20
    """How many deliveries run at once on one node."""
    timeout: PositiveDuration = timedelta(seconds=30)
    """How long one delivery may take."""
    shards: Annotated[int, whole(1, 256)] | None = None
    """How many shards the app gets when it is made, instead of `store.shards`."""


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
    apps: dict[AppName, AppSettings] = {}

    _source: Path | None = PrivateAttr(default=None)

    @property
    def source(self) -> Path | None:
        """The file that was read; its folder is the first place where handler modules are looked up."""
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
        """Take nothing from the surroundings: `load_settings` merges them, and can say what came from where."""
        return (init_settings,)
