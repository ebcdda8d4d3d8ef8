"""The topic door on a real broker: everything that is read becomes exactly one job, or a dead letter."""

import asyncio
import json
import threading
import time
from collections import Counter
from typing import Any

import pytest

from infinite_scheduler.errors import ConfigError, InvalidPayload
from infinite_scheduler.observe import events
from infinite_scheduler.store.inbox import LetterState, Move, Source
from tests.kafka.topic_rig import TopicRig, message, messages
from tests.services.topics import grow_topic, read
from tests.unit.test_message import Deaf
from tests.waiting import PATIENCE_S, until_async

BAD: dict[str, tuple[bytes | None, str]] = {
    "not JSON": (b"foobar", "is not valid JSON"),
    "not UTF-8": (b'{"appName": "\xff"}', "not UTF-8"),
    "another shape": (b"[1, 2]", "not an object"),
    "no value": (None, "has no value"),
    "no app": (b'{"scheduledTime": "2035-01-01"}', "appName is required"),
    "no time": (b'{"appName": "sms"}', "scheduledTime is required"),
    "unknown app": (message(0, app="nope").encode(), "unknown app 'nope'; known apps: mail, sms"),
    "unreadable time": (message(0, scheduledTime="soon").encode(), "'soon' is not a time"),
    "wrong type": (message(0, priority=7).encode(), "priority 7 is unknown"),
    "deep": (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "nested"),
    "data is no object": (message(0, jobData=[1]).encode(), "jobData is not an object"),
}


async def test_messages_become_jobs(real: TopicRig) -> None:
    await real.send(messages(range(100)))
    door = await real.started()
    await real.send(messages(range(100, 300)))
    await real.has(range(300))
    await until_async(lambda: door.metrics["messagesReceived"] == 300)
    assert door.metrics == {
        "messagesReceived": 300,
        "messagesProcessed": 300,
        "messagesFailed": 0,
        "messagesSentToDLQ": 0,
        "idempotencyCacheSize": 0,
        "duplicatesSkipped": 0,
    }
    assert sum((await real.positions()).values()) == 300


async def test_job_data_is_kept_byte_for_byte(real: TopicRig) -> None:
    data = b'{ "n" : 9007199254740993,  "m": 1.10, "text":"\xc3\xa9\\u00e9" }'
    await real.send([b'{"appName":"sms","scheduledTime":"2035-01-01 10:00:00","jobData":' + data + b"}"])
    await real.started()
    await real.has([9007199254740993])
    (record,) = [found async for found in real._client.find_all("sms")]
    assert record.job.payload == data
    assert record.job.scheduled_time.isoformat() == "2035-01-01T10:00:00+00:00"


async def test_a_time_without_a_zone_is_one_in_the_zone_of_the_topic(real: TopicRig) -> None:
    await real.send([message(1, scheduledTime="2035-01-01T10:00:00")])
    await real.started(zone="Asia/Dhaka")
    await real.has([1])
    (record,) = [found async for found in real._client.find_all("sms")]
    assert record.job.scheduled_time.isoformat() == "2035-01-01T04:00:00+00:00"


class TestDeadLetters:
    async def test_each_bad_message_becomes_one_and_the_others_go_on(self, real: TopicRig) -> None:
        values: list[bytes | str | None] = []
        for number, (value, _) in enumerate(BAD.values()):
            values += [message(number), value]
        for partition in (0, 5):
            await real.send(values, key=b"\x00\xff binary", partition=partition, headers=[("trace", b"t1")])
            values = [value for _, (value, _) in BAD.items()]
        door = await real.started()
        await real.has(range(len(BAD)))
        await until_async(lambda: door.metrics["messagesSentToDLQ"] == 2 * len(BAD))
        letters = {(each.source.partition, each.offset): each for each in await real.letters()}
        for number, (value, why) in enumerate(BAD.values()):
            for position in ((0, 2 * number + 1), (5, number)):
                assert letters[position].value == value
                assert why in letters[position].error
                assert letters[position].state is LetterState.SENT
        assert door.metrics["messagesFailed"] == 2 * len(BAD)

    async def test_their_records_have_key_value_and_five_headers(self, real: TopicRig) -> None:
        before_ms = time.time() * 1000
        await real.send([None], key=b"k1", partition=5, headers=[("trace", b"t1"), ("error-message", b"older")])
        await real.started()
        (record,) = await asyncio.to_thread(read, real.servers, real.dlq_topic or "", 1)
        assert (record.key, record.value) == (b"k1", None)
        headers = dict(record.headers)
        assert len(headers) == len(record.headers)
        assert headers.pop("trace") == b"t1"
        assert before_ms - 1 <= int(headers.pop("error-timestamp") or 0) <= time.time() * 1000
        assert headers.pop("error-message", b"").startswith(b"the message has no value")  # type: ignore[union-attr]
        assert headers == {
            "original-topic": real.topic.encode(),
            "original-partition": b"5",
            "original-offset": b"0",
        }

    async def test_those_of_six_partitions_fit_into_three(self, real: TopicRig) -> None:
        for partition in range(6):
            await real.send([f"bad {partition} {number}" for number in range(20)], partition=partition)
        await real.started()
        found = await asyncio.to_thread(read, real.servers, real.dlq_topic or "", 120)
        assert {record.value for record in found} == {f"bad {p} {n}".encode() for p in range(6) for n in range(20)}
        assert {record.partition for record in found} <= {0, 1, 2}

    async def test_without_a_topic_they_are_kept_in_the_store(self, real: TopicRig) -> None:
        await real.send(["bad"])
        door = await real.started(dlq_topic=None)
        await until_async(lambda: door.metrics["messagesFailed"] == 1)
        (letter,) = await real.letters()
        assert (letter.state, letter.dlq_topic, letter.value) == (LetterState.KEPT, None, b"bad")
        assert door.metrics["messagesSentToDLQ"] == 0

    async def test_what_another_node_left_unsent_is_sent(self, real: TopicRig, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("infinite_scheduler.ingest.dead_letters.LEFT_MS", 0)
        await real.send(["bad"])
        door = real.door()
        door._letters.add = lambda letters: None  # type: ignore[method-assign]  # it dies before it has sent them
        door._taker._send = door._letters.add
        door._letters.start = lambda: None  # type: ignore[method-assign]
        door.start()
        await until_async(lambda: door.metrics["messagesFailed"] == 1)
        await door.stop()
        assert [letter.state for letter in await real.letters()] == [LetterState.UNSENT]
        other = await real.started()
        await until_async(lambda: other.metrics["messagesSentToDLQ"] == 1)
        assert len(await asyncio.to_thread(read, real.servers, real.dlq_topic or "", 1)) == 1
        assert [letter.state for letter in await real.letters()] == [LetterState.SENT]

    async def test_one_that_the_topic_refuses_for_its_size_stays_in_the_store(
        self, real: TopicRig, fresh_topic: Any
    ) -> None:
        small = fresh_topic("small", partitions=1, **{"max.message.bytes": "20000"})
        await real.send([b"x" * 60_000, b"bad"])
        door = await real.started(dlq_topic=small)
        await until_async(lambda: door.metrics["messagesSentToDLQ"] == 1)
        await until_async(lambda: real.heard(events.DeadLettersRefused))
        letters = {letter.value: letter for letter in await real.letters()}
        assert letters[b"bad"].state is LetterState.SENT
        assert letters[b"x" * 60_000].state is LetterState.REFUSED
        assert "too large" in str(letters[b"x" * 60_000].note)

    async def test_one_without_a_key_holds_up_no_other_on_a_compacted_topic(
        self, real: TopicRig, fresh_topic: Any
    ) -> None:
        compacted = fresh_topic("compacted", partitions=1, **{"cleanup.policy": "compact"})
        for number in range(20):
            await real.send([f"keyless {number}"], partition=0)
            await real.send([f"keyed {number}"], partition=0, key=b"%d" % number)
        door = await real.started(dlq_topic=compacted)
        await until_async(lambda: door.metrics["messagesSentToDLQ"] == 20)
        await until_async(lambda: sum(event.count for event in real.heard(events.DeadLettersRefused)) == 20)
        found = await asyncio.to_thread(read, real.servers, compacted, 20)
        assert {record.value for record in found} == {b"keyed %d" % number for number in range(20)}
        for letter in await real.letters():
            assert letter.state is (LetterState.REFUSED if letter.key is None else LetterState.SENT)
            assert letter.key is not None or "every message needs a key" in str(letter.note)
        assert not real.heard(events.DeadLettersWait)
        await real.send(["later"], partition=0, key=b"later")
        await until_async(lambda: door.metrics["messagesSentToDLQ"] == 21)

    async def test_a_topic_that_is_missing_is_told_once_and_used_when_it_is_there(
        self, real: TopicRig, kafka_servers: str
    ) -> None:
        from tests.services.topics import make_topic

        later = f"{real.topic}-later"
        await real.send(["bad 1", message(1)])
        door = await real.started(dlq_topic=later, properties={"topic.metadata.propagation.max.ms": 500})
        await until_async(lambda: real.heard(events.DeadLettersWait), within_s=30)
        await real.send(["bad 2", message(2)])
        await real.has([1, 2])
        await asyncio.to_thread(make_topic, kafka_servers, later)
        await until_async(lambda: door.metrics["messagesSentToDLQ"] == 2, within_s=40)
        assert len(real.heard(events.DeadLettersWait)) == 1


class Shaky(Deaf):
    """Cannot look at the data a few times."""

    checks = True

    def __init__(self, times: int) -> None:
        self.times = times
        self.asked: list[float] = []

    def check(self, data: Any) -> None:
        if data["n"] == 13:
            self.asked.append(time.monotonic())
            if len(self.asked) <= self.times:
                raise ConnectionError("the directory does not answer")
        if data["n"] == 7:
            raise InvalidPayload("seven is not taken")


class TestPassingErrors:
    async def test_a_check_that_fails_is_tried_again_after_200_400_800_ms(self, real: TopicRig) -> None:
        shaky = Shaky(times=3)
        await real.send(messages([12, 13, 14]), partition=2)
        door = await real.started(handlers={"sms": shaky})
        await real.has([12, 13, 14])
        waits = [after - before for before, after in zip(shaky.asked, shaky.asked[1:], strict=False)]
        assert all(wait >= least for wait, least in zip(waits, [0.2, 0.4, 0.8], strict=True))
        assert [event.wait_ms for event in real.heard(events.ChecksFailing)] == [200, 400, 800]
        await until_async(lambda: door.metrics["messagesProcessed"] == 3)
        assert door.metrics["messagesFailed"] == 0

    async def test_one_that_fails_always_becomes_a_dead_letter(self, real: TopicRig) -> None:
        shaky = Shaky(times=99)
        await real.send(messages([12, 13, 14, 7]), partition=2)
        door = await real.started(handlers={"sms": shaky}, max_retries=1)
        await real.has([12, 14])
        await until_async(lambda: door.metrics["messagesFailed"] == 2)
        assert [letter.error for letter in await real.letters()] == [
            "ConnectionError: the directory does not answer",
            "seven is not taken",
        ]
        assert len(shaky.asked) == 2

    @pytest.mark.parametrize(
        "raised", [SystemExit(3), asyncio.CancelledError()], ids=lambda raised: type(raised).__name__
    )
    async def test_a_check_that_would_end_the_process_costs_its_message_only(
        self, real: TopicRig, raised: BaseException
    ) -> None:
        class Leaving(Deaf):
            checks = True

            def check(self, data: Any) -> None:
                if data["n"] == 1:
                    raise raised

        await real.send(messages(range(3)), partition=2)
        door = await real.started(handlers={"sms": Leaving()}, max_retries=1)
        await real.has([0, 2])
        (letter,) = await real.letters()
        assert f"the handler raised {'asyncio.' * (type(raised) is asyncio.CancelledError)}" in letter.error
        assert door.is_running

    async def test_a_check_that_hangs_is_told_and_keeps_no_process_from_ending(
        self, real: TopicRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("infinite_scheduler.ingest.door.HANGS_MS", 300)
        monkeypatch.setattr("infinite_scheduler.kafka.consumer_thread.LOOK_MS", 100)
        released, workers = threading.Event(), []

        class Hanging(Deaf):
            checks = True

            def check(self, data: Any) -> None:
                workers.append(threading.current_thread())
                released.wait()

        await real.send(messages([1]), partition=2)
        door = real.door(handlers={"sms": Hanging()})
        door.start()
        try:
            await until_async(lambda: real.heard(events.CheckHangs))
            assert door.problem == "the check of app 'sms' does not return"
            assert all(worker.daemon for worker in workers)
            await asyncio.sleep(0.5)
        finally:
            released.set()
        await until_async(lambda: door.ready)
        assert [event.app for event in real.heard(events.CheckHangs)] == ["sms"]
        await real.has([1])

    async def test_a_door_whose_task_ends_begins_again(self, real: TopicRig) -> None:
        door = await real.started()
        await real.send(messages([1]), partition=2)
        await real.has([1])
        assert door._task is not None
        door._task.cancel()
        await until_async(lambda: real.heard(events.TaskFailed))
        await real.send(messages([2]), partition=2)
        await real.has([1, 2])
        assert [event.part for event in real.heard(events.TaskFailed)] == [f"topic door of {real.topic}"]

    async def test_what_lies_behind_a_part_that_fails_is_read_again(
        self, real: TopicRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            "infinite_scheduler.ingest.door.parts",
            lambda gathered, most_bytes: iter([gathered[start : start + 10] for start in range(0, len(gathered), 10)]),
        )
        await real.send(messages(range(100)), partition=2)
        await real.send(messages(range(100, 200)), partition=3)
        real.inbox.lost_answers = 1
        door = real.door()
        gather, seen = door._consumer.gather, 0

        def gather_all() -> Any:
            nonlocal seen
            found = gather()
            while found and seen + len(found) < 200:
                found += gather()
            seen += len(found)
            return found

        monkeypatch.setattr(door._consumer, "gather", gather_all)
        door.start()
        await real.has(range(200))
        assert real.inbox.lost_answers == 0, "no answer was lost"

    async def test_an_error_of_the_store_is_narrowed_down_to_its_message(self, real: TopicRig) -> None:
        def stumble(specs: Any) -> Exception | None:
            return ValueError("no such value") if any(json.loads(spec.payload)["n"] == 31 for spec in specs) else None

        real.inbox.stumble = stumble
        await real.send(messages(range(64)))
        door = await real.started(max_retries=2)
        await real.has(set(range(64)) - {31})
        await until_async(lambda: door.metrics["messagesReceived"] == 64)
        (letter,) = await real.letters()
        assert (letter.error, json.loads(letter.value or b"")["jobData"]) == ("ValueError: no such value", {"n": 31})

    async def test_an_error_of_the_store_that_passes_costs_no_message(self, real: TopicRig) -> None:
        errors = [ValueError("once"), ValueError("twice")]
        real.inbox.stumble = lambda specs: errors.pop() if errors else None
        await real.send(messages(range(10)))
        await real.started()
        await real.has(range(10))
        assert not await real.letters()

    async def test_a_store_that_keeps_nothing_at_all_is_not_the_messages_fault(self, real: TopicRig) -> None:
        broken = True
        real.inbox.stumble = lambda specs: ValueError("a bug") if broken else None
        await real.send(messages(range(5)), partition=0)
        real.door(max_retries=0).start()
        await until_async(lambda: real.heard(events.IngestPaused))
        broken = False
        await real.has(range(5))
        assert not await real.letters()


class TestStoreAway:
    async def test_messages_wait_and_none_becomes_a_dead_letter(self, real: TopicRig) -> None:
        door = await real.started()
        await real.send(messages(range(100)))
        await real.has(range(100))
        real.inbox.away = True
        for partition in range(5):
            await real.send(messages(range(100 + 20 * partition, 120 + 20 * partition)), partition=partition)
        await real.send(["bad"])
        await until_async(lambda: real.inbox.refused >= 5)  # it was asked again and again
        assert real.heard(events.IngestPaused)
        assert not door.ready
        assert door.problem == "the store takes no messages at the moment"
        assert not await real.letters()
        real.inbox.away = False
        await real.has(range(200))
        await until_async(lambda: door.ready)
        await until_async(lambda: door.metrics["messagesFailed"] == 1)
        assert (len(real.heard(events.IngestPaused)), len(real.heard(events.IngestResumed))) == (1, 1)
        assert len(await real.letters()) == 1

    async def test_that_is_told_once_while_no_message_comes_either(
        self, real: TopicRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("infinite_scheduler.ingest.positions.LOOK_MS", 300)
        door = await real.started()
        real.inbox.away = True
        await until_async(lambda: real.inbox.refused >= 5)
        assert not door.ready
        assert (len(real.heard(events.IngestPaused)), len(real.heard(events.IngestResumed))) == (1, 0)
        real.inbox.away = False
        await until_async(lambda: door.ready)
        assert (len(real.heard(events.IngestPaused)), len(real.heard(events.IngestResumed))) == (1, 1)

    async def test_it_may_be_away_when_partitions_are_given(self, real: TopicRig) -> None:
        real.inbox.away = True
        await real.send(messages(range(20)))
        real.door().start()
        await until_async(lambda: real.heard(events.IngestPaused))
        assert real.numbers() == Counter()
        real.inbox.away = False
        await real.has(range(20))

    async def test_a_lost_answer_leads_to_no_second_job(self, real: TopicRig) -> None:
        """Three answers, whatever number of batches the messages come in: each round below takes one batch at least."""
        real.inbox.lost_answers = 3
        await real.started()
        for sent in (20, 40, 60):
            await real.send(messages(range(sent - 20, sent)))
            await real.has(range(sent))
        await until_async(lambda: real.inbox.lost_answers == 0)
        assert real.numbers() == Counter(range(60))

    async def test_a_take_that_lasts_does_not_cost_the_membership(
        self, real: TopicRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("infinite_scheduler.kafka.consumer_thread.LIVELY_S", 0.3)
        interval_ms = 3000
        door = await real.started(properties={"max.poll.interval.ms": interval_ms, "session.timeout.ms": interval_ms})
        held = list(door._consumer.held.values())
        real.inbox.gate = asyncio.Event()
        await real.send(messages(range(20)))
        await until_async(lambda: real.inbox.waiting)
        await asyncio.sleep(interval_ms * 1.5 / 1000)
        real.inbox.gate.set()
        await real.has(range(20))
        assert list(door._consumer.held.values()) == held, "it had to join again"

    async def test_a_stop_does_not_wait_for_it(self, real: TopicRig) -> None:
        door = await real.started()
        real.inbox.away = True
        await real.send(messages(range(5)))
        await until_async(lambda: real.heard(events.IngestPaused))
        async with asyncio.timeout(PATIENCE_S):
            await door.stop()
        real.inbox.away = False
        assert real.numbers() == Counter()
        await real.started()
        await real.has(range(5))


class TestPlaces:
    async def test_a_restart_goes_on_where_the_store_says(self, real: TopicRig) -> None:
        door = await real.started()
        await real.send(messages(range(30)))
        await real.has(range(30))
        await door.stop()
        await real.send(messages(range(30, 60)))
        again = await real.started()
        await real.has(range(60))
        await until_async(lambda: again.metrics["messagesReceived"] == 30)
        assert not real.heard(events.PositionDiffers)

    async def test_another_group_accepts_everything_again(self, real: TopicRig) -> None:
        await real.send(messages(range(30)))
        door = await real.started()
        await real.has(range(30))
        await door.stop()
        other = await real.started(group_id=f"{real.group}-other")
        await until_async(lambda: other.metrics["messagesProcessed"] == 30)
        assert real.numbers() == Counter(dict.fromkeys(range(30), 2))

    @pytest.mark.parametrize("offset", [0, 3, 12])
    async def test_offsets_that_are_reset_in_kafka_are_told_and_have_no_effect(
        self, real: TopicRig, offset: int
    ) -> None:
        from confluent_kafka import Consumer, TopicPartition

        await real.send(messages(range(10)), partition=1)
        door = await real.started()
        await real.has(range(10))
        await door.stop()
        consumer = Consumer({"bootstrap.servers": real.servers, "group.id": real.group})
        consumer.commit(offsets=[TopicPartition(real.topic, 1, offset)], asynchronous=False)
        consumer.close()
        await real.started()
        (told,) = real.heard(events.PositionDiffers)
        assert (told.partition, told.position, told.committed) == (1, 10, offset)
        await real.send(messages([10]), partition=1)
        await real.has(range(11))

    async def test_what_kafka_was_not_told_before_a_crash_is_nothing_to_warn_about(self, real: TopicRig) -> None:
        from confluent_kafka import Consumer, TopicPartition

        def committed() -> int:
            (found,) = consumer.committed([TopicPartition(real.topic, 1)], 10)
            return found.offset

        await real.send(messages(range(4)), partition=1)
        door = await real.started()
        await real.has(range(4))
        consumer = Consumer({"bootstrap.servers": real.servers, "group.id": real.group})
        await until_async(lambda: committed() == 4)
        door._consumer.commit = lambda offsets: None  # type: ignore[method-assign]  # it dies before it tells Kafka
        await real.send(messages(range(4, 10)), partition=1)
        await real.has(range(10))
        await door.stop()
        assert committed() == 4
        await real.started()
        await until_async(lambda: committed() == 10)
        consumer.close()
        assert not real.heard(events.PositionDiffers)

    async def test_a_place_that_is_reset_in_the_store_counts(self, real: TopicRig) -> None:
        await real.send(messages(range(10)), partition=1)
        door = await real.started()
        await real.has(range(10))
        await door.stop()
        source = Source(real.group, real.topic, 1)
        await real.store.inbox().reset([Move(source=source, seen=10, next=4)])
        await real.started()
        await until_async(lambda: sum(real.numbers().values()) == 16)
        assert real.numbers()[4] == 2
        assert real.numbers()[3] == 1

    async def test_a_place_that_is_reset_under_a_running_door_is_taken_up(self, real: TopicRig) -> None:
        await real.send(messages(range(10)), partition=1)
        await real.started()
        await real.has(range(10))
        source = Source(real.group, real.topic, 1)
        await real.store.inbox().reset([Move(source=source, seen=10, next=8)])
        await real.send(messages([10]), partition=1)
        await until_async(lambda: sum(real.numbers().values()) == 13)
        assert real.numbers() == Counter({**dict.fromkeys(range(11), 1), 8: 2, 9: 2})
        assert real.heard(events.PositionsOvertaken)

    async def test_a_place_that_is_reset_counts_though_no_message_comes(
        self, real: TopicRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("infinite_scheduler.ingest.positions.LOOK_MS", 200)
        await real.send(messages(range(10)), partition=1)
        await real.started()
        await real.has(range(10))
        source = Source(real.group, real.topic, 1)
        await real.store.inbox().reset([Move(source=source, seen=10, next=8)])
        await until_async(lambda: real.count() == 12)
        assert real.numbers() == Counter({**dict.fromkeys(range(8), 1), 8: 2, 9: 2})
        assert real.heard(events.PositionsOvertaken)

    async def test_latest_means_what_comes_after_the_first_start(self, real: TopicRig) -> None:
        await real.send(messages(range(10)), partition=0)
        door = await real.started(auto_offset_reset="latest")
        await door.stop()
        await real.send(messages(range(10, 20)), partition=0)  # while nobody reads
        await real.started(auto_offset_reset="latest")
        await real.has(range(10, 20))
        assert (await real.positions())[0] == 20

    async def test_latest_is_for_a_new_group_and_not_for_a_partition_that_is_added(self, real: TopicRig) -> None:
        await real.send(messages([1]), partition=3)
        door = await real.started(auto_offset_reset="latest")
        assert await real.positions() == {0: 0, 1: 0, 2: 0, 3: 1, 4: 0, 5: 0}
        await door.stop()
        await asyncio.to_thread(grow_topic, real.servers, real.topic, 7)
        await real.send(messages(range(10, 20)), partition=6)
        await real.started(auto_offset_reset="latest")
        await real.has(range(10, 20))

    async def test_two_nodes_of_a_new_group_begin_at_the_end_alike(self, real: TopicRig) -> None:
        for partition in range(6):
            await real.send(messages([partition]), partition=partition)
        doors = [real.door(auto_offset_reset="latest") for _ in range(3)]
        for door in doors:
            door.start()
        await until_async(lambda: all(door.ready for door in doors) and sum(len(door.lag) for door in doors) == 6)
        assert await real.positions() == dict.fromkeys(range(6), 1)
        await real.send(messages([100]), partition=4)
        await real.has([100])

    async def test_a_topic_that_ends_before_the_place_is_read_from_a_little_before(
        self, real: TopicRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await real.send(messages(range(10)), partition=1)
        door = await real.started()
        await real.has(range(10))
        await door.stop()
        position = Source(real.group, real.topic, 1)
        await real.store.inbox().reset([Move(source=position, seen=10, next=15)])
        monkeypatch.setattr("infinite_scheduler.ingest.positions.MARGIN_MS", -60_000)
        await real.started()
        await until_async(lambda: real.heard(events.OffsetGone))
        (told,) = real.heard(events.OffsetGone)
        assert (told.position, told.earliest, told.end, told.next) == (15, 0, 10, 10)
        await real.send(messages([10]), partition=1)
        await real.has(range(11))

    async def test_messages_that_are_gone_are_told_and_the_earliest_is_next(self, real: TopicRig) -> None:
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import AdminClient

        await real.send(messages(range(10)), partition=1)
        door = await real.started()
        await real.has(range(10))
        await door.stop()
        await real.send(messages(range(10, 30)), partition=1)
        admin = AdminClient({"bootstrap.servers": str(real.servers)})
        for deleted in admin.delete_records([TopicPartition(real.topic, 1, 25)]).values():
            await asyncio.to_thread(deleted.result)
        await real.started()
        await real.has({*range(10), *range(25, 30)})
        (told,) = real.heard(events.OffsetGone)
        assert (told.partition, told.position, told.earliest, told.end) == (1, 10, 25, 30)


class TestKeys:
    async def test_a_key_three_times_in_one_batch_is_one_job(self, real: TopicRig) -> None:
        await real.send(messages([1, 1, 1], idempotencyKey="k"), partition=0)
        door = await real.started()
        await real.has([1])
        await until_async(lambda: door.metrics["messagesReceived"] == 3)
        assert (door.metrics["messagesProcessed"], door.metrics["duplicatesSkipped"]) == (1, 2)
        assert not real.heard(events.KeysReused)

    async def test_across_a_restart_too(self, real: TopicRig) -> None:
        for number in range(3):
            await real.send(messages([1], idempotencyKey="k"), partition=number)
            door = await real.started()
            await until_async(lambda door=door: door.metrics["messagesReceived"] == 1)  # type: ignore[misc]
            await door.stop()
        assert real.numbers() == Counter([1])

    async def test_another_content_is_skipped_and_told(self, real: TopicRig) -> None:
        await real.send([message(1, idempotencyKey="k"), message(2, idempotencyKey="k")], partition=0)
        door = await real.started()
        await until_async(lambda: door.metrics["messagesReceived"] == 2)
        assert real.numbers() == Counter([1])
        (told,) = real.heard(events.KeysReused)
        assert (told.count, told.keys) == (1, ["k"])

    async def test_how_many_are_remembered_is_shown(self, real: TopicRig) -> None:
        await real.send([message(number, idempotencyKey=f"k{number}") for number in range(5)])
        door = await real.started()
        await real.has(range(5))
        await door.stop()
        again = await real.started()
        await until_async(lambda: again.metrics["idempotencyCacheSize"])
        assert again.metrics["idempotencyCacheSize"] == 5


class TestLife:
    async def test_a_property_that_librdkafka_does_not_know_is_refused_at_the_start(self, real: TopicRig) -> None:
        with pytest.raises(ConfigError, match=r"no\.such\.property"):
            real.door(properties={"no.such.property": 1}).start()

    async def test_a_door_that_is_not_enabled_stays_shut(self, real: TopicRig) -> None:
        door = real.door(enabled=False)
        door.start()
        assert (door.is_running, door.ready, door.problem) == (False, False, "the door is not running")
        await door.stop()

    async def test_lag_is_what_waits(self, real: TopicRig, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("infinite_scheduler.kafka.consumer_thread.LIVELY_S", 0.2)
        await real.send(messages(range(40)), partition=2)
        door = await real.started()
        await until_async(lambda: door.lag.get(2) == 0 and set(door.lag) == set(range(6)))
        real.inbox.gate = asyncio.Event()
        try:
            await real.send(messages(range(40, 45)), partition=2)
            await until_async(lambda: door.lag[2] == 5)
            assert (await real.positions())[2] == 40
        finally:
            real.inbox.gate.set()
        await until_async(lambda: door.lag[2] == 0)
        await real.has(range(45))
        assert (await real.positions())[2] == 45

    async def test_a_job_due_in_200_ms_is_taken_at_once(self, real: TopicRig) -> None:
        """On a machine that is not busy, of which there is a moment now and then."""
        await real.started(poll_timeout_ms=5000)
        took = [1.0]
        while min(took) >= 0.2 and len(took) < 20:
            await real.send(messages([len(took)]))
            began = time.monotonic()
            await until_async(lambda: real.count() == len(took))
            took.append(time.monotonic() - began)
        assert min(took) < 0.2, took
