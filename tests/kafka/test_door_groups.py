"""Several doors of one group: whatever moves between them, each message becomes one job."""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from infinite_scheduler.ingest.door import TopicDoor
from infinite_scheduler.observe import events
from tests.kafka.topic_rig import TopicRig, message, messages
from tests.services.topics import delete_topics, make_topic, read
from tests.unit.test_message import Deaf
from tests.waiting import until_async


async def share(*doors: TopicDoor) -> None:
    """Wait until the doors have the six partitions among them."""
    await until_async(
        lambda: all(door.ready and door.lag for door in doors) and sum(len(door.lag) for door in doors) == 6
    )


async def test_two_doors_share_the_partitions(real: TopicRig) -> None:
    one = await real.started()
    two = await real.started()
    await share(one, two)
    await real.send(messages(range(200)))
    await real.has(range(200))
    await until_async(lambda: one.metrics["messagesReceived"] + two.metrics["messagesReceived"] == 200)
    assert one.metrics["messagesReceived"]
    assert two.metrics["messagesReceived"]


async def test_doors_of_one_group_read_different_topics(real: TopicRig) -> None:
    other = f"{real.topic}-other"
    await asyncio.to_thread(make_topic, real.servers, other)
    try:
        here, there = await real.started(), await real.started(topic=other)
        await until_async(lambda: len(here.lag) == 6 and len(there.lag) == 1)
        await real.send(messages(range(20)))
        await real.send(messages(range(20, 30)), topic=other)
        await real.has(range(30))
        await until_async(lambda: (here.metrics["messagesReceived"], there.metrics["messagesReceived"]) == (20, 10))
    finally:
        await asyncio.to_thread(delete_topics, real.servers, other)


async def test_one_that_leaves_is_replaced_by_the_other(real: TopicRig) -> None:
    one, two = await real.started(), await real.started()
    await share(one, two)
    await one.stop()
    await until_async(lambda: len(two.lag) == 6)
    await real.send(messages(range(50)))
    await real.has(range(50))
    assert not real.heard(events.PositionDiffers)
    assert not real.heard(events.PositionsOvertaken)


async def test_two_doors_send_letters_that_have_waited_for_their_topic_once(
    real: TopicRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infinite_scheduler.ingest.dead_letters.LEFT_MS", 300)
    monkeypatch.setattr("infinite_scheduler.ingest.dead_letters.LOOK_MS", 100)
    real.dlq_topic = f"{real.dlq_topic}-later"
    soon = {"topic.metadata.propagation.max.ms": 500}  # until it is said to be missing
    one, two = await real.started(properties=soon), await real.started(properties=soon)
    await share(one, two)
    for partition in range(6):
        await real.send([f"bad {partition}.{number}" for number in range(5)], partition=partition)
    await until_async(lambda: len(real.heard(events.DeadLettersWait)) >= 2)
    await asyncio.to_thread(make_topic, real.servers, real.dlq_topic)
    try:
        await until_async(lambda: one.metrics["messagesSentToDLQ"] + two.metrics["messagesSentToDLQ"] == 30)
        assert one.metrics["messagesSentToDLQ"]
        assert two.metrics["messagesSentToDLQ"]
        found = await asyncio.to_thread(read, real.servers, real.dlq_topic)
        assert len(found) == len({record.value for record in found}) == 30
    finally:
        await asyncio.to_thread(delete_topics, real.servers, real.dlq_topic)


async def test_joins_and_leaves_under_load_lose_and_repeat_nothing(real: TopicRig) -> None:
    total, steps = 6000, 12
    forgotten = {"session.timeout.ms": 2000}  # so soon the group does without one that left before it had joined
    doors = [await real.started(properties=forgotten)]
    dice = random.Random(5)
    for step in range(steps):
        begin = step * total // steps
        await real.send(messages(range(begin, begin + total // steps)))
        if len(doors) < 3 and dice.random() < 0.6:
            doors.append(real.door(properties=forgotten))
            doors[-1].start()
        elif len(doors) > 1:
            await doors.pop(dice.randrange(len(doors))).stop()
        await asyncio.sleep(0.1)
    await real.has(range(total), within_s=40)
    assert not await real.letters()


class Slow(Deaf):
    """Cannot look at the data for a while."""

    checks = True

    def __init__(self) -> None:
        self.able = False

    def check(self, data: Any) -> None:
        if not self.able:
            raise ConnectionError("not yet")


async def test_what_was_gathered_of_a_partition_that_is_gone_is_dropped(
    real: TopicRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infinite_scheduler.kafka.consumer_thread.LIVELY_S", 0.05)
    slow = Slow()
    one = await real.started(handlers={"sms": slow}, max_retries=10)
    for partition in range(6):
        await real.send(messages(range(100 * partition, 100 * partition + 100)), partition=partition)
    await until_async(lambda: real.heard(events.ChecksFailing))  # the first door has gathered, and waits
    two = real.door()
    two.start()
    await until_async(lambda: two.metrics["messagesReceived"] >= 200)  # the second has some of its partitions
    slow.able = True
    one._thread._nap.set()  # it waits longer each time: too long for this test
    await real.has(range(600))
    await share(one, two)
    assert not real.heard(events.PositionsOvertaken)


async def test_two_that_take_the_same_messages_make_each_job_once(
    real: TopicRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infinite_scheduler.kafka.consumer_thread.LIVELY_S", 0.2)
    one = await real.started()
    real.inbox.gate = gate = asyncio.Event()
    for partition in range(6):
        await real.send(messages(range(100 * partition, 100 * partition + 100)), partition=partition)
    await until_async(lambda: real.inbox.waiting)  # the first door is in the middle of its take
    real.inbox.gate = None
    two = real.door()
    two.start()
    await until_async(lambda: two.metrics["messagesReceived"] > 0)  # and the second takes the same messages
    gate.set()
    await real.has(range(600))
    await share(one, two)
    assert real.numbers() == Counter(range(600))


async def test_a_door_that_does_not_know_that_it_lost_its_partitions_writes_nothing(real: TopicRig) -> None:
    """Its membership ends while it waits for the store: what it asks for then meets places that have moved."""
    one = await real.started(properties={"session.timeout.ms": 2000})
    real.inbox.gate = gate = asyncio.Event()
    await real.send(messages(range(100)))
    await until_async(lambda: real.inbox.waiting)
    real.inbox.gate = None
    one._consumer.stay = lambda: None  # type: ignore[method-assign]  # frozen
    one._client.consumer.unsubscribe()
    two = await real.started()
    await until_async(lambda: two.metrics["messagesReceived"] == 100, within_s=30)
    gate.set()
    await until_async(lambda: real.heard(events.PositionsOvertaken))
    await real.has(range(100))
    assert one.metrics["messagesReceived"] == 0


async def test_a_key_is_one_job_across_two_doors(real: TopicRig) -> None:
    one, two = await real.started(), await real.started()
    await share(one, two)
    for partition in range(6):
        await real.send([message(1, idempotencyKey="same")], partition=partition)
    await until_async(lambda: one.metrics["messagesReceived"] + two.metrics["messagesReceived"] == 6)
    assert real.numbers() == Counter([1])
    assert one.metrics["duplicatesSkipped"] + two.metrics["duplicatesSkipped"] == 5


@pytest.mark.parametrize("given", [False, True], ids=["until it begins", "until partitions are given"])
async def test_a_store_that_is_away_during_a_rebalance_costs_nothing(
    real: TopicRig, monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    monkeypatch.setattr("infinite_scheduler.kafka.consumer_thread.LIVELY_S", 0.2)
    one = await real.started()
    await real.send(messages(range(300)))
    await real.has(range(300))
    real.inbox.away = True
    await real.send(messages(range(300, 900)))
    two = real.door()
    two.start()
    await until_async(lambda: real.heard(events.IngestPaused) and (two.lag or not given))
    real.inbox.away = False
    await real.has(range(900))
    await share(one, two)
    assert not await real.letters()


async def test_more_doors_than_partitions_are_all_ready(real: TopicRig) -> None:
    doors = [real.door() for _ in range(7)]
    for door in doors:
        door.start()
    await until_async(lambda: all(door.ready for door in doors), within_s=40)
    await real.send(messages(range(60)))
    await real.has(range(60))
    await until_async(lambda: all(door.ready for door in doors))
    assert not await real.letters()
