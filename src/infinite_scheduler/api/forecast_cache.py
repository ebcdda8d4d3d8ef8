"""Keeps forecasts for a while: counting many rows once is enough for all who ask."""

import asyncio
from collections import OrderedDict
from typing import Final, NamedTuple

from infinite_scheduler.api.api_context import ApiContext
from infinite_scheduler.store.ledger import ForecastQuery
from infinite_scheduler.views.forecast import ForecastView, Zoom, forecast_view

FRESH_MS: Final = {Zoom.MINUTES: 10_000, Zoom.HOURS: 60_000}
"""How old a forecast may be. One by days is read off counters each time: that is cheap."""

MOST: Final = 100
"""How many forecasts are kept: of other apps or other times, the one that was asked for longest ago goes first."""


class Kept(NamedTuple):
    """A forecast that is being made, or was made at this moment of the steady clock."""

    made: "asyncio.Task[ForecastView]"
    asked_ms: int


class ForecastCache:
    """The forecasts of one process. Each is made once, however many ask for it meanwhile."""

    def __init__(self) -> None:
        self._kept: OrderedDict[ForecastQuery, Kept] = OrderedDict()

    async def forecast(self, api: ApiContext, zoom: Zoom, query: ForecastQuery) -> ForecastView:
        """A forecast that is fresh enough; errors are not kept."""
        fresh_ms = FRESH_MS.get(zoom)
        if fresh_ms is None:
            return await _made(api, query)
        now_ms = api.clock.steady_ms()
        kept = self._kept.get(query)
        if kept is None or _is_old(kept, now_ms - fresh_ms):
            kept = Kept(asyncio.create_task(_made(api, query)), now_ms)
            self._kept[query] = kept
            kept.made.add_done_callback(_note)
        self._kept.move_to_end(query)
        if len(self._kept) > MOST:
            self._kept.popitem(last=False)
        return await asyncio.shield(kept.made)  # whoever goes away leaves it to the others


async def _made(api: ApiContext, query: ForecastQuery) -> ForecastView:
    return forecast_view(query, await api.client.ledger.forecast(query))


def _is_old(kept: Kept, before_ms: int) -> bool:
    """One that is still being made is not old, however long it takes."""
    made = kept.made
    return made.done() and (kept.asked_ms <= before_ms or made.cancelled() or made.exception() is not None)


def _note(made: "asyncio.Task[ForecastView]") -> None:
    if not made.cancelled():
        made.exception()  # whoever waits is told; if no one does, nothing else may complain
