"""Operations for those who watch: does this process live, can it accept jobs, is anything wrong elsewhere?"""

import asyncio
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from infinite_scheduler.api.api_context import ApiContext
from infinite_scheduler.api.operation import ApiRequest, Operation, RawAnswer, Reply, Subject
from infinite_scheduler.api.refusal import NO_PATH, NOT_READY, Refusal
from infinite_scheduler.errors import SchedulerError
from infinite_scheduler.store.ledger import Role
from infinite_scheduler.store.looking import Survey
from infinite_scheduler.views.alarm import Alarm, alarms

PATIENCE_S: Final = 2.0
"""How long a look at the store may take before this process counts as not ready."""

METRICS_PATH: Final = "/metrics"

OK: Final = 200
ALARM: Final = 503


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """All is well, as far as was asked."""

    status: Literal["ok"] = "ok"


class Alarms(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong, if anything is."""

    alarms: Sequence[Alarm]


async def live(api: ApiContext, request: ApiRequest) -> Health:
    """The event loop turns: it has just answered."""
    del api, request
    return Health()


async def ready(api: ApiContext, request: ApiRequest) -> Health:
    """Jobs can be accepted durably now: the store answers, and the queue in front of it is not full."""
    del request
    api.check_room(1, 0)
    await _look(api)
    return Health()


async def show_alarms(api: ApiContext, request: ApiRequest) -> Reply:
    """What is wrong anywhere: 503 if anything is."""
    del request
    found = alarms(await _look(api), api.now_ms, api.lease_ms, overdue_alarm_ms=api.overdue_alarm_ms)
    return Reply(value=Alarms(alarms=found), status=ALARM if found else OK)


async def metrics(api: ApiContext, request: ApiRequest) -> RawAnswer:
    """What this process has counted."""
    del request
    if api.metrics is None:
        raise Refusal(NO_PATH, "this process has no metrics: ask a node")
    return RawAnswer(*await api.metrics())


async def _look(api: ApiContext) -> Survey:
    """Look at the store, not for long. A look that takes longer is left to end by itself."""
    look = asyncio.ensure_future(api.client.survey())
    done, _ = await asyncio.wait({look}, timeout=PATIENCE_S)
    if not done:
        look.add_done_callback(_forget)
        raise Refusal(NOT_READY, f"the store has not answered within {PATIENCE_S:g} s")
    try:
        return look.result()
    except SchedulerError as error:
        raise Refusal(NOT_READY, f"the store cannot be used: {error}") from None


def _forget(look: "asyncio.Future[Survey]") -> None:
    if not look.cancelled():
        look.exception()  # whoever asked has gone: nothing else may complain


HEALTH_OPERATIONS = (
    Operation(
        name="live",
        subject=Subject.HEALTH,
        method="GET",
        path="/health/live",
        summary="Does this process live? It does if it answers.",
        role=None,
        call=live,
        answer=Health,
    ),
    Operation(
        name="ready",
        subject=Subject.HEALTH,
        method="GET",
        path="/health/ready",
        summary="Can this process accept jobs durably now? The store is looked at, for two seconds at most.",
        role=None,
        call=ready,
        answer=Health,
    ),
    Operation(
        name="alarms",
        subject=Subject.HEALTH,
        method="GET",
        path="/health/alarms",
        summary="Is anything wrong in the cluster that a person should look at? 503 if so.",
        role=None,
        call=show_alarms,
        answer=Alarms,
        more_statuses=(ALARM,),
    ),
    Operation(
        name="metrics",
        subject=Subject.HEALTH,
        method="GET",
        path=METRICS_PATH,
        summary='What this process has counted, for Prometheus. With http.metrics = "open" no token is needed.',
        role=Role.READ,
        call=metrics,
        answer=str,
        answer_type="text/plain",
    ),
)
