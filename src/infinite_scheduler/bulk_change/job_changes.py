"""Changes all jobs that match a filter: cancel, reschedule, run now or retry, a thousand jobs per step.

A step looks at one page of the list and changes the jobs on it; its cursor is a place in the list, so that those which
leave the list move no other. No job is met again by the same change:

- A cancelled job is not pending any more, and a retried one keeps its place among the failed ones, behind the cursor.
- A job that is moved may come to lie ahead of the cursor. Those that are due at the new moment, or that have become due
  since, are left alone: they are where the change would put them. So the moment is fixed by the first step.

A step in which some changes were not decided, as the store or the owner of a shard did not answer or the store is
broken, gives the cursor with which it was called: its page is looked at again, and what was changed is not on it any
more, or has ended again since.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeGuard, TypeVar
from zoneinfo import ZoneInfo

import msgspec

from infinite_scheduler.bulk_change.step_cursor import StepCursor
from infinite_scheduler.errors import InvalidRequest, SchedulerError, StoreBroken, StoreUnavailable, Unavailable
from infinite_scheduler.ingest.request import due_time
from infinite_scheduler.model import Change, JobRecord, Status, datetime_of, read_status
from infinite_scheduler.policy.calendar import Delay, parse_moment
from infinite_scheduler.store.looking import Found

MOST_JOBS: Final = 1000
"""Jobs that one step changes at most."""

SHOWN: Final = 10
"""Jobs that a preview shows."""

TOGETHER: Final = 500
"""Changes that wait for their owners at once: as many as the store takes in one transaction."""

AHEAD_MS: Final = 5000
"""How far the clock of another process may be ahead: jobs accepted or ended later are not of the chosen ones."""

UNDECIDED: Final = (Unavailable, StoreBroken)
"""Errors after which nothing is decided: the same change may succeed later. All others are refusals."""

RETRYABLE: Final = (Status.FAILED, Status.EXPIRED, Status.CANCELLED)
_NARROWING: Final = ("app", "tag", "job_name", "group", "request_id", "idempotency_key", "error")


class JobAccess(NamedTuple):
    """What a bulk change asks of a client."""

    find: Callable[..., Awaitable[Found]]
    change: Callable[[Change, JobRecord, int | None], Awaitable[JobRecord]]
    now_ms: Callable[[], int]
    zone: ZoneInfo


class RefusedChange(msgspec.Struct, frozen=True):
    """A job that was not changed, and why."""

    id: str
    error: SchedulerError


class BulkPreview(msgspec.Struct, frozen=True, kw_only=True):
    """What a bulk change would meet: one look, with the first jobs that it found."""

    count: int
    at_least: bool  # the look had a bound, and there may be more
    jobs: Sequence[JobRecord]


class BulkResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a bulk change has done; `cursor` goes on, and is None when all jobs were met."""

    changed: int
    refused: Sequence[RefusedChange]
    cursor: str | None
    searched_to_ms: int | None  # up to this moment all was looked at; None: there is nothing more
    stopped: SchedulerError | None = None  # why some were not decided: go on with the cursor later


class BulkChange:
    """A change of all jobs that match a filter; see `Client.bulk_change`."""

    def __init__(
        self,
        access: JobAccess,
        change: Change | str,
        filters: Mapping[str, Any],
        *,
        at: Any = None,
        delay: Delay | None = None,
    ) -> None:
        self._access = access
        self._change = _read_change(change)
        self._filters = {name: value for name, value in filters.items() if value is not None}
        self._filters["status"] = _status(self._change, self._filters.get("status"))
        self._time = (at, delay)
        self._started_ms = access.now_ms()
        if not any(name in self._filters for name in _NARROWING):
            raise InvalidRequest("the filter would choose jobs of every app: name at least an app")
        if self._change is not Change.RESCHEDULE and (at is not None or delay is not None):
            raise InvalidRequest(f"a time is only for reschedule: leave it out to {_words(self._change)} jobs")
        self._target_ms(self._started_ms)

    async def preview(self) -> BulkPreview:
        """Look at the first page of what would be changed, and change nothing."""
        page, wanted = await self._look(StepCursor(self._started_ms), MOST_JOBS)
        return BulkPreview(count=len(wanted), at_least=page.cursor is not None, jobs=wanted[:SHOWN])

    async def step(self, cursor: str | None = None, limit: int | None = None) -> BulkResult:
        """Change the jobs of one page, at most `limit` or a thousand; go on with the cursor until it is None.

        Raises StoreUnavailable if the store does not answer before anything is changed, and likewise Unavailable and
        StoreBroken.
        """
        limit = MOST_JOBS if limit is None else limit
        if not 1 <= limit <= MOST_JOBS:
            raise InvalidRequest(f"limit is {limit}; expected 1 to {MOST_JOBS}")
        place = StepCursor(self._started_ms) if cursor is None else StepCursor.parse(cursor, self._described)
        page, wanted = await self._look(place, limit)
        due_ms = self._target_ms(place.started_ms) if self._change is Change.RESCHEDULE else None
        ends = await change_each(wanted, lambda job: self._access.change(self._change, job, due_ms), stops=True)
        changed = sum(isinstance(end, JobRecord) for end in ends)
        refused = [RefusedChange(job.id, end) for job, end in zip(wanted, ends, strict=True) if _is_refusal(end)]
        stopped = next((end for end in ends if isinstance(end, UNDECIDED)), None)
        if stopped is not None:
            if not changed and not refused:
                raise stopped
            cursor = place.text(self._described)
            return BulkResult(changed=changed, refused=refused, cursor=cursor, searched_to_ms=None, stopped=stopped)
        following = None if page.cursor is None else msgspec.structs.replace(place, place=page.cursor)
        return BulkResult(
            changed=changed,
            refused=refused,
            cursor=None if following is None else following.text(self._described),
            searched_to_ms=page.searched_to_ms,
        )

    async def run(self, cursor: str | None = None) -> BulkResult:
        """Change all jobs, step by step; what was done is in the result, also if the store goes away in the middle."""
        done = BulkResult(changed=0, refused=(), cursor=cursor, searched_to_ms=None)
        while True:
            try:
                step = await self.step(done.cursor)
            except UNDECIDED as error:
                if not done.changed and not done.refused:
                    raise
                return msgspec.structs.replace(done, stopped=error)
            step = msgspec.structs.replace(
                step, changed=done.changed + step.changed, refused=[*done.refused, *step.refused]
            )
            if step.cursor is None or step.stopped is not None:
                return step
            done = step

    @property
    def _described(self) -> tuple[Any, ...]:
        return (self._change, self._filters, self._time)

    async def _look(self, place: StepCursor, limit: int) -> tuple[Found, Sequence[JobRecord]]:
        """One page of the list, and the jobs on it that are to be changed."""
        filters = dict(self._filters)
        for name in ("start", "end"):
            if name in filters:
                at_ms = parse_moment(filters[name], now_ms=place.started_ms, zone=self._access.zone)
                filters[name] = datetime_of(at_ms)  # a small number would be taken for a mistake
        page = await self._access.find(**filters, limit=limit, cursor=place.place)
        there = [record for record in page.records if _since_ms(record) <= place.started_ms + AHEAD_MS]
        target_ms = self._target_ms(place.started_ms)
        if target_ms is None:
            return page, there
        latest_ms = max(target_ms, self._access.now_ms())
        return page, [record for record in there if not target_ms <= record.job.due_ms <= latest_ms]

    def _target_ms(self, started_ms: int) -> int | None:
        """The moment to which jobs are moved, if they are; a past one means now."""
        if self._change is Change.RUN_NOW:
            return started_ms
        if self._change is not Change.RESCHEDULE:
            return None
        at, delay = self._time
        return max(started_ms, due_time(at, delay, now_ms=started_ms, zone=self._access.zone)[0])


ChangeEnd = JobRecord | SchedulerError
Chosen = TypeVar("Chosen")  # an id, or a job that was looked up


async def change_each(
    jobs: Sequence[Chosen], change: Callable[[Chosen], Awaitable[JobRecord]], *, stops: bool = False
) -> Sequence[ChangeEnd | None]:
    """Change these jobs, many at once: each is the job after the change, or why it was not changed.

    With `stops`, no further change is begun once the store does not answer, and the ends of those jobs are None.
    """
    places, away = asyncio.Semaphore(TOGETHER), asyncio.Event()

    async def one(job: Chosen) -> ChangeEnd | None:
        async with places:
            if away.is_set() and stops:
                return None
            try:
                return await change(job)
            except SchedulerError as error:
                if isinstance(error, StoreUnavailable | StoreBroken):
                    away.set()
                return error

    return await asyncio.gather(*(one(job) for job in jobs))


def _since_ms(record: JobRecord) -> int:
    """Since when it is as it is chosen: accepted and waiting, or ended; a retried job may have ended again."""
    return record.job.created_ms if record.finished_ms is None else record.finished_ms


def _is_refusal(end: ChangeEnd | None) -> TypeGuard[SchedulerError]:
    """Was it decided that the job is not changed? What is not decided is met again."""
    return isinstance(end, SchedulerError) and not isinstance(end, UNDECIDED)


def _read_change(change: Change | str) -> Change:
    try:
        return Change(change)
    except ValueError:
        raise InvalidRequest(f"unknown change {change!r}; use one of {', '.join(Change)}") from None


def _status(change: Change, given: Status | str | None) -> Status:
    """The status that jobs must have for this change."""
    status = read_status(given)
    if change is Change.RETRY:
        if status not in RETRYABLE:
            raise InvalidRequest("say which jobs to retry: status failed, expired or cancelled")
        return status
    if status not in (None, Status.PENDING):
        raise InvalidRequest(
            f"{status} jobs are settled: {_words(change)} is for pending ones, so leave the status out"
        )
    return Status.PENDING


def _words(change: Change) -> str:
    return change.replace("_", " ")
