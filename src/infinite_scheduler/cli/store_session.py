"""How a command uses the store: settings first, then a client that is open while the command works."""

import asyncio
import enum
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from infinite_scheduler.cli.output import Output
from infinite_scheduler.cli.shared_options import SharedOptions
from infinite_scheduler.cli.store_exists import check_there
from infinite_scheduler.client import Client
from infinite_scheduler.clock import SystemClock
from infinite_scheduler.config import Settings
from infinite_scheduler.store import check_own_url
from infinite_scheduler.store.abilities import Ability


class Intent(enum.Enum):
    """What a command does to the store, and so whether it may create one."""

    LOOK = "reads"
    CHANGE = "changes what is there"
    ADD = "adds to an app"


class StoreSession(NamedTuple):
    """A running command: its client, and where its answer goes."""

    client: Client
    out: Output
    settings: Settings

    @property
    def now_ms(self) -> int:
        return SystemClock().wall_ms()

    @property
    def lease_ms(self) -> int:
        return round(self.settings.node.lease.total_seconds() * 1000)


Question = Callable[[StoreSession], Awaitable[int | None]]
"""The work of a command on the store; it returns an exit code, None for 0."""


def ask(
    options: SharedOptions,
    question: Question,
    intent: Intent = Intent.LOOK,
    *,
    app: str | None = None,
    kafka: str | None = None,
    needs: Ability | None = None,
    own_url: str | None = None,
) -> int:
    """Open the store, run the question, and close the store again.

    A store that does not have the ability it `needs` is not opened; `own_url` is the name of a command that needs the
    URL of the store itself.
    """
    settings = options.settings({"kafka.bootstrap_servers": kafka})
    if own_url is not None:
        check_own_url(settings.store.address_url, own_url)
    return asyncio.run(_ask(options, settings, question, intent, app, needs))


async def _ask(
    options: SharedOptions,
    settings: Settings,
    question: Question,
    intent: Intent,
    app: str | None,
    needs: Ability | None,
) -> int:
    if not (intent is Intent.ADD and app in settings.apps):
        check_there(settings)
    client = Client(settings=settings)
    if needs is not None:
        client.abilities.require(needs)
    async with client:
        await _register(client, settings, intent)
        return await question(StoreSession(client, Output(as_json=options.as_json), settings)) or 0


async def _register(client: Client, settings: Settings, intent: Intent) -> None:
    """Add the configured apps; a command that only looks adds missing ones and ignores differences."""
    if not settings.apps:
        return
    known = {app.name for app in (await client.survey()).view.apps} if intent is Intent.LOOK else set()
    for name, app in settings.apps.items():
        if name not in known:
            await client.register(name, app.shards)
