"""The topics that systems of this kind use, and how they are created: existing ones are left as they are."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from infinite_scheduler.errors import InvalidRequest
from infinite_scheduler.kafka.admin import Admin, TopicInfo
from infinite_scheduler.kafka.names import EXPECTED, is_topic

RETENTION: Final = "retention.ms"
DAY_MS: Final = 86_400_000
MOST_REPLICAS: Final = 3
"""The most replicas of a message by default."""


class WantedTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic to be created; None leaves a value to the brokers."""

    name: str
    partitions: int | None = None
    replication: int | None = None  # None: as many as there are brokers, at most three
    retention_ms: int | None = None

    def __post_init__(self) -> None:
        if not is_topic(self.name):
            raise InvalidRequest(f"{self.name!r} is not a valid topic name: expected {EXPECTED}")


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that exists now: created, or found, with its differences from what was wanted."""

    name: str
    made: bool
    partitions: int
    replication: int
    retention_ms: int | None
    differs: Sequence[str] = ()


PRESETS: Final[Mapping[str, Sequence[WantedTopic]]] = {
    "sms-retry": (
        WantedTopic(name="SMS_Retry", partitions=6),
        WantedTopic(name="SMS_Send", partitions=6),
        WantedTopic(name="SMS_Retry_DLQ", partitions=3),
    ),
    "ingest": (
        WantedTopic(name="scheduler.jobs.ingest", partitions=12, retention_ms=DAY_MS),
        WantedTopic(name="scheduler.jobs.dlq", partitions=3),
    ),
}
"""The topics of each documented system."""


def preset(name: str) -> Sequence[WantedTopic]:
    """The topics of a documented system."""
    try:
        return PRESETS[name]
    except KeyError:
        raise InvalidRequest(f"unknown preset {name!r}: use {' or '.join(PRESETS)}") from None


async def make_topics(admin: Admin, wanted: Sequence[WantedTopic]) -> Sequence[Made]:
    """Create the missing topics, after a check that all of them can be created."""
    names = [topic.name for topic in wanted]
    found = await admin.overview(names)
    brokers = len(found.brokers)
    for topic in wanted:
        if (topic.replication or 1) > brokers:
            have = "is 1 broker" if brokers == 1 else f"are {brokers} brokers"
            raise InvalidRequest(f"{topic.replication} replicas need as many brokers, but there {have}: ask for fewer")
    made: set[str] = set()
    for topic in wanted:
        if topic.name not in found.topics and await _make(admin, topic, min(MOST_REPLICAS, brokers)):
            made.add(topic.name)
    found = await admin.overview(names)
    return [await _report(admin, topic, found.topics, is_new=topic.name in made) for topic in wanted]


async def _make(admin: Admin, topic: WantedTopic, replication: int) -> bool:
    settings = {} if topic.retention_ms is None else {RETENTION: str(topic.retention_ms)}
    return await admin.create(topic.name, topic.partitions or -1, topic.replication or replication, settings)


async def _report(admin: Admin, topic: WantedTopic, found: Mapping[str, TopicInfo], *, is_new: bool) -> Made:
    info = found.get(topic.name, TopicInfo())
    retention = (await admin.settings(topic.name)).get(RETENTION)
    there = Made(
        name=topic.name,
        made=is_new,
        partitions=len(info.partitions),
        replication=info.replication,
        retention_ms=None if retention is None else int(retention),
    )
    return there if is_new else msgspec.structs.replace(there, differs=_differences(topic, there))


def _differences(wanted: WantedTopic, there: Made) -> Sequence[str]:
    pairs = (
        ("partitions", there.partitions, wanted.partitions),
        ("replication", there.replication, wanted.replication),
        (RETENTION, there.retention_ms, wanted.retention_ms),
    )
    return [f"{name} is {is_} and not {asked}" for name, is_, asked in pairs if asked is not None and is_ != asked]
