"""A server on a free port with a SQLite file behind it, and a session that asks it."""

import io
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import aiohttp
import msgspec

from infinite_scheduler import Client
from infinite_scheduler.api.api_context import ApiContext
from infinite_scheduler.api.event_streams import EventStreams
from infinite_scheduler.api.forecast_cache import ForecastCache
from infinite_scheduler.api.http_server import HttpServer, ServerSettings
from infinite_scheduler.api.overview import EVERY_MS
from infinite_scheduler.clock import SystemClock
from infinite_scheduler.observe.events import Event
from infinite_scheduler.testing.manual_clock import ManualClock

APP = "shop"
JSON = {"Content-Type": "application/json"}


class Answer(msgspec.Struct):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def value(self) -> Any:
        return msgspec.json.decode(self.content)

    @property
    def problem(self) -> str:
        """The last word of the problem's type."""
        assert self.headers["Content-Type"].startswith("application/problem+json"), self.content
        value = self.value
        assert value["status"] == self.status
        assert value["title"]
        assert value["detail"]
        return str(value["type"]).removeprefix("urn:infinite-scheduler:problem:")


class ApiRig:
    """The server, its client, what it has reported, and how to ask it."""

    def __init__(self, server: HttpServer, client: Client, session: aiohttp.ClientSession, told: list[Event]) -> None:
        self.server = server
        self.client = client
        self.session = session
        self.told = told

    async def ask(self, method: str, path: str, body: Any = None, **options: Any) -> Answer:
        """One request; a body that is not bytes is written as JSON."""
        headers = {**(JSON if method == "POST" else {}), **options.pop("headers", {})}
        data = body if isinstance(body, bytes | None) else msgspec.json.encode(body)
        url = f"{self.server.url}{path}"
        content = None if data is None else io.BytesIO(data)
        async with self.session.request(method, url, data=content, headers=headers, **options) as response:
            return Answer(response.status, response.headers, await response.read())

    async def get(self, path: str, **options: Any) -> Answer:
        return await self.ask("GET", path, **options)

    async def post(self, path: str, body: Any = None, **options: Any) -> Answer:
        return await self.ask("POST", path, body, **options)

    async def schedule(self, data: Any = 1, **fields: Any) -> str:
        """Schedule a job for in an hour; returns its id."""
        answer = await self.post("/v1/jobs", {"app": APP, "delay": "1h", "data": data, **fields})
        assert answer.status == 201, answer.content
        return str(answer.value["id"])


@asynccontextmanager
async def api_rig(
    folder: Path, *, client: Client | None = None, server: Mapping[str, Any] | None = None, **context: Any
) -> AsyncIterator[ApiRig]:
    """A rig on a new file, with one app."""
    told: list[Event] = []
    own = client or Client(f"sqlite:///{folder / 'jobs.db'}")
    async with own:
        await own.register(APP, 2)
        api = ApiContext(
            client=own,
            clock=context.pop("clock", SystemClock()),
            zone=ZoneInfo("UTC"),
            lease_ms=10_000,
            streams=EventStreams(
                context.pop("streams", 200),
                failures=context.pop("failures", None),
                node="node-1",
                every_ms=context.pop("every_ms", EVERY_MS),
            ),
            forecasts=ForecastCache(),
            **context,
        )
        door = HttpServer(api, ServerSettings(**{"port": 0, **(server or {})}), told.append)
        await door.start()
        try:
            async with aiohttp.ClientSession() as session:
                yield ApiRig(door, own, session, told)
        finally:
            await door.stop()


__all__ = ["APP", "JSON", "Answer", "ApiRig", "ManualClock", "api_rig"]
