"""Requests to change jobs: concurrent ones share a transaction, and each waits for its verdict."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

import msgspec

from infinite_scheduler.clock import Clock, sleep, wait
from infinite_scheduler.errors import SchedulerError, StoreUnavailable, Unavailable
from infinite_scheduler.model import Shard
from infinite_scheduler.store.sql import door
from infinite_scheduler.store.sql.door import Ask, Standing
from infinite_scheduler.store.sql.statements import Session

SHARED = 500
"""The most requests in one transaction: a few ms of work."""

POLL_MS = 20
"""How often a process looks for verdicts of owners in other processes."""


AGAIN_MS = 100
"""How long to wait before a request whose answer was lost is sent again."""


class Petition(msgspec.Struct):
    """One request on its way."""

    wish: Ask
    answer: asyncio.Future[Standing]
    deadline_ms: int  # by the steady clock
    doubt: bool = False  # it was sent before, and the answer was lost


class Petitions:
    """The way from a request to its verdict, for all callers of one process and event loop."""

    def __init__(self, session: Session, clock: Clock, poke: Callable[[Collection[Shard]], None]) -> None:
        self._session = session
        self._clock = clock
        self._poke = poke
        self._new: deque[Petition] = deque()
        self._asked: dict[bytes, Petition] = {}
        self._sent: Collection[Petition] = ()  # sent to the store, not answered yet
        self._stir = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def submit(self, wish: Ask, patience_ms: int) -> Standing:
        """Return how the request was decided; raises Unavailable if its owner does not answer in time."""
        petition = Petition(wish, asyncio.get_running_loop().create_future(), self._clock.steady_ms() + patience_ms)
        self._new.append(petition)
        self._stir.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="petitions")
        return await petition.answer

    def decided(self, verdicts: Iterable[tuple[bytes, bool]]) -> None:
        """An owner in this process has decided."""
        for request, granted in verdicts:
            petition = self._asked.pop(request, None)
            if petition:
                _resolve(petition, granted)

    async def close(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        for petition in self._new:
            if petition.doubt:
                self._asked[petition.wish.id] = petition
            else:
                _refuse(petition, Unavailable("the client was closed before it asked; nothing was changed"))
        self._asked.update((p.wish.id, p) for p in self._sent if not p.answer.done())
        if self._asked:
            with suppress(SchedulerError):
                await self._give_up(list(self._asked.values()))
        for petition in self._asked.values():
            _refuse(petition, unknown("the client was closed while it waited"))

    async def _run(self) -> None:
        """Run until no caller waits."""
        try:
            while self._new or self._asked:
                self._stir.clear()
                if self._new:
                    batch = [self._new.popleft() for _ in range(min(SHARED, len(self._new)))]
                    await self._ask(batch, exclusive=False)
                if self._asked and not self._new:
                    await wait(self._clock, self._stir, POLL_MS)
                    await self._listen()
        finally:
            self._task = None

    async def _ask(self, batch: Collection[Petition], *, exclusive: bool) -> None:
        wishes = [petition.wish for petition in batch]
        doubtful = [petition.wish.id for petition in batch if petition.doubt]
        self._sent = batch
        try:
            standings = await self._session.write(
                lambda tx: door.ask(tx, wishes, exclusive=exclusive, doubtful=doubtful)
            )
        except Exception as error:  # noqa: BLE001 - passed on to the callers
            await self._again_or_refuse(batch, error)
            return
        self._sent = ()
        released = []
        asked = set()
        for petition in batch:
            standing = standings[petition.wish.id]
            match standing:
                case Standing.ASKED:
                    self._asked[petition.wish.id] = petition
                    asked.add(petition.wish.shard)
                case Standing.RELEASED:
                    released.append(petition)
                case Standing.AGAIN:
                    self._new.append(petition)
                case _:
                    if standing is Standing.GRANTED:
                        asked.add(petition.wish.shard)  # its new moment may be before the line
                    if not petition.answer.done():
                        petition.answer.set_result(standing)
        if asked:
            self._poke(asked)
        if released:
            await self._ask(released, exclusive=True)

    async def _again_or_refuse(self, batch: Collection[Petition], error: Exception) -> None:
        """Without an answer it is unknown what was written: send the same requests again, until their time is up."""
        now_ms = self._clock.steady_ms()
        for petition in batch:
            if getattr(error, "retryable", False) and now_ms < petition.deadline_ms:
                petition.doubt = True
                self._new.append(petition)
            else:
                _refuse(petition, unknown(error) if petition.doubt else error)
        self._sent = ()
        await sleep(self._clock, AGAIN_MS)

    async def _listen(self) -> None:
        """Read verdicts of owners elsewhere; give up on those that do not answer."""
        waiting = list(self._asked)
        if not waiting:
            return
        now = self._clock.steady_ms()
        try:
            verdicts = await self._session.read(lambda tx: tx.read_verdicts(waiting))
            self.decided(verdicts.items())
            silent = [p for p in self._asked.values() if p.deadline_ms <= now]
            if silent:
                await self._give_up(silent)
        except Exception as error:  # noqa: BLE001 - passed on to the callers
            for petition in [p for p in self._asked.values() if p.deadline_ms <= now]:
                del self._asked[petition.wish.id]
                _refuse(petition, unknown(error))

    async def _give_up(self, silent: Collection[Petition]) -> None:
        verdicts = await self._session.write(lambda tx: door.give_up(tx, [p.wish for p in silent]))
        for petition in silent:
            verdict = verdicts[petition.wish.id]
            if self._asked.pop(petition.wish.id, None) is None:
                continue
            if verdict is None:
                _refuse(
                    petition,
                    Unavailable(f"the owner of shard {petition.wish.shard} does not answer; nothing was changed"),
                )
            else:
                _resolve(petition, verdict)


def unknown(why: object) -> StoreUnavailable:
    """The error for a request that may still be decided."""
    return StoreUnavailable(f"{why}; it is unknown whether the change takes place: look at the job, or ask again")


def _resolve(petition: Petition, granted: bool) -> None:
    if not petition.answer.done():
        petition.answer.set_result(Standing.GRANTED if granted else Standing.TOO_LATE)


def _refuse(petition: Petition, error: Exception) -> None:
    if not petition.answer.done():
        petition.answer.set_exception(error)
