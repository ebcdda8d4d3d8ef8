"""How far topics are read, whether they can be read, and how to set positions by hand: a topic door for operators."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from infinite_scheduler.errors import BrokerUnavailable, InvalidRequest, InvalidTime
from infinite_scheduler.ingest.config import KafkaIngestConfig
from infinite_scheduler.kafka.admin import Admin, Group, TopicInfo
from infinite_scheduler.policy.calendar import parse_moment
from infinite_scheduler.store.inbox import Inbox, Move, Source, TopicPosition

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

_RESET: Final = re.compile(r"(?P<topic>[^:=]+)(?::(?P<partition>[0-9]{1,9}))?=(?P<where>.+)", re.DOTALL)
_EXPECTED: Final = "TOPIC=WHERE or TOPIC:PARTITION=WHERE; WHERE is earliest, latest, an offset or a time"


class PartitionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How far one partition is read: by the store, by Kafka, and what the topic has. None: not known, or none yet."""

    partition: int
    position: int | None = None  # the store's, which counts
    moved_ms: int | None = None
    committed: int | None = None
    earliest: int | None = None
    end: int | None = None

    @property
    def next(self) -> int | None:
        """The offset that is read next, if known."""
        return self.committed if self.position is None else self.position

    @property
    def lag(self) -> int | None:
        """How many messages are still to be read."""
        if self.end is None or self.earliest is None:
            return None
        return max(0, self.end - max(self.next or 0, self.earliest))


class TopicStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A topic, the group that reads it, and what prevents reading."""

    topic: str
    group: str
    servers: str
    dlq_topic: str | None = None
    brokers: Sequence[str] = ()
    state: str | None = None  # of the group
    members: Sequence[str] | None = None  # the nodes with partitions of it; None: the brokers do not say
    partitions: Sequence[PartitionStatus] = ()
    letters: Mapping[str, int] = {}  # dead letters by state
    problems: Sequence[str] = ()
    notes: Sequence[str] = ()

    @property
    def ready(self) -> bool:
        """Do messages of this topic become jobs?"""
        return not self.problems

    @property
    def lag(self) -> int | None:
        """How many messages are still to be read, in all partitions."""
        lags = [partition.lag for partition in self.partitions]
        known = [lag for lag in lags if lag is not None]
        return sum(known) if known and len(known) == len(lags) else None


async def look(config: KafkaIngestConfig, inbox: Inbox) -> TopicStatus:
    """Look at a topic from outside, in the store and at the brokers. That no broker answers is part of the result."""
    positions = {
        position.source.partition: position for position in await inbox.positions(config.group_id, config.topic)
    }
    counts = await inbox.letter_counts()
    disabled = "this configuration has enabled = false for it: nodes that use it do not read it"
    status = TopicStatus(
        topic=config.topic,
        group=config.group_id,
        servers=config.bootstrap_servers,
        dlq_topic=config.dlq_topic,
        partitions=[_partition(partition, positions) for partition in sorted(positions)],
        letters={state: count for (topic, state), count in sorted(counts.items()) if topic == config.topic},
        notes=() if config.enabled else (disabled,),
    )
    try:
        async with Admin(config.options) as admin:
            return await _ask_brokers(admin, status, positions)
    except BrokerUnavailable as error:
        return msgspec.structs.replace(status, problems=[str(error)])


async def _ask_brokers(admin: Admin, status: TopicStatus, positions: Mapping[int, TopicPosition]) -> TopicStatus:
    topic, group = status.topic, status.group
    names = [topic, status.dlq_topic] if status.dlq_topic else [topic]
    found = await admin.overview(names)
    problems, notes = _missing(found.topics, status)
    info = found.topics.get(topic)
    if info is None or problems:
        return msgspec.structs.replace(status, brokers=found.brokers, problems=problems, notes=notes)
    bounds = await admin.bounds(topic, info.partitions)
    committed = await admin.committed(group, topic, info.partitions)
    readers = await admin.group(group)
    if readers is not None:
        problems += _unread(topic, group, info.partitions, readers)
    topic_id = await admin.topic_id(topic)
    partitions = [_partition(each, positions, bounds.get(each), committed.get(each)) for each in info.partitions]
    return msgspec.structs.replace(
        status,
        brokers=found.brokers,
        state=None if readers is None else readers.state,
        members=None if readers is None else readers.readers(topic),
        partitions=partitions,
        problems=problems,
        notes=[*notes, *_oddities(topic, partitions, positions, topic_id)],
    )


def _missing(topics: Mapping[str, TopicInfo], status: TopicStatus) -> tuple[list[str], list[str]]:
    """What is wrong with the topic, and with the topic of its dead letters, which are safe in the store meanwhile."""
    problems: list[str] = []
    notes = list(status.notes)
    for name, told in ((status.topic, problems), (status.dlq_topic, notes)):
        if name is None:
            continue
        info = topics.get(name)
        if info is None:
            command = f"infinite-scheduler topics create --topic {name}"
            told.append(
                f"topic {name!r} does not exist on {status.servers}: create it ({command}), or correct its name"
            )
        elif info.problem is not None:
            told.append(info.problem)
    return problems, notes


def _unread(topic: str, group: str, partitions: Sequence[int], readers: Group) -> list[str]:
    """Partitions that no node reads: their messages wait, whatever other members the group has."""
    left = [partition for partition in partitions if partition not in readers.held(topic)]
    if not left:
        return []
    if "rebalanc" in readers.state:
        return [f"the group {group!r} is rebalancing: look again in a few seconds"]
    start = "start a node (infinite-scheduler serve)"
    if not readers.members:
        return [f"no node reads topic {topic!r} in the group {group!r}: {start}"]
    if len(left) == len(partitions):
        others = "its member reads" if len(readers.members) == 1 else f"its {len(readers.members)} members read"
        first = f"no node reads topic {topic!r} in the group {group!r}: {others} other topics, or nothing yet"
        return [f"{first}; {start} whose configuration names this topic"]
    numbers = ", ".join(str(partition) for partition in left)
    return [f"no node in the group {group!r} reads partition {numbers} of topic {topic!r}: look again in a few seconds"]


def _oddities(
    topic: str, partitions: Sequence[PartitionStatus], positions: Mapping[int, TopicPosition], topic_id: str | None
) -> list[str]:
    """What people should know although it prevents nothing."""
    notes = []
    former = {position.topic_id for position in positions.values()} - {None, topic_id}
    if topic_id is not None and former:
        notes.append(f"topic {topic!r} was created again since it was last read: a node begins at its earliest offset")
    elif lost := [each for each in partitions if _is_lost(each)]:
        numbers = ", ".join(str(each.partition) for each in lost)
        notes.append(
            f"topic {topic!r} does not have the position of partition {numbers}: a node goes on at the earliest offset"
        )
    return notes


def _is_lost(partition: PartitionStatus) -> bool:
    if partition.position is None or partition.earliest is None or partition.end is None:
        return False
    return not partition.earliest <= partition.position <= partition.end


def _partition(
    partition: int,
    positions: Mapping[int, TopicPosition],
    bounds: tuple[int, int] | None = None,
    committed: int | None = None,
) -> PartitionStatus:
    position = positions.get(partition)
    return PartitionStatus(
        partition=partition,
        position=None if position is None else position.next,
        moved_ms=None if position is None else position.moved_ms,
        committed=committed,
        earliest=None if bounds is None else bounds[0],
        end=None if bounds is None else bounds[1],
    )


# By hand


class Reset(NamedTuple):
    """A request to read a topic from somewhere else: earliest, latest, an offset, or the first message at a time."""

    topic: str
    partition: int | None  # None: all of them
    where: str | int
    at_ms: int | None = None


class PositionChange(NamedTuple):
    """What a reset would do to one partition."""

    move: Move
    earliest: int
    end: int

    @property
    def again(self) -> int:
        """How many messages are read again; negative: how many are skipped."""
        seen = self.earliest if self.move.seen is None else min(max(self.move.seen, self.earliest), self.end)
        return seen - self.move.next


def parse_reset(text: str, zone: ZoneInfo) -> Reset:
    """Read a request such as `SMS_Retry:3=earliest`, or raise InvalidRequest."""
    found = _RESET.fullmatch(text.strip())
    if found is None:
        raise InvalidRequest(f"cannot read --reset {text!r}: write {_EXPECTED}")
    topic, where = found["topic"].strip(), found["where"].strip()
    partition = None if found["partition"] is None else int(found["partition"])
    if where in {EARLIEST, LATEST}:
        return Reset(topic, partition, where)
    if re.fullmatch("[0-9]{1,18}", where):
        return Reset(topic, partition, int(where))
    try:
        return Reset(topic, partition, where, parse_moment(where, now_ms=None, zone=zone))
    except InvalidTime:
        raise InvalidRequest(
            f"cannot read --reset {text!r}: {where!r} is not a position; write earliest, latest, an offset such as "
            "1200, or a time such as 2030-01-31T09:00:00Z"
        ) from None


async def plan_reset(reset: Reset, group: str, inbox: Inbox, admin: Admin) -> Sequence[PositionChange]:
    """What has to change for this reset; nothing is changed yet, and `inbox.reset` notices if the plan is outdated."""
    info = (await admin.overview([reset.topic])).topics.get(reset.topic)
    if info is None:
        raise InvalidRequest(f"topic {reset.topic!r} does not exist: correct its name")
    if info.problem is not None:
        raise BrokerUnavailable(info.problem)
    if reset.partition is not None and reset.partition not in info.partitions:
        last = max(info.partitions)
        raise InvalidRequest(f"topic {reset.topic!r} has no partition {reset.partition}: use one from 0 to {last}")
    wanted = info.partitions if reset.partition is None else [reset.partition]
    bounds = await admin.bounds(reset.topic, wanted)
    topic_id = await admin.topic_id(reset.topic)
    at = {} if reset.at_ms is None else await admin.offsets_at(reset.topic, wanted, reset.at_ms)
    # Positions come last: the sooner they are compared, the fewer plans are outdated.
    positions = {position.source.partition: position for position in await inbox.positions(group, reset.topic)}
    if any(partition in positions and positions[partition].next > bounds[partition][1] for partition in wanted):
        bounds = await admin.bounds(reset.topic, wanted)  # a node read on, beyond the end that was seen
    return [
        PositionChange(
            Move(
                source=Source(group, reset.topic, partition),
                seen=positions[partition].next if partition in positions else None,
                next=_aim(reset, partition, bounds[partition], at.get(partition)),
                topic_id=topic_id,
            ),
            *bounds[partition],
        )
        for partition in wanted
    ]


def _aim(reset: Reset, partition: int, bounds: tuple[int, int], at: int | None) -> int:
    """The offset that the reset means."""
    earliest, end = bounds
    if reset.at_ms is not None:
        return end if at is None else at
    if reset.where == EARLIEST:
        return earliest
    if reset.where == LATEST:
        return end
    offset = int(reset.where)
    if not earliest <= offset <= end:
        raise InvalidRequest(
            f"partition {partition} of topic {reset.topic!r} has no offset {offset}: use one from {earliest} to {end}"
        )
    return offset
