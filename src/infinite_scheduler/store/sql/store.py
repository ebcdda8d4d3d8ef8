"""The SQL store: the port over transactions of the line protocol."""

import asyncio
import itertools
import os
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from infinite_scheduler.clock import Clock, sleep
from infinite_scheduler.errors import (
    IdRefused,
    InvalidRequest,
    StoreBusy,
    StoreMismatch,
    StoreUnavailable,
    UnknownApp,
    UnknownJob,
)
from infinite_scheduler.model import (
    Accepted,
    Change,
    JobRecord,
    JobSpec,
    Shard,
    check_app_name,
    key_text,
    shard_of,
)
from infinite_scheduler.store.abilities import Abilities, Ability
from infinite_scheduler.store.accepting import Decision, Holder
from infinite_scheduler.store.base import Store
from infinite_scheduler.store.cluster_state import AppInfo, NodeInfo, View
from infinite_scheduler.store.looking import Found, Query, Survey, check_filters
from infinite_scheduler.store.ownership import Poke
from infinite_scheduler.store.sql.change_requests import CLOSE_S, ChangeRequests, not_asked
from infinite_scheduler.store.sql.existing_tables import ExistingTables
from infinite_scheduler.store.sql.inbox import SqlInbox
from infinite_scheduler.store.sql.ledger import LedgerSessions, SqlLedger
from infinite_scheduler.store.sql.limits import SqlLimits
from infinite_scheduler.store.sql.new_rows import NewRows, can_be_made
from infinite_scheduler.store.sql.ownership import SqlOwnership, sample, with_dead
from infinite_scheduler.store.sql.protocol import anybody
from infinite_scheduler.store.sql.protocol.anybody import ChangeRequest, RequestState
from infinite_scheduler.store.sql.rows import MAX_SHARDS, in_chunks
from infinite_scheduler.store.sql.search import search
from infinite_scheduler.store.sql.statements import Database, NewRow, Statements
from infinite_scheduler.store.sql.tables import DAILY, SqlApp, span_of
from infinite_scheduler.store.sql.upkeep import TOGETHER, make_tables_ahead

TRIES = 4
"""How often an insert is sent if its answer is lost; its ids make the repetition harmless."""


class SqlStore(Store):
    """Jobs in the tables of a SQL database."""

    def __init__(
        self, database: Database, clock: Clock, limits: SqlLimits | None = None, url: str = "sqlite:///:memory:"
    ) -> None:
        self._database = database
        self._clock = clock
        self._limits = limits or SqlLimits()
        self._url = url
        everything = Abilities(database.kind)
        self._abilities = everything if database.has_clock else everything.without(Ability.CLOCK)
        self._apps: dict[str, SqlApp] = {}
        self._turns: dict[str, itertools.count[int]] = {}
        self._owners: list[SqlOwnership] = []
        self._pokes: list[Poke] = []
        self._change_requests: ChangeRequests | None = None
        self._changes: set[asyncio.Future[None]] = set()  # calls in progress
        self._prepared = ExistingTables(database, clock)

    @property
    def abilities(self) -> Abilities:
        return self._abilities

    async def open(self) -> None:
        await self._database.open()
        self._door = self._database.session("door")
        self._reader = self._database.session("reader")
        self._looks = self._database.session("looks")  # what may take long; nothing else waits behind it
        self._change_requests = ChangeRequests(self._door, self._clock, self._poke)

    async def close(self) -> None:
        if self._change_requests:
            await self._change_requests.close()
            if self._changes:
                await asyncio.wait(self._changes, timeout=CLOSE_S)  # those that were decided read their jobs
            self._change_requests = None
            await self._database.close()

    async def register(self, app: str, shards: int | None = None) -> AppInfo:
        found = await self._insert_apps({app: shards})
        return self._registered(found[app], shards)

    async def register_all(self, apps: Mapping[str, int | None]) -> Sequence[AppInfo]:
        """A node that starts again finds all of its apps with one look; new ones are written in portions."""

        def complete(tx: Statements) -> Mapping[str, SqlApp]:
            return {info.name: info for info in tx.read_apps() if tx.has_tables_of(info.name)}

        found = await self._reader.read(complete)
        for app in apps.keys() & found.keys():
            self._registered(found[app], apps[app])  # it may be refused, and then no app is added
        missing = {app: shards for app, shards in apps.items() if app not in found}
        if missing:
            found = await self._insert_apps(missing)
        return [self._registered(found[app], shards) for app, shards in apps.items()]

    async def _insert_apps(self, apps: Mapping[str, int | None]) -> Mapping[str, SqlApp]:
        """Add these apps unless they exist, in the order of their names. Returns all apps of the store."""
        now_ms = self._clock.wall_ms()
        wanted = [self._new_app(app, shards, now_ms) for app, shards in sorted(apps.items())]
        for some in in_chunks(wanted, TOGETHER // 2):  # each has two tables
            await self._door.write(lambda tx, some=some: tx.insert_apps(some, now_ms))  # type: ignore[misc]
        return {info.name: info for info in await self._door.read(lambda tx: tx.read_apps())}

    def _new_app(self, app: str, shards: int | None, now_ms: int) -> SqlApp:
        check_app_name(app)
        if shards is not None and not 1 <= shards <= MAX_SHARDS:
            raise InvalidRequest(f"app {app!r} cannot have {shards} shards; expected 1 to {MAX_SHARDS}")
        return SqlApp(
            name=app,
            shards=shards or self._limits.shards,
            span=self._limits.tables or DAILY.name,
            paused=False,
            created_ms=now_ms,
        )

    def _registered(self, info: SqlApp, shards: int | None) -> AppInfo:
        self._apps[info.name] = info
        if shards is not None and info.shards != shards:
            raise StoreMismatch(
                f"app {info.name!r} has {info.shards} shards in this store, but {shards} are configured; the number is "
                f"fixed when the app is created: set shards = {info.shards} for it, or leave the setting out"
            )
        kept = {} if self._limits.tables in {None, info.span} else {"tables": info.span}
        return msgspec.structs.replace(info, kept=kept)

    @property
    def schema_found(self) -> int:
        """The version of the schema found when the store was opened; 0: there was none."""
        return self._database.found

    async def make_tables_ahead(self, app: str, days: int) -> Sequence[str]:
        """Create the tables of an app for this many days from now. Returns the names of the new ones."""
        return await make_tables_ahead(self._door, app, self._clock.wall_ms(), days)

    async def pause(self, app: str, *, paused: bool) -> None:
        if not await self._door.write(lambda tx: tx.set_paused(app, paused=paused)):
            raise UnknownApp(app, await self._known())

    async def drain(self, node_id: str, *, draining: bool) -> int:
        return await self._door.write(lambda tx: tx.set_drain(node_id, asked=draining))

    async def add(self, specs: Sequence[JobSpec]) -> Sequence[Accepted]:
        now_ms = self._clock.wall_ms()
        batch = await self._batch(specs, now_ms)
        inserted = await self._insert(batch.chunks, now_ms)
        self._poke(inserted.woken)
        return batch.answers(inserted.repeats)

    def enqueue(self, connection: Any, specs: Sequence[JobSpec]) -> Sequence[Accepted]:
        from infinite_scheduler.store.sql.enqueue import enqueue  # noqa: PLC0415 - SQLAlchemy is loaded only for this

        return enqueue(connection, specs, self._clock.wall_ms(), self._url, ddl=self._limits.ddl)

    async def _batch(self, specs: Sequence[JobSpec], now_ms: int, *, strict: bool = True) -> NewRows:
        """Give jobs their ids, shards and tables."""
        for app in {spec.app for spec in specs}:
            await self._app(app)
        for spec in specs:
            if spec.key is not None and shard_of(spec.key) >= self._apps[spec.app].shards:
                raise IdRefused(
                    f"the id {key_text(spec.key)} names a shard that app {spec.app!r} has not: draw another"
                )
        has_table = can_be_made if self._limits.ddl else await self._prepared.tables(self._apps, specs, now_ms)
        return NewRows.of(specs, now_ms, self._next_shard, has_table, strict=strict)

    async def _insert(self, chunks: Mapping[Shard, Sequence[NewRow]], now_ms: int) -> anybody.Inserted:
        """Insert, and again with the same ids if the answer was lost; but not after a wait for locks."""
        for attempt in itertools.count(1):
            try:
                return await self._door.write(lambda tx: anybody.insert(tx, chunks, now_ms))
            except StoreUnavailable as error:
                if isinstance(error, StoreBusy) and attempt > 1:
                    raise StoreUnavailable(
                        "an insert had no answer, and its repetition waited too long for locks of other transactions; "
                        "it is unknown whether the jobs were accepted: look for them, or schedule them again if they "
                        "have idempotency keys"
                    ) from error
                if attempt == TRIES or isinstance(error, StoreBusy):
                    raise
                await sleep(self._clock, 50 * 2**attempt)
        raise AssertionError("unreachable")

    def _next_shard(self, app: str, *, urgent: bool) -> int:
        """In rotation over the app's shards; for urgent jobs over those of this process, which needs no poll."""
        info = self._apps[app]
        turn = next(self._turns.setdefault(app, itertools.count(random.randrange(info.shards))))  # noqa: S311
        mine = [shard.number for owner in self._owners for shard in owner.mine if shard.app == app] if urgent else ()
        return mine[turn % len(mine)] if mine else turn % info.shards

    async def _app(self, app: str) -> SqlApp:
        if app not in self._apps:
            infos = await self._reader.read(lambda tx: tx.read_apps())
            self._apps.update((info.name, info) for info in infos)
            if app not in self._apps:
                raise UnknownApp(app, self._apps)
        return self._apps[app]

    async def _known(self) -> Sequence[str]:
        return [info.name for info in await self._reader.read(lambda tx: tx.read_apps())]

    async def holders(self, app: str, keys: Collection[str]) -> Mapping[str, Holder]:
        found = await self._reader.read(lambda tx: tx.read_keys(app, keys))
        return {key: Holder(*holder) for key, holder in found.items()}

    async def change(
        self,
        change: Change,
        key: bytes,
        *,
        due_ms: int | None = None,
        app: str | None = None,
        timeout_ms: int,
    ) -> Decision:
        app = check_app_name(app) if app else await self._locate(key)
        now_ms = self._clock.wall_ms()
        if change is not Change.CANCEL:
            due_ms = now_ms if due_ms is None else max(due_ms, now_ms)
        change_request = ChangeRequest(id=os.urandom(16), change=change, app=app, key=key, due_ms=due_ms, now_ms=now_ms)
        if self._change_requests is None:
            raise not_asked()
        with self._under_way():
            state = await self._change_requests.submit(change_request, timeout_ms)
            record = await self._read_changed(state, key, app)
        if record is None or state is RequestState.MISSING:
            raise UnknownJob(key_text(key))
        if state is RequestState.NOTHING_TO_RETRY:
            advice = "schedule a new job" if record.status.final else "use run-now"
            raise InvalidRequest(f"job {record.id} is {record.status}, so there is nothing to retry; {advice}")
        return Decision(granted=state is RequestState.GRANTED, record=record)

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        """A call that the end of the store waits for."""
        call: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changes.add(call)
        try:
            yield
        finally:
            self._changes.discard(call)
            call.cancel()

    async def _read_changed(self, state: RequestState, key: bytes, app: str) -> JobRecord | None:
        """The job after a decision; if it cannot be read, the caller must still learn that it was changed."""
        try:
            return await self.get(key, app=app)
        except StoreUnavailable as error:
            if state is not RequestState.GRANTED:
                raise
            raise StoreUnavailable(
                f"job {key_text(key)} was changed as asked, but cannot be read ({error}): look at it again"
            ) from error

    async def _locate(self, key: bytes) -> str:
        """The app of a job: an id does not name it."""

        def body(tx: Statements) -> str | None:
            return next((info.name for info in tx.read_apps() if tx.read_jobs(info.name, [key])), None)

        app = await self._reader.read(body)
        if app is None:
            raise UnknownJob(key_text(key))
        return app

    async def get(self, key: bytes, *, app: str | None = None) -> JobRecord | None:
        if app:
            check_app_name(app)

        def body(tx: Statements) -> JobRecord | None:
            for name in [app] if app else [info.name for info in tx.read_apps()]:
                if (record := _whole(tx, name, key)) is not None:
                    return record
            return None

        record = await self._reader.read(body)
        if record is None:
            return None
        info = await self._app(record.job.app)
        return msgspec.structs.replace(record, kept_in=span_of(info.span).table_of(info.name, key))

    async def find(self, query: Query) -> Found:
        check_filters(query)
        if query.app:
            await self._app(query.app)
        now_ms = self._clock.wall_ms()
        return await self._looks.read(lambda tx: search(tx, query, now_ms))

    async def survey(self) -> Survey:
        def body(tx: Statements) -> Survey:
            view = View(
                nodes=tuple(tx.read_nodes(vitals=True)),
                shards=tuple(tx.read_shards()),
                apps=tuple(tx.read_apps()),
                clock=sample(tx, self._clock),
            )
            return Survey(view=with_dead(view, self._database), counts=tx.read_counts())

        return await self._reader.read(body)

    def inbox(self) -> SqlInbox:
        if self._change_requests is None:
            raise StoreUnavailable("the store is not open")
        return SqlInbox(self._door, self._reader, self._clock, partial(self._batch, strict=False), self._poke)

    def ledger(self) -> SqlLedger:
        if self._change_requests is None:
            raise StoreUnavailable("the store is not open")
        return SqlLedger(self.abilities, LedgerSessions(self._door, self._reader, self._looks), self._clock, self._app)

    def ownership(self, node: NodeInfo, poke: Poke) -> SqlOwnership:
        if self._change_requests is None:
            raise StoreUnavailable("the store is not open")
        self._database.live(node.nonce)
        owner = SqlOwnership(self._database, self._clock, self._limits, node, self._change_requests.decided)
        self._owners.append(owner)
        self._pokes.append(poke)
        return owner

    def _poke(self, shards: Collection[Shard]) -> None:
        if shards:
            for poke in self._pokes:
                poke(shards)


def _whole(tx: Statements, app: str, key: bytes) -> JobRecord | None:
    """A job with its attempts at one moment: if it changes while they are read, they are read again."""
    while found := tx.read_jobs(app, [key]):
        attempts = tuple(tx.read_attempts(app, key))
        job = found[0].job
        heads = tx.read_heads(app, [key])
        if [(h.status, h.attempt, h.due_ms) for h in heads] == [(found[0].status, job.attempt, job.due_ms)]:
            return msgspec.structs.replace(found[0], attempts=attempts)
    return None
