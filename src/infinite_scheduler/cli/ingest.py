"""Commands about the topics that bring jobs: whether they are read, how far, and setting that."""

from collections.abc import Sequence
from zoneinfo import ZoneInfo

import msgspec

from infinite_scheduler.cli.cluster import say_what_is_held_back
from infinite_scheduler.cli.confirm import confirmed
from infinite_scheduler.cli.store_session import StoreSession
from infinite_scheduler.doors import Doors
from infinite_scheduler.errors import InvalidRequest, PositionsMoved
from infinite_scheduler.ingest.config import KafkaIngestConfig
from infinite_scheduler.ingest.status import PositionChange, Reset, look, parse_reset, plan_reset
from infinite_scheduler.kafka.admin import Admin
from infinite_scheduler.views.app import app_views, held_back_views
from infinite_scheduler.views.times import ms_of, relative
from infinite_scheduler.views.topic import OffsetView, PartitionView, TopicView, offset_views, reset_view, topic_view

Resets = Sequence[tuple[Reset, KafkaIngestConfig]]

RESET_TRIES = 10
"""How often a reset is tried while other consumers read on."""

NOT_READY = 1
UNCHANGED = 1


def configured(session: StoreSession) -> Sequence[KafkaIngestConfig]:
    """The topics in the configuration, including disabled ones."""
    doors = Doors(session.settings.kafka)
    return [doors.describe(table) for table in session.settings.ingest]


def _chosen(session: StoreSession, topic: str | None, group: str | None) -> Sequence[KafkaIngestConfig]:
    """The chosen topics; a topic given by name need not be configured."""
    configs = [
        config for config in configured(session) if topic in {None, config.topic} and group in {None, config.group_id}
    ]
    if not configs and topic is not None:
        return [_unconfigured(session, topic, group)]
    return configs


def _unconfigured(session: StoreSession, topic: str, group: str | None) -> KafkaIngestConfig:
    options = session.settings.kafka.options()
    config = KafkaIngestConfig(
        bootstrap_servers=options.bootstrap_servers, properties=options.properties, topic=topic, dlq_topic=None
    )
    return config if group is None else msgspec.structs.replace(config, group_id=group)


# Status


async def show_status(session: StoreSession, topic: str | None, group: str | None) -> int:
    """Print the status of each topic; 1 if messages of one of them do not become jobs, or an app is held back."""
    chosen = _chosen(session, topic, group)
    configs = chosen if topic is not None else [config for config in chosen if config.enabled]
    if chosen and not configs:
        names = ", ".join(repr(config.topic) for config in chosen)
        raise InvalidRequest(
            f"the configuration disables all its topics: {names}; set enabled = true, or choose one with --topic NAME"
        )
    if not configs:
        raise InvalidRequest(
            f"the configuration has no topic that is read by group {group!r}: correct --group"
            if group is not None
            else "the configuration has no topics: add [[ingest]] with a topic, or choose one with --topic NAME"
        )
    held_back = held_back_views(app_views(await session.client.survey(), session.now_ms, session.lease_ms))
    found = [topic_view(await look(config, session.client.inbox), held_back) for config in configs]
    for view in found:
        if session.out.as_json:
            session.out.record(view)
        else:
            _print_status(session, view)
    if not session.out.as_json:
        say_what_is_held_back(session, held_back)
    return NOT_READY if held_back or not all(view.ready for view in found) else 0


def _print_status(session: StoreSession, view: TopicView) -> None:
    out = session.out
    out.facts(
        {
            "topic": view.topic,
            "state": "ready" if view.ready else "not ready",
            "group": view.group if view.state is None else f"{view.group}, {view.state}",
            "brokers": ", ".join(view.brokers) or f"none at {view.servers}",
            "read by": _members(view),
            "lag": None if view.lag is None else f"{view.lag:,}",
            "dead letters": ", ".join(f"{count:,} {state}" for state, count in view.dead_letters.items()),
            "their topic": view.dlq_topic,
        }
    )
    if view.partitions:
        out.table(
            ("partition", "position", "committed", "earliest", "end", "lag", "moved"),
            [_row(partition, session.now_ms) for partition in view.partitions],
            whole=("partition", "position", "lag"),
            spare=("moved", "earliest", "committed"),
        )
    for problem in view.problems:
        out.say(f"Not ready: {problem}", style="bold red")
    for note in view.notes:
        out.say(f"- {note}")
    out.say("")


def _members(view: TopicView) -> str | None:
    members = view.members
    if members is None:
        return None if view.problems else "unknown: these brokers do not say"
    return ", ".join(sorted({f"{name} ({count})" if (count := members.count(name)) > 1 else name for name in members}))


def _row(partition: PartitionView | OffsetView, now_ms: int) -> Sequence[object]:
    numbers = (partition.position, partition.committed, partition.earliest, partition.end, partition.lag)
    moved = None if partition.moved_at is None else relative(ms_of(partition.moved_at), now_ms)
    return (partition.partition, *("-" if number is None else f"{number:,}" for number in numbers), moved)


# Offsets


async def list_offsets(session: StoreSession, topic: str | None, group: str | None) -> None:
    """Print how far every partition is read."""
    configs = {(config.group_id, config.topic): config for config in _chosen(session, topic, group)}
    for position in await session.client.inbox.positions(group, topic):
        key = (position.source.group, position.source.topic)
        if key not in configs:
            configs[key] = _unconfigured(session, key[1], key[0])
    found = [topic_view(await look(config, session.client.inbox)) for _, config in sorted(configs.items())]
    rows = [row for view in found for row in offset_views(view)]
    if session.out.as_json:
        for row in rows:
            session.out.record(row)
    elif rows:
        session.out.table(
            ("group", "topic", "partition", "position", "committed", "earliest", "end", "lag", "moved"),
            [(row.group, row.topic, *_row(row, session.now_ms)) for row in rows],
            whole=("topic", "partition", "position", "lag"),
            spare=("moved", "earliest", "committed", "group"),
        )
    else:
        session.out.note("nothing has been read from a topic yet")
    for view in found:
        for text in (*(problem for problem in view.problems if not view.brokers), *view.notes):
            session.out.note(text)


async def reset_offsets(
    session: StoreSession, texts: Sequence[str], topic: str | None, group: str | None, *, yes: bool
) -> int:
    """Set positions: all that were requested, or none if other consumers are faster each time."""
    if topic is not None:
        raise InvalidRequest("--topic cannot be combined with --reset, which names its topics itself: leave it out")
    zone = ZoneInfo(session.settings.time.zone)
    resets = [(reset, await _reader(session, reset, group)) for reset in [parse_reset(text, zone) for text in texts]]
    changes = await _planned(session, resets)
    sources = [change.move.source for change in changes]
    for source in sources:
        if sources.count(source) > 1:
            raise InvalidRequest(
                f"partition {source.partition} of topic {source.topic!r} is reset twice: leave one of them out"
            )
    if not _is_confirmed(session, changes, yes=yes):
        session.out.note("nothing was changed")
        return UNCHANGED
    _print_changes(session, await _moved(session, resets, changes))
    return 0


async def _planned(session: StoreSession, resets: Resets) -> list[PositionChange]:
    changes: list[PositionChange] = []
    for reset, config in resets:
        async with Admin(config.options) as admin:
            changes += await plan_reset(reset, config.group_id, session.client.inbox, admin)
    return changes


async def _moved(session: StoreSession, resets: Resets, changes: Sequence[PositionChange]) -> Sequence[PositionChange]:
    """Set the positions; while a topic is being read they move, and then the reset is planned again."""
    for left in reversed(range(RESET_TRIES)):
        try:
            await session.client.inbox.reset([change.move for change in changes])
        except PositionsMoved as error:
            if not left:
                raise PositionsMoved(
                    f"{error}; nothing was changed: stop the nodes of the group, or try again"
                ) from None
            changes = await _planned(session, resets)
        else:
            break
    return changes


async def _reader(session: StoreSession, reset: Reset, group: str | None) -> KafkaIngestConfig:
    """The group that reads the topic: as configured, or as the store remembers it."""
    configs = [config for config in configured(session) if config.topic == reset.topic]
    groups = {config.group_id for config in configs}
    if not groups:
        groups = {position.source.group for position in await session.client.inbox.positions(topic=reset.topic)}
    if group is not None:
        groups = {group}
    if len(groups) != 1:
        which = f"the groups {', '.join(sorted(groups))} read it" if groups else "no group has read it yet"
        raise InvalidRequest(
            f"it is not clear which group to reset for topic {reset.topic!r}, {which}: add --group NAME"
        )
    (name,) = groups
    known = next((config for config in configs if config.group_id == name), None)
    return known or _unconfigured(session, reset.topic, name)


def _is_confirmed(session: StoreSession, changes: Sequence[PositionChange], *, yes: bool) -> bool:
    if yes:
        return True
    _print_plan(session, changes)
    return confirmed("Do it?", "nothing was changed: add --yes to do this without being asked")


def _print_plan(session: StoreSession, changes: Sequence[PositionChange]) -> None:
    for change in changes:
        source, again = change.move.source, change.again
        effect = "nothing changes" if again == 0 else f"{_count(again)} will be read again"
        if again < 0:
            effect = f"{_count(-again)} will be skipped"
        seen = "nowhere" if change.move.seen is None else f"{change.move.seen:,}"
        where = f"{source.topic}:{source.partition} of group {source.group}"
        session.out.note(f"{where}: from {seen} to {change.move.next:,}: {effect}")
    if any(change.again > 0 for change in changes):
        session.out.note(
            "messages that are read again become jobs again, unless their idempotency key is still remembered",
            style="yellow",
        )


def _count(messages: int) -> str:
    return "1 message" if messages == 1 else f"{messages:,} messages"


def _print_changes(session: StoreSession, changes: Sequence[PositionChange]) -> None:
    for change in changes:
        view = reset_view(change)
        if session.out.as_json:
            session.out.record(view)
        else:
            session.out.say(f"{view.topic}:{view.partition} of group {view.group} continues at {view.to:,}")
