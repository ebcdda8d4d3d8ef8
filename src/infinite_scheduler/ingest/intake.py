"""Accepts jobs: concurrent calls share a transaction."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from infinite_scheduler.clock import Clock
from infinite_scheduler.errors import InvalidRequest, Unavailable
from infinite_scheduler.model import Accepted, JobSpec
from infinite_scheduler.observe import events
from infinite_scheduler.observe.events import Observer
from infinite_scheduler.observe.store_time import store_time
from infinite_scheduler.store.accepting import Accepting

SHARED = 5000
"""Calls share a transaction up to this many jobs: more, at random times, would hardly share a page of the database."""


class Call(msgspec.Struct):
    """One caller's jobs, waiting to be durable."""

    specs: Sequence[JobSpec]
    answer: asyncio.Future[Sequence[Accepted]]


class Backlog(NamedTuple):
    """What was given to an intake and is not durable yet."""

    jobs: int
    bytes: int  # of their payloads


class Intake:
    """Commits jobs, all or none of each call, with as many calls at a time as have arrived meanwhile."""

    def __init__(self, store: Accepting, clock: Clock, tell: Observer, shared: int = SHARED) -> None:
        self._store = store
        self._clock = clock
        self._tell = tell
        self._shared = shared  # jobs of several calls in one transaction, at most
        self._calls: deque[Call] = deque()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._jobs = self._bytes = 0

    @property
    def backlog(self) -> Backlog:
        """What waits for its commit, or is being committed."""
        return Backlog(self._jobs, self._bytes)

    async def accept(self, specs: Sequence[JobSpec]) -> Sequence[Accepted]:
        """Accept jobs. Durable on return."""
        if not specs:
            return ()
        if self._closed:
            raise Unavailable("the client is being closed, and no job was accepted: open it again, and schedule anew")
        call = Call(specs, asyncio.get_running_loop().create_future())
        self._calls.append(call)
        self._count([call], 1)
        if self._task is None or self._task.done():  # done: it was cancelled before its first step
            self._task = asyncio.create_task(self._run(), name="intake")
        return await call.answer

    async def close(self) -> None:
        """Commit what has come in, and accept nothing more."""
        self._closed = True
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._calls:
                calls = self._gathered()
                await self._commit(calls)
                self._count(calls, -1)
        finally:
            self._task = None

    def _count(self, calls: Sequence[Call], way: int) -> None:
        for call in calls:  # also of callers that do not wait any more: their jobs still do
            self._jobs += way * len(call.specs)
            self._bytes += way * sum([len(spec.payload) for spec in call.specs])

    def _gathered(self) -> list[Call]:
        calls, jobs = [self._calls.popleft()], 0
        while self._calls and jobs + len(self._calls[0].specs) + len(calls[0].specs) <= self._shared:
            jobs += len(self._calls[0].specs)
            calls.append(self._calls.popleft())
        return calls

    async def _commit(self, calls: Sequence[Call]) -> None:
        """All calls in one transaction; if one of them is refused, each in its own."""
        try:
            with store_time("add", self._clock, self._tell):
                accepted = await self._store.add([spec for call in calls for spec in call.specs])
        except InvalidRequest as error:
            if len(calls) == 1:
                _refuse(calls, error)
                return
            for call in calls:
                await self._commit([call])
        except Exception as error:  # noqa: BLE001 - passed on to the callers
            _refuse(calls, error)
        except BaseException:
            for call in (*calls, *self._calls):
                call.answer.cancel()
            self._calls.clear()
            self._jobs = self._bytes = 0
            raise
        else:
            self._answer(calls, accepted)

    def _answer(self, calls: Sequence[Call], accepted: Sequence[Accepted]) -> None:
        start = 0
        for call in calls:
            answers = accepted[start : start + len(call.specs)]
            start += len(call.specs)
            if not call.answer.done():
                call.answer.set_result(answers)
            for event in accepted_events(call.specs, answers):
                self._tell(event)


def _refuse(calls: Sequence[Call], error: Exception) -> None:
    for call in calls:
        if not call.answer.done():
            call.answer.set_exception(error)


def accepted_events(specs: Sequence[JobSpec], answers: Sequence[Accepted]) -> Sequence[events.JobsAccepted]:
    """What observers are told about accepted jobs: one event per app."""
    apps = {spec.app for spec in specs}
    if len(apps) == 1:
        return [_accepted(specs[0].app, specs, answers)]
    groups: dict[str, tuple[list[JobSpec], list[Accepted]]] = {app: ([], []) for app in sorted(apps)}
    for spec, answer in zip(specs, answers, strict=True):
        group = groups[spec.app]
        group[0].append(spec)
        group[1].append(answer)
    return [_accepted(app, *group) for app, group in groups.items()]


def _accepted(app: str, specs: Sequence[JobSpec], answers: Sequence[Accepted]) -> events.JobsAccepted:
    return events.JobsAccepted(
        app=app,
        count=len(specs),
        repeated=sum([answer.repeated for answer in answers]),
        request_ids=[spec.request_id for spec in specs if spec.request_id],
    )
