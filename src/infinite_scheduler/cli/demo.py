"""The demo: five failed SMS go through Kafka and the store until a provider that is down at first has taken them all.

SMS_Retry -> store -> SMS_Send: the real engine between two topics. The SMS service sends to the first topic and reads
the second; this file plays that service.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from threading import Event
from typing import Any, Final

import msgspec

from infinite_scheduler.cli.demo_stage import Stage, open_stage
from infinite_scheduler.clock import SystemClock
from infinite_scheduler.model import datetime_of
from infinite_scheduler.scheduler import Scheduler
from infinite_scheduler.sms import SmsRetryProducer

FIRST_S: Final = 0.5
LADDER_S: Final = (1, 2, 3)
MAX_ATTEMPTS: Final = 5
START_LIMIT_MS: Final = 12_000
TIME_LIMIT_S: Final = 15.0

MESSAGES: Final = (  # to whom, what, and how often the provider still refuses it
    ("+49 30 555 0101", "Your code is 4711", 2),
    ("+81 3 5550 0102", "Your parcel is here", 1),
    ("+1 212 555 0103", "Gate B42, boarding now", 3),
    ("+33 1 55 50 01 04", "Table for two at eight", 0),
    ("+44 20 5550 0105", "Happy birthday, Ada", 1),
)


class Sms(msgspec.Struct, kw_only=True):
    """One message on its way, as the SMS service sees it."""

    task_id: int
    to: str
    text: str
    refusals: int  # still to come
    due_ms: int = 0  # 0: not scheduled yet
    attempt: int = 0  # the last one that was made
    state: str = "failed"  # then: scheduled, refused, delivered, or lost
    late_ms: int | None = None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the demo."""

    delivered: int
    early: int
    lost: int
    handed_over: int
    p50_ms: int
    p99_ms: int
    seconds: float

    @property
    def fine(self) -> bool:
        return self.delivered == len(MESSAGES) and self.early == 0 and self.lost == 0


Show = Callable[[Sms], None]
"""Called whenever something happened to a message."""


class Demo:
    """The SMS service: it schedules failed messages, and sends those that come back when due."""

    def __init__(self, show: Show, kafka: str | None = None, store: str | None = None) -> None:
        self._clock = SystemClock()
        first_task = self._clock.wall_ms()  # so that messages of another demo are not taken for ours
        self.messages = [
            Sms(task_id=first_task + i, to=to, text=text, refusals=refusals)
            for i, (to, text, refusals) in enumerate(MESSAGES)
        ]
        self.scheduled = 0
        self.left: list[str] = []  # what could not be cleaned up
        self._show = show
        self._place = (kafka, store)
        self._late_ms: list[int] = []
        self._early = 0
        self._listening, self._over = Event(), Event()

    async def play(self) -> Summary:
        """Run from the first failure to the last delivery."""
        began_ms = self._clock.steady_ms()
        async with open_stage(*self._place, left=self.left) as stage:
            with SmsRetryProducer(stage.options, topic=stage.retry_topic, app_name=stage.app) as retries:
                async with Scheduler(settings=stage.settings) as scheduler:
                    await self._run(stage, scheduler, retries)
        for sms in self.messages:
            if sms.state != "delivered":
                sms.state = "lost"
                self._show(sms)
        return self._summary((self._clock.steady_ms() - began_ms) / 1000)

    async def _run(self, stage: Stage, scheduler: Scheduler, retries: SmsRetryProducer) -> None:
        sending = asyncio.create_task(asyncio.to_thread(self._consume, stage, retries))
        try:
            await self._both_ends(scheduler)
            await asyncio.to_thread(self._fail, retries)
            with suppress(TimeoutError):
                async with asyncio.timeout(TIME_LIMIT_S):
                    await asyncio.shield(sending)
        finally:
            self._over.set()
            await sending

    async def _both_ends(self, scheduler: Scheduler) -> None:
        """Wait for the consumer groups to form: messages scheduled earlier would only be late."""
        for _ in range(START_LIMIT_MS // 20):
            if scheduler.doors[0].ready and self._listening.is_set():
                return
            await asyncio.sleep(0.02)

    def _fail(self, retries: SmsRetryProducer) -> None:
        """The beginning: nothing could be sent, so everything is scheduled. Times here are in whole seconds."""
        first_ms = math.ceil(self._clock.wall_ms() / 1000 + FIRST_S) * 1000
        for i, sms in enumerate(self.messages):
            self._schedule(retries, sms, first_ms + i // 2 * 1000, "Network timeout")

    def _schedule(self, retries: SmsRetryProducer, sms: Sms, due_ms: int, reason: str) -> None:
        """Request the next attempt."""
        now_ms = self._clock.wall_ms()
        retries.schedule_retry(sms.task_id, datetime_of(now_ms), datetime_of(due_ms), sms.attempt + 1, reason)
        sms.state, sms.due_ms = "refused" if sms.attempt else "scheduled", due_ms
        self.scheduled += 1
        self._show(sms)

    def _consume(self, stage: Stage, retries: SmsRetryProducer) -> None:
        """Read SMS_Send, in a thread of its own, until everything is delivered."""
        consumer = stage.consumer()
        consumer.subscribe([stage.send_topic], on_assign=lambda *_: self._listening.set())
        try:
            while not self._over.is_set() and any(sms.state != "delivered" for sms in self.messages):
                record = consumer.poll(0.1)
                if record is not None and record.error() is None:
                    self._send(msgspec.json.decode(record.value() or b""), record.timestamp()[1], retries)
        finally:
            consumer.close()

    def _send(self, retry: dict[str, Any], published_ms: int, retries: SmsRetryProducer) -> None:
        """Give one message to the provider; if that fails, schedule the next attempt, up to a maximum."""
        seen_ms = self._clock.wall_ms()
        sms = next((sms for sms in self.messages if sms.task_id == retry["campaignTaskId"]), None)
        if sms is None or retry["retryAttempt"] <= sms.attempt:  # delivered at least once: a repeat is skipped
            return
        due_ms = int(datetime.fromisoformat(f"{retry['scheduledRetryTime']}Z").timestamp()) * 1000
        sms.attempt, sms.late_ms = retry["retryAttempt"], seen_ms - due_ms
        self._late_ms.append(sms.late_ms)
        self._early += min(published_ms, seen_ms) < due_ms
        if not sms.refusals:
            sms.state = "delivered"
            self._show(sms)
        elif sms.attempt < MAX_ATTEMPTS:
            sms.refusals -= 1
            wait_s = LADDER_S[min(sms.attempt, len(LADDER_S)) - 1]
            self._schedule(retries, sms, due_ms + wait_s * 1000, "503: the provider is down")

    @property
    def arrived(self) -> int:
        """How many attempts came back from SMS_Send."""
        return len(self._late_ms)

    def _summary(self, seconds: float) -> Summary:
        delivered = sum(sms.state == "delivered" for sms in self.messages)
        late_ms = sorted(self._late_ms) or [0]
        return Summary(
            delivered=delivered,
            early=self._early,
            lost=len(self.messages) - delivered,
            handed_over=self.arrived,
            p50_ms=_quantile(late_ms, 0.5),
            p99_ms=_quantile(late_ms, 0.99),
            seconds=round(seconds, 1),
        )


def _quantile(ordered: list[int], fraction: float) -> int:
    return ordered[math.ceil(fraction * len(ordered)) - 1]


def run_demo(*, kafka: str | None = None, store: str | None = None, as_json: bool = False) -> int:
    """Show it on a terminal, as plain lines elsewhere, or as JSON."""
    from infinite_scheduler.cli.demo_view import play_as_json, play_as_lines, play_live  # noqa: PLC0415 - it imports this module
    from infinite_scheduler.cli.output import console  # noqa: PLC0415

    logging.getLogger("infinite_scheduler").addHandler(logging.NullHandler())  # refusals are expected, not a warning
    screen = console()
    if as_json:
        summary = asyncio.run(play_as_json(kafka, store))
    elif screen.is_terminal and not screen.is_dumb_terminal:
        summary = asyncio.run(play_live(screen, kafka, store))
    else:
        summary = asyncio.run(play_as_lines(screen, kafka, store))
    return 0 if summary.fine else 1
