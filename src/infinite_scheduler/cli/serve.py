"""The command that runs a node."""

import asyncio
import logging
import os
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec

from infinite_scheduler.cli.output import plain
from infinite_scheduler.cli.shared_options import SharedOptions
from infinite_scheduler.clock import SystemClock
from infinite_scheduler.errors import ConfigError
from infinite_scheduler.observe.logs import LogWriter, configure_logging
from infinite_scheduler.scheduler import Scheduler
from infinite_scheduler.stop_signals import StopSignals, setting, uncancelled
from infinite_scheduler.store import check_own_url, shown_url

if TYPE_CHECKING:
    from infinite_scheduler.api.http_server import HttpServer

logger = logging.getLogger(__name__)

LAST_S = 1.0
"""How long tasks that handlers have left behind may take to end, after the node has."""


def run_node(options: SharedOptions, overrides: Mapping[str, Any]) -> int:
    """Run until SIGTERM or SIGINT. Returns 1 if handlers had to be abandoned, 0 otherwise."""
    settings = options.settings(overrides)
    check_own_url(settings.store.address_url, "serve")
    if not settings.apps:
        where = f"the configuration {settings.source}" if settings.source else "without --config FILE the configuration"
        raise ConfigError(
            f"{where} has no apps, and a node without apps has nothing to do: "
            'add [apps.NAME] with function = "module:name", or with handler = "kafka" and a topic, '
            "and pass the file with --config"
        )
    configure_logging(settings.log.level, settings.log.format, settings.log.modules)
    scheduler = Scheduler(settings=settings)
    server = _http_server(scheduler) if settings.http.enabled else None
    if server is not None:
        scheduler.add_part(server)
    return run_to_the_end(_serve(scheduler, server, as_json=options.as_json))


def _http_server(scheduler: Scheduler) -> "HttpServer":
    from infinite_scheduler.configured_http import ProcessFigures, http_server  # noqa: PLC0415 - not where it is disabled

    return http_server(
        scheduler,
        scheduler.settings,
        SystemClock(),
        LogWriter(),
        handlers=scheduler.apps,
        topics=scheduler.ingests,
        figures=ProcessFigures(
            counters=scheduler.counters,
            node=scheduler.node_id,
            reading=scheduler.reading,
            failures=scheduler.failures,
        ),
        may_give_way=True,
    )


def run_to_the_end(main: Coroutine[Any, Any, int]) -> int:
    """Run in an event loop: go on if a handler stops it, and wait for no task that refuses to end."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(main)
    try:
        while not task.done():
            with suppress(
                RuntimeError
            ):  # "Event loop stopped before Future completed"; an error of main is in the task
                loop.run_until_complete(task)
        if left := asyncio.all_tasks(loop):
            for other in left:
                other.cancel()
            loop.run_until_complete(asyncio.wait(left, timeout=LAST_S))
        loop.run_until_complete(loop.shutdown_asyncgens())
        return task.result()
    finally:
        loop.close()


async def _serve(scheduler: Scheduler, server: "HttpServer | None", *, as_json: bool) -> int:
    stop = asyncio.Event()
    StopSignals(setting(stop)).__enter__()  # until the process has ended, which may have to wait for threads
    await scheduler.start()
    _print_start(scheduler, None if server is None else server.url, as_json=as_json)
    await uncancelled(stop.wait)
    seconds = scheduler.settings.node.stop_timeout.total_seconds()
    logger.info("Stopping: jobs in flight have up to %g s to end; a second signal ends the node at once.", seconds)
    return 0 if await uncancelled(scheduler.stop) else 1


def _print_start(scheduler: Scheduler, http: str | None, *, as_json: bool) -> None:
    settings = scheduler.settings
    apps, url = sorted(settings.apps), shown_url(settings.store.address_url)
    topics = [config.topic for config in scheduler.ingests]
    if as_json:
        line = {
            "event": "started",
            "node": scheduler.node_id,
            "store": url,
            "apps": apps,
            "topics": topics,
            "http": http,
            "pid": os.getpid(),
        }
        print(msgspec.json.encode(line).decode(), flush=True)
        return
    release = version("infinite-scheduler")
    reads = f", reads {', '.join(topics)}" if topics else ""
    answers = f", answers at {http}" if http is not None else ""
    what = f"node {scheduler.node_id} runs {', '.join(apps)} on {url}{reads}{answers}"
    text = f"infinite-scheduler {release}: {what} (Ctrl-C stops it)"
    print(plain(text), flush=True)
