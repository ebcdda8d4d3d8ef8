"""Every handler keeps the promises of the port."""

import asyncio
import json
from collections.abc import Collection
from pathlib import Path
from typing import Literal

import pytest

from infinite_scheduler import KafkaHandler, SmsRetryJobHandler
from infinite_scheduler.clock import Clock
from infinite_scheduler.errors import DestinationAway
from infinite_scheduler.handlers.base import Handler
from infinite_scheduler.handlers.python import PythonHandler
from infinite_scheduler.testing import HandlerContract, ManualClock
from tests.contract import functions
from tests.services.topics import read

NOWHERE = "127.0.0.1:1"
LONG_MS = 600_000


class FunctionContract(HandlerContract):
    """A Python function, called in one of the ways there are."""

    function: str
    hanging: str
    pool: Literal["process"] | None = None
    batch: int | None = None

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        self.data, self.bad_data = (json.dumps({"folder": str(tmp_path), "bad": bad}).encode() for bad in (False, True))
        functions.GATE.clear()

    def make_handler(self, clock: Clock) -> Handler:
        return self._make(self.function, clock, LONG_MS)

    def make_stuck_handler(self, clock: Clock, timeout_ms: int | None) -> Handler:
        return self._make(self.hanging, clock, timeout_ms)

    def make_away_handler(self, clock: Clock) -> Handler:
        return self._make("away_async" if "async" in self.function else "away", clock, LONG_MS)

    async def test_the_wait_that_a_destination_asks_for_is_passed_on(self) -> None:
        async with self._running(self.make_away_handler(ManualClock())) as handler:
            reports = await self._handed_over(handler, self._jobs(1))
        ((_, answer),) = reports.told
        assert isinstance(answer, DestinationAway)
        assert (str(answer), answer.retry_after_s) == ("the gateway is closed", 90)

    def _make(self, function: str, clock: Clock, timeout_ms: int | None) -> Handler:
        return PythonHandler(
            f"{functions.__name__}:{function}",
            batch=self.batch,
            pool=self.pool,
            concurrency=2,
            timeout_ms=timeout_ms,
            clock=clock,
        )

    async def arrived(self) -> Collection[str]:
        return [file.name for file in self.folder.iterdir()]

    async def until_stuck(self) -> None:
        while not await self.arrived():  # noqa: ASYNC110 - it happens in a thread or a process
            await asyncio.sleep(0.005)

    def release(self) -> None:
        functions.GATE.set()


class TestAsyncFunction(FunctionContract):
    function = "arrive_async"
    hanging = "hang_async"


class TestAsyncFunctionWithoutTimeout(TestAsyncFunction):
    has_timeout = False

    def make_handler(self, clock: Clock) -> Handler:
        return PythonHandler(functions.arrive_async, clock=clock)


class TestAsyncBatches(FunctionContract):
    function = "arrive_all_async"
    hanging = "hang_async"
    batch = 5


class TestThreads(FunctionContract):
    function = "arrive"
    hanging = "hang"
    can_be_interrupted = False


class TestThreadsInBatches(FunctionContract):
    function = "arrive_all"
    hanging = "hang"
    batch = 5
    can_be_interrupted = False


class TestProcesses(FunctionContract):
    function = "arrive"
    hanging = "hang_in_process"
    pool = "process"


class TestProcessesInBatches(FunctionContract):
    function = "arrive_all"
    hanging = "hang_in_process"
    pool = "process"
    batch = 5


# Topics


class TopicContract(HandlerContract):
    """Messages to a topic, of a broker inside of this process."""

    topic = "out"

    @pytest.fixture(autouse=True)
    def place(self, mock_kafka: str) -> None:
        self.servers = mock_kafka

    async def arrived(self) -> Collection[str]:
        found = await asyncio.to_thread(read, self.servers, self.topic)
        return [(dict(message.headers)["job-id"] or b"").decode() for message in found]


class TestKafka(TopicContract):
    data = b'{"to": "Ada"}'
    bad_data = b"{}"

    def make_handler(self, clock: Clock) -> Handler:
        return KafkaHandler(self.servers, self.topic, required=["to"], clock=clock)

    def make_stuck_handler(self, clock: Clock, timeout_ms: int | None) -> Handler:
        return KafkaHandler(NOWHERE, self.topic, timeout_ms=timeout_ms or LONG_MS, clock=clock)

    def make_away_handler(self, clock: Clock) -> Handler:
        return self.make_stuck_handler(clock, 300)


class TestSmsRetry(TopicContract):
    data = b'{"campaignTaskId": 7}'
    bad_data = b"{}"

    def make_handler(self, clock: Clock) -> Handler:
        return SmsRetryJobHandler(self.servers, self.topic, clock=clock)

    def make_stuck_handler(self, clock: Clock, timeout_ms: int | None) -> Handler:
        return SmsRetryJobHandler(NOWHERE, self.topic, timeout_ms=timeout_ms or LONG_MS, clock=clock)

    def make_away_handler(self, clock: Clock) -> Handler:
        return self.make_stuck_handler(clock, 300)
