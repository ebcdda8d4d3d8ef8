"""The command that runs a node."""

import asyncio
import os
import signal
import socket
import sys
from importlib.metadata import version

import msgspec

from infinite_scheduler.cli.output import plain
from infinite_scheduler.cli.place import Place
from infinite_scheduler.cli.session import shown_url
from infinite_scheduler.config import Settings
from infinite_scheduler.errors import ConfigError
from infinite_scheduler.observe.logs import configure_logging
from infinite_scheduler.scheduler import Scheduler


def run_node(place: Place) -> int:
    """Run until SIGTERM or SIGINT. Returns 1 if something had to be left, 0 otherwise."""
    settings = _named(place.settings())
    if not settings.apps:
        where = f"the configuration {settings.source}" if settings.source else "without --config FILE the configuration"
        raise ConfigError(
            f"{where} names no apps, and a node without apps has nothing to do: "
            'add [apps.NAME] with function = "module:name", and pass the file with --config'
        )
    configure_logging(settings.log.level, settings.log.format, settings.log.modules)
    return asyncio.run(_serve(Scheduler(settings=settings), settings, as_json=place.as_json))


def _named(settings: Settings) -> Settings:
    """The settings with a node id, so that the start line, the lists and the log say the same."""
    node_id = settings.node.id or f"{socket.gethostname()}-{os.getpid()}"
    return settings.model_copy(update={"node": settings.node.model_copy(update={"id": node_id})})


async def _serve(scheduler: Scheduler, settings: Settings, *, as_json: bool) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await scheduler.start()
    _print_start(settings, as_json=as_json)
    await stop.wait()
    loop.remove_signal_handler(signal.SIGINT)  # a second Ctrl-C ends it at once
    _print_stop(settings)
    return 0 if await scheduler.stop() else 1


def _print_start(settings: Settings, *, as_json: bool) -> None:
    apps, url = sorted(settings.apps), shown_url(settings.store.url)
    if as_json:
        line = {"event": "started", "node": settings.node.id, "store": url, "apps": apps, "pid": os.getpid()}
        print(msgspec.json.encode(line).decode(), flush=True)
        return
    release = version("infinite-scheduler")
    text = f"infinite-scheduler {release}: node {settings.node.id} runs {', '.join(apps)} on {url} (Ctrl-C stops it)"
    print(plain(text), flush=True)


def _print_stop(settings: Settings) -> None:
    seconds = settings.node.stop_timeout.total_seconds()
    print(
        f"stopping: jobs in flight have up to {seconds:g} s to end (Ctrl-C again: at once)", file=sys.stderr, flush=True
    )
