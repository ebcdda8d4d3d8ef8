"""The HTTP server as the settings describe it: of a node, or of a process that owns no shards."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from zoneinfo import ZoneInfo

import msgspec

from infinite_scheduler.api.api_context import ApiContext, ApiLimits
from infinite_scheduler.api.event_streams import EventStreams
from infinite_scheduler.api.forecast_cache import ForecastCache
from infinite_scheduler.api.http_server import HttpServer, ServerSettings
from infinite_scheduler.api.token_digest import digest_of
from infinite_scheduler.api.traffic import Traffic
from infinite_scheduler.client import Client
from infinite_scheduler.clock import Clock
from infinite_scheduler.config import Settings
from infinite_scheduler.configured import ms_of
from infinite_scheduler.errors import SchedulerError
from infinite_scheduler.handlers.base import Handler
from infinite_scheduler.ingest.config import KafkaIngestConfig
from infinite_scheduler.observe.counters import Counters
from infinite_scheduler.observe.events import Observer
from infinite_scheduler.observe.prometheus import MetricsSources, PrometheusMetrics
from infinite_scheduler.observe.readings import NodeReading
from infinite_scheduler.observe.recent_failures import RecentFailures
from infinite_scheduler.store.abilities import Ability
from infinite_scheduler.store.ledger import Role, Token

LOOK_S = 2.0
"""How long a scrape waits for the store."""


class ProcessFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What is counted in this process, under which name, and what can be read off its node, if it has one."""

    counters: Counters
    node: str
    reading: Callable[[], NodeReading] = NodeReading
    failures: RecentFailures | None = None


def http_server(
    client: Client,
    settings: Settings,
    clock: Clock,
    tell: Observer,
    *,
    handlers: Mapping[str, Handler],
    topics: Sequence[KafkaIngestConfig],
    figures: ProcessFigures,
    may_give_way: bool = False,
) -> HttpServer:
    """A server that answers by means of this client, which must be open while it runs.

    One that `may_give_way` does without its port if that is the default one and another process has it.
    """
    http = settings.http
    traffic = Traffic()
    api = ApiContext(
        client=client,
        clock=clock,
        zone=ZoneInfo(settings.time.zone),
        lease_ms=ms_of(settings.node.lease),
        limits=ApiLimits(payload=settings.limits.payload, batch=settings.limits.batch, queue=http.queue),
        payloads=http.payloads,
        root_path=http.root_path,
        handlers=handlers,
        topics=topics,
        herd=http.herd,
        overdue_alarm_ms=ms_of(http.overdue_alarm),
        streams=EventStreams(http.streams, failures=figures.failures, node=figures.node),
        forecasts=ForecastCache(),
        metrics=_metrics(client, figures, traffic),
    )
    return HttpServer(api, _server_settings(settings, may_give_way=may_give_way), tell, traffic=traffic)


def _metrics(client: Client, figures: ProcessFigures, traffic: Traffic) -> Callable[[], Awaitable[tuple[bytes, str]]]:
    """Writes what is counted in this process, and how many jobs wait as the store says."""
    waiting: dict[str, int] = {}
    sources = MetricsSources(
        counters=figures.counters,
        node=figures.node,
        version=version("infinite-scheduler"),
        reading=figures.reading,
        http=traffic.answered,
        waiting=lambda: waiting,
    )
    written = PrometheusMetrics(sources)

    async def scrape() -> tuple[bytes, str]:
        waiting.clear()  # a number that may be old is worse than none
        if Ability.WAITING in client.abilities:
            with suppress(SchedulerError, TimeoutError):  # all others are known without the store
                async with asyncio.timeout(LOOK_S):
                    found = await client.ledger.waiting()
                waiting.update({app: sum(days.values()) for app, days in found.items()})
        return await written.exposition()

    return scrape


def _server_settings(settings: Settings, *, may_give_way: bool) -> ServerSettings:
    http = settings.http
    return ServerSettings(
        host=http.host,
        port=http.port,
        may_give_way=may_give_way and "port" not in http.model_fields_set,
        hosts=http.hosts,
        certificate=http.certificate,
        key=http.key,
        tokens=tuple(
            Token(name=name, role=Role(one.role), digest=digest_of(one.token), created_ms=0)
            for name, one in http.tokens.items()
        ),
        open_metrics=http.metrics == "open",
        session_ms=ms_of(http.session),
        connections=http.connections,
        body_timeout_s=http.body_timeout.total_seconds(),
        stop_timeout_s=settings.node.stop_timeout.total_seconds(),
    )
