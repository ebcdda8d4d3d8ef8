"""Writes down what operators did, by which token, from where, and how it ended."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from infinite_scheduler.api.api_context import ApiContext
from infinite_scheduler.api.operation import Actor
from infinite_scheduler.errors import SchedulerError, Unavailable
from infinite_scheduler.store.abilities import Ability
from infinite_scheduler.store.ledger import AuditQuery, AuditRecord
from infinite_scheduler.store.sortable_id import sortable_id

DONE = "done"


@asynccontextmanager
async def audited(api: ApiContext, actor: Actor, verb: str, target: str) -> AsyncIterator[None]:
    """Record an action when it has ended: as done, or with the error that ended it."""
    try:
        yield
    except SchedulerError as error:
        with suppress(Unavailable):  # a store that is away takes no record either, and the caller knows by the error
            await record(api, actor, verb, target, result=str(error))
        raise
    await record(api, actor, verb, target)


async def records_of(api: ApiContext, target: str) -> Sequence[AuditRecord]:
    """What was done to this target, newest first; nothing where the store keeps no audit."""
    if Ability.AUDIT not in api.client.abilities:
        return ()
    return (await api.client.ledger.records(AuditQuery(target=target))).records


async def record(api: ApiContext, actor: Actor, verb: str, target: str, *, count: int = 1, result: str = DONE) -> None:
    """Write one record, if this kind of store keeps an audit."""
    if Ability.RECORDS not in api.client.abilities:
        return
    now_ms = api.now_ms
    row = AuditRecord(
        id=sortable_id(now_ms),
        at_ms=now_ms,
        who=actor.name,
        address=actor.address,
        verb=verb,
        target=target,
        count=count,
        result=result,
    )
    await api.client.ledger.record([row])
