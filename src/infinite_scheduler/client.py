"""Schedule, cancel, reschedule and look up jobs."""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from zoneinfo import ZoneInfo

import msgspec

from infinite_scheduler.bulk_change.job_changes import BulkChange, JobAccess
from infinite_scheduler.clock import Clock, SystemClock, sleep
from infinite_scheduler.config import Settings, load_settings, settings_at
from infinite_scheduler.errors import (
    InvalidRequest,
    KeyConflict,
    TooLate,
    Unavailable,
    UnknownJob,
    UnknownNode,
)
from infinite_scheduler.ingest.intake import SHARED, Backlog, Intake
from infinite_scheduler.ingest.request import due_time, make_spec
from infinite_scheduler.model import (
    Accepted,
    Change,
    JobId,
    JobRecord,
    JobSpec,
    Priority,
    Status,
    key_text,
    read_status,
)
from infinite_scheduler.observe.events import JobsCancelled, Observer, ignore
from infinite_scheduler.policy.calendar import Delay, parse_moment
from infinite_scheduler.store import open_store
from infinite_scheduler.store.abilities import Abilities, Ability
from infinite_scheduler.store.accepting import Holder
from infinite_scheduler.store.base import Store
from infinite_scheduler.store.cluster_state import AppInfo
from infinite_scheduler.store.inbox import Inbox
from infinite_scheduler.store.ledger import Ledger
from infinite_scheduler.store.looking import Found, Query, Survey

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

DueTime = datetime | str | int
"""An aware datetime, a naive one in the zone of the settings, text such as "2026-01-31T12:00:00Z", or epoch ms."""


CHANGE_TIMEOUT_MS: Final = 15_000
"""How long the owner of a job is asked to decide on a change."""


LOOK_ROWS: Final = 50_000
"""Rows that one call of `find` looks at: about 100 ms, so that others who look need not wait for longer."""

PAGE_BYTES: Final = 8 << 20
"""Bytes of payload in one page of `find`, unless its first job has more."""


class NewJob(msgspec.Struct, frozen=True, kw_only=True):
    """One of many jobs to schedule: data and a time, or a delay from now."""

    data: Any = None
    at: DueTime | None = None
    delay: Delay | None = None
    priority: Priority | str = Priority.NORMAL
    idempotency_key: str | None = None
    request_id: str | None = None
    job_name: str | None = None
    group: str | None = None
    tags: Sequence[str] = ()


class Client:
    """Uses a store: any number of clients, in any process, may share it with the nodes.

    Use it as `async with Client("sqlite:///scheduler.db") as client`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        settings: Settings | Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        store: Store | None = None,
        observer: Observer = ignore,
    ) -> None:
        self.settings = _settings(url, settings)
        self._clock = clock or SystemClock()
        self._zone = ZoneInfo(self.settings.time.zone)
        self._store = store or open_store(self.settings.store.address_url, self._clock, self.settings.store.options)
        self._limited = not {Ability.WHOLE_BATCHES, Ability.IDEMPOTENCY_KEYS} <= self._store.abilities.can
        self._tell = observer
        self._intake: Intake | None = None

    async def open(self) -> Self:
        """Connect; `async with` does it."""
        if self._intake is None:
            await self._store.open()
            shared = SHARED if Ability.WHOLE_BATCHES in self.abilities else 1
            self._intake = Intake(self._store, self._clock, self._tell, shared)
        return self

    async def close(self) -> None:
        """Store the jobs of calls in progress, and disconnect.

        Changes that are being written are finished; those that were not asked for yet, or that an owner has not decided
        yet, are withdrawn and raise Unavailable. One that takes the store more than 5 s to write raises
        StoreUnavailable: whether it takes place is unknown, and the job will say.
        """
        if self._intake is not None:
            await self._intake.close()
            self._intake = None
            await self._store.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def abilities(self) -> Abilities:
        """What the store can do; what it cannot is refused with NotSupported before anything is tried."""
        return self._store.abilities

    # In

    async def schedule(  # noqa: PLR0913 - one parameter for each thing a job may carry
        self,
        app: str,
        data: Any = None,
        *,
        at: DueTime | None = None,
        delay: Delay | None = None,
        priority: Priority | str = Priority.NORMAL,
        idempotency_key: str | None = None,
        request_id: str | None = None,
        job_name: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
    ) -> Accepted:
        """Hand `data` to the app's handler at a time, or after a delay. When this returns, the job is durable.

        A time in the past means now. A repeated `idempotency_key` answers with the first job.
        """
        job = NewJob(
            data=data,
            at=at,
            delay=delay,
            priority=priority,
            idempotency_key=idempotency_key,
            request_id=request_id,
            job_name=job_name,
            group=group,
            tags=tags,
        )
        return (await self._accept([self._spec(app, job, self._clock.wall_ms())]))[0]

    async def schedule_many(self, app: str, jobs: Iterable[NewJob]) -> Sequence[Accepted]:
        """Schedule many jobs, all or none; the answers are in the order of the jobs."""
        return await self._accept(self._specs(app, jobs))

    def enqueue(self, connection: "Connection", app: str, jobs: Iterable[NewJob]) -> Sequence[Accepted]:
        """Schedule jobs in a transaction of your own, on the store's database: they exist if and when you commit."""
        self.abilities.require(Ability.OWN_TRANSACTION)
        return self._store.enqueue(connection, self._specs(app, jobs))

    async def submit(self, specs: Sequence[JobSpec]) -> Sequence[Accepted]:
        """Accept jobs that are already validated, all or none: for doors that read wire formats of their own."""
        return await self._accept(specs)

    async def conflicts(self, specs: Sequence[JobSpec]) -> Mapping[int, KeyConflict]:
        """Which of these jobs `submit` would refuse now, since their idempotency keys belong to jobs of other content.

        Returns their indexes in `specs`. Another process may take a key a moment later.
        """
        self._opened()
        self._check_able(specs)
        found: dict[int, KeyConflict] = {}
        for app in {spec.app for spec in specs}:
            keys = {spec.idempotency_key for spec in specs if spec.app == app and spec.idempotency_key is not None}
            holders = await self._store.holders(app, keys) if keys else {}
            for place, spec in enumerate(specs):
                holder = holders.get(spec.idempotency_key or "") if spec.app == app else None
                if holder and holder.digest != spec.digest:
                    found[place] = KeyConflict(app, spec.idempotency_key or "", key_text(holder.key))
        return found

    async def _accept(self, specs: Sequence[JobSpec]) -> Sequence[Accepted]:
        intake = self._opened()
        if self._limited:
            self._check_able(specs)
        return await intake.accept(specs)

    def _check_able(self, specs: Sequence[JobSpec]) -> None:
        """Refuse what this store cannot accept."""
        if len(specs) > 1:
            self.abilities.require(Ability.WHOLE_BATCHES)
        if any(spec.idempotency_key is not None for spec in specs):
            self.abilities.require(Ability.IDEMPOTENCY_KEYS)

    def _opened(self) -> Intake:
        if self._intake is None:
            raise Unavailable("the client is not open: use `async with`, or await open() first")
        return self._intake

    def _specs(self, app: str, jobs: Iterable[NewJob]) -> Sequence[JobSpec]:
        """The jobs of one call, at most as many as allowed; their delays begin at the same moment."""
        now_ms = self._clock.wall_ms()
        specs = [self._spec(app, job, now_ms) for job in jobs]
        most = self.settings.limits.batch
        if len(specs) > most:
            raise InvalidRequest(
                f"{len(specs)} jobs in one call are too many; at most {most} are allowed (limits.batch): split them"
            )
        return specs

    def _spec(self, app: str, job: NewJob, now_ms: int) -> JobSpec:
        if not isinstance(job, NewJob):
            raise InvalidRequest(f"{job!r} is not a NewJob: use NewJob(data=…, at=… or delay=…)")
        scheduled_ms, absolute = self._when(job.at, job.delay, now_ms)
        return make_spec(
            app,
            scheduled_ms=scheduled_ms,
            absolute=absolute,
            data=job.data,
            priority=job.priority,
            idempotency_key=job.idempotency_key,
            request_id=job.request_id,
            job_name=job.job_name,
            group=job.group,
            tags=job.tags,
            max_payload=self.settings.limits.payload,
        )

    def _when(self, at: DueTime | None, delay: Delay | None, now_ms: int) -> tuple[int, bool]:
        """The time, and whether it was given as such and not as a delay."""
        return due_time(at, delay, now_ms=now_ms, zone=self._zone)

    # Changes

    async def cancel(self, job_id: str, *, app: str | None = None) -> JobRecord:
        """Cancel a job: it is never handed over after this returns. TooLate: it was handed over or settled before."""
        return await self.change(Change.CANCEL, job_id, app=app)

    async def reschedule(
        self, job_id: str, *, at: DueTime | None = None, delay: Delay | None = None, app: str | None = None
    ) -> JobRecord:
        """Move a waiting job to another time."""
        due_ms, _ = self._when(at, delay, self._clock.wall_ms())
        return await self.change(Change.RESCHEDULE, job_id, due_ms=due_ms, app=app)

    async def run_now(self, job_id: str, *, app: str | None = None) -> JobRecord:
        """Hand a waiting job over at once; its scheduled time stays as requested."""
        return await self.change(Change.RUN_NOW, job_id, app=app)

    async def retry(self, job_id: str, *, app: str | None = None) -> JobRecord:
        """Try a failed, expired or cancelled job again, as its next attempt."""
        return await self.change(Change.RETRY, job_id, app=app)

    async def change(
        self,
        change: Change,
        job_id: str,
        *,
        due_ms: int | None = None,
        app: str | None = None,
        timeout_ms: int = CHANGE_TIMEOUT_MS,
    ) -> JobRecord:
        """Change a job in one of the ways above, within a time for its owner to decide: for doors that are told one."""
        self._opened()
        self.abilities.require(Ability(change))
        decision = await self._store.change(
            change, bytes(JobId.parse(job_id)), due_ms=due_ms, app=app, timeout_ms=timeout_ms
        )
        if not decision.granted:
            word = "handed over" if decision.record.status is Status.PENDING else str(decision.record.status)
            raise TooLate(f"too late to {change.replace('_', ' ')} job {job_id}: it is {word}")
        if change is Change.CANCEL:
            self._tell(JobsCancelled(app=decision.record.job.app, count=1))
        return decision.record

    def bulk_change(
        self, change: Change | str, *, at: DueTime | None = None, delay: Delay | None = None, **filters: Any
    ) -> BulkChange:
        """Cancel, reschedule, run now or retry all jobs that `find` would list with these filters.

        `await bulk_change("cancel", app="sms", tag="trial").preview()` looks first, `.run()` changes all of them, and
        `.step()` at most a thousand. All but retry are for pending jobs, and retry needs the status failed, expired or
        cancelled. Jobs that are accepted later are left alone.
        """
        access = JobAccess(
            self.find,
            lambda verb, record, due_ms: self.change(verb, record.id, due_ms=due_ms, app=record.job.app),
            self._clock.wall_ms,
            self._zone,
        )
        return BulkChange(access, change, filters, at=at, delay=delay)

    async def register(self, app: str, shards: int | None = None) -> AppInfo:
        """Add an app to the store, so that its jobs are accepted before a node with a handler for it runs."""
        self._opened()
        return await self._store.register(app, shards)

    async def pause(self, app: str) -> None:
        """Stop handing over jobs of this app, on all nodes, until it is resumed; jobs are still accepted."""
        self._opened()
        await self._store.pause(app, paused=True)

    async def resume(self, app: str) -> None:
        """Hand over the jobs of a paused app again, including those that have become due meanwhile."""
        self._opened()
        await self._store.pause(app, paused=False)

    async def drain_node(self, node_id: str) -> int:
        """Ask a node to release its shards and to take none; UnknownNode if there is none of this name.

        It follows within a heartbeat, as long as it runs or until `resume_node`. Returns how many nodes have the name.
        """
        return await self._drain(node_id, draining=True)

    async def resume_node(self, node_id: str) -> int:
        """Let a node that was drained take shards again."""
        return await self._drain(node_id, draining=False)

    async def _drain(self, node_id: str, *, draining: bool) -> int:
        self._opened()
        count = await self._store.drain(node_id, draining=draining)
        if not count:
            raise UnknownNode(node_id, {node.node_id for node in (await self._store.survey()).view.nodes})
        return count

    # Looking

    async def get(self, job_id: str, *, app: str | None = None) -> JobRecord:
        """One job with its attempts; UnknownJob if there is none."""
        self._opened()
        record = await self._store.get(bytes(JobId.parse(job_id)), app=app)
        if record is None:
            raise UnknownJob(job_id)
        return record

    async def find(  # noqa: PLR0913 - one parameter for each thing to look for
        self,
        app: str | None = None,
        *,
        status: Status | str | None = None,
        start: DueTime | None = None,
        end: DueTime | None = None,
        tag: str | None = None,
        job_name: str | None = None,
        group: str | None = None,
        request_id: str | None = None,
        idempotency_key: str | None = None,
        error: str | None = None,
        newest_first: bool = False,
        attempts: bool = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Found:
        """List jobs, a page at a time.

        Pending ones are listed by the time at which they are due now, all others by the one for which they were
        accepted; [start, end) is of that time. One call looks at 50,000 rows at most: a page with few jobs, or none,
        has a cursor if there is more to look at, and `searched_to_ms` says how far it came. With `attempts`, each job
        has its attempts, as `get` shows them.
        """
        if limit < 1:
            raise InvalidRequest(f"limit is {limit}; expected 1 or more")
        now_ms = self._clock.wall_ms()
        query = Query(
            app=app,
            status=read_status(status),
            from_ms=None if start is None else parse_moment(start, now_ms=now_ms, zone=self._zone),
            to_ms=None if end is None else parse_moment(end, now_ms=now_ms, zone=self._zone),
            tag=tag,
            job_name=job_name,
            group=group,
            request_id=request_id,
            idempotency_key=idempotency_key,
            error=error,
            newest_first=newest_first,
            attempts=attempts,
            limit=limit,
            most=LOOK_ROWS,
            room=PAGE_BYTES,
            cursor=cursor,
        )
        return await self.search(query)

    async def search(self, query: Query) -> Found:
        """List jobs by a query that is already made: for doors that have bounds of their own."""
        self._opened()
        self.abilities.require(Ability.SEARCH)
        return await self._store.find(query)

    async def holders(self, app: str, keys: Collection[str]) -> Mapping[str, Holder]:
        """Those of these idempotency keys that already belong to a job, and the digests of their content."""
        self._opened()
        self.abilities.require(Ability.IDEMPOTENCY_KEYS)
        return await self._store.holders(app, keys)

    async def find_all(self, app: str | None = None, **filters: Any) -> AsyncIterator[JobRecord]:
        """All jobs that `find` would list, page after page."""
        cursor: str | None = None
        while True:
            page = await self.find(app, cursor=cursor, **filters)
            for record in page.records:
                yield record
            cursor = page.cursor
            if cursor is None:
                return

    async def wait(self, job_id: str, *, timeout: Delay | None = None, app: str | None = None) -> JobRecord:  # noqa: ASYNC109
        """Wait until a job is done, failed, expired or cancelled; Unavailable if that takes longer than `timeout`."""
        limit_ms = None
        if timeout is not None:
            limit_ms = self._clock.steady_ms() + self._when(None, timeout, 0)[0]
        pause_ms = 10
        while True:
            record = await self.get(job_id, app=app)
            if record.status.final:
                return record
            if limit_ms is not None and self._clock.steady_ms() >= limit_ms:
                raise Unavailable(f"job {job_id} is still pending")
            await sleep(self._clock, pause_ms)
            pause_ms = min(2 * pause_ms, 250)

    async def survey(self) -> Survey:
        """Apps, nodes, shards and counts."""
        self._opened()
        return await self._store.survey()

    @property
    def backlog(self) -> Backlog:
        """What calls in progress have given to this client, and is not durable yet."""
        return self._opened().backlog

    @property
    def inbox(self) -> Inbox:
        """What was read from topics: how far, and the messages that could not become jobs."""
        self._opened()
        self.abilities.require(Ability.DEAD_LETTERS)
        return self._store.inbox()

    @property
    def ledger(self) -> Ledger:
        """What is known of all jobs at once, who did what, and the tokens of those who may come in by HTTP."""
        self._opened()
        return self._store.ledger()


def _settings(url: str | None, settings: Settings | Mapping[str, Any] | None) -> Settings:
    """The settings, overridden by the URL."""
    if not isinstance(settings, Settings):
        return load_settings(overrides={**(settings or {}), **({"store.url": url} if url else {})})
    if url is None:
        return settings
    return settings_at(url, settings)
