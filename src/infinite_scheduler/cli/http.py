"""The command that answers HTTP requests in a process of its own, which owns no shards."""

import asyncio
import os
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import msgspec

from infinite_scheduler.cli.output import plain
from infinite_scheduler.cli.serve import run_to_the_end
from infinite_scheduler.cli.shared_options import SharedOptions
from infinite_scheduler.cli.store_exists import check_there
from infinite_scheduler.client import Client
from infinite_scheduler.clock import SystemClock
from infinite_scheduler.config import Settings
from infinite_scheduler.configured import handler_of, node_name
from infinite_scheduler.configured_http import ProcessFigures, http_server
from infinite_scheduler.doors import Doors
from infinite_scheduler.errors import SchedulerError
from infinite_scheduler.handlers.base import Handler
from infinite_scheduler.observe.counters import Counters
from infinite_scheduler.observe.events import HandlerMissing, Observer
from infinite_scheduler.observe.logs import LogWriter, configure_logging
from infinite_scheduler.stop_signals import StopSignals, setting, uncancelled
from infinite_scheduler.store import check_own_url, shown_url


def run_server(options: SharedOptions, overrides: Mapping[str, Any]) -> int:
    """Answer until SIGTERM or SIGINT. Returns 1 if requests had to be abandoned, 0 otherwise."""
    settings = options.settings(overrides)
    check_own_url(settings.store.address_url, "http")
    if not settings.apps:
        check_there(settings)
    configure_logging(settings.log.level, settings.log.format, settings.log.modules)
    return run_to_the_end(_answer(settings, as_json=options.as_json))


async def _answer(settings: Settings, *, as_json: bool) -> int:
    stop = asyncio.Event()
    StopSignals(setting(stop)).__enter__()  # until the process has ended
    clock, tell, counters = SystemClock(), LogWriter(), Counters()
    async with Client(settings=settings, clock=clock, observer=counters) as client:
        for name, app in settings.apps.items():
            await client.register(name, app.shards)
        doors = Doors(settings.kafka)
        server = http_server(
            client,
            settings,
            clock,
            tell,
            handlers=_handlers(settings, tell),
            topics=[doors.describe(table) for table in settings.ingest if table.enabled],
            figures=ProcessFigures(counters=counters, node=node_name(settings)),
        )
        await server.start()
        try:
            _print_start(settings, server.url, as_json=as_json)
            await stop.wait()
        finally:
            clean = await uncancelled(server.stop)
    return 0 if clean else 1


def _handlers(settings: Settings, tell: Observer) -> Mapping[str, Handler]:
    """The handlers of the configured apps, for their checks of data; one that cannot be loaded here is left out."""
    found = {}
    for name in settings.apps:
        try:
            found[name] = handler_of(name, settings, SystemClock())
        except SchedulerError as error:
            tell(HandlerMissing(app=name, error=str(error)))
    return found


def _print_start(settings: Settings, http: str | None, *, as_json: bool) -> None:
    url = shown_url(settings.store.address_url)
    if as_json:
        line = {"event": "started", "http": http, "store": url, "pid": os.getpid()}
        print(msgspec.json.encode(line).decode(), flush=True)
        return
    release = version("infinite-scheduler")
    print(plain(f"infinite-scheduler {release}: answers at {http} for {url} (Ctrl-C stops it)"), flush=True)
