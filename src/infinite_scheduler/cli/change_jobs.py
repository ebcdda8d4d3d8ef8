"""Commands that change jobs: cancel, reschedule, run now and retry, by ids or all that match."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from rich.progress import Progress, SpinnerColumn, TextColumn

from infinite_scheduler.bulk_change.job_changes import UNDECIDED, BulkChange, BulkPreview, RefusedChange, change_each
from infinite_scheduler.cli.confirm import confirmed
from infinite_scheduler.cli.jobs import print_jobs
from infinite_scheduler.cli.output import console
from infinite_scheduler.cli.run import EXIT_CODES
from infinite_scheduler.cli.store_session import StoreSession
from infinite_scheduler.errors import InvalidRequest, SchedulerError
from infinite_scheduler.model import Change, JobRecord
from infinite_scheduler.views.job import job_view
from infinite_scheduler.views.times import when

UNCHANGED: Final = 1

_OPTIONS: Final = {
    "app": "--app", "status": "--status", "start": "--from", "end": "--to", "tag": "--tag", "job_name": "--name",
    "group": "--group", "request_id": "--request-id", "idempotency_key": "--key", "error": "--error",
}  # fmt: skip


class JobChange(NamedTuple):
    """What is to be done to jobs."""

    change: Change
    at: str | None = None
    delay: str | None = None

    @property
    def order(self) -> str:
        """As it is asked for: cancel, reschedule."""
        return self.change.replace("_", " ")

    @property
    def done(self) -> str:
        """As it is told afterwards, in front of an id or of a number of jobs."""
        return _DONE[self.change]


_DONE: Final[Mapping[Change, str]] = {
    Change.CANCEL: "cancelled",
    Change.RESCHEDULE: "rescheduled",
    Change.RUN_NOW: "runs now:",
    Change.RETRY: "tried again:",
}


def check_choice(change: JobChange, ids: Sequence[str], filters: Mapping[str, Any], *, preview: bool) -> None:
    """Refuse what cannot be meant, before the store is opened."""
    if change.change is Change.RESCHEDULE and (change.at is None) == (change.delay is None):
        raise InvalidRequest("give the time: either --at MOMENT or --in DELAY")
    if not ids and not filters:
        raise InvalidRequest("say which jobs: either their ids, or options that choose them, such as --app and --tag")
    given = [_OPTIONS[name] for name in filters] + (["--preview"] if preview else [])
    if ids and given:
        raise InvalidRequest(f"{', '.join(given)} cannot be combined with ids: leave out one of them")


# By ids


async def change_by_ids(session: StoreSession, change: JobChange, ids: Sequence[str]) -> int:
    """Change these jobs; one that cannot be changed says why, and the others are changed."""
    if len(ids) == 1:
        print_change(session, change, await _change_one(session, change, ids[0]))
        return 0
    ends = await change_each(ids, lambda job_id: _change_one(session, change, job_id))
    refused = []
    for job_id, end in zip(ids, ends, strict=True):
        if isinstance(end, JobRecord):
            print_change(session, change, end)
        elif end is not None:
            refused.append(RefusedChange(job_id, end))
    _print_refused(session, refused)
    return _exit_code(refused)


async def _change_one(session: StoreSession, change: JobChange, job_id: str) -> JobRecord:
    client = session.client
    match change.change:
        case Change.CANCEL:
            return await client.cancel(job_id)
        case Change.RESCHEDULE:
            return await client.reschedule(job_id, at=change.at, delay=change.delay)
        case Change.RUN_NOW:
            return await client.run_now(job_id)
        case Change.RETRY:
            return await client.retry(job_id)


def print_change(session: StoreSession, change: JobChange, record: JobRecord) -> None:
    """How a job is after the change."""
    if session.out.as_json:
        session.out.record(job_view(record))
    elif record.status.final:
        session.out.say(f"{change.done} {record.id}")
    else:
        session.out.say(f"{change.done} {record.id}, due {when(record.job.due_ms, session.now_ms)}")


# By a filter


async def change_by_filter(
    session: StoreSession, change: JobChange, filters: Mapping[str, Any], *, preview: bool, yes: bool
) -> int:
    """Change all jobs that match, after a look at what they are and a yes."""
    bulk = session.client.bulk_change(change.change, at=change.at, delay=change.delay, **filters)
    if preview:
        _print_preview(session, await bulk.preview())
        return 0
    if not yes:
        found = await bulk.preview()
        if found.count or found.at_least:
            if not session.out.as_json:
                _print_preview(session, found)
            if not _is_confirmed(change, found):
                session.out.note("nothing was changed")
                return UNCHANGED
    return await _run(session, change, bulk)


def _is_confirmed(change: JobChange, found: BulkPreview) -> bool:
    count = _count(found.count, at_least=found.at_least)
    order = change.order
    return confirmed(
        f"{order.capitalize()} {count}?", f"nothing was changed: add --yes to {order} {count} without being asked"
    )


def _print_preview(session: StoreSession, found: BulkPreview) -> None:
    views = [job_view(record) for record in found.jobs]
    if session.out.as_json:
        session.out.record({"count": found.count, "at_least": found.at_least, "jobs": views})
        return
    if views:
        print_jobs(session, views)
    shown = f"; {len(views)} of them are shown" if len(views) < found.count or found.at_least else ""
    session.out.note(f"{_count(found.count, at_least=found.at_least)} would be changed{shown}")


async def _run(session: StoreSession, change: JobChange, bulk: BulkChange) -> int:
    """Step by step until all were met; an end in the middle says what was done until then."""
    tally = _JobTally(change)
    cursor: str | None = None
    with _progress(tally) as show:
        try:
            while True:
                step = await bulk.step(cursor)
                tally.changed += step.changed
                tally.refused += len(step.refused)
                tally.code = tally.code or _exit_code(step.refused)
                _print_refused(session, step.refused)
                show()
                if step.stopped is not None:
                    raise step.stopped
                cursor = step.cursor
                if cursor is None:
                    break
        except SchedulerError as error:
            if tally.changed or tally.refused:
                _print_stop(session, tally, error)
            raise
    if session.out.as_json:
        session.out.record({"changed": tally.changed, "refused": tally.refused})
    else:
        session.out.say(tally.sentence())
    return tally.code


class _JobTally:
    """What has been done so far."""

    def __init__(self, change: JobChange) -> None:
        self._done = change.done
        self.changed = self.refused = self.code = 0

    def sentence(self) -> str:
        if not self.changed and not self.refused:
            return "no jobs match"
        refused = f"; {self.refused:,} refused" if self.refused else ""
        return f"{self._done} {_count(self.changed)}{refused}"


def _print_stop(session: StoreSession, tally: _JobTally, error: SchedulerError) -> None:
    if session.out.as_json:
        session.out.record({"changed": tally.changed, "refused": tally.refused, "stopped": str(error)})
    else:
        again = "; run the command again to go on" if isinstance(error, UNDECIDED) else ""
        session.out.note(f"stopped: {tally.sentence()}{again}")


def _print_refused(session: StoreSession, refused: Sequence[RefusedChange]) -> None:
    for one in refused:
        if session.out.as_json:
            session.out.record({"id": one.id, "error": str(one.error)})
        else:
            session.out.note(str(one.error), style="red")


def _exit_code(refused: Sequence[RefusedChange]) -> int:
    """That of the first refusal."""
    return EXIT_CODES[refused[0].error.kind] if refused else 0


def _count(number: int, *, at_least: bool = False) -> str:
    return f"{'at least ' if at_least else ''}{number:,} job{'' if number == 1 else 's'}"


@contextmanager
def _progress(tally: _JobTally) -> Iterator[Any]:
    """How far it is, on a terminal."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        task = progress.add_task("looking")
        yield lambda: progress.update(task, description=tally.sentence())
