"""The HTTP server as the settings describe it: of a node, or of a process that owns no shards."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from infinite_scheduler.api.api_context import ApiContext, ApiLimits
from infinite_scheduler.api.event_streams import EventStreams
from infinite_scheduler.api.http_server import HttpServer, ServerSettings
from infinite_scheduler.api.node_signs import NodeSigns, ReadSigns
from infinite_scheduler.api.token_digest import digest_of
from infinite_scheduler.client import Client
from infinite_scheduler.clock import Clock
from infinite_scheduler.config import Settings
from infinite_scheduler.configured import ms_of
from infinite_scheduler.handlers.base import Handler
from infinite_scheduler.ingest.config import KafkaIngestConfig
from infinite_scheduler.observe.counters import Counters
from infinite_scheduler.observe.events import Observer
from infinite_scheduler.store.ledger import Role, Token

if TYPE_CHECKING:
    from infinite_scheduler.ingest.door import TopicDoor


def http_server(
    client: Client,
    settings: Settings,
    clock: Clock,
    tell: Observer,
    *,
    handlers: Mapping[str, Handler],
    topics: Sequence[KafkaIngestConfig],
    node_signs: ReadSigns | None = None,
    may_give_way: bool = False,
) -> HttpServer:
    """A server that answers by means of this client, which must be open while it runs.

    One that `may_give_way` does without its port if that is the default one and another process has it.
    """
    http = settings.http
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
        node_signs=node_signs,
        streams=EventStreams(http.streams),
    )
    return HttpServer(api, _server_settings(settings, may_give_way=may_give_way), tell)


def signs_of(counters: Counters, doors: Callable[[], Sequence["TopicDoor"]]) -> ReadSigns:
    """What a node in this process says of itself."""

    def read() -> NodeSigns:
        seen = counters.snapshot()
        apps = seen["apps"].values()
        return NodeSigns(
            oldest_overdue_ms=seen["gauges"].get("oldest_overdue_ms") or 0,
            early=sum(app["early"] for app in apps),
            swept=sum(app["swept"] for app in apps),
            topics_ready={door.config.topic: door.ready for door in doors()},
        )

    return read


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
        connections=http.connections,
        body_timeout_s=http.body_timeout.total_seconds(),
        stop_timeout_s=settings.node.stop_timeout.total_seconds(),
    )
