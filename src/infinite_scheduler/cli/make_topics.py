"""Creates topics, and says what was created, what existed, and how that differs."""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from infinite_scheduler.cli.output import Output
from infinite_scheduler.cli.shared_options import SharedOptions
from infinite_scheduler.errors import InvalidRequest
from infinite_scheduler.kafka.admin import Admin
from infinite_scheduler.kafka.options import KafkaOptions
from infinite_scheduler.kafka.topics import PRESETS, Made, WantedTopic, make_topics, preset
from infinite_scheduler.policy.calendar import parse_duration
from infinite_scheduler.store import check_own_url
from infinite_scheduler.views.times import span


def create_topics(
    options: SharedOptions,
    kafka: str | None,
    *,
    preset: str | None,
    names: Sequence[str],
    shape: Mapping[str, int | None],
    retention: str | None,
) -> int:
    """Create the missing topics."""
    wanted = _wanted(preset, names, {**shape, "retention_ms": None if retention is None else _retention(retention)})
    settings = options.settings({"kafka.bootstrap_servers": kafka})
    check_own_url(settings.store.address_url, "topics create")
    _show(asyncio.run(_made(settings.kafka.options(), wanted)), Output(as_json=options.as_json))
    return 0


async def _made(options: KafkaOptions, wanted: Sequence[WantedTopic]) -> Sequence[Made]:
    async with Admin(options) as admin:
        return await make_topics(admin, wanted)


def _wanted(chosen: str | None, names: Sequence[str], shape: Mapping[str, int | None]) -> Sequence[WantedTopic]:
    """The topics of the preset and those given by name, each in the requested shape."""
    if chosen is None and not names:
        raise InvalidRequest(f"say which topics: --preset {' or '.join(PRESETS)}, or --topic NAME")
    topics = [*(preset(chosen) if chosen is not None else ()), *(WantedTopic(name=name) for name in names)]
    for topic in topics:
        if sum(other.name == topic.name for other in topics) > 1:
            raise InvalidRequest(f"topic {topic.name!r} is named twice: leave one of them out")
    given = {name: value for name, value in shape.items() if value is not None}
    return [msgspec.structs.replace(topic, **given) for topic in topics]


def _retention(text: str) -> int:
    retention_ms = parse_duration(text)
    if retention_ms < 1:
        raise InvalidRequest(f"--retention {text} keeps nothing: use a length of time such as 24h or 7d")
    return retention_ms


def _show(topics: Sequence[Made], out: Output) -> None:
    if out.as_json:
        for topic in topics:
            out.record(topic)
        return
    out.table(
        ("topic", "state", "partitions", "replication", "retention", "differs"),
        [
            (
                topic.name,
                "created" if topic.made else "existed",
                topic.partitions,
                topic.replication,
                _kept(topic.retention_ms),
                "; ".join(topic.differs),
            )
            for topic in topics
        ],
        whole=("topic", "state"),
        spare=("replication",),
    )
    if any(topic.differs for topic in topics):
        out.note("existing topics are left as they are: change them with Kafka's own tools")


def _kept(retention_ms: int | None) -> str | None:
    if retention_ms is None:
        return None
    return "forever" if retention_ms < 0 else span(retention_ms)
