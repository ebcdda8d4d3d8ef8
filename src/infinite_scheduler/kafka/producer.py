"""Sends messages to Kafka from the event loop, and reports for each whether it was delivered."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from infinite_scheduler.errors import ConfigError, SendError
from infinite_scheduler.kafka.broker_errors import config_error, is_fatal, send_error
from infinite_scheduler.kafka.librdkafka_log import LibrdkafkaLog
from infinite_scheduler.kafka.options import KafkaOptions, PropertyValue

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka import Producer as Client

Delivered = Callable[[int, SendError | None], None]
"""Is called for the record with this number: None if it was delivered, or the error."""

MESSAGE_TIMEOUT_MS: Final = 20_000

DEFAULTS: Final[dict[str, PropertyValue]] = {
    "client.id": "infinite-scheduler",
    "partitioner": "murmur2_random",  # Java's: the same key goes to the same partition, whichever client sends it
    "linger.ms": 0.5,  # messages are already due, so waiting for more is lateness
    "batch.size": 262_144,  # some topics take less than librdkafka's default of a million bytes
    "message.max.bytes": 10_485_760,  # the topic decides what is too large
    "queue.buffering.max.kbytes": 32_768,
    "queue.buffering.max.messages": 100_000,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 1000,
    "reconnect.backoff.max.ms": 1000,  # a broker that was restarted is found soon
    "topic.metadata.propagation.max.ms": 5000,  # after that, a missing topic is reported as missing
}
"""What users may override."""

_BUSY_S: Final = 0.002
"""How often to poll while reports are awaited. A thread that waits for them costs a third more per job."""

_IDLE_S: Final = 0.25
"""How often to poll for librdkafka's own messages otherwise."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """One message as Kafka takes it."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    partition: int = -1


def new_client(
    options: KafkaOptions, *, message_timeout_ms: int, suffers: "Callable[[KafkaError], None]", **more: PropertyValue
) -> "Client":
    """A librdkafka producer that writes every message once, to all replicas, or says why not."""
    from confluent_kafka import KafkaException  # noqa: PLC0415 - 54 ms that only users of Kafka pay
    from confluent_kafka import Producer as Client  # noqa: PLC0415

    settings = options.client(
        DEFAULTS, enable_idempotence=True, acks="all", message_timeout_ms=message_timeout_ms, **more
    )
    settings["error_cb"] = suffers
    settings["logger"] = LibrdkafkaLog()
    try:
        return Client(settings)
    except KafkaException as error:
        raise config_error(error, options) from None


class _Sending:
    """The records of one call that are not reported yet."""

    __slots__ = ("delivered", "done", "left", "records")

    def __init__(self, records: Sequence[Record], delivered: Delivered, done: "asyncio.Future[None]") -> None:
        self.records = records
        self.delivered = delivered
        self.done = done
        self.left = len(records)


class Producer:
    """Sends records, idempotent and to all in-sync replicas; each is reported exactly once, as delivered or not.

    A record that no broker takes within `message_timeout_ms` is reported as not delivered. The producer recovers from
    any problem by itself: it reconnects without end, and replaces a client that librdkafka gave up or that may be
    stuck.
    """

    def __init__(
        self, options: KafkaOptions, *, message_timeout_ms: int = MESSAGE_TIMEOUT_MS, **more: PropertyValue
    ) -> None:
        self._options = options
        self._message_timeout_ms = message_timeout_ms
        self._more = more
        self._client: Client | None = None
        self._single: Client | None = None  # sends one message at a time, to find out which one is refused
        self._former: list[Client] = []  # broken or stuck clients, with reports still to come
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._hurried = False
        self._got: list[tuple[_Sending, int, KafkaError | None, bool]] = []
        self._open: set[_Sending] = set()
        self._pending = 0  # records that librdkafka has; its own count includes other things
        self._moved = asyncio.Event()  # reports have come, or a sender has ended
        self._trouble: KafkaError | None = None
        self._broken = False
        self._stuck = False
        self._refusal: type[Exception] = Exception

    async def start(self) -> None:
        """Begin to connect, and return at once: whether a broker can be reached shows when something is sent."""
        from confluent_kafka import KafkaException  # noqa: PLC0415

        self._loop = asyncio.get_running_loop()
        self._refusal = KafkaException
        self._client = self._new()
        self._hurried = False
        self._wake(_IDLE_S)

    async def stop(self, timeout_s: float = 10.0) -> bool:
        """Wait for the reports of messages in progress, but not longer than this; the rest counts as not delivered.

        False: there was such a rest.
        """
        if self._client is None:
            return True
        clean = await self._settle(timeout_s)
        clients, self._client, self._single, self._former, self._pending = self._clients(), None, None, [], 0
        if self._timer is not None:
            self._timer.cancel()
        for client in clients:
            client.purge()  # also of senders that were cancelled: close() would wait for their messages
            self._poll(client)
            client.close()
        self._pass_on()
        return clean

    async def send(self, records: Sequence[Record], delivered: Delivered) -> None:
        """Send these records, and return when each has been reported to `delivered`, which is called in the event loop.

        If cancelled, nothing more is reported; messages being sent may still arrive.
        """
        if self._client is None:
            raise SendError("the producer is not running: start it first", code="_STATE", retryable=True)
        if not records:
            return
        if self._broken:  # since nothing was sent; without something to send, the next client would break for nothing
            self._renew()
        sending = _Sending(records, delivered, asyncio.get_running_loop().create_future())
        self._open.add(sending)
        self._hurry()
        try:
            for index in range(len(records)):
                while not self._put(sending, index):
                    self._moved.clear()
                    await self._moved.wait()
            await sending.done
        finally:
            sending.done.cancel()  # whatever ended it, the result is not wanted any more
            self._open.discard(sending)
            self._moved.set()

    # Records go out

    def _put(self, sending: _Sending, index: int, *, alone: bool = False) -> bool:
        """Give one record to librdkafka; False: its queue is full, so wait for reports."""
        record = sending.records[index]
        client = self._single if alone else self._client
        if client is None:
            self._report(sending, index, _stopped(record.topic))
            return True
        try:
            client.produce(
                record.topic,
                record.value,
                record.key,
                record.partition,
                partial(self._note, sending, index, alone),
                headers=record.headers or None,  # type: ignore[arg-type]  # any sequence of pairs will do
            )
        except BufferError:
            if self._pending:
                return False
            size = len(record.value or b"") + len(record.key or b"")
            error = SendError(
                f"a message of {size} bytes does not fit into the queue: raise queue.buffering.max.kbytes",
                code="_QUEUE_FULL",
                retryable=False,
                too_large=True,
            )
            self._report(sending, index, error)
        except self._refusal as raised:
            found: KafkaError = raised.args[0]
            self._broken = self._broken or found.fatal()
            if is_fatal(found) and not (self._trouble and is_fatal(self._trouble)):
                self._poll(client)  # what has happened to the client waits to be told
            self._report(sending, index, send_error(found, self._options, record.topic, trouble=self._trouble))
        else:
            self._pending += 1
        return True

    def _put_alone(self, sending: _Sending, index: int) -> bool:
        """Send a record again that was refused for the size of the whole request; False: that is not possible."""
        if self._single is None and self._client is not None:
            try:
                self._single = self._new(batch_num_messages=1)
            except ConfigError:
                return False
        return self._put(sending, index, alone=True)

    def _note(self, sending: _Sending, index: int, alone: bool, error: "KafkaError | None", _: object) -> None:
        self._got.append((sending, index, error, alone))

    # Reports come in

    def _hurry(self) -> None:
        if not self._hurried:
            self._hurried = True
            self._wake(_BUSY_S)

    def _wake(self, after_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        assert self._loop is not None  # noqa: S101 - start() was called
        self._timer = self._loop.call_later(after_s, self._tick)

    def _tick(self) -> None:
        if self._client is None:
            return
        for client in self._clients():
            self._poll(client)
        self._pass_on()
        if self._stuck or (self._broken and self._open):
            self._renew()
        self._retire()
        self._hurried = bool(self._open or self._former)
        self._wake(_BUSY_S if self._hurried else _IDLE_S)

    def _poll(self, client: "Client") -> None:
        """Let librdkafka report; it raises an error of its own after which the client is useless."""
        try:
            client.poll(0)
        except self._refusal as raised:
            self._suffer(raised.args[0])

    def _pass_on(self) -> None:
        """Pass the reports on to the senders."""
        if not self._got:
            return
        got, self._got = self._got, []
        self._pending -= len(got)
        for sending, index, error, alone in got:
            if error is None:
                self._report(sending, index, None)
                continue
            self._broken = self._broken or error.fatal()
            if error.name() == "_MSG_TIMED_OUT" and not self._former:  # else it may come from a former client
                self._stuck = True
            record = sending.records[index]
            if not alone and self._may_have_had_company(record, error) and self._put_alone(sending, index):
                continue
            self._report(sending, index, send_error(error, self._options, record.topic, trouble=self._trouble))
        if got[-1][2] is None:
            self._trouble = None
        self._moved.set()

    def _report(self, sending: _Sending, index: int, error: SendError | None) -> None:
        sending.left -= 1
        if sending.done.done():  # the result is not wanted any more
            return
        try:
            sending.delivered(index, error)
        except Exception as raised:  # noqa: BLE001 - an error of one sender must not cost others their reports
            sending.done.set_exception(raised)
            return
        if not sending.left:
            sending.done.set_result(None)

    def _may_have_had_company(self, record: Record, error: "KafkaError") -> bool:
        """Topics refuse whole requests: is this record so small that others may have been in the same one?"""
        size = len(record.value or b"") + len(record.key or b"")
        return error.name() == "MSG_SIZE_TOO_LARGE" and size < int(self._options.client(DEFAULTS)["batch.size"])

    # Life of the client

    def _new(self, **more: PropertyValue) -> "Client":
        return new_client(
            self._options,
            message_timeout_ms=self._message_timeout_ms,
            suffers=self._suffer,
            **{**self._more, **more},
        )

    def _clients(self) -> "list[Client]":
        return [client for client in (self._client, self._single, *self._former) if client is not None]

    def _suffer(self, error: "KafkaError") -> None:
        """Take an error of librdkafka's connections, inside of poll()."""
        self._broken = self._broken or error.fatal()
        if self._trouble is None or error.name() != "_ALL_BROKERS_DOWN":
            self._trouble = error

    def _renew(self) -> None:
        """Continue with a new client, because librdkafka gave up, or because a message has timed out.

        That is usually the brokers' fault, but after their restarts clients were seen that sent nothing any more. The
        old one keeps its messages until they are reported: otherwise it would be unknown whether they arrived.
        """
        try:
            new = self._new()
        except ConfigError:  # a certificate was replaced, perhaps: the next try may find a valid one
            return
        for client in (self._client, self._single):
            if client is not None:
                if self._broken:
                    client.purge()
                self._former.append(client)
        self._client, self._single, self._broken, self._stuck = new, None, False, False

    def _retire(self) -> None:
        for client in [client for client in self._former if not len(client)]:
            self._former.remove(client)
            client.close()

    async def _settle(self, timeout_s: float) -> bool:
        """Wait until nothing is in progress. False: something still is."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._open:
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            return False
        return True


def _stopped(topic: str) -> SendError:
    return SendError(f"the producer was stopped before topic {topic!r} got its message", code="_STATE", retryable=True)
