"""The demo: five messages through an SMS provider that fails at first, by the real engine on a temporary file."""

import asyncio
import logging
import math
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from infinite_scheduler.client import NewJob
from infinite_scheduler.clock import SystemClock
from infinite_scheduler.config import load_settings
from infinite_scheduler.model import Job, Status
from infinite_scheduler.observe.events import AttemptFailed, Event
from infinite_scheduler.policy.retry import RetryPolicy
from infinite_scheduler.scheduler import Scheduler

APP: Final = "sms_retry"
LADDER: Final = ("1s", "2s", "4s")
FIRST_MS: Final = 1500
APART_MS: Final = 250
TIME_LIMIT_S: Final = 25.0

MESSAGES: Final = (  # to whom, what, and how often the provider refuses it
    ("+49 30 555 0101", "Your code is 4711", 2),
    ("+81 3 5550 0102", "Your parcel is here", 1),
    ("+1 212 555 0103", "Gate B42, boarding now", 3),
    ("+33 1 55 50 01 04", "Table for two at eight", 2),
    ("+44 20 5550 0105", "Happy birthday, Ada", 1),
)


class ProviderDown(Exception):
    """What the provider answers at first."""


class Message(msgspec.Struct, kw_only=True):
    """One message on its way, as the demo sees it."""

    number: int
    to: str
    text: str
    refusals: int  # still to come
    id: str = ""
    due_ms: int = 0
    attempt: int = 0
    state: str = "accepted"  # then: refused, delivered, or lost
    late_ms: int | None = None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What the demo proves."""

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


Show = Callable[[Message], None]
"""Told whenever something happened to a message."""


class Demo:
    """The five messages, the provider that refuses them at first, and the scheduler between them."""

    def __init__(self, show: Show) -> None:
        self.messages = [
            Message(number=number, to=to, text=text, refusals=refusals)
            for number, (to, text, refusals) in enumerate(MESSAGES, start=1)
        ]
        self._show = show
        self._clock = SystemClock()
        self._late_ms: list[int] = []

    async def play(self) -> Summary:
        """From the first message to the last delivery."""
        began_ms = self._clock.steady_ms()
        with tempfile.TemporaryDirectory(prefix="infinite-scheduler-demo-") as folder:
            settings = load_settings(
                overrides={"store.url": f"sqlite:///{Path(folder) / 'demo.db'}", "node.id": "demo"}, environ={}
            )
            scheduler = Scheduler(settings=settings, observers=[self._watch])
            scheduler.app(APP, retry=RetryPolicy(delays=LADDER, jitter=0.0, max_attempts=5))(self._send)
            async with scheduler:
                await self._accept(scheduler)
                with suppress(TimeoutError):
                    async with asyncio.timeout(TIME_LIMIT_S):
                        for message in self.messages:
                            await scheduler.wait(message.id)
                records = [await scheduler.get(message.id) for message in self.messages]
        for message, record in zip(self.messages, records, strict=True):
            if record.status is not Status.DONE:
                message.state = "lost"
                self._show(message)
        return self._summary((self._clock.steady_ms() - began_ms) / 1000)

    async def _accept(self, scheduler: Scheduler) -> None:
        start_ms = self._clock.wall_ms() + FIRST_MS
        jobs = [
            NewJob(data={"message": message.number}, at=start_ms + APART_MS * i, request_id=f"demo-{message.number}")
            for i, message in enumerate(self.messages)
        ]
        for message, accepted in zip(self.messages, await scheduler.schedule_many(APP, jobs), strict=True):
            message.id, message.due_ms = accepted.id, accepted.due_ms
            self._show(message)

    async def _send(self, job: Job) -> None:
        """The handler: hand the message to the provider."""
        message = self.messages[job.data["message"] - 1]
        message.late_ms = self._clock.wall_ms() - job.due_ms
        message.due_ms, message.attempt = job.due_ms, job.attempt
        self._late_ms.append(message.late_ms)
        if message.refusals:
            message.refusals -= 1
            raise ProviderDown("503: the provider is down")
        message.state = "delivered"
        self._show(message)

    def _watch(self, event: Event) -> None:
        """What the scheduler makes of a refusal: it says when it tries again."""
        if isinstance(event, AttemptFailed):
            message = next(message for message in self.messages if message.id == event.job_id)
            message.state, message.due_ms = "refused", event.next_due_ms or 0
            self._show(message)

    def _summary(self, seconds: float) -> Summary:
        delivered = sum(message.state == "delivered" for message in self.messages)
        late_ms = sorted(self._late_ms) or [0]
        return Summary(
            delivered=delivered,
            early=sum(ms < 0 for ms in late_ms),
            lost=len(self.messages) - delivered,
            handed_over=len(self._late_ms),
            p50_ms=_quantile(late_ms, 0.5),
            p99_ms=_quantile(late_ms, 0.99),
            seconds=round(seconds, 1),
        )


def _quantile(ordered: list[int], fraction: float) -> int:
    return ordered[math.ceil(fraction * len(ordered)) - 1]


def run_demo(*, as_json: bool) -> int:
    """Play it on the terminal, as lines where there is none, or as JSON."""
    from infinite_scheduler.cli.demo_view import play_as_json, play_as_lines, play_live  # noqa: PLC0415 - it needs our words
    from infinite_scheduler.cli.output import console  # noqa: PLC0415

    logging.getLogger("infinite_scheduler").addHandler(logging.NullHandler())  # refusals are the point, not a warning
    screen = console()
    if as_json:
        summary = asyncio.run(play_as_json())
    elif screen.is_terminal and not screen.is_dumb_terminal:
        summary = asyncio.run(play_live(screen))
    else:
        summary = asyncio.run(play_as_lines(screen))
    return 0 if summary.fine else 1
