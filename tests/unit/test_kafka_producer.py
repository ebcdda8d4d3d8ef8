"""On librdkafka's in-process broker; what a broken client does is played by a fake one."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from infinite_scheduler.errors import ConfigError, SendError
from infinite_scheduler.kafka import producer as module
from infinite_scheduler.kafka.embedded import embedded_broker
from infinite_scheduler.kafka.options import KafkaOptions
from infinite_scheduler.kafka.producer import Producer, Record
from tests.services.topics import read
from tests.waiting import until_async

NOWHERE = "127.0.0.1:1"


@asynccontextmanager
async def producer_to(servers: str, **more: Any) -> AsyncIterator[Producer]:
    producer = Producer(KafkaOptions(servers, more.pop("properties", {})), **more)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop(1)


async def sent(producer: Producer, *records: Record) -> dict[int, SendError | None]:
    reports: dict[int, SendError | None] = {}

    def delivered(index: int, error: SendError | None) -> None:
        assert index not in reports
        reports[index] = error

    await producer.send(records, delivered)
    return reports


async def test_every_record_is_there_when_send_returns(mock_kafka: str) -> None:
    records = [Record("t", b"k%d" % n, b"v%d" % n, [("h", b"%d" % n), ("none", None)]) for n in range(2000)]
    async with producer_to(mock_kafka) as producer:
        reports = await sent(producer, *records)
        assert reports == dict.fromkeys(range(2000))
    found = {each.key: (each.value, list(each.headers)) for each in await asyncio.to_thread(read, mock_kafka, "t")}
    assert found == {record.key: (record.value, list(record.headers)) for record in records}


async def test_key_and_value_may_be_absent_and_a_partition_given(mock_kafka: str) -> None:
    async with producer_to(mock_kafka) as producer:
        assert await sent(producer, Record("t", None, None, partition=2)) == {0: None}
    (found,) = await asyncio.to_thread(read, mock_kafka, "t")
    assert (found.key, found.value, found.partition) == (None, None, 2)


async def test_one_record_that_is_refused_takes_no_other_with_it(mock_kafka: str) -> None:
    async with producer_to(mock_kafka, properties={"message.max.bytes": 2000}) as producer:
        reports = await sent(
            producer, Record("t", b"k", b"fine"), Record("t", b"k", b"x" * 3000), Record("t", b"k", b"v", partition=99)
        )
    assert reports[0] is None
    large, elsewhere = reports[1], reports[2]
    assert large is not None
    assert (large.too_large, large.retryable) == (True, False)
    assert elsewhere is not None
    assert not elsewhere.retryable
    assert "no such partition" in str(elsewhere)


async def test_a_broker_that_cannot_be_reached_is_told_with_its_address() -> None:
    async with producer_to(NOWHERE, message_timeout_ms=300) as producer:
        reports = await sent(producer, Record("t", b"k", b"v"))
    error = reports[0]
    assert error is not None
    assert error.retryable
    assert NOWHERE in str(error)
    assert "is it running there?" in str(error)


async def test_more_than_the_queue_holds_waits_for_room(mock_kafka: str) -> None:
    async with producer_to(mock_kafka, properties={"queue.buffering.max.messages": 10}) as producer:
        reports = await sent(producer, *[Record("t", None, b"%d" % n) for n in range(500)])
    assert reports == dict.fromkeys(range(500))


async def test_a_record_that_no_queue_could_hold_is_refused(mock_kafka: str) -> None:
    options = {"queue.buffering.max.kbytes": 1, "message.max.bytes": 1_000_000}
    async with producer_to(mock_kafka, properties=options) as producer:
        reports = await sent(producer, Record("t", None, b"x" * 5000), Record("t", None, b"small"))
    error = reports[0]
    assert error is not None
    assert "queue.buffering.max.kbytes" in str(error)
    assert not error.retryable
    assert reports[1] is None


async def test_stop_gives_up_what_nobody_takes_and_says_so() -> None:
    producer = Producer(KafkaOptions(NOWHERE))
    await producer.start()
    sending = asyncio.create_task(sent(producer, Record("t", b"k", b"v")))
    await asyncio.sleep(0)
    assert not await producer.stop(0)
    error = (await sending)[0]
    assert error is not None
    assert error.retryable
    assert "stopped" in str(error)


async def test_stop_waits_for_what_is_under_way(mock_kafka: str) -> None:
    producer = Producer(KafkaOptions(mock_kafka))
    await producer.start()
    sending = asyncio.create_task(sent(producer, Record("t", b"k", b"v")))
    await asyncio.sleep(0)
    assert await producer.stop(10)
    assert await sending == {0: None}


async def test_stop_does_not_wait_for_a_sender_that_was_cancelled() -> None:
    producer = Producer(KafkaOptions(NOWHERE))
    await producer.start()
    sending = asyncio.create_task(sent(producer, Record("t", b"k", b"v")))
    await asyncio.sleep(0)
    stopping = asyncio.create_task(producer.stop(60))
    await asyncio.sleep(0)
    sending.cancel()
    assert await asyncio.wait_for(stopping, 5)


async def test_a_producer_can_be_started_again(mock_kafka: str) -> None:
    producer = Producer(KafkaOptions(mock_kafka))
    for _ in range(2):
        await producer.start()
        assert await sent(producer, Record("t", b"k", b"v")) == {0: None}
        assert await producer.stop()
        assert await producer.stop()


async def test_a_producer_that_does_not_run_refuses() -> None:
    with pytest.raises(SendError, match="start it first"):
        await sent(Producer(KafkaOptions(NOWHERE)), Record("t", b"k", b"v"))


async def test_nothing_to_send_is_sent_at_once() -> None:
    async with producer_to(NOWHERE) as producer:
        assert await sent(producer) == {}


async def test_a_cancelled_sender_hears_nothing_more(mock_kafka: str) -> None:
    async with producer_to(mock_kafka) as producer:
        heard: list[int] = []
        sending = asyncio.create_task(producer.send([Record("t", b"k", b"v")], lambda index, _: heard.append(index)))
        await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert await sent(producer, Record("t", b"k", b"v")) == {0: None}
        assert heard == []


async def test_a_callback_that_fails_is_its_senders_own_trouble(mock_kafka: str) -> None:
    def fail(index: int, error: SendError | None) -> None:
        raise LookupError("mine")

    async with producer_to(mock_kafka) as producer:
        other = asyncio.create_task(sent(producer, Record("t", b"k", b"v")))
        with pytest.raises(LookupError, match="mine"):
            await producer.send([Record("t", b"k", b"v")], fail)
        assert await other == {0: None}


async def test_a_record_that_is_no_record_ends_its_call_and_nothing_is_reported_after_it(mock_kafka: str) -> None:
    async with producer_to(mock_kafka) as producer:
        heard: list[int] = []
        wrong = Record("t", b"k", b"v", [("h", 7)])  # type: ignore[list-item]
        with pytest.raises(TypeError):
            await producer.send([Record("t", b"k", b"v"), wrong], lambda index, _: heard.append(index))
        assert await sent(producer, Record("t", b"k", b"v")) == {0: None}
        assert heard == []


async def test_a_client_that_sends_nothing_any_more_is_replaced(
    mock_kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is stuck: it is at the wrong address."""
    own, made = Producer._new, list[Producer]()

    def new(self: Producer, **more: Any) -> Any:
        options, made[:] = self._options, [*made, self]
        self._options = KafkaOptions(NOWHERE) if len(made) == 1 else options
        try:
            return own(self, **more)
        finally:
            self._options = options

    monkeypatch.setattr(Producer, "_new", new)
    async with producer_to(mock_kafka, message_timeout_ms=300) as producer:
        early = asyncio.create_task(sent(producer, Record("t", b"k", b"v")))
        await asyncio.sleep(0.2)
        late = asyncio.create_task(sent(producer, Record("t", b"k", b"v")))
        for sending in (early, late):  # what a client has is not taken away from it: it may have arrived
            error = (await sending)[0]
            assert error is not None
            assert error.retryable
        for _ in range(3):
            await asyncio.sleep(0.3)
            assert await sent(producer, Record("t", b"k", b"v")) == {0: None}
        assert len(made) == 2


async def test_a_property_that_librdkafka_does_not_know_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match=r'cannot be used as configured.*"no.such.thing"'):
        await Producer(KafkaOptions(NOWHERE, {"no.such.thing": 1})).start()


async def test_librdkafka_writes_nothing_to_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with embedded_broker() as servers:
        async with producer_to(servers) as producer:
            await sent(producer, Record("t", b"k", b"v"))
    async with producer_to(NOWHERE, message_timeout_ms=100) as producer:
        await sent(producer, Record("t", b"k", b"v"))
    assert capfd.readouterr() == ("", "")


async def test_no_thread_is_left_behind(mock_kafka: str) -> None:
    before = set(threading.enumerate())
    async with producer_to(mock_kafka) as producer:
        await sent(producer, Record("t", b"k", b"v"))
    assert set(threading.enumerate()) <= before


# Java's partitioner: murmur2 of the key, and its own test values
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


async def test_a_key_goes_to_the_partition_that_a_java_program_would_choose(mock_kafka: str) -> None:
    async with producer_to(mock_kafka) as producer:
        await sent(producer, *[Record("t", key, b"v") for key in JAVA])
    found = {each.key: each.partition for each in await asyncio.to_thread(read, mock_kafka, "t")}
    assert found == {key: (code & 0x7FFFFFFF) % 4 for key, code in JAVA.items()}


class BrokenClient:
    """Takes records until somebody breaks it."""

    def __init__(self, breaks: bool) -> None:
        self.breaks = breaks
        self.waiting: list[Callable[..., None]] = []
        self.closed = False
        self.purged = False

    def produce(self, topic: str, value: object, key: object, partition: int, report: Any, headers: object) -> None:
        if self.breaks and self.waiting:
            raise KafkaException(KafkaError(KafkaError._FATAL, "fenced", fatal=True))
        self.waiting.append(report)

    def poll(self, timeout: float) -> int:
        waiting, self.waiting = self.waiting, []
        for report in waiting:
            report(KafkaError(KafkaError._PURGE_QUEUE) if self.purged else None, None)
        return len(waiting)

    def purge(self) -> None:
        self.purged = True

    def close(self) -> None:
        self.closed = True

    def __len__(self) -> int:
        return len(self.waiting)


async def test_a_client_that_gave_up_for_good_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    clients: list[BrokenClient] = []

    refusals = [ConfigError("a certificate is just being replaced")]

    def make(*_: object, **__: object) -> BrokenClient:
        if clients and refusals:
            raise refusals.pop()
        clients.append(BrokenClient(breaks=not clients))
        return clients[-1]

    monkeypatch.setattr(module, "new_client", make)
    async with producer_to(NOWHERE) as producer:
        reports = await sent(producer, Record("t", None, b"1"), Record("t", None, b"2"))
        error = reports[1]
        assert error is not None
        assert error.retryable
        assert await sent(producer, Record("t", None, b"3")) == {0: None}
        assert len(clients) == 2
        assert await sent(producer, Record("t", None, b"4"), Record("t", None, b"5")) == {0: None, 1: None}
        assert clients[0].purged
        assert clients[0].closed


class SlowClient(BrokenClient):
    """Gives its first message up, and hears of the second when it has been replaced."""

    def poll(self, timeout: float) -> int:
        if len(self.waiting) < 2:
            return super().poll(timeout)
        self.waiting.pop(0)(KafkaError(KafkaError._MSG_TIMED_OUT), None)
        return 1


async def test_a_client_that_is_replaced_keeps_what_may_have_arrived_until_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clients: list[BrokenClient] = []

    def make(*_: object, **__: object) -> BrokenClient:
        clients.append(BrokenClient(breaks=False) if clients else SlowClient(breaks=False))
        return clients[-1]

    monkeypatch.setattr(module, "new_client", make)
    async with producer_to(NOWHERE) as producer:
        reports = await sent(producer, Record("t", None, b"1"), Record("t", None, b"2"))
        error = reports[0]
        assert error is not None
        assert error.code == "_MSG_TIMED_OUT"
        assert reports[1] is None, "it was delivered, and must not be sent again"
        assert len(clients) == 2
        assert not clients[0].purged


class CrowdedClient(BrokenClient):
    """Its requests are too large for the topic, whatever is in them."""

    def poll(self, timeout: float) -> int:
        waiting, self.waiting = self.waiting, []
        for report in waiting:
            report(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), None)
        return len(waiting)


async def test_records_that_were_refused_together_are_sent_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    single = BrokenClient(breaks=False)

    def make(*_: object, **more: object) -> BrokenClient:
        return single if more.get("batch_num_messages") == 1 else CrowdedClient(breaks=False)

    monkeypatch.setattr(module, "new_client", make)
    async with producer_to(NOWHERE) as producer:
        assert await sent(producer, Record("t", None, b"1"), Record("t", None, b"2")) == {0: None, 1: None}


class UnwantedClient(BrokenClient):
    """Is told by the brokers that it may do nothing at all, as soon as it has connected."""

    def produce(self, topic: str, value: object, key: object, partition: int, report: Any, headers: object) -> None:
        raise KafkaException(KafkaError(KafkaError._FATAL, "fatal", fatal=True))

    def poll(self, timeout: float) -> int:
        raise KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "not allowed", fatal=True))


@pytest.mark.parametrize("heard", [None, KafkaError(KafkaError._TRANSPORT)], ids=["nothing", "an older trouble"])
async def test_a_record_that_is_refused_before_the_client_was_heard_of_is_told_why(
    monkeypatch: pytest.MonkeyPatch, heard: KafkaError | None
) -> None:
    monkeypatch.setattr(module, "new_client", lambda *_, **__: UnwantedClient(breaks=True))
    monkeypatch.setattr(module, "_IDLE_S", 60)
    async with producer_to(NOWHERE) as producer:
        producer._trouble = heard
        error = (await sent(producer, Record("t", None, b"1")))[0]
        assert error is not None
        assert "not allowed" in str(error)


async def test_a_client_that_is_not_allowed_anything_is_told_so_and_another_is_made_when_there_is_something_to_send(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clients: list[BrokenClient] = []
    wanted = False

    def make(*_: object, **__: object) -> BrokenClient:
        clients.append(BrokenClient(breaks=False) if wanted else UnwantedClient(breaks=True))
        return clients[-1]

    monkeypatch.setattr(module, "new_client", make)
    monkeypatch.setattr(module, "_IDLE_S", 0.005)
    async with producer_to(NOWHERE) as producer:
        await until_async(lambda: producer._broken)
        await asyncio.sleep(0.05)
        assert len(clients) == 1, "it was made anew for nothing"
        error = (await sent(producer, Record("t", None, b"1")))[0]
        assert error is not None
        assert not error.refused
        assert "grant this user IdempotentWrite" in str(error)
        wanted = True
        assert await sent(producer, Record("t", None, b"2")) == {0: None}
