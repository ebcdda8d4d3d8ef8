"""The command that runs a node."""

import asyncio
import logging
import os
import signal
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import msgspec

from infinite_scheduler.cli.output import plain
from infinite_scheduler.cli.shared_options import SharedOptions
from infinite_scheduler.config import Settings
from infinite_scheduler.errors import ConfigError
from infinite_scheduler.observe.logs import configure_logging
from infinite_scheduler.scheduler import Scheduler
from infinite_scheduler.store import shown_url

logger = logging.getLogger(__name__)


def run_node(options: SharedOptions, overrides: Mapping[str, Any]) -> int:
    """Run until SIGTERM or SIGINT. Returns 1 if handlers had to be abandoned, 0 otherwise."""
    settings = options.settings(overrides)
    if not settings.apps:
        where = f"the configuration {settings.source}" if settings.source else "without --config FILE the configuration"
        raise ConfigError(
            f"{where} has no apps, and a node without apps has nothing to do: "
            'add [apps.NAME] with function = "module:name", or with handler = "kafka" and a topic, '
            "and pass the file with --config"
        )
    configure_logging(settings.log.level, settings.log.format, settings.log.modules)
    return asyncio.run(_serve(Scheduler(settings=settings), settings, as_json=options.as_json))


async def _serve(scheduler: Scheduler, settings: Settings, *, as_json: bool) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await scheduler.start()
    _print_start(scheduler, as_json=as_json)
    await stop.wait()
    # A second Ctrl-C ends the process like a crash: a normal exit would report jobs in flight as failed.
    loop.add_signal_handler(signal.SIGINT, os._exit, 130)
    seconds = settings.node.stop_timeout.total_seconds()
    logger.info("Stopping: jobs in flight have up to %g s to end; a second Ctrl-C ends the node at once.", seconds)
    return 0 if await scheduler.stop() else 1


def _print_start(scheduler: Scheduler, *, as_json: bool) -> None:
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
            "pid": os.getpid(),
        }
        print(msgspec.json.encode(line).decode(), flush=True)
        return
    release = version("infinite-scheduler")
    reads = f", reads {', '.join(topics)}" if topics else ""
    what = f"node {scheduler.node_id} runs {', '.join(apps)} on {url}{reads}"
    text = f"infinite-scheduler {release}: {what} (Ctrl-C stops it)"
    print(plain(text), flush=True)
