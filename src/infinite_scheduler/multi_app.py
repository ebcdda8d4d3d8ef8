"""Several apps behind one object for programs without an event loop: register handlers, start, schedule, stop."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from infinite_scheduler.client import DueTime
from infinite_scheduler.config import Settings
from infinite_scheduler.config.store_url import effective_url
from infinite_scheduler.errors import ConfigError, HandlerError, InvalidRequest
from infinite_scheduler.handlers.base import Handler
from infinite_scheduler.ingest.metrics import METRICS
from infinite_scheduler.loop_thread import LoopThread
from infinite_scheduler.model import Accepted, Priority
from infinite_scheduler.scheduler import Scheduler
from infinite_scheduler.stop_signals import StopSignals, uncancelled
from infinite_scheduler.store.scheme import BadPart

if TYPE_CHECKING:
    from infinite_scheduler.ingest.config import KafkaIngestConfig

_METHODS: Final = ("handle", "execute")
_PARTS: Final = {"host": "mysql_host", "port": "mysql_port", "database": "mysql_database", "user": "mysql_username"}


class KafkaIngestConsumer:
    """The state of the door of one topic, available at any time and from any thread."""

    def __init__(self, scheduler: Scheduler, place: int) -> None:
        self._scheduler = scheduler
        self._place = place

    @property
    def config(self) -> "KafkaIngestConfig":
        """What is read, and how."""
        return self._scheduler.ingests[self._place]

    @property
    def is_running(self) -> bool:
        """Is the topic being read, or waited for?"""
        doors = self._scheduler.doors
        return bool(doors) and doors[self._place].is_running

    @property
    def metrics(self) -> Mapping[str, int]:
        """How many messages came in and what happened to them, since the last start."""
        doors = self._scheduler.doors
        return doors[self._place].metrics if doors else dict.fromkeys(METRICS, 0)


class MultiAppScheduler:
    """Runs a node with several apps in a thread of its own; every call waits for its result.

    The store is a MySQL or MariaDB server (`mysql_…`), the one at `store_url`, or that of the settings. Register apps
    and topics, then call `start_all()` and `stop_all()`, or use it as `with`. It may be shared between threads.
    """

    def __init__(
        self,
        *,
        mysql_host: str | None = None,
        mysql_port: int | None = None,
        mysql_database: str | None = None,
        mysql_username: str | None = None,
        mysql_password: str | None = None,
        store_url: str | None = None,
        settings: Settings | Mapping[str, Any] | None = None,
        kafka_ingest: "KafkaIngestConfig | Iterable[KafkaIngestConfig] | None" = None,
    ) -> None:
        server = {
            "host": mysql_host,
            "port": mysql_port,
            "database": mysql_database,
            "user": mysql_username,
            "password": mysql_password,
        }
        self._scheduler = Scheduler(_url(server, store_url), settings=settings)
        self._life = threading.Lock()  # one start or stop at a time
        self._thread = LoopThread(
            "infinite-scheduler",
            idle="not running: call start_all() first",
            ended="the scheduler was stopped meanwhile",
        )
        self._clean = True
        if kafka_ingest is not None:
            several = kafka_ingest if isinstance(kafka_ingest, Iterable) else (kafka_ingest,)
            for config in several:
                self.with_kafka_ingest(config)

    # Before the start

    def with_kafka_ingest(
        self,
        config: "KafkaIngestConfig | str | None" = None,
        topic: str | None = None,
        *,
        bootstrap_servers: str | None = None,
    ) -> Self:
        """Accept jobs from a topic: `(config)`, `(bootstrap_servers, topic)`, or nothing for the defaults."""
        self._thread.refuse_inside()
        with self._life:
            self._scheduler.with_kafka_ingest(config, topic, bootstrap_servers=bootstrap_servers)
        return self

    def register_app(self, name: str, handler: object, **policies: Any) -> None:
        """Register the handler of an app: a Handler, a function, or an object with `handle` or `execute`.

        An object may have `required_fields`, and `validate(job_data)`, which refuses data by returning False or raising
        a ValueError. `policies` are those of `Scheduler.app`: retry, misfire, concurrency, timeout, …
        """
        self._thread.refuse_inside()
        with self._life:
            if isinstance(handler, Handler):
                self._scheduler.add_app(name, handler, **policies)
                return
            function, checks = _parts_of(name, handler)
            self._scheduler.app(name, **{**checks, **policies})(function)

    @property
    def registered_apps(self) -> frozenset[str]:
        """The apps that this node has a handler for."""
        return frozenset(self._scheduler.apps)

    # Life

    def start_all(self) -> None:
        """Start the node and its topics; returns when it runs. It does not wait for brokers that do not answer."""
        self._thread.refuse_inside()
        with self._life:
            if self._thread.running:
                raise InvalidRequest(
                    "the scheduler is already running: start it once, or create another MultiAppScheduler"
                )
            self._thread.begin()
            try:
                self._thread.run(self._scheduler.start())
            except BaseException:
                self._thread.end()
                raise

    def stop_all(self) -> bool:
        """Stop in good order: accept nothing more, let calls in flight finish. False: some of them had to be abandoned.

        Without a start it does nothing; a second call returns the same result.
        """
        self._thread.refuse_inside()
        with self._life:
            if self._thread.running:
                try:
                    self._clean = self._thread.run(uncancelled(self._scheduler.stop))
                finally:
                    self._thread.end()
            return self._clean

    def run(self) -> bool:
        """Start, run until SIGTERM or SIGINT, stop in good order, in the main thread. False: calls were abandoned.

        A second signal ends the process at once, like a crash.
        """
        stop = threading.Event()
        with StopSignals(stop.set):
            self.start_all()
            stop.wait()
            return self.stop_all()

    def __enter__(self) -> Self:
        self.start_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_all()

    @property
    def scheduler(self) -> Scheduler:
        """The node that it runs, for what reads its settings, handlers and counters."""
        return self._scheduler

    @property
    def is_running(self) -> bool:
        """Has it been started, and not stopped?"""
        return self._thread.running

    # While it runs

    def schedule_job(  # noqa: PLR0913 - one parameter for each thing a job may carry
        self,
        app: str,
        job_data: Any,
        when: DueTime | timedelta,
        *,
        priority: Priority | str = Priority.NORMAL,
        idempotency_key: str | None = None,
        request_id: str | None = None,
        job_name: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
    ) -> Accepted:
        """Hand `job_data` to the app's handler at a time, or after a timedelta. When this returns, the job is durable.

        The app's own checks of data apply here too.
        """
        handler = self._scheduler.apps.get(app)
        if handler is not None and handler.checks:
            handler.check(job_data)
        at, delay = (None, when) if isinstance(when, timedelta) else (when, None)
        return self._thread.run(
            self._scheduler.schedule(
                app,
                job_data,
                at=at,
                delay=delay,
                priority=priority,
                idempotency_key=idempotency_key,
                request_id=request_id,
                job_name=job_name,
                group=group,
                tags=tags,
            )
        )

    @property
    def kafka_ingest_consumer(self) -> KafkaIngestConsumer | None:
        """The door of the first topic: `metrics`, `is_running`. None if no topic is read."""
        return next(iter(self.kafka_ingest_consumers), None)

    @property
    def kafka_ingest_consumers(self) -> Sequence[KafkaIngestConsumer]:
        """The doors of all topics, in the order in which they were registered."""
        return [KafkaIngestConsumer(self._scheduler, place) for place in range(len(self._scheduler.ingests))]


MultiAppSchedulerManager = MultiAppScheduler


def _url(server: Mapping[str, Any], store_url: str | None) -> str | None:
    """The address made from the `mysql_…` keywords, or the URL."""
    if all(value is None for value in server.values()):
        return store_url
    if store_url is not None:
        raise ConfigError("give either store_url or mysql_host and the others, not both")
    if not server["database"]:
        raise ConfigError("mysql_database is missing: expected the name of a database")
    try:
        return effective_url(None, {"kind": "mysql", **server})
    except BadPart as error:
        name = _PARTS.get(error.part, error.part)
        raise ConfigError(f"{name} = {server.get(error.part)!r}: {error}") from None


def _parts_of(name: str, handler: object) -> tuple[Callable[[Any], Any], dict[str, Any]]:
    """The function that takes the jobs, and what the handler requires of their data."""
    if isinstance(handler, type):
        raise HandlerError(f"app {name!r}: {handler.__name__} is a class: pass an instance, {handler.__name__}()")
    method = next((found for word in _METHODS if callable(found := getattr(handler, word, None))), None)
    function = method or handler
    if not callable(function):
        raise HandlerError(
            f"app {name!r}: a {type(handler).__name__} object cannot take jobs; "
            "expected a Handler, a function, or an object with a method handle(job) or execute(job)"
        )
    checks = {"required": getattr(handler, "required_fields", ()), "validate": getattr(handler, "validate", None)}
    return function, checks
