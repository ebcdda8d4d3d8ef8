"""A store behind a server of its own: what is asked of it goes over HTTP, in one process and by one clock."""

from collections.abc import Mapping
from typing import Any
from zoneinfo import ZoneInfo

from infinite_scheduler.api.api_context import ApiContext
from infinite_scheduler.api.event_streams import EventStreams
from infinite_scheduler.api.forecast_cache import ForecastCache
from infinite_scheduler.api.http_server import HttpServer, ServerSettings
from infinite_scheduler.client import Client
from infinite_scheduler.clock import Clock
from infinite_scheduler.observe.events import ignore
from infinite_scheduler.store.base import Store
from infinite_scheduler.store.http.http_address import HttpAddress
from infinite_scheduler.store.http.http_session import HttpSession
from infinite_scheduler.store.http.http_store import HttpStore


def server_over(store: Store, clock: Clock, **context: Any) -> tuple[Client, HttpServer]:
    """A client of this store, and the server that answers by means of it; both are to be opened."""
    client = Client(store=store, clock=clock)
    api = ApiContext(
        client=client,
        clock=clock,
        zone=ZoneInfo("UTC"),
        lease_ms=10_000,
        streams=EventStreams(1),
        forecasts=ForecastCache(),
        **context,
    )
    return client, HttpServer(api, ServerSettings(port=0, stop_timeout_s=0.1), ignore)


class ServedStore(HttpStore):
    """Opens its server, and closes it again."""

    def __init__(self, inner: Store, clock: Clock, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(HttpSession(HttpAddress(base=""), None, clock), clock)
        self._client, self._server = server_over(inner, clock, **(options or {}))

    async def open(self) -> None:
        await self._client.open()
        await self._server.start()
        assert self._server.url is not None
        self._session = HttpSession(HttpAddress(base=self._server.url), None, self._clock)
        await super().open()

    async def close(self) -> None:
        await super().close()
        await self._server.stop()
        await self._client.close()
