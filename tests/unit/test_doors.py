"""The doors of a node: opened when the engine runs, closed before it stops, and no trouble of theirs holds it up."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from infinite_scheduler import Job, KafkaIngestConfig, Scheduler
from infinite_scheduler.errors import ConfigError, InvalidPayload, InvalidRequest
from infinite_scheduler.handlers.base import Handler
from infinite_scheduler.ingest import door as real
from infinite_scheduler.observe.events import Event, TaskFailed
from infinite_scheduler.store.inbox import Inbox

SETTINGS: Mapping[str, Any] = {"store.url": "sqlite:///:memory:", "store.shards": 1, "time.zone": "Asia/Dhaka"}


class Door:
    """A door that opens and closes as the test wants."""

    made: list["Door"]

    def __init__(
        self,
        config: KafkaIngestConfig,
        inbox: Inbox,
        handlers: Mapping[str, Handler],
        clock: object,
        tell: object,
        *,
        max_payload: int,
        zone: ZoneInfo,
        saturation: Callable[[], float],
    ) -> None:
        self.config, self.inbox, self.handlers = config, inbox, handlers
        self.max_payload, self.zone, self.saturation = max_payload, zone, saturation
        self.is_running = self.ready = False
        self.lag = {0: 7, 1: None}
        self.metrics = {"idempotencyCacheSize": 3}
        Door.made.append(self)

    def start(self) -> None:
        if self.config.topic == "broken":
            raise ConfigError("no such property")
        self.is_running = self.ready = True

    async def stop(self) -> None:
        if self.config.topic == "stuck":
            await asyncio.Event().wait()
        if self.config.topic == "torn":
            raise RuntimeError("a bug")
        self.is_running = self.ready = False


@pytest.fixture(autouse=True)
def doors(monkeypatch: pytest.MonkeyPatch) -> list[Door]:
    Door.made = []
    monkeypatch.setattr(real, "TopicDoor", Door)
    return Door.made


def node(*topics: str, settings: Mapping[str, Any] | None = None, told: list[Event] | None = None) -> Scheduler:
    observers = [] if told is None else [told.append]
    scheduler = Scheduler(settings={**SETTINGS, **(settings or {})}, observers=observers)

    @scheduler.app("sms", required=["to"])
    async def take(job: Job) -> None: ...

    for topic in topics:
        scheduler.with_kafka_ingest(KafkaIngestConfig(topic=topic))
    return scheduler


async def test_doors_are_opened_after_the_engine_and_closed_before_it(
    doors: list[Door], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = node("one", "two")
    order: list[str] = []
    start, stop = scheduler_engine_methods(order)
    monkeypatch.setattr("infinite_scheduler.engine.pipeline.Engine.start", start)
    monkeypatch.setattr("infinite_scheduler.engine.pipeline.Engine.stop", stop)
    await scheduler.start()
    assert order == ["engine starts with 0 doors open"]
    assert [door.is_running for door in doors] == [True, True]
    assert await scheduler.stop()
    assert order[1:] == ["engine stops with 0 doors open"]


def scheduler_engine_methods(order: list[str]) -> tuple[Any, Any]:
    from infinite_scheduler.engine.pipeline import Engine

    start, stop = Engine.start, Engine.stop

    async def noted_start(engine: Engine) -> None:
        order.append(f"engine starts with {sum(door.is_running for door in Door.made)} doors open")
        await start(engine)

    async def noted_stop(engine: Engine) -> bool:
        order.append(f"engine stops with {sum(door.is_running for door in Door.made)} doors open")
        return await stop(engine)

    return noted_start, noted_stop


async def test_a_door_is_told_what_it_needs(doors: list[Door]) -> None:
    async with node("one", settings={"limits.payload": 99}) as scheduler:
        (door,) = doors
        assert scheduler.doors[0] is door  # type: ignore[comparison-overlap]  # it stands in for a real one
        assert [config.topic for config in scheduler.ingests] == ["one"]
        assert (door.max_payload, door.zone) == (99, ZoneInfo("Asia/Dhaka"))
        assert list(door.handlers) == ["sms"]
        assert await door.inbox.positions() == []
        with pytest.raises(InvalidPayload, match="to is required in jobData"):
            door.handlers["sms"].check({})


async def test_a_door_hears_how_far_its_node_is_behind(doors: list[Door], monkeypatch: pytest.MonkeyPatch) -> None:
    async with node("one"):
        assert doors[0].saturation() < 1
        monkeypatch.setattr("infinite_scheduler.engine.lane.Lane.saturation", 3.0)
        assert doors[0].saturation() == 3
    assert doors[0].saturation() == 0


async def test_what_doors_do_can_be_seen(doors: list[Door]) -> None:
    async with node("one", "two") as scheduler:
        gauges = scheduler.counters.snapshot()["gauges"]
        assert gauges["ingest_ready"] == 2
        group = "infinite-scheduler-ingest"
        assert gauges["ingest_lag"] == {
            f"{group}/one/0": 7,
            f"{group}/one/1": None,
            f"{group}/two/0": 7,
            f"{group}/two/1": None,
        }
    assert scheduler.counters.snapshot()["gauges"]["ingest_ready"] == 0


async def test_a_node_without_topics_has_no_doors(doors: list[Door]) -> None:
    async with node() as scheduler:
        assert (doors, scheduler.doors, scheduler.ingests) == ([], (), ())
        assert "ingest_lag" not in scheduler.counters.snapshot()["gauges"]


async def test_a_door_that_cannot_be_opened_fails_the_start_and_leaves_nothing(doors: list[Door]) -> None:
    scheduler = node("one", "broken")
    with pytest.raises(ConfigError, match="no such property"):
        await scheduler.start()
    assert not doors[0].is_running
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert await scheduler.stop()


@pytest.mark.parametrize(
    ("topic", "error"),
    [("stuck", "a door did not close: TimeoutError"), ("torn", "a door did not close: RuntimeError")],
)
async def test_a_door_that_does_not_shut_keeps_nobody_from_stopping(doors: list[Door], topic: str, error: str) -> None:
    told: list[Event] = []
    settings = {"node.stop_timeout": 0, "node.heartbeat": "50ms"}
    scheduler = node(topic, "good", settings=settings, told=told)
    await scheduler.start()
    assert not await scheduler.stop()
    assert [event.error.partition(": ")[0] for event in told if isinstance(event, TaskFailed)] == [
        "a door did not close"
    ]
    assert any(isinstance(event, TaskFailed) and event.error.startswith(error) for event in told)
    assert not doors[1].is_running
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_each_start_has_new_doors(doors: list[Door]) -> None:
    scheduler = node("one")
    for count in (1, 2):
        await scheduler.start()
        assert len(doors) == count
        with pytest.raises(InvalidRequest, match="before it starts"):
            scheduler.with_kafka_ingest()
        await scheduler.stop()


async def test_tables_of_the_settings_are_doors_too(doors: list[Door]) -> None:
    tables = [{"topic": "one", "zone": "Europe/Berlin"}, {"topic": "two", "bootstrap_servers": "k:2"}]
    settings = {"ingest": tables, "kafka": {"bootstrap_servers": "k:1", "properties": {"socket.timeout.ms": 5}}}
    async with node("three", settings=settings):
        assert [door.config for door in doors] == [
            KafkaIngestConfig(bootstrap_servers="k:1", topic="one", zone="Europe/Berlin", properties=SHARED),
            KafkaIngestConfig(bootstrap_servers="k:2", topic="two", properties=SHARED),
            KafkaIngestConfig(bootstrap_servers="localhost:9092", topic="three", properties=SHARED),
        ]


SHARED = {"socket.timeout.ms": 5}
