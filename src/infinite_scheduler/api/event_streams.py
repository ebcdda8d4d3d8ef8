"""Event streams: each second an overview and what happened, read and encoded once for all who listen."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final, NamedTuple

from infinite_scheduler.api.api_context import ApiContext
from infinite_scheduler.api.happenings import Happenings, event
from infinite_scheduler.api.overview import EVERY_MS, OverviewBoard
from infinite_scheduler.api.refusal import NOT_READY, Refusal
from infinite_scheduler.clock import sleep
from infinite_scheduler.errors import SchedulerError
from infinite_scheduler.observe.recent_failures import RecentFailures

KEPT: Final = 10
"""How many rounds are kept for listeners that are behind."""


class SlowReader(Exception):
    """A listener is too far behind: what it has missed is gone."""


class Round(NamedTuple):
    """What all listeners are told at once."""

    number: int
    state: bytes  # how things are: for those who begin to listen
    news: bytes  # what happened, then how things are


class EventStreams:
    """The listeners of one server, at most so many, until it stops.

    While there are any, one task looks at the store each second and writes the events that all of them are sent.
    """

    def __init__(
        self, most: int, *, failures: RecentFailures | None = None, node: str = "", every_ms: int = EVERY_MS
    ) -> None:
        self._most = most
        self._failures = failures
        self._node = node
        self._listening = 0
        self._stopping = False
        self._board = OverviewBoard(every_ms)
        self._rounds: deque[Round] = deque(maxlen=KEPT)
        self._number = 0  # of the last round
        self._news = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    @property
    def board(self) -> OverviewBoard:
        """What listeners and those who ask once are shown."""
        return self._board

    def start(self) -> None:
        """Let streams go on after a stop."""
        self._stopping = False

    def stop(self) -> None:
        """Let each stream end with a last event."""
        self._stopping = True
        self._wake()

    async def events(self, api: ApiContext) -> AsyncGenerator[bytes, None]:
        """One more stream; its first event is a Refusal if there are too many. Raises SlowReader."""
        if self._listening >= self._most:
            raise Refusal(
                NOT_READY, f"{self._most:,} event streams are open, and no more are allowed (http.streams): try later"
            )
        self._listening += 1
        try:
            number = self._number
            if self._looking is None:
                self._looking = asyncio.create_task(self._look(api))
                self._looking.add_done_callback(self._ended)
            elif self._rounds:
                yield self._rounds[-1].state
            while await self._more(number):
                rounds = self._after(number)
                number = self._number
                yield b"".join(rounds)
            yield event("end", {"reason": "the server stops"})
        finally:
            self._listening -= 1
            if not self._listening:
                await self._rest()

    async def _more(self, number: int) -> bool:
        """Wait for a round after this one; False: the server stops."""
        while not self._stopping and number == self._number:
            if self._looking is not None and self._looking.done():
                self._looking.result()  # an error that nobody foresaw
            await self._news.wait()
        return not self._stopping

    def _after(self, number: int) -> list[bytes]:
        """The rounds after this one."""
        missed = self._rounds[0].number - number - 1
        if missed > 0:
            raise SlowReader(f"{missed:,} rounds of events were not read in time")
        return [one.news for one in self._rounds if one.number > number]

    async def _look(self, api: ApiContext) -> None:
        """Look at the store each second, until no one listens."""
        happenings = Happenings(self._failures, self._node)
        while True:
            every_ms = self._board.every_ms
            try:
                seen = await self._board.read(api)
            except SchedulerError as error:
                away = event("away", {"reason": str(error)})
                self._tell(away, away)
                await sleep(api.clock, every_ms)
            else:
                state = event("overview", seen.overview)
                self._tell(state, happenings.since(seen.look, api.lease_ms) + state)
                await sleep(api.clock, max(1, seen.steady_ms + every_ms - api.clock.steady_ms()))

    def _tell(self, state: bytes, news: bytes) -> None:
        self._number += 1
        self._rounds.append(Round(self._number, state, news))
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _ended(self, looking: "asyncio.Task[None]") -> None:
        if not looking.cancelled() and looking.exception() is not None:
            self._wake()

    async def _rest(self) -> None:
        """No one listens: look no more, and forget what was told."""
        looking, self._looking = self._looking, None
        self._rounds.clear()
        if looking is not None:
            looking.cancel()
            await asyncio.wait({looking})
