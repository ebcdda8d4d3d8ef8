"""The topic door: messages of a Kafka topic become jobs, each exactly once.

The position in the topic is written in the transaction of the jobs; docs/how-to/kafka.md explains what follows.
"""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Final
from zoneinfo import ZoneInfo

from infinite_scheduler.clock import Clock
from infinite_scheduler.errors import BrokerUnavailable, SchedulerError, StoreBroken, StoreUnavailable
from infinite_scheduler.handlers.base import Handler
from infinite_scheduler.ingest.ahead import Ahead
from infinite_scheduler.ingest.config import KafkaIngestConfig
from infinite_scheduler.ingest.dead_letters import DeadLetterSender
from infinite_scheduler.ingest.door_health import DoorHealth
from infinite_scheduler.ingest.door_parts import DoorParts
from infinite_scheduler.ingest.message import MessageReader
from infinite_scheduler.ingest.message_batch import MessageBatch
from infinite_scheduler.ingest.payload import MAX_PAYLOAD
from infinite_scheduler.ingest.positions import Positions
from infinite_scheduler.ingest.taker import Taker
from infinite_scheduler.ingest.throttle import Saturation, Throttle
from infinite_scheduler.ingest.topic_watch import TopicWatch
from infinite_scheduler.kafka.consumer_thread import ConsumerThread
from infinite_scheduler.kafka.group_member import GatherLimits, GroupMember, parts
from infinite_scheduler.kafka.partition import Partition
from infinite_scheduler.observe import events
from infinite_scheduler.observe.events import Observer
from infinite_scheduler.store.inbox import Inbox

MOST: Final = 5000
"""Messages of one batch: few more would share a page of the database."""

ROOM: Final = 4 << 20
"""Bytes of one batch, which is one transaction of the store."""

AWAY_MS: Final = (50, 1000)
"""How soon a store or a broker that does not answer is tried again, at first and at most."""

ROUND_MS: Final = 2000
"""How long batch follows batch before other work of the door is done."""

HANGS_MS: Final = 10_000
"""After this long, a check that does not return is reported."""


class TopicDoor:
    """Reads one topic as a member of its consumer group, together with other nodes.

    One task does one thing after the other: find the start offsets, gather messages, read them, store them in one
    transaction with the positions of their partitions. If it is behind, the next messages are gathered and read
    meanwhile, and stored only if those before them were. All calls to the consumer happen on one thread.
    """

    def __init__(
        self,
        config: KafkaIngestConfig,
        inbox: Inbox,
        handlers: Mapping[str, Handler],
        clock: Clock,
        tell: Observer,
        *,
        max_payload: int = MAX_PAYLOAD,
        zone: ZoneInfo | None = None,
        saturation: Saturation = lambda: 0.0,
    ) -> None:
        self.config = config
        self._clock = clock
        self._tell = tell
        self._reader = MessageReader(handlers, config.zone_info or zone or ZoneInfo("UTC"), max_payload)
        limits = GatherLimits(
            messages=MOST, size=ROOM, poll_messages=config.max_poll_records, poll_ms=config.poll_timeout_ms
        )
        self._consumer = consumer = GroupMember(config.options, config.group_id, [config.topic], limits, clock)
        self._client = client = consumer.client
        self._thread = consumer_thread = ConsumerThread(consumer, clock, self._hang)
        self._throttle = Throttle(config.topic, saturation, consumer_thread, clock, tell)
        self._watch = watch = TopicWatch(config.options, config.topic, clock)
        self._letters = DeadLetterSender(
            config, inbox, clock, tell, lambda number: Partition(config.topic, number) in consumer.held
        )
        shared = DoorParts(
            config=config,
            inbox=inbox,
            client=client,
            consumer=consumer,
            watch=watch,
            consumer_thread=consumer_thread,
            clock=clock,
            tell=tell,
        )
        self._positions = Positions(shared)
        self._taker = Taker(shared, self._letters.add)
        self._health = DoorHealth(shared)
        self._task: asyncio.Task[None] | None = None
        self._paused_since_ms: int | None = None
        self._wait_ms = AWAY_MS[0]
        self._name = f"topic door of {config.topic}"
        self._held: frozenset[Partition] = frozenset()  # the partitions that it had last
        self._in_doubt = False  # all positions must be read again
        self._check = 0, 0  # which check was seen running, and since when
        self._hanging: str | None = None  # the app whose check does not return
        tell(events.IngestMade(config=repr(config)))

    # Life

    def start(self) -> None:
        """Begin to read, if enabled. Returns at once; brokers that do not answer are retried without end."""
        if not self.config.enabled or self._task is not None:
            return
        self._consumer.open()
        self._watch.ask()
        self._letters.start()
        self._go()
        self._tell(events.IngestStarted(topic=self.config.topic, group=self.config.group_id))

    async def stop(self) -> None:
        """Stop reading: what was gathered is in the store, or left for the next reader of the partition."""
        if self._task is None or self._thread.stopping:
            return
        self._thread.stop()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._health.stop()
        await asyncio.gather(self._letters.stop(), self._thread.call(self._consumer.close))
        self._thread.close()
        self._watch.close()
        self._tell(events.IngestStopped(topic=self.config.topic, group=self.config.group_id))

    def _go(self) -> None:
        if not self._thread.stopping:
            self._task = asyncio.create_task(self._run(), name=self._name)
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Begin again, whatever the reason, unless it was stopped or the event loop ends."""
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if not self._thread.stopping:
            self._tell(events.TaskFailed(part=self._name, error=repr(error)))
            self._clock.call_later(AWAY_MS[1], self._begin_anew)

    def _begin_anew(self) -> None:
        self._in_doubt = True
        self._go()

    async def _run(self) -> None:
        while not self._thread.stopping:
            try:
                await self._round()
            except (StoreUnavailable, StoreBroken) as error:
                await self._wait_for_store(error)
            except BrokerUnavailable as error:
                self._client.problem = self._client.problem or str(error)
                await self._thread.pause(AWAY_MS[1])
            except Exception as error:  # noqa: BLE001 - the door goes on, whatever it is
                self._tell(events.TaskFailed(part=self._name, error=repr(error)))
                self._in_doubt = True
                await self._thread.pause(AWAY_MS[1])

    async def _round(self) -> None:
        """Find out where to begin, gather, store."""
        self._hanging = None
        if (held := frozenset(self._consumer.held)) != self._held:
            self._held = held
            self._letters.look_soon()
        await self._health.look()
        if self._in_doubt:
            await self._thread.call(self._consumer.forget_all)
            self._in_doubt = False
        await self._positions.find()
        self._go_on()
        try:
            await self._take_what_comes()
        except BaseException:
            self._in_doubt = True  # what was gathered after it was not stored either
            raise

    async def _take_what_comes(self) -> None:
        """Store batch by batch, for a while: while the store writes one, the next is read if there is one."""
        batches = self._batches()
        ahead = Ahead(lambda: self._thread.call(lambda: next(batches, None)))
        while (batch := await ahead.get()) is not None:
            ahead = Ahead(ahead.read)
            began_ms = self._clock.steady_ms()
            await self._taker.take(batch, self._reader, ahead.begin)
            await self._throttle.rest(self._clock.steady_ms() - began_ms)
            if self._thread.stopping:
                break

    def _batches(self) -> Iterator[MessageBatch]:
        """On the consumer's thread: gather what is there, in parts, and check each message.

        A door that keeps up reads nothing ahead: that would take CPU time from handing over.
        """
        until_ms = self._clock.steady_ms() + ROUND_MS
        gathered = self._consumer.gather()
        while gathered:
            for messages in parts(gathered, ROOM):
                yield MessageBatch.read(self.config, messages, self._reader)
            gathered = self._consumer.gather_more() if self._clock.steady_ms() < until_ms else []

    def _hang(self) -> None:
        """Something takes long on the consumer's thread: report it, once, if it is still the same check."""
        app, now_ms = self._reader.asked, self._clock.steady_ms()
        if app is None or self._reader.asks != self._check[0]:
            self._check = self._reader.asks, now_ms
        elif now_ms - self._check[1] >= HANGS_MS and self._hanging is None:
            self._hanging = app
            self._tell(events.CheckHangs(topic=self.config.topic, app=app, after_ms=HANGS_MS))

    # A store that is away

    async def _wait_for_store(self, error: SchedulerError) -> None:
        """Wait until the store answers, however long it takes: messages wait in Kafka, none becomes a dead letter."""
        if self._paused_since_ms is None:
            self._paused_since_ms, self._wait_ms = self._clock.steady_ms(), AWAY_MS[0]
            self._tell(events.IngestPaused(topic=self.config.topic, error=str(error)))
        self._in_doubt = True  # so that the positions are read before reading goes on
        await self._thread.call(self._consumer.stay)
        await self._thread.pause(self._wait_ms)
        self._wait_ms = min(self._wait_ms * 2, AWAY_MS[1])

    def _go_on(self) -> None:
        """The store has answered, and every partition has its position."""
        if self._paused_since_ms is not None:
            paused_ms, self._paused_since_ms = self._clock.steady_ms() - self._paused_since_ms, None
            self._tell(events.IngestResumed(topic=self.config.topic, paused_ms=paused_ms))

    # What people see

    @property
    def is_running(self) -> bool:
        """Has it been started, and not stopped?"""
        return self._task is not None and not self._task.done()

    @property
    def ready(self) -> bool:
        """Can it read and store messages at the moment?"""
        return self.problem is None

    @property
    def problem(self) -> str | None:
        """Why it cannot."""
        if not self.is_running:
            return "the door is not running"
        if self._hanging is not None:
            return f"the check of app {self._hanging!r} does not return"
        if self._client.problem is not None:
            return self._client.problem
        if self._paused_since_ms is not None:
            return "the store takes no messages at the moment"
        if not self._consumer.joined:
            return f"not yet a member of the group {self.config.group_id!r}"
        waiting = [
            assigned.partition.number for assigned in list(self._consumer.held.values()) if not assigned.fetching
        ]
        return f"partitions {waiting} are not read yet" if waiting else None

    @property
    def metrics(self) -> dict[str, int]:
        """What happened to messages since the start, and how many idempotency keys the store remembers."""
        return {
            **self._taker.counts,
            "messagesSentToDLQ": self._letters.sent,
            "idempotencyCacheSize": self._health.live_keys,
        }

    @property
    def lag(self) -> dict[int, int | None]:
        """How many messages wait in each partition that this node reads; None: not known yet."""
        held = dict(self._consumer.held)
        return {partition.number: held[partition].lag for partition in sorted(held)}
