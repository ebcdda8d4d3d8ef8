"""Wires one node: settings, store, handlers, engine. The only module that knows every part."""

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar
from zoneinfo import ZoneInfo

import msgspec

from infinite_scheduler.client import Client
from infinite_scheduler.clock import Clock
from infinite_scheduler.config import Settings
from infinite_scheduler.configured import handler_of, misfire_policy, ms_of, node_name, retry_policy
from infinite_scheduler.doors import Doors
from infinite_scheduler.engine.dispatcher import AppPlan
from infinite_scheduler.engine.lane import LaneSettings
from infinite_scheduler.engine.pipeline import Engine, EngineSettings
from infinite_scheduler.errors import ConfigError, HandlerError, InvalidRequest
from infinite_scheduler.forked import ForkGuard
from infinite_scheduler.handlers.base import Handler
from infinite_scheduler.handlers.checks import Checks, Validate
from infinite_scheduler.handlers.python import PythonHandler
from infinite_scheduler.model import check_app_name
from infinite_scheduler.observe.counters import Counters
from infinite_scheduler.observe.events import MarksMissing, Observer, SettingKept, TaskFailed, several
from infinite_scheduler.observe.logs import LogWriter
from infinite_scheduler.observe.readings import NodeReading
from infinite_scheduler.observe.recent_failures import RecentFailures
from infinite_scheduler.observe.vitals_writer import VitalsWriter
from infinite_scheduler.part import Part
from infinite_scheduler.policy.calendar import Delay, parse_duration
from infinite_scheduler.policy.misfire import FireNow, Misfire
from infinite_scheduler.policy.retry import RetryPolicy
from infinite_scheduler.stop_signals import StopSignals, setting, uncancelled
from infinite_scheduler.store.abilities import Ability
from infinite_scheduler.store.base import Store
from infinite_scheduler.store.cluster_state import NodeInfo

if TYPE_CHECKING:
    from infinite_scheduler.ingest.config import KafkaIngestConfig
    from infinite_scheduler.ingest.door import TopicDoor

F = TypeVar("F", bound=Callable[..., Any])


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """An app that this node has a handler for."""

    plan: AppPlan
    shards: int | None


class Scheduler(Client):
    """Runs a node, and offers the calls of a client.

    Register handlers with `@scheduler.app("name")`, then `await scheduler.run()`, or use it as `async with`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        settings: Settings | Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        store: Store | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        super().__init__(url, settings=settings, clock=clock, store=store)
        self.counters = Counters()
        self.failures = RecentFailures(self._clock)
        self._tell = several([self.counters, self.failures, LogWriter(), *observers])
        self._apps: dict[str, Registration] = {}
        self._engine: Engine | None = None
        self._fork_guard: ForkGuard | None = None
        self._life = asyncio.Lock()  # a stop waits for a start in progress, so that it finds all that was created
        self._clean = True
        self._doors = Doors(self.settings.kafka)
        self._parts: list[Part] = []
        for name, app in self.settings.apps.items():
            self.add_app(
                name,
                handler_of(name, self.settings, self._clock),
                retry=retry_policy(name, app.retry),
                misfire=misfire_policy(app.misfire),
                misfire_threshold=app.misfire_threshold,
                concurrency=app.concurrency,
                shards=app.shards,
            )
        for table in self.settings.ingest:
            self._doors.configure(table)

    # Handlers

    def app(  # noqa: PLR0913 - one parameter for each policy of an app
        self,
        name: str,
        *,
        batch: int | None = None,
        pool: Literal["thread", "process"] | None = None,
        retry: RetryPolicy | None = None,
        misfire: Misfire | None = None,
        misfire_threshold: Delay = timedelta(seconds=60),
        concurrency: int = 20,
        timeout: Delay | None = timedelta(seconds=30),
        shards: int | None = None,
        required: Sequence[str] = (),
        validate: Validate | None = None,
    ) -> Callable[[F], F]:
        """Decorate the function that takes the jobs of an app: `def`, `async def`, or one for lists with `batch=N`.

        A message from a topic is refused if its data lacks a `required` field, or if `validate(data)` returns False or
        raises a ValueError, TypeError or LookupError.
        """

        def register(function: F) -> F:
            handler = PythonHandler(
                function,
                batch=batch,
                pool=pool,
                concurrency=concurrency,
                timeout_ms=parse_duration(timeout) if timeout else None,
                checks=Checks(required, validate),
                clock=self._clock,
            )
            self.add_app(
                name,
                handler,
                retry=retry,
                misfire=misfire,
                misfire_threshold=misfire_threshold,
                concurrency=concurrency,
                shards=shards,
            )
            return function

        return register

    def add_app(
        self,
        name: str,
        handler: Handler,
        *,
        retry: RetryPolicy | None = None,
        misfire: Misfire | None = None,
        misfire_threshold: Delay = timedelta(seconds=60),
        concurrency: int = 20,
        shards: int | None = None,
    ) -> None:
        """Register any handler for an app; an app has one handler."""
        check_app_name(name)
        if name in self._apps:
            where = f" from {self.settings.source}" if name in self.settings.apps else ""
            raise HandlerError(f"app {name!r} already has a handler{where}; an app has exactly one")
        if not isinstance(retry, RetryPolicy | None):
            raise HandlerError(f"app {name!r}: retry is {retry!r}; expected a RetryPolicy(…)")
        if not isinstance(misfire, Misfire | None):
            raise HandlerError(f"app {name!r}: misfire is {misfire!r}; expected FireNow(), Skip() or ExpireAfter(…)")
        if self._engine is not None:
            raise HandlerError(f"the node is already running: register app {name!r} before it starts")
        handler.locate(ZoneInfo(self.settings.time.zone))
        plan = AppPlan(
            name=name,
            handler=handler,
            retry=retry or RetryPolicy(),
            misfire=misfire or FireNow(),
            misfire_threshold_ms=parse_duration(misfire_threshold),
            concurrency=concurrency,
        )
        self._apps[name] = Registration(plan=plan, shards=shards)

    @property
    def apps(self) -> Mapping[str, Handler]:
        """The handlers of this node, by app."""
        return {name: registration.plan.handler for name, registration in self._apps.items()}

    # Doors

    def with_kafka_ingest(
        self,
        config: "KafkaIngestConfig | str | None" = None,
        topic: str | None = None,
        *,
        bootstrap_servers: str | None = None,
    ) -> Self:
        """Accept jobs from a topic too: `(config)`, `(bootstrap_servers, topic)`, or nothing for the defaults.

        Call it before the start, once per topic. The settings in `kafka` apply here too.
        """
        if self._engine is not None:
            raise InvalidRequest("the node is already running: name the topics that it reads before it starts")
        if config is not None and bootstrap_servers is not None:
            raise ConfigError("give either a KafkaIngestConfig or bootstrap servers and a topic, not both")
        self._doors.add(bootstrap_servers if config is None else config, topic)
        return self

    @property
    def ingests(self) -> "Sequence[KafkaIngestConfig]":
        """The topics that bring jobs to this node."""
        return self._doors.configs

    @property
    def doors(self) -> "Sequence[TopicDoor]":
        """The doors of these topics since the last start: `metrics`, `is_running`, `ready`, `lag`."""
        return self._doors.open

    def add_part(self, part: Part) -> None:
        """Run something beside the engine: it starts after the engine and its topics, and stops before them."""
        if self._engine is not None:
            raise InvalidRequest("the node is already running: add its parts before it starts")
        self._parts.append(part)

    # Life

    async def start(self) -> None:
        """Open the store, register the apps and begin to hand over."""
        async with self._life:
            if self._engine is not None:
                raise InvalidRequest("this node is already running: start it once, or create another Scheduler")
            self._clean = True
            await self._start()

    async def _start(self) -> None:
        self.abilities.require(Ability.OWNERSHIP)
        if self._doors.configs:
            self.abilities.require(Ability.INBOX)
        if Ability.MARKS not in self.abilities:
            self._tell(MarksMissing(store=self.abilities.store))
        await self.open()
        self._fork_guard = ForkGuard(asyncio.get_running_loop())
        try:
            known = {app.name for app in (await self._store.survey()).view.apps}
            names = sorted(self._apps, key=lambda name: name not in known)
            infos = await self._store.register_all(  # first, since it may be refused
                {name: self._apps[name].shards for name in names}
            )
            for info in infos:
                for setting, kept in info.kept.items():
                    configured = str(getattr(self.settings.store, setting))
                    self._tell(SettingKept(app=info.name, setting=setting, kept=kept, configured=configured))
            self._engine = Engine(
                self._store,
                self._node(),
                [registration.plan for registration in self._apps.values()],
                self._clock,
                engine_settings(self.settings),
                self._tell,
                vitals=VitalsWriter(self.counters, self.reading, self._clock).write,
            )
            self.counters.gauge("oldest_overdue_ms", self._engine.oldest_overdue_ms)
            self.counters.gauge("shards_owned", lambda: self._engine.shards_owned if self._engine else 0)
            self.counters.gauge("store_clock_offset_ms", self._engine.clock_offset_ms)
            self.counters.gauge("apps_without_node", lambda: self._engine.apps_without_node if self._engine else 0)
            self.counters.gauge("apps_held_back", lambda: len(self._engine.held_back()) if self._engine else 0)
            self.counters.gauge("bytes_held", lambda: self._engine.bytes_held if self._engine else 0)
            if self._doors.configs:
                self._make_doors()
            await self._engine.start()
        except BaseException:
            self._lift_fork_guard()
            if self._engine is not None:
                self._engine = None
                for registration in self._apps.values():
                    await registration.plan.handler.stop()  # some had started, and would leave threads or processes
            await self.close()
            raise
        try:
            self._doors.start()
            for part in self._parts:
                await part.start()
        except BaseException:
            await self._stop()
            raise

    def reading(self) -> NodeReading:
        """This node now: what it holds, how far it is behind, and the topics that it reads."""
        if self._engine is None:
            return NodeReading()
        return msgspec.structs.replace(self._engine.reading(), topics=self._doors.readings())

    def _make_doors(self) -> None:
        most = self.settings.limits.payload
        self._doors.make(
            self._store.inbox(),
            self.apps,
            self._clock,
            self._tell,
            max_payload=most,
            zone=self._zone,
            saturation=lambda: self._engine.saturation() if self._engine else 0.0,
        )
        self.counters.gauge("ingest_lag", self._doors.lag)
        self.counters.gauge("ingest_ready", self._doors.ready)

    async def stop(self) -> bool:
        """Stop reading topics and handing over jobs, let calls in flight finish, settle, release.

        False: some of it had to be abandoned. It can be called at any time and repeatedly: it waits for a start in
        progress, and a second stop returns the same result.
        """
        async with self._life:
            await self._stop()
            return self._clean

    async def _stop(self) -> None:
        if self._engine is not None:
            node = self.settings.node
            parts = [await self._end(part) for part in reversed(self._parts)]
            shut = await self._doors.stop((node.stop_timeout + node.heartbeat).total_seconds())
            self._clean = await self._engine.stop() and shut and all(parts)
            self._engine = None
        self._lift_fork_guard()
        await self.close()

    async def _end(self, part: Part) -> bool:
        try:
            return await part.stop()
        except Exception as error:  # noqa: BLE001 - a part that cannot end must not keep the engine from settling
            self._tell(TaskFailed(part=type(part).__name__, error=f"{type(error).__name__}: {error}"))
            return False

    def _lift_fork_guard(self) -> None:
        if self._fork_guard is not None:
            self._fork_guard.lift()
            self._fork_guard = None

    async def run(self) -> bool:
        """Run until SIGTERM or SIGINT, or until it is cancelled, then stop in good order.

        False: some of it had to be abandoned. A second signal ends the process at once, like a crash.
        """
        stop = asyncio.Event()
        with StopSignals(setting(stop)):
            await self.start()
            try:
                await stop.wait()
            finally:
                clean = await uncancelled(self.stop)
            return clean

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def node_id(self) -> str:
        """The name of this node in lists and logs."""
        return node_name(self.settings)

    def _node(self) -> NodeInfo:
        return NodeInfo(
            nonce=secrets.token_hex(8),
            node_id=self.node_id,
            apps=frozenset(self._apps),
            started_ms=self._clock.wall_ms(),
        )


def engine_settings(settings: Settings) -> EngineSettings:
    """The engine's intervals and limits, from the settings."""
    return EngineSettings(
        lookahead_ms=ms_of(settings.window.lookahead),
        fetch_interval_ms=ms_of(settings.window.fetch_interval),
        page=settings.window.page,
        budget_bytes=settings.window.budget,
        lease_ms=ms_of(settings.node.lease),
        heartbeat_ms=ms_of(settings.node.heartbeat),
        stop_timeout_ms=ms_of(settings.node.stop_timeout),
        clock_limit_ms=ms_of(settings.node.clock_limit),
        lane=LaneSettings(request_poll_ms=ms_of(settings.node.request_poll)),
    )
