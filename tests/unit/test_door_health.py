"""What a topic door looks after between two gatherings, and what it tells of it."""

from collections.abc import Callable
from typing import Any

import pytest

from infinite_scheduler.errors import StoreUnavailable
from infinite_scheduler.ingest.config import KafkaIngestConfig
from infinite_scheduler.ingest.door_health import KEYS_MS, PROBE_MS, WATCH_MS, WELL_MS, DoorHealth
from infinite_scheduler.kafka.partition import AssignedPartition, Partition
from infinite_scheduler.observe import events
from infinite_scheduler.testing import ManualClock
from tests.unit.door_rig import parts_of


class DoorHealthRig:
    """Everything around the health of a door, set by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.told: list[events.Event] = []
        self.calls: list[str] = []
        self.problem: str | None = None
        self.joined = True
        self.held: dict[Partition, AssignedPartition] = {}
        self.topic_id: str | None = "one"
        self.keys: int | Exception = 0
        config = KafkaIngestConfig(topic="jobs")
        self.health = DoorHealth(parts_of(self, config, clock=self.clock, tell=self.told.append, topic_id=self._id))

    async def look(self, after_ms: int = 0) -> None:
        self.clock.advance(after_ms)
        await self.health.look()
        if self.health._check is not None:
            await self.health._check

    async def call(self, what: Callable[[], Any]) -> Any:
        return what()

    def hold(self, *numbers: int) -> None:
        partitions = [Partition("jobs", number) for number in numbers]
        self.held = {partition: AssignedPartition(partition) for partition in partitions}

    def probe(self) -> None:
        self.calls.append("probe")

    def note_ends(self) -> None:
        self.calls.append("measure")

    def reopen(self) -> None:
        self.calls.append("reopen")

    async def live_keys(self) -> int:
        if isinstance(self.keys, Exception):
            raise self.keys
        return self.keys

    async def _id(self) -> str | None:
        return self.topic_id

    def heard(self, kind: type[events.Event]) -> int:
        return sum(isinstance(event, kind) for event in self.told)


@pytest.fixture
def rig() -> DoorHealthRig:
    return DoorHealthRig()


async def test_what_is_wrong_is_told_once_and_looked_into_until_it_is_gone(rig: DoorHealthRig) -> None:
    rig.problem = "no broker"
    for _ in range(5):
        await rig.look(PROBE_MS)
    assert [event for event in rig.told if isinstance(event, events.TopicAway)] == [
        events.TopicAway(topic="jobs", error="no broker")
    ]
    assert rig.calls.count("probe") == 5
    rig.problem = None
    await rig.look(1)
    assert rig.heard(events.TopicBack) == 0
    await rig.look(WELL_MS)
    assert rig.heard(events.TopicBack) == 1


async def test_a_broker_that_stumbles_when_it_starts_is_not_told_again(rig: DoorHealthRig) -> None:
    for problem in ("no broker", None, "no leader", None, "no leader", None):
        rig.problem = problem
        await rig.look(WELL_MS - 1)
    await rig.look(WELL_MS)
    assert (rig.heard(events.TopicAway), rig.heard(events.TopicBack)) == (1, 1)


async def test_a_node_that_does_not_join_in_time_is_looked_into(rig: DoorHealthRig) -> None:
    rig.joined = False
    await rig.look(PROBE_MS - 1)
    assert "probe" not in rig.calls
    await rig.look(1)
    assert "probe" in rig.calls


async def test_partitions_are_told_when_they_change(rig: DoorHealthRig) -> None:
    for numbers in ((), (0, 1), (1, 0), (1,)):
        rig.hold(*numbers)
        await rig.look()
    assert [event.partitions for event in rig.told if isinstance(event, events.PartitionsHeld)] == [(0, 1), (1,)]


async def test_keys_are_counted_every_minute_and_an_error_changes_nothing(rig: DoorHealthRig) -> None:
    rig.keys = 5
    await rig.look()
    assert rig.health.live_keys == 5
    rig.keys = StoreUnavailable("away")
    await rig.look(KEYS_MS)
    assert (rig.health.live_keys, rig.heard(events.TaskFailed)) == (5, 0)


@pytest.mark.parametrize(
    ("before", "now", "anew"), [("one", "two", True), ("one", "one", False), (None, "two", False), ("one", None, False)]
)
async def test_another_topic_of_the_same_name_is_read_by_a_new_client(
    rig: DoorHealthRig, before: str | None, now: str | None, anew: bool
) -> None:
    rig.hold(0)
    for assigned in rig.held.values():
        assigned.topic_id = before
    rig.topic_id = now
    await rig.look()  # the keys come first
    await rig.look(WATCH_MS)
    assert ("reopen" in rig.calls) is anew
