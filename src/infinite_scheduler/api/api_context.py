"""What the operations of the API work with: a client, a clock, and plain values."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal
from zoneinfo import ZoneInfo

import msgspec

from infinite_scheduler.client import Client
from infinite_scheduler.clock import Clock
from infinite_scheduler.errors import IntakeFull
from infinite_scheduler.handlers.base import Handler
from infinite_scheduler.ingest.config import KafkaIngestConfig

if TYPE_CHECKING:
    from infinite_scheduler.api.access import Access
    from infinite_scheduler.api.event_streams import EventStreams
    from infinite_scheduler.api.forecast_cache import ForecastCache

QUEUE_BYTES = 64 * 1024 * 1024
"""How many bytes of payloads may wait for a commit."""

Payloads = Literal["shown", "operators", "hidden"]
"""Who sees the data of jobs: all who may read, operators only, or no one."""


class ApiLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much one request, and all of them together, may ask for."""

    payload: int = 1024 * 1024
    batch: int = 10_000
    queue: int = 50_000


class ApiContext(msgspec.Struct, frozen=True, kw_only=True):
    """All that an operation may use."""

    client: Client
    clock: Clock
    zone: ZoneInfo
    lease_ms: int
    limits: ApiLimits = ApiLimits()
    payloads: Payloads = "shown"
    root_path: str = ""
    handlers: Mapping[str, Handler] = {}
    """The handlers that this process has: their checks of data count here too."""
    topics: Sequence[KafkaIngestConfig] = ()
    """The topics of this process's configuration."""
    overdue_alarm_ms: int = 60_000
    herd: int = 5000
    """More jobs of an app in one second are a herd."""
    streams: "EventStreams"
    forecasts: "ForecastCache"
    given_access: "Access | None" = None  # that of the server that answers
    metrics: Callable[[], Awaitable[tuple[bytes, str]]] | None = None
    """Writes the metrics of this process for Prometheus: the text and its type. None: there are none."""

    @property
    def now_ms(self) -> int:
        return self.clock.wall_ms()

    @property
    def access(self) -> "Access":
        """Who may come in here."""
        if self.given_access is None:
            raise RuntimeError("no server runs: access is decided by one")
        return self.given_access

    def check_room(self, jobs: int, size: int) -> None:
        """Raise IntakeFull if these jobs would be too many beside those that wait for a commit."""
        waiting = self.client.backlog
        if waiting.jobs and (waiting.jobs + jobs > self.limits.queue or waiting.bytes + size > QUEUE_BYTES):
            raise IntakeFull(
                f"{waiting.jobs:,} jobs of {waiting.bytes:,} bytes wait to be stored, and at most "
                f"{self.limits.queue:,} of {QUEUE_BYTES:,} bytes may: nothing was accepted, so send it again later"
            )
