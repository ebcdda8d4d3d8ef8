"""A complete node on a clock that is moved by hand: an hour takes about a second."""

from collections.abc import Awaitable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar
from zoneinfo import ZoneInfo

from infinite_scheduler.client import Client
from infinite_scheduler.config import Settings
from infinite_scheduler.handlers.base import Handler, Report
from infinite_scheduler.model import Job
from infinite_scheduler.observe.events import Observer
from infinite_scheduler.policy.calendar import Delay, parse_duration
from infinite_scheduler.scheduler import Scheduler
from infinite_scheduler.store import open_store
from infinite_scheduler.store.base import Store
from infinite_scheduler.testing.manual_clock import START_MS, ManualClock
from infinite_scheduler.testing.pump import Pump

T = TypeVar("T")

LINGER_MS: Final = 100
"""Outcomes wait a few ms for others before they are made durable; after this long they are, if the store answers."""


QUIET: Final = {"node.request_poll": "1m"}
"""All clients are in this process and poke the node, so it need not poll, which would take most of a test's time."""


class Delivery(NamedTuple):
    """A job that was handed over, and when."""

    job: Job
    at_ms: int


class Harness:
    """A node, a client and a store of their own, on a clock that only the test moves.

    ```python
    async def test_ann_gets_her_mail() -> None:
        sent = []

        async def send(job: Job) -> None:
            sent.append(job.data["to"])

        async with Harness() as h:
            h.scheduler.app("mail")(send)
            await h.start()
            job = await h.client.schedule("mail", {"to": "ann"}, delay="5m")
            await h.advance("4m59s")
            assert not sent
            await h.advance("1s")
            assert sent == ["ann"]
            assert (await h.client.get(job.id)).status == "done"
    ```

    Time passes only in `advance`, `run` and `stop`, from timer to timer, and everything that a timer starts comes to
    rest before the next one. A handler that really waits, for I/O or in a thread, is waited for: each call for up to
    `patience` of real time. After that it is assumed to wait for the clock or for the test, and time goes on without
    it.

    The store is SQLite, in memory or in the file `path`, and works in the caller's thread. `settings` are those of
    `Scheduler`. `delivered` lists what was handed over.
    """

    def __init__(
        self,
        path: str | Path = ":memory:",
        *,
        settings: Settings | Mapping[str, Any] | None = None,
        start_ms: int = START_MS,
        patience: timedelta = timedelta(seconds=1),
        observers: Sequence[Observer] = (),
    ) -> None:
        self.clock = ManualClock(start_ms)
        self.delivered: list[Delivery] = []
        self._pump = Pump(self.clock, patience.total_seconds())
        store = open_store(f"sqlite:///{path}", self.clock, {"inline": True})
        if not isinstance(settings, Settings):
            settings = {**QUIET, **(settings or {})}
        self._node = HarnessNode(self, settings, store, observers)
        self._running = False

    @property
    def scheduler(self) -> Scheduler:
        """The node; register handlers here before `start`."""
        return self._node

    @property
    def client(self) -> Client:
        """A client of the same store; the node itself has the methods of a client too."""
        return self._node

    async def __aenter__(self) -> Self:
        await self._node.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._running:
            await self.stop()
        await self._node.close()

    async def start(self) -> None:
        """Start the node; on return it owns its shards."""
        await self._node.start()
        self._running = True
        await self._pump.rest()

    async def stop(self) -> bool:
        """Stop the node in good order; False: some handlers had to be abandoned."""
        self._running = False
        return await self.run(self._node.stop())

    async def advance(self, delay: Delay) -> None:
        """Let this much time pass: "5m", seconds, a timedelta.

        What is due by then is handed over, and outcomes are settled.
        """
        await self._pump.advance(parse_duration(delay))
        await self.run_due()

    async def run_due(self) -> None:
        """Hand over what is due now, and make outcomes durable, while the wall clock stands still."""
        await self._pump.rest()
        for _ in range(LINGER_MS):
            if not self._node.outcomes_wait:
                return
            await self._pump.advance(1, wall=False)

    async def run(self, work: Awaitable[T], *, within: Delay = "1h") -> T:
        """Let as much time pass as this needs: `await h.run(h.client.wait(job.id))`."""
        return await self._pump.run(work, parse_duration(within))

    def handed_over(self, jobs: Sequence[Job], call: object) -> None:
        """Note that a handler is called."""
        self.delivered.extend(Delivery(job, self.clock.wall_ms()) for job in jobs)
        self._pump.begin(call)

    def returned(self, call: object) -> None:
        """Note that a handler has returned."""
        self._pump.end(call)


class HarnessNode(Scheduler):
    """A scheduler whose hand-overs are observed by a harness."""

    def __init__(
        self,
        harness: Harness,
        settings: Settings | Mapping[str, Any] | None,
        store: Store,
        observers: Sequence[Observer],
    ) -> None:
        self._harness = harness
        super().__init__(settings=settings, clock=harness.clock, store=store, observers=observers)

    def add_app(self, name: str, handler: Handler, **options: Any) -> None:
        super().add_app(name, Watched(handler, self._harness), **options)

    @property
    def outcomes_wait(self) -> bool:
        """Is there an outcome that is not durable yet?"""
        dispatchers = self._engine.dispatchers.values() if self._engine else ()
        return any(
            owned.handed_over.keys() - dispatcher.flights.keys()
            for dispatcher in dispatchers
            for owned in dispatcher.owned_shards.values()
        )


class Watched(Handler):
    """A handler whose calls are reported to a harness."""

    def __init__(self, inner: Handler, harness: Harness) -> None:
        self.batch = inner.batch
        self.checks = inner.checks
        self._inner = inner
        self._harness = harness

    def check(self, data: Any) -> None:
        self._inner.check(data)

    def adopt(self, message: Mapping[str, Any]) -> object | None:
        return self._inner.adopt(message)

    def locate(self, zone: ZoneInfo) -> None:
        self._inner.locate(zone)

    async def start(self) -> None:
        await self._inner.start()

    async def stop(self) -> None:
        await self._inner.stop()

    async def handle(self, jobs: Sequence[Job], report: Report) -> None:
        call = object()
        self._harness.handed_over(jobs, call)
        try:
            await self._inner.handle(jobs, report)
        finally:
            self._harness.returned(call)

    def unfinished(self) -> Sequence[Job]:
        return self._inner.unfinished()
