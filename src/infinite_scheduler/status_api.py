"""The HTTP server for programs without an event loop: start it, stop it."""

from typing import Final

from infinite_scheduler.api.http_server import HttpServer
from infinite_scheduler.client import Client
from infinite_scheduler.clock import SystemClock
from infinite_scheduler.config import Settings, load_settings
from infinite_scheduler.configured import node_name
from infinite_scheduler.configured_http import ProcessFigures, http_server
from infinite_scheduler.errors import InvalidRequest
from infinite_scheduler.loop_thread import LoopThread
from infinite_scheduler.multi_app import MultiAppScheduler
from infinite_scheduler.observe.counters import Counters
from infinite_scheduler.observe.logs import LogWriter
from infinite_scheduler.scheduler import Scheduler
from infinite_scheduler.store import check_own_url

DEFAULT_PORT: Final = 7070


class JobStatusApi:
    """Answers HTTP requests about a store: `JobStatusApi("sqlite:///jobs.db").start(7070)`, then `.stop()`.

    Given a Scheduler or a MultiAppScheduler, it answers for the store of that, and with the checks of its handlers. It
    runs in a thread of its own and may be used from any thread.
    """

    def __init__(self, source: str | Settings | Scheduler | MultiAppScheduler) -> None:
        node = source.scheduler if isinstance(source, MultiAppScheduler) else source
        self._node = node if isinstance(node, Scheduler) else None
        self._settings = _settings(node)
        check_own_url(self._settings.store.address_url, "JobStatusApi")
        self._thread = LoopThread(
            "infinite-scheduler-http",
            idle="the server does not run: call start() first",
            ended="the server was stopped meanwhile",
        )
        self._client: Client | None = None
        self._server: HttpServer | None = None

    def start(self, port: int = DEFAULT_PORT, host: str = "127.0.0.1") -> None:
        """Begin to answer; returns when it does. Raises ConfigError if the port is taken."""
        if self._thread.running:
            raise InvalidRequest("the server already runs: start it once, or make another JobStatusApi")
        self._thread.begin()
        try:
            self._thread.run(self._open(port, host))
        except BaseException:
            self._thread.run(self._close())
            self._thread.end()
            raise

    def stop(self) -> bool:
        """Finish requests in progress, and end. False: some of them had to be abandoned. Without a start: nothing."""
        if not self._thread.running:
            return True
        try:
            return self._thread.run(self._close())
        finally:
            self._thread.end()

    @property
    def url(self) -> str | None:
        """Where it answers; None: it does not."""
        return None if self._server is None else self._server.url

    async def _open(self, port: int, host: str) -> None:
        http = self._settings.http.model_copy(update={"port": port, "host": host})
        settings = self._settings.model_copy(update={"http": http})
        clock, node = SystemClock(), self._node
        counters = Counters() if node is None else node.counters
        self._client = await Client(settings=settings, clock=clock, observer=counters).open()
        self._server = http_server(
            self._client,
            settings,
            clock,
            LogWriter(),
            handlers={} if node is None else node.apps,
            topics=() if node is None else node.ingests,
            figures=ProcessFigures(  # without a reading: that is for the event loop of the node alone
                counters=counters,
                node=node_name(settings),
                failures=None if node is None else node.failures,
            ),
        )
        await self._server.start()

    async def _close(self) -> bool:
        server, client, self._server, self._client = self._server, self._client, None, None
        clean = True if server is None else await server.stop()
        if client is not None:
            await client.close()
        return clean


def _settings(source: str | Settings | Scheduler) -> Settings:
    if isinstance(source, Scheduler):
        return source.settings
    return source if isinstance(source, Settings) else load_settings(overrides={"store.url": source})
