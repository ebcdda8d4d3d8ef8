"""The doors of one node: the topics that bring jobs, opened after the engine and closed before it."""

# ruff: noqa: PLC0415 - what speaks to Kafka is loaded when a topic is to be read

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import msgspec

from infinite_scheduler.clock import Clock
from infinite_scheduler.config import IngestSettings, KafkaSettings
from infinite_scheduler.errors import ConfigError
from infinite_scheduler.handlers.base import Handler
from infinite_scheduler.observe.events import Observer, TaskFailed
from infinite_scheduler.observe.readings import TopicReading
from infinite_scheduler.store.inbox import Inbox

if TYPE_CHECKING:
    from infinite_scheduler.ingest.config import KafkaIngestConfig
    from infinite_scheduler.ingest.door import TopicDoor
    from infinite_scheduler.ingest.throttle import Saturation


class Doors:
    """The topics that a node reads, concurrently; each has a door of its own.

    A door without a broker waits for one, and does not delay the others.
    """

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka
        self._configs: list[KafkaIngestConfig] = []
        self.open: Sequence[TopicDoor] = ()
        """The doors of the last start; still available after a stop."""

    @property
    def configs(self) -> "Sequence[KafkaIngestConfig]":
        """The topics to be read."""
        return tuple(self._configs)

    def describe(self, table: IngestSettings) -> "KafkaIngestConfig":
        """A topic as configured in the settings, enabled or not."""
        from infinite_scheduler.ingest.config import KafkaIngestConfig

        values: dict[str, Any] = dict(table)
        values["bootstrap_servers"] = table.bootstrap_servers or self._kafka.bootstrap_servers
        return self._completed(KafkaIngestConfig(**values))

    def configure(self, table: IngestSettings) -> None:
        """Read a topic as configured in the settings."""
        self.add(self.describe(table))

    def add(self, config: "KafkaIngestConfig | str | None" = None, topic: str | None = None) -> None:
        """Read one more topic: a whole configuration, or brokers and a topic, or nothing for the defaults."""
        from infinite_scheduler.ingest.config import KafkaIngestConfig

        if isinstance(config, KafkaIngestConfig):
            if topic is not None:
                raise ConfigError("give either a KafkaIngestConfig or bootstrap servers and a topic, not both")
        elif isinstance(config, str | None):
            servers = self._kafka.bootstrap_servers if config is None else config
            config = KafkaIngestConfig(bootstrap_servers=servers)
            if topic is not None:
                config = msgspec.structs.replace(config, topic=topic)
        else:
            raise ConfigError(f"{config!r} is not a KafkaIngestConfig and does not name bootstrap servers")
        if not config.enabled:
            return
        config = self._completed(config)
        if any((config.group_id, config.topic) == (other.group_id, other.topic) for other in self._configs):
            raise ConfigError(
                f"topic {config.topic!r} is already read in the group {config.group_id!r}: "
                "a group reads a topic once per node; use another topic or group_id"
            )
        self._configs.append(config)

    def _completed(self, config: "KafkaIngestConfig") -> "KafkaIngestConfig":
        shared = self._kafka.options().properties
        return msgspec.structs.replace(config, properties={**shared, **config.properties})

    # Life

    def make(
        self,
        inbox: Inbox,
        handlers: Mapping[str, Handler],
        clock: Clock,
        tell: Observer,
        *,
        max_payload: int,
        zone: ZoneInfo,
        saturation: "Saturation",
    ) -> None:
        """Create the doors, all closed: errors in their configuration are raised here."""
        self.open = ()
        if not self._configs:
            return
        from infinite_scheduler.ingest.door import TopicDoor

        self._tell = tell
        self.open = [
            TopicDoor(config, inbox, handlers, clock, tell, max_payload=max_payload, zone=zone, saturation=saturation)
            for config in self._configs
        ]

    def start(self) -> None:
        """Open the doors, and return at once."""
        for door in self.open:
            door.start()

    async def stop(self, within_s: float) -> bool:
        """Close all doors at once. False: one of them did not close in good order."""
        ends = await asyncio.gather(*(self._shut(door, within_s) for door in self.open))
        return all(ends)

    async def _shut(self, door: "TopicDoor", within_s: float) -> bool:
        try:
            async with asyncio.timeout(within_s):
                await door.stop()
        except Exception as error:  # noqa: BLE001 - a stuck door must not keep the engine from settling
            self._tell(TaskFailed(part="ingest", error=f"a door did not close: {type(error).__name__}: {error}"))
            return False
        return True

    # For observers

    def lag(self) -> Mapping[str, int | None]:
        """How many messages wait in each partition that this node reads, by group, topic and partition.

        None: that is not known yet.
        """
        return {
            f"{door.config.group_id}/{door.config.topic}/{partition}": lag
            for door in self.open
            for partition, lag in door.lag.items()
        }

    def readings(self) -> Sequence[TopicReading]:
        """Each topic that this node reads, now."""
        return [
            TopicReading(
                topic=door.config.topic,
                group=door.config.group_id,
                ready=door.ready,
                lag=door.lag,
                keys=door.metrics["idempotencyCacheSize"],
            )
            for door in self.open
        ]

    def ready(self) -> int:
        """How many doors can read and take messages at the moment."""
        return sum(door.ready for door in self.open)
