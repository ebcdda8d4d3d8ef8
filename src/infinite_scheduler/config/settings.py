"""Every setting, its default and its meaning: one class per table."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, PrivateAttr, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from infinite_scheduler.config.apps import AnyApp
from infinite_scheduler.config.http_settings import HttpSettings
from infinite_scheduler.config.kafka_settings import IngestSettings, KafkaSettings
from infinite_scheduler.config.section import Section
from infinite_scheduler.config.store_settings import StoreSettings
from infinite_scheduler.config.values import (
    AppName,
    Duration,
    LogLevel,
    NodeId,
    PositiveDuration,
    Size,
    Zone,
    does_not_fit,
    show,
    whole,
)

ENV_PREFIX: Final = "INFINITE_SCHEDULER_"


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
    http: HttpSettings = HttpSettings()
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
