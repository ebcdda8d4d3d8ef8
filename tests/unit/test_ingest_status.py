"""How far topics are read, seen from outside, and setting that by hand."""

from collections.abc import AsyncIterator, Sequence
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from infinite_scheduler.clock import SystemClock
from infinite_scheduler.errors import InvalidRequest, PositionsMoved
from infinite_scheduler.ingest.config import KafkaIngestConfig
from infinite_scheduler.ingest.status import PartitionStatus, Reset, TopicStatus, look, parse_reset, plan_reset
from infinite_scheduler.kafka import admin as admin_module
from infinite_scheduler.kafka.admin import Admin, Group, Member
from infinite_scheduler.store import open_store
from infinite_scheduler.store.inbox import DeadLetter, Inbox, LetterState, Move, Source, TopicPosition, new_letter_id
from tests.services.topics import write

UTC = ZoneInfo("UTC")
GROUP = "readers"


@pytest.fixture
async def inbox() -> AsyncIterator[Inbox]:
    store = open_store("sqlite:///:memory:", SystemClock())
    await store.open()
    yield store.inbox()
    await store.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded broker never answers what it does not know."""
    monkeypatch.setattr(admin_module, "_OPTIONAL_S", 0.2)


def config_of(servers: str, topic: str = "jobs", **more: Any) -> KafkaIngestConfig:
    return KafkaIngestConfig(bootstrap_servers=servers, topic=topic, group_id=GROUP, **{"dlq_topic": None} | more)


async def position(inbox: Inbox, following: int, partition: int = 0, topic_id: str | None = None) -> None:
    source = Source(GROUP, "jobs", partition)
    await inbox.reset([Move(source=source, seen=None, next=following, topic_id=topic_id)])


def seen(status: TopicStatus) -> list[tuple[int | None, int | None, int | None]]:
    return [(each.position, each.end, each.lag) for each in status.partitions]


# Looking


async def test_places_ends_and_lag_are_told_for_each_partition(mock_kafka: str, inbox: Inbox) -> None:
    write(mock_kafka, "jobs", [b"1"] * 5, partition=0)
    write(mock_kafka, "jobs", [b"1"] * 3, partition=2)
    await position(inbox, 2)
    status = await look(config_of(mock_kafka), inbox)
    assert status.ready
    assert seen(status) == [(2, 5, 3), (None, 0, 0), (None, 3, 3), (None, 0, 0)]
    assert status.lag == 6
    assert status.members is None  # this broker does not tell


async def test_a_broker_that_is_away_is_a_problem_and_the_places_are_told_all_the_same(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_module, "TIMEOUT_S", 1000)  # nobody waits for a connection that is refused
    await position(inbox, 2)
    status = await look(config_of("127.0.0.1:1"), inbox)
    assert not status.ready
    assert "127.0.0.1:1" in status.problems[0]
    assert "is it running there?" in status.problems[0]
    assert seen(status) == [(2, None, None)]
    assert (status.lag, status.brokers) == (None, ())


async def test_a_topic_that_does_not_exist_is_a_problem(mock_kafka: str, inbox: Inbox) -> None:
    status = await look(config_of(mock_kafka), inbox)
    assert not status.ready
    assert "topic 'jobs' does not exist" in status.problems[0]
    assert "topics create --topic jobs" in status.problems[0]
    assert status.brokers == [mock_kafka]


async def test_dead_letters_without_their_topic_are_worth_a_note_and_stop_nothing(
    mock_kafka: str, inbox: Inbox
) -> None:
    write(mock_kafka, "jobs", [b"1"])
    letter = DeadLetter(
        id=new_letter_id(1),
        source=Source(GROUP, "jobs", 0),
        offset=0,
        key=None,
        value=None,
        headers=(),
        error="",
        failed_ms=1,
        dlq_topic="dead",
        state=LetterState.UNSENT,
    )
    await inbox.take([], [letter], [])
    status = await look(config_of(mock_kafka, dlq_topic="dead"), inbox)
    assert status.ready
    assert "topic 'dead' does not exist" in status.notes[0]
    assert status.letters == {"unsent": 1}


async def test_a_place_that_the_topic_does_not_have_is_noted(mock_kafka: str, inbox: Inbox) -> None:
    write(mock_kafka, "jobs", [b"1"], partition=0)
    await position(inbox, 9)
    status = await look(config_of(mock_kafka), inbox)
    assert "topic 'jobs' does not have the position of partition 0" in status.notes[0]


@pytest.mark.parametrize(
    ("known", "lag"),
    [
        ({"position": 3, "committed": 9, "earliest": 0, "end": 10}, 7),
        ({"committed": 9, "earliest": 0, "end": 10}, 1),
        ({"earliest": 4, "end": 10}, 6),
        ({"position": 1, "earliest": 4, "end": 10}, 6),
        ({"position": 12, "earliest": 4, "end": 10}, 0),
        ({"position": 12}, None),
    ],
)
def test_lag_counts_what_is_there_and_yet_to_be_read(known: dict[str, int], lag: int | None) -> None:
    assert PartitionStatus(partition=0, **known).lag == lag


@pytest.mark.parametrize(
    ("state", "held", "problem"),
    [
        ("stable", [{"jobs": [0, 1]}, {"jobs": [2, 3]}], None),
        ("stable", [{"jobs": [0, 1]}, {"jobs": [2, 3], "other": [1]}, {}], None),
        ("empty", [], "no node reads topic 'jobs' in the group 'readers': start a node"),
        ("stable", [{"other": [0, 1, 2, 3]}], "in the group 'readers': its member reads other topics, or nothing yet"),
        ("stable", [{"other": [0]}, {}], "in the group 'readers': its 2 members read other topics"),
        ("stable", [{"jobs": [0, 2], "other": [1]}], "no node in the group 'readers' reads partition 1, 3 of topic"),
        ("preparing_rebalancing", [{}], "the group 'readers' is rebalancing"),
    ],
)
async def test_a_topic_is_ready_when_somebody_holds_each_of_its_partitions(
    mock_kafka: str,
    inbox: Inbox,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    held: list[dict[str, list[int]]],
    problem: str | None,
) -> None:
    async def group(self: Admin, name: str) -> Group:
        return Group(state=state, members=[Member(name=f"n{i} of {name}", held=each) for i, each in enumerate(held)])

    monkeypatch.setattr(Admin, "group", group)
    write(mock_kafka, "jobs", [b"1"])
    status = await look(config_of(mock_kafka), inbox)
    if problem is None:
        assert status.ready
    else:
        assert not status.ready
        assert problem in status.problems[0]
    assert status.members == [f"n{i} of readers" for i, each in enumerate(held) if "jobs" in each]


# Setting


@pytest.mark.parametrize(
    ("text", "reset"),
    [
        ("jobs=earliest", Reset("jobs", None, "earliest")),
        ("jobs:3=latest", Reset("jobs", 3, "latest")),
        ("a.b-c_d:0=1200", Reset("a.b-c_d", 0, 1200)),
        ("jobs=2030-01-31T09:00:00Z", Reset("jobs", None, "2030-01-31T09:00:00Z", 1_896_080_400_000)),
        (" jobs = 2030-01-31 09:00 ", Reset("jobs", None, "2030-01-31 09:00", 1_896_080_400_000)),
    ],
)
def test_a_reset_can_be_read(text: str, reset: Reset) -> None:
    assert parse_reset(text, UTC) == reset


@pytest.mark.parametrize("text", ["", "jobs", "=earliest", "jobs=", "jobs:=earliest", "jobs:x=earliest", "jobs:-1=0"])
def test_a_wish_that_names_nothing_is_refused(text: str) -> None:
    with pytest.raises(
        InvalidRequest,
        match=r"cannot read --reset '.*': write TOPIC=WHERE or TOPIC:PARTITION=WHERE; WHERE is earliest, latest,",
    ):
        parse_reset(text, UTC)


@pytest.mark.parametrize("where", ["first", "-1", "1.5", "in 5m", "now", "9" * 19])
def test_a_place_that_is_none_is_refused(where: str) -> None:
    with pytest.raises(InvalidRequest, match="write earliest, latest, an offset such as 1200, or a time"):
        parse_reset(f"jobs={where}", UTC)


async def planned(servers: str, inbox: Inbox, text: str) -> list[tuple[int, int | None, int, int]]:
    async with Admin(config_of(servers).options) as admin:
        changes = await plan_reset(parse_reset(text, UTC), GROUP, inbox, admin)
    return [(each.move.source.partition, each.move.seen, each.move.next, each.again) for each in changes]


async def test_a_reset_is_planned_for_every_partition_that_is_meant(mock_kafka: str, inbox: Inbox) -> None:
    write(mock_kafka, "jobs", [b"1"] * 5, partition=0)
    write(mock_kafka, "jobs", [b"1"] * 3, partition=1)
    await position(inbox, 4)
    everything = await planned(mock_kafka, inbox, "jobs=latest")
    assert everything == [(0, 4, 5, -1), (1, None, 3, -3), (2, None, 0, 0), (3, None, 0, 0)]
    assert await planned(mock_kafka, inbox, "jobs:0=earliest") == [(0, 4, 0, 4)]
    assert await planned(mock_kafka, inbox, "jobs:1=2") == [(1, None, 2, -2)]
    assert await planned(mock_kafka, inbox, "jobs:0=2099-01-01") == [(0, 4, 5, -1)]


async def test_the_end_is_never_before_what_was_read_meanwhile(
    mock_kafka: str, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(mock_kafka, "jobs", [b"1"] * 5, partition=0)
    await position(inbox, 4)
    positions = inbox.positions

    async def moved(*which: str) -> Sequence[TopicPosition]:
        write(mock_kafka, "jobs", [b"1"] * 5, partition=0)
        await inbox.take([], [], [Move(source=Source(GROUP, "jobs", 0), seen=4, next=9)])
        return await positions(*which)

    monkeypatch.setattr(inbox, "positions", moved)
    assert await planned(mock_kafka, inbox, "jobs:0=latest") == [(0, 9, 10, -1)]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("jobs:0=6", "partition 0 of topic 'jobs' has no offset 6: use one from 0 to 5"),
        ("jobs=1", "partition 1 of topic 'jobs' has no offset 1: use one from 0 to 0"),
        ("jobs:7=earliest", "topic 'jobs' has no partition 7: use one from 0 to 3"),
        ("jops=earliest", "topic 'jops' does not exist"),
    ],
)
async def test_a_place_that_is_not_there_is_refused(mock_kafka: str, inbox: Inbox, text: str, why: str) -> None:
    write(mock_kafka, "jobs", [b"1"] * 5, partition=0)
    with pytest.raises(InvalidRequest, match=why):
        await planned(mock_kafka, inbox, text)


async def test_a_plan_is_refused_when_somebody_has_read_on_meanwhile(mock_kafka: str, inbox: Inbox) -> None:
    write(mock_kafka, "jobs", [b"1"] * 5, partition=0)
    await position(inbox, 3)
    async with Admin(config_of(mock_kafka).options) as admin:
        changes = await plan_reset(Reset("jobs", 0, "earliest"), GROUP, inbox, admin)
    await inbox.take([], [], [Move(source=Source(GROUP, "jobs", 0), seen=3, next=4)])
    with pytest.raises(PositionsMoved):
        await inbox.reset([change.move for change in changes])
    assert [each.next for each in await inbox.positions()] == [4]
