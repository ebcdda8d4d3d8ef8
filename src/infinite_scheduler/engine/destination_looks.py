"""Asks handlers, without a job, whether their destinations take anything: at a start, and while there is none to probe
with."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from infinite_scheduler.engine.dispatcher import AppPlan, Dispatcher
from infinite_scheduler.engine.judge import describe
from infinite_scheduler.errors import DestinationAway
from infinite_scheduler.observe.events import DestinationUnready, Observer, TaskFailed

AT_ONCE = 8
"""Looks at a time, of all apps: each may need a client with threads and connections of its own."""


class DestinationLooks:
    """The looks of one node at the destinations of its apps, a few at a time."""

    def __init__(self, tell: Observer) -> None:
        self._tell = tell
        self._places = asyncio.Semaphore(AT_ONCE)
        self._stopped = False
        self.tasks: dict[str, asyncio.Task[None]] = {}  # at most one per app

    def warn(self, plan: AppPlan) -> None:
        """Warn people whose jobs could not be handed over now, before the first is due."""
        self._begin(plan.name, self._warn(plan))

    def probe(self, dispatcher: Dispatcher) -> None:
        """See whether the destination of an app that is held back takes jobs again, unless one becomes due first."""
        if dispatcher.app not in self.tasks and not self._stopped:
            self._begin(dispatcher.app, self._probe(dispatcher))

    async def stop(self) -> None:
        """Look no more."""
        self._stopped = True
        tasks = list(self.tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, app: str, look: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(look, name=f"destination of {app}")
        self.tasks[app] = task
        task.add_done_callback(lambda _: self.tasks.pop(app))

    async def _warn(self, plan: AppPlan) -> None:
        try:
            async with self._places:
                await plan.handler.ready()
        except DestinationAway as error:
            self._tell(DestinationUnready(app=plan.name, error=str(error)))
        except Exception as error:  # noqa: BLE001 - a handler may raise anything
            self._tell(TaskFailed(part=f"destination of {plan.name}", error=describe(error)))

    async def _probe(self, dispatcher: Dispatcher) -> None:
        async with self._places:
            if dispatcher.lacks_probe:
                await dispatcher.look()
