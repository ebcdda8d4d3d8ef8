"""Requests to change jobs: concurrent ones share a transaction, and each waits for its decision."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Final

import msgspec

from infinite_scheduler.clock import Clock, wait
from infinite_scheduler.errors import SchedulerError, StoreUnavailable, Unavailable
from infinite_scheduler.model import Shard
from infinite_scheduler.store.sql.protocol import anybody
from infinite_scheduler.store.sql.protocol.anybody import ChangeRequest, RequestState
from infinite_scheduler.store.sql.statements import Session

SHARED = 500
"""The most requests in one transaction: a few ms of work."""

POLL_MS = 20
"""How often a process looks for decisions of owners in other processes."""


AGAIN_MS = 100
"""How long to wait before a request whose answer was lost is sent again."""

CLOSE_S: Final = 5.0
"""How long a close waits for a transaction that is under way; then it is unknown whether its changes take place."""


class PendingRequest(msgspec.Struct):
    """One request on its way."""

    change_request: ChangeRequest
    answer: asyncio.Future[RequestState]
    deadline_ms: int  # by the steady clock
    doubt: bool = False  # it was sent before, and the answer was lost


class ChangeRequests:
    """The way from a request to its decision, for all callers of one process and event loop."""

    def __init__(self, session: Session, clock: Clock, poke: Callable[[Collection[Shard]], None]) -> None:
        self._session = session
        self._clock = clock
        self._poke = poke
        self._new: deque[PendingRequest] = deque()
        self._asked: dict[bytes, PendingRequest] = {}
        self._sent: Collection[PendingRequest] = ()  # sent to the store, not answered yet
        self._stir = asyncio.Event()
        self._again = asyncio.Event()  # ends the pause before requests are sent again
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def submit(self, change_request: ChangeRequest, timeout_ms: int) -> RequestState:
        """Return how the request was decided; raises Unavailable if its owner does not answer in time."""
        if self._closed:
            raise not_asked()
        pending = PendingRequest(
            change_request, asyncio.get_running_loop().create_future(), self._clock.steady_ms() + timeout_ms
        )
        self._new.append(pending)
        self._stir.set()
        if self._task is None or self._task.done():  # done: it was cancelled before its first step
            self._task = asyncio.create_task(self._run(), name="change requests")
        return await pending.answer

    def decided(self, decisions: Iterable[tuple[bytes, bool]]) -> None:
        """An owner in this process has decided."""
        for request, granted in decisions:
            pending = self._asked.pop(request, None)
            if pending:
                _resolve(pending, granted)

    async def close(self) -> None:
        """Let the transaction under way end, withdraw what is not decided, and tell every caller what is known."""
        self._closed = True
        await self._finish()
        for pending in self._sent:
            _refuse(pending, unknown("the client was closed, and the store does not answer"))
        self._sent = ()
        while self._new:
            pending = self._new.popleft()
            if pending.doubt:
                self._asked[pending.change_request.id] = pending
            else:
                _refuse(pending, not_asked())
        await self._withdraw()

    async def _finish(self) -> None:
        """Wait for the transaction under way: a thread that has begun one goes on with it, whoever stops waiting."""
        self._stir.set()
        self._again.set()
        if self._task:
            task = self._task
            await asyncio.wait([task], timeout=CLOSE_S)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _withdraw(self) -> None:
        if self._asked:
            with suppress(SchedulerError, TimeoutError):
                await asyncio.wait_for(self._give_up(list(self._asked.values())), CLOSE_S)
        for pending in self._asked.values():
            _refuse(pending, unknown("the client was closed while it waited"))
        self._asked.clear()

    async def _run(self) -> None:
        """Run until no caller waits, or until the end."""
        try:
            while (self._new or self._asked) and not self._closed:
                self._stir.clear()
                if self._new:
                    batch = [self._new.popleft() for _ in range(min(SHARED, len(self._new)))]
                    await self._ask(batch, exclusive=False)
                if self._asked and not self._new:
                    await wait(self._clock, self._stir, POLL_MS)
                    await self._listen()
        finally:
            self._task = None

    async def _ask(self, batch: Collection[PendingRequest], *, exclusive: bool) -> None:
        change_requests = [pending.change_request for pending in batch]
        doubtful = [pending.change_request.id for pending in batch if pending.doubt]
        self._sent = batch
        try:
            states = await self._session.write(
                lambda tx: anybody.ask(tx, change_requests, exclusive=exclusive, doubtful=doubtful)
            )
        except Exception as error:  # noqa: BLE001 - passed on to the callers
            await self._again_or_refuse(batch, error)
            return
        self._sent = ()
        released = []
        asked = set()
        for pending in batch:
            state = states[pending.change_request.id]
            match state:
                case RequestState.ASKED:
                    self._asked[pending.change_request.id] = pending
                    asked.add(pending.change_request.shard)
                case RequestState.RELEASED:
                    released.append(pending)
                case RequestState.AGAIN:
                    self._new.append(pending)
                case _:
                    if state is RequestState.GRANTED:
                        asked.add(pending.change_request.shard)  # its new moment may be before the line
                    if not pending.answer.done():
                        pending.answer.set_result(state)
        if asked:
            self._poke(asked)
        if released:
            await self._ask(released, exclusive=True)

    async def _again_or_refuse(self, batch: Collection[PendingRequest], error: Exception) -> None:
        """Without an answer it is unknown what was written: send the same requests again, until their time is up."""
        now_ms = self._clock.steady_ms()
        for pending in batch:
            if getattr(error, "retryable", False) and now_ms < pending.deadline_ms:
                pending.doubt = True
                self._new.append(pending)
            else:
                _refuse(pending, unknown(error) if pending.doubt else error)
        self._sent = ()
        self._again.clear()
        if not self._closed:
            await wait(self._clock, self._again, AGAIN_MS)

    async def _listen(self) -> None:
        """Read decisions of owners elsewhere; give up on those that do not answer."""
        waiting = list(self._asked)
        if not waiting:
            return
        now = self._clock.steady_ms()
        try:
            decisions = await self._session.read(lambda tx: tx.read_decisions(waiting))
            self.decided(decisions.items())
            silent = [p for p in self._asked.values() if p.deadline_ms <= now]
            if silent:
                await self._give_up(silent)
        except Exception as error:  # noqa: BLE001 - passed on to the callers
            for pending in [p for p in self._asked.values() if p.deadline_ms <= now]:
                del self._asked[pending.change_request.id]
                _refuse(pending, unknown(error))

    async def _give_up(self, silent: Collection[PendingRequest]) -> None:
        change_requests = [pending.change_request for pending in silent]
        doubt = any(pending.doubt for pending in silent)
        decisions = await self._session.write(lambda tx: anybody.give_up(tx, change_requests, doubtful=doubt))
        for pending in silent:
            decision = decisions[pending.change_request.id]
            if self._asked.pop(pending.change_request.id, None) is None:
                continue
            if decision is None:
                _refuse(pending, self._undecided(pending.change_request.shard))
            else:
                _resolve(pending, decision)

    def _undecided(self, shard: Shard) -> Unavailable:
        """The error for a request that was withdrawn."""
        if self._closed:
            return Unavailable(f"the client was closed before the owner of shard {shard} decided; nothing was changed")
        return Unavailable(f"the owner of shard {shard} does not answer; nothing was changed")


def not_asked() -> Unavailable:
    """The error for a request that was not sent."""
    return Unavailable("the client was closed before it asked; nothing was changed")


def unknown(why: object) -> StoreUnavailable:
    """The error for a request that may still be decided."""
    return StoreUnavailable(f"{why}; it is unknown whether the change takes place: look at the job, or ask again")


def _resolve(pending: PendingRequest, granted: bool) -> None:
    if not pending.answer.done():
        pending.answer.set_result(RequestState.GRANTED if granted else RequestState.TOO_LATE)


def _refuse(pending: PendingRequest, error: Exception) -> None:
    if not pending.answer.done():
        pending.answer.set_exception(error)
